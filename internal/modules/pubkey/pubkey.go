// Package pubkey is the module that tells a host's public key. Its tool stands
// beside those of the auth module.
package pubkey

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"strings"

	"gatehouse/module"
	"gatehouse/tool"
)

// Config is what the module is given.
type Config struct {
	// Recipient is the host's public key as age writes it; nil means that it
	// has none.
	Recipient func() (string, error) `json:"-"`
}

type teller struct {
	cfg   Config
	offer module.Offer
}

// New makes the module.
func New(cfg Config) module.New {
	return func(_ context.Context, d module.Deps) (module.Module, error) {
		t := &teller{}
		t.cfg = cfg
		t.offer.Tools = []tool.Tool{tool.New(tool.Def{
			Name: "auth_pubkey", Title: "Show this host's public key", Effects: tool.Reads, Task: tool.TaskNever, Aliases: []string{"auth.get-pubkey"},
			Description: "Tells this host's public key, as a JWK and in the form of age. What is encrypted to it only this host can read.",
			Help:        "It is the key to which the host's secrets are encrypted; the private one is in secrets.key, in its config folder. `age -r` encrypts to it, and `gatehouse backup create --recipient` makes backups that are opened with `--identity secrets.key`. kid is the key's thumbprint (RFC 7638).",
		}, t.tell)}
		return t, nil
	}
}

// Offer implements module.Module.
func (t *teller) Offer(context.Context, module.Audience) (*module.Offer, error) { return &t.offer, nil }

// Close implements module.Module.
func (t *teller) Close(context.Context) error { return nil }

type keyOut struct {
	Type  string `json:"kty"`
	Curve string `json:"crv"`
	X     string `json:"x"`
	ID    string `json:"kid"`
	Use   string `json:"use"`
	Age   string `json:"age"`
}

func (t *teller) tell(context.Context, *tool.Call, struct{}) (keyOut, error) {
	if t.cfg.Recipient == nil {
		return keyOut{}, tool.Refuse("unsupported", "this host keeps no key")
	}
	public, err := t.cfg.Recipient()
	if err != nil {
		return keyOut{}, err
	}
	raw, err := decode(public)
	if err != nil {
		return keyOut{}, err
	}
	x := base64.RawURLEncoding.EncodeToString(raw)
	// The members that are needed, in the order of their names, without spaces.
	sum := sha256.Sum256(fmt.Appendf(nil, `{"crv":"X25519","kty":"OKP","x":%q}`, x))
	return keyOut{"OKP", "X25519", x, base64.RawURLEncoding.EncodeToString(sum[:]), "enc", public}, nil
}

// letters are those of Bech32, by what they stand for.
const letters = "qpzry9x8gf2tvdw0s3jn54khce6mua7l"

// decode reads the 32 bytes of a key out of age1..., which age itself has
// written: its checksum is not looked at.
func decode(public string) ([]byte, error) {
	const checksum = 6
	data, ok := strings.CutPrefix(public, "age1")
	if !ok || len(data) < checksum {
		return nil, fmt.Errorf("the key is none of age: %.20q", public)
	}
	var raw []byte
	bits, held := uint32(0), 0
	for _, c := range []byte(data[:len(data)-checksum]) {
		v := strings.IndexByte(letters, c)
		if v < 0 {
			return nil, fmt.Errorf("the key is none of age: %.20q", public)
		}
		bits, held = bits<<5|uint32(v), held+5
		if held >= 8 {
			held -= 8
			raw = append(raw, byte(bits>>held))
		}
	}
	if len(raw) != 32 {
		return nil, fmt.Errorf("the key has %d bytes, expected 32", len(raw))
	}
	return raw, nil
}
