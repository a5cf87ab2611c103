package pubkey

import (
	"crypto/ecdh"
	"encoding/base64"
	"errors"
	"testing"

	"gatehouse/internal/access/secret"
	"gatehouse/module"
	"gatehouse/module/moduletest"
	"gatehouse/tool"
)

func ask(t *testing.T, recipient func() (string, error)) (keyOut, error) {
	t.Helper()
	m, err := New(Config{Recipient: recipient})(t.Context(), module.Deps{})
	if err != nil {
		t.Fatal(err)
	}
	o, err := m.Offer(t.Context(), module.Audience{})
	if err != nil {
		t.Fatal(err)
	}
	res, err := moduletest.NewCall(t).Tool(t.Context(), o.Tools[0])
	out, _ := res.Structured.(keyOut)
	return out, err
}

func TestTheKeyIsThatOfAge(t *testing.T) {
	s := secret.In(t.TempDir(), "")
	k, err := ask(t, s.Recipient)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := base64.RawURLEncoding.DecodeString(k.X)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ecdh.X25519().NewPublicKey(raw); err != nil || k.Type != "OKP" || k.Curve != "X25519" ||
		len(k.ID) != 43 || k.Age == "" {
		t.Errorf("got %+v, %v", k, err)
	}
	if again, err := ask(t, s.Recipient); err != nil || again != k {
		t.Errorf("then it is %+v, %v", again, err)
	}
}

func TestBytesAreRead(t *testing.T) {
	// 0x00 to 0x1f in groups of five bits, with six letters for a checksum.
	raw, err := decodeKey("age1" + encode(t) + "qqqqqq")
	if err != nil {
		t.Fatal(err)
	}
	for i, b := range raw {
		if int(b) != i {
			t.Fatalf("byte %d is %d", i, b)
		}
	}
	for _, bad := range []string{"", "age1", "age1qqqqqq", "age1b" + encode(t)[1:] + "qqqqqq", "AGE-SECRET-KEY-1"} {
		if _, err := decodeKey(bad); err == nil {
			t.Errorf("%q is a key", bad)
		}
	}
}

func encode(t *testing.T) string {
	t.Helper()
	var text []byte
	bits, held := uint32(0), 0
	for i := range 32 {
		bits, held = bits<<8|uint32(i), held+8
		for held >= 5 {
			held -= 5
			text = append(text, letters[bits>>held&31])
		}
	}
	return string(append(text, letters[bits<<(5-held)&31]))
}

func TestWhereThereIsNoKey(t *testing.T) {
	if _, err := ask(t, nil); err == nil {
		t.Error("there is a key")
	} else if r, ok := errors.AsType[*tool.Refusal](err); !ok || r.Code != "unsupported" {
		t.Errorf("got %v", err)
	}
	no := errors.New("no luck")
	if _, err := ask(t, func() (string, error) { return "", no }); !errors.Is(err, no) {
		t.Errorf("got %v", err)
	}
}

func TestTheModuleKeepsTheContract(t *testing.T) {
	moduletest.Run(t, New(Config{}), moduletest.Options{})
}
