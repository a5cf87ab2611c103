package alert

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/ecdh"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"io"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// The example of RFC 8291, section 5, byte for byte.
func TestTheExampleOfTheRFC(t *testing.T) {
	decode := func(s string) []byte {
		b, err := text.DecodeString(s)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	key, err := ecdh.P256().NewPrivateKey(decode("yfWPiYE-n46HLnH0KqZOF1fJJU3MYrct3AELtAQ-oRw"))
	if err != nil {
		t.Fatal(err)
	}
	sub := Subscription{
		Key:  "BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4",
		Auth: "BTBZMqHH6r4Tts7J_aSIgg",
	}
	got, err := encrypt(sub, []byte("When I grow up, I want to be a watermelon"), key, decode("DGv6ra1nlYgDCS1FRnbzlw"))
	if err != nil {
		t.Fatal(err)
	}
	const want = "DGv6ra1nlYgDCS1FRnbzlwAAEABBBP4z9KsN6nGRTbVYI_c7VJSPQTBtkgcy27mlmlMoZIIgDll6e3vCYLocInmYWAmS6Tlz" +
		"AC8wEqKK6PBru3jl7A_yl95bQpu6cVPTpK4Mqgkf1CXztLVBSt2Ks3oZwbuwXPXLWyouBWLVWGNWQexSgSxsj_Qulcy4a-fN"
	if text.EncodeToString(got) != want {
		t.Errorf("the message is\n%s, want\n%s", text.EncodeToString(got), want)
	}
}

// service is a push service and the receiver of a webhook.
type service struct {
	*httptest.Server
	mu     sync.Mutex
	status int
	got    []*http.Request
	bodies []string
}

func newService(t *testing.T) *service {
	s := &service{status: 201}
	s.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.got, s.bodies = append(s.got, r), append(s.bodies, string(b))
		w.WriteHeader(s.status)
	}))
	t.Cleanup(s.Close)
	return s
}

// browser makes a subscription, and decrypts what arrives for it.
type browser struct {
	key  *ecdh.PrivateKey
	auth []byte
}

func newBrowser(t *testing.T) browser {
	t.Helper()
	key, err := ecdh.P256().GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	auth := make([]byte, 16)
	rand.Read(auth)
	return browser{key, auth}
}

func (b browser) subscription(user, endpoint string) Subscription {
	return Subscription{
		User: user, Endpoint: endpoint, Key: text.EncodeToString(b.key.PublicKey().Bytes()),
		Auth: text.EncodeToString(b.auth),
	}
}

func (b browser) open(t *testing.T, body string) string {
	t.Helper()
	salt, sender, sealed := body[:16], body[21:86], body[86:]
	from, err := ecdh.P256().NewPublicKey([]byte(sender))
	if err != nil {
		t.Fatal(err)
	}
	shared, _ := b.key.ECDH(from)
	ikm, _ := hkdf.Key(sha256.New, shared, b.auth, "WebPush: info\x00"+string(b.key.PublicKey().Bytes())+sender, 32)
	key, _ := hkdf.Key(sha256.New, ikm, []byte(salt), "Content-Encoding: aes128gcm\x00", 16)
	nonce, _ := hkdf.Key(sha256.New, ikm, []byte(salt), "Content-Encoding: nonce\x00", 12)
	block, _ := aes.NewCipher(key)
	gcm, _ := cipher.NewGCM(block)
	plain, err := gcm.Open(nil, nonce, []byte(sealed), nil)
	if err != nil || plain[len(plain)-1] != 2 {
		t.Fatalf("the message cannot be read: %q, %v", plain, err)
	}
	return string(plain[:len(plain)-1])
}

func sender(t *testing.T, s *service, change func(*Options)) *Sender {
	t.Helper()
	o := Options{
		Path: filepath.Join(t.TempDir(), "data", "alerts.json"), Contact: "https://tools.example.com",
		Link: func(path string) string { return "https://tools.example.com" + path }, Client: s.Client(), Hook: s.Client(),
	}
	change(&o)
	return New(o)
}

const path = "/#/approvals/ap_1"

// A browser and a webhook get a link and nothing else, and the push service knows which host it is from.
func TestALinkIsSentAndNothingElse(t *testing.T) {
	s := newService(t)
	a := sender(t, s, func(o *Options) { o.Webhook = s.URL + "/hook" })
	b := newBrowser(t)
	if _, err := a.Add(t.Context(), b.subscription("alice", s.URL+"/push/1")); err != nil {
		t.Fatal(err)
	}
	if sent := a.Send(t.Context(), path); sent.Delivered != 2 || sent.Failed != nil {
		t.Fatalf("%+v", sent)
	}
	if want := `{"link":"https://tools.example.com/#/approvals/ap_1","text":"A call waits for approval: ` +
		`https://tools.example.com/#/approvals/ap_1"}`; s.bodies[0] != want {
		t.Errorf("the webhook got %s", s.bodies[0])
	}
	if a.Send(t.Context(), "/#/review/st_1"); !strings.Contains(s.bodies[2], "A staged task expires soon: https://") {
		t.Errorf("the webhook got %s", s.bodies[2])
	}
	if got := b.open(t, s.bodies[1]); got != `{"link":"/#/approvals/ap_1"}` {
		t.Errorf("the browser got %s", got)
	}
	checkVapid(t, a, s)
	if info, err := os.Stat(a.o.Path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file: %v, %v", info, err)
	}
}

func checkVapid(t *testing.T, a *Sender, s *service) {
	t.Helper()
	said := s.got[1].Header.Get("Authorization")
	token, key, ok := strings.Cut(strings.TrimPrefix(said, "vapid t="), ", k=")
	published, err := a.Key(t.Context())
	parts := strings.Split(token, ".")
	if !ok || err != nil || key != published || len(parts) != 3 {
		t.Fatalf("%q, %v", said, err)
	}
	raw, _ := text.DecodeString(key)
	public, err := ecdsa.ParseUncompressedPublicKey(elliptic.P256(), raw)
	if err != nil {
		t.Fatal(err)
	}
	signature, _ := text.DecodeString(parts[2])
	hash := sha256.Sum256([]byte(parts[0] + "." + parts[1]))
	if !ecdsa.Verify(public, hash[:], new(big.Int).SetBytes(signature[:32]), new(big.Int).SetBytes(signature[32:])) {
		t.Error("the signature is wrong")
	}
	var claims struct {
		Aud, Sub string
		Exp      int64
	}
	b, _ := text.DecodeString(parts[1])
	if err := json.Unmarshal(b, &claims); err != nil || claims.Aud != s.URL || claims.Sub != "https://tools.example.com" ||
		time.Until(time.Unix(claims.Exp, 0)) > 24*time.Hour {
		t.Errorf("%s, %v", b, err)
	}
}

// A subscription ends with its browser and with the rights of its user.
func TestSubscriptionsEnd(t *testing.T) {
	s := newService(t)
	may := true
	a := sender(t, s, func(o *Options) { o.Allowed = func(context.Context, string) bool { return may } })
	add := func() {
		t.Helper()
		if _, err := a.Add(t.Context(), newBrowser(t).subscription("alice", s.URL+"/push/1")); err != nil {
			t.Fatal(err)
		}
	}
	count := func() int {
		t.Helper()
		list, err := a.List()
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	add()
	s.status = 500
	if sent := a.Send(t.Context(), path); len(sent.Failed) != 1 || count() != 1 ||
		strings.Contains(sent.Failed[0], "/push/1") {
		t.Errorf("a service that fails: %+v, %d left", sent, count())
	}
	s.status = 410
	if a.Send(t.Context(), path); count() != 0 {
		t.Error("the subscription of a browser that left it is kept")
	}
	s.status = 201
	add()
	may = false
	if sent := a.Send(t.Context(), path); sent.Delivered != 0 || count() != 0 {
		t.Errorf("the user lost the right: %+v, %d left", sent, count())
	}
}

// Subscriptions that no browser made are refused, and their number has a limit.
func TestSubscriptionsAttacked(t *testing.T) {
	s := newService(t)
	a := sender(t, s, func(*Options) {})
	good := newBrowser(t).subscription("alice", s.URL)
	for name, change := range map[string]func(*Subscription){
		"http":          func(s *Subscription) { s.Endpoint = "http://example.com/x" },
		"file":          func(s *Subscription) { s.Endpoint = "file:///etc/passwd" },
		"no host":       func(s *Subscription) { s.Endpoint = "https:///x" },
		"a login":       func(s *Subscription) { s.Endpoint = "https://a:b@example.com/" },
		"long":          func(s *Subscription) { s.Endpoint += "/" + strings.Repeat("x", maxEndpoint) },
		"no key":        func(s *Subscription) { s.Key = "" },
		"a wrong point": func(s *Subscription) { s.Key = text.EncodeToString(append([]byte{4}, make([]byte, 64)...)) },
		"a short auth":  func(s *Subscription) { s.Auth = "AAAA" },
	} {
		bad := good
		change(&bad)
		if _, err := a.Add(t.Context(), bad); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for range ofOneUser + 3 {
		if _, err := a.Add(t.Context(), newBrowser(t).subscription("alice", s.URL+"/"+rand.Text())); err != nil {
			t.Fatal(err)
		}
	}
	if list, err := a.List(); err != nil || len(list) != ofOneUser {
		t.Errorf("one user has %d, %v", len(list), err)
	}
	if err := a.Remove(t.Context(), "al_none"); !errors.Is(err, ErrNotFound) {
		t.Errorf("remove one that is not there: %v", err)
	}
}
