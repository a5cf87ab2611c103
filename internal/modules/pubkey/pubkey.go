// Package pubkey is the module that returns the public key of the host. Its tool is
// offered together with those of the module auth.
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
	// Recipient returns the host's public key in the format of age; nil means that
	// the host has none.
	Recipient func() (string, error) `json:"-"`
}

type publicKey struct {
	cfg   Config
	offer module.Offer
}

// New returns what makes the module with a configuration.
func New(cfg Config) module.New {
	return func(_ context.Context, d module.Deps) (module.Module, error) {
		t := &publicKey{}
		t.cfg = cfg
		t.offer.Tools = []tool.Tool{tool.New(tool.Def{
			Name: "auth_pubkey", Title: "Show this host's public key", Effects: tool.Reads, Task: tool.TaskNever,
			Aliases: []string{"auth.get-pubkey"},
			Description: "Returns this host's public key, as a JWK and in the format of age. Only this host can " +
				"decrypt what is encrypted to it.",
			Help: "The host's secrets are encrypted to this key; the private key is in secrets.key in its " +
				"config folder. `age -r` encrypts to it, and `gatehouse backup create --recipient` makes backups " +
				"that `--identity secrets.key` decrypts. kid is the key's thumbprint (RFC 7638).",
		}, t.showKey)}
		return t, nil
	}
}

// Offer implements module.Module.
func (t *publicKey) Offer(context.Context, module.Audience) (*module.Offer, error) {
	return &t.offer, nil
}

// Close implements module.Module.
func (t *publicKey) Close(context.Context) error { return nil }

type keyOut struct {
	Type  string `json:"kty"`
	Curve string `json:"crv"`
	X     string `json:"x"`
	ID    string `json:"kid"`
	Use   string `json:"use"`
	Age   string `json:"age"`
}

func (t *publicKey) showKey(context.Context, *tool.Call, struct{}) (keyOut, error) {
	if t.cfg.Recipient == nil {
		return keyOut{}, tool.Refuse(tool.CodeUnsupported, "this host has no key")
	}
	public, err := t.cfg.Recipient()
	if err != nil {
		return keyOut{}, err
	}
	raw, err := decodeKey(public)
	if err != nil {
		return keyOut{}, err
	}
	x := base64.RawURLEncoding.EncodeToString(raw)
	// The required members in the order of their names, without spaces (RFC 7638).
	sum := sha256.Sum256(fmt.Appendf(nil, `{"crv":"X25519","kty":"OKP","x":%q}`, x))
	return keyOut{"OKP", "X25519", x, base64.RawURLEncoding.EncodeToString(sum[:]), "enc", public}, nil
}

// letters are the characters of Bech32, in the order of their values.
const letters = "qpzry9x8gf2tvdw0s3jn54khce6mua7l"

// decodeKey returns the 32 bytes of a key in the format age1... It does not verify the
// checksum, because age itself has written the key.
func decodeKey(public string) ([]byte, error) {
	const checksum = 6
	data, ok := strings.CutPrefix(public, "age1")
	if !ok || len(data) < checksum {
		return nil, fmt.Errorf("the key is not an age key: %.20q", public)
	}
	var raw []byte
	bits, held := uint32(0), 0
	for _, c := range []byte(data[:len(data)-checksum]) {
		v := strings.IndexByte(letters, c)
		if v < 0 {
			return nil, fmt.Errorf("the key is not an age key: %.20q", public)
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
