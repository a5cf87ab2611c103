// Package seal seals what a client carries for us, so that it cannot be read,
// changed or used for anything else.
//
// A token is sealed for one purpose (a constant of the room that seals), bound
// to bytes that both sides know (the owner, the method, a digest of the
// parameters) and valid until a time. It promises nothing about replay: the
// same token opens as often as it is shown before it expires.
//
// AES-256-GCM with a random 96-bit nonce: one key may seal 2^32 tokens, so a
// ring that is used hard is rotated long before that.
package seal

import (
	"crypto/aes"
	"crypto/cipher"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"time"
)

const (
	// MaxToken is the length in bytes above which Open refuses a token
	// without looking into it.
	MaxToken = 64 << 10
	// MaxPlain is how many bytes fit into a token that Open accepts.
	MaxPlain = MaxToken/4*3 - overhead

	version  = 1
	prefix   = 1 + 4 // version, key id
	expiry   = 8     // milliseconds since 1970, inside the sealed part
	never    = math.MaxInt64
	overhead = prefix + 12 + expiry + 16
)

var (
	// ErrAltered means that the token was not made by this ring for this
	// purpose and binding, or is no longer what it was. It says no more, so
	// that it teaches a forger nothing.
	ErrAltered = errors.New("the sealed value is not valid here")
	// ErrExpired means that the token is genuine and its time is over.
	ErrExpired = errors.New("the sealed value has expired")
)

var text = base64.RawURLEncoding.Strict()

// A Ring seals with its first key and opens with all of them. Safe for
// concurrent use.
type Ring struct {
	path string // "" when the keys live in memory only

	mu   sync.RWMutex
	keys []opener
	seen stamp // of the file the keys were read from
}

// opener is a key made ready.
type opener struct {
	Key
	aead cipher.AEAD
}

// NewRing makes a ring of keys that live in memory only. The first one seals.
func NewRing(keys ...Key) (*Ring, error) {
	o, err := openers(keys)
	if err != nil {
		return nil, err
	}
	return &Ring{keys: o}, nil
}

// Ephemeral makes a ring with one new key. What it seals cannot be opened
// after a restart, nor by another process.
func Ephemeral() *Ring {
	r, err := NewRing(NewKey())
	if err != nil {
		panic(err) // a new key is a good key
	}
	return r
}

func openers(keys []Key) ([]opener, error) {
	if len(keys) == 0 {
		return nil, errors.New("a key ring needs at least one key")
	}
	out := make([]opener, 0, len(keys))
	ids := map[uint32]bool{}
	for _, k := range keys {
		if k.Secret == [32]byte{} {
			return nil, fmt.Errorf("key %08x has no secret", k.ID)
		}
		if ids[k.ID] {
			return nil, fmt.Errorf("key id %08x is there twice", k.ID)
		}
		ids[k.ID] = true
		block, err := aes.NewCipher(k.Secret[:])
		if err != nil {
			return nil, err
		}
		aead, err := cipher.NewGCMWithRandomNonce(block)
		if err != nil {
			return nil, err
		}
		out = append(out, opener{k, aead})
	}
	return out, nil
}

// Seal makes a URL-safe token of plain. It opens only for the same purpose and
// binding, before expires; the zero time means that it does not expire until
// its key is rotated away. More than MaxPlain bytes make a token that Open
// refuses. Times count in milliseconds.
func (r *Ring) Seal(purpose string, bind, plain []byte, expires time.Time) string {
	r.mu.RLock()
	k := r.keys[0]
	r.mu.RUnlock()

	until := int64(never)
	if !expires.IsZero() {
		until = expires.UnixMilli()
	}
	inner := make([]byte, 0, expiry+len(plain))
	inner = binary.BigEndian.AppendUint64(inner, uint64(until))
	inner = append(inner, plain...)

	raw := make([]byte, prefix, overhead+len(plain))
	raw[0] = version
	binary.BigEndian.PutUint32(raw[1:], k.ID)
	return text.EncodeToString(k.aead.Seal(raw, nil, inner, extra(raw[:prefix], purpose, bind)))
}

// Open gives back what was sealed for this purpose and binding. The error is
// ErrAltered or ErrExpired.
func (r *Ring) Open(purpose string, bind []byte, token string, now time.Time) ([]byte, error) {
	plain, _, err := r.unseal(purpose, bind, token, now)
	return plain, err
}

// unseal returns also when the token expires, in milliseconds since 1970.
func (r *Ring) unseal(purpose string, bind []byte, token string, now time.Time) (plain []byte, until int64, err error) {
	raw, err := decodeToken(token)
	if err != nil {
		return nil, 0, err
	}
	k, ok := r.findKey(binary.BigEndian.Uint32(raw[1:]))
	if !ok {
		return nil, 0, ErrAltered
	}
	inner, err := k.aead.Open(nil, nil, raw[prefix:], extra(raw[:prefix], purpose, bind))
	if err != nil || len(inner) < expiry {
		return nil, 0, ErrAltered
	}
	until = int64(binary.BigEndian.Uint64(inner))
	if until != never && now.UnixMilli() >= until {
		return nil, 0, ErrExpired
	}
	return inner[expiry:], until, nil
}

// OpenWithin is Open for what is valid for a certain time. It refuses what would
// be valid for longer as well: that was sealed before the clock was set back, and
// marks that it was used may have ended by the clock's new time.
func (r *Ring) OpenWithin(
	purpose string,
	bind []byte,
	token string,
	now time.Time,
	life time.Duration,
) ([]byte, error) {
	plain, until, err := r.unseal(purpose, bind, token, now)
	if err == nil && until > now.Add(life).UnixMilli() {
		return nil, ErrExpired
	}
	return plain, err
}

// decodeToken accepts exactly one spelling of each token.
func decodeToken(token string) ([]byte, error) {
	// The decoder skips line ends even when strict.
	if len(token) > MaxToken || strings.ContainsAny(token, "\r\n") {
		return nil, ErrAltered
	}
	raw, err := text.DecodeString(token)
	if err != nil || len(raw) < overhead || raw[0] != version {
		return nil, ErrAltered
	}
	return raw, nil
}

// extra is what is authenticated with the sealed part. The length before the
// purpose keeps "a"+"bc" apart from "ab"+"c".
func extra(head []byte, purpose string, bind []byte) []byte {
	b := make([]byte, 0, len(head)+4+len(purpose)+len(bind))
	b = append(b, head...)
	b = binary.BigEndian.AppendUint32(b, uint32(len(purpose)))
	b = append(b, purpose...)
	return append(b, bind...)
}

// findKey looks a key up by its id, and once more in the file when another
// process may have rotated it.
func (r *Ring) findKey(id uint32) (opener, bool) {
	if k, ok := r.known(id); ok {
		return k, true
	}
	if r.path == "" || !r.stale() {
		return opener{}, false
	}
	if err := r.reload(); err != nil {
		return opener{}, false
	}
	return r.known(id)
}

func (r *Ring) known(id uint32) (opener, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for _, k := range r.keys {
		if k.ID == id {
			return k, true
		}
	}
	return opener{}, false
}
