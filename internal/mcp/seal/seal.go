// Package seal encrypts and authenticates values that a client stores for the server, so that the
// client cannot read or change them, or use them for another purpose.
//
// A token is sealed for one purpose (a constant of the package that seals), bound to bytes that both
// sides know (the owner, the method, a digest of the parameters) and valid until a time. It does not
// prevent replay: the same token can be opened any number of times before it expires.
//
// The cipher is AES-256-GCM with a random 96-bit nonce: one key may seal 2^32 tokens, so a frequently
// used ring must be rotated long before that.
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
	// MaxToken is the length in bytes above which Open refuses a token without decoding it.
	MaxToken = 64 << 10
	// MaxPlain is the number of bytes that fit into a token that Open accepts.
	MaxPlain = MaxToken/4*3 - overhead

	version  = 1
	prefix   = 1 + 4 // version, key ID
	expiry   = 8     // milliseconds since 1970, encrypted
	never    = math.MaxInt64
	overhead = prefix + 12 + expiry + 16
)

var (
	// ErrAltered means that the token was not made by this ring for this purpose and binding, or was
	// changed. It does not distinguish these cases, so that a forger learns nothing.
	ErrAltered = errors.New("the sealed value is not valid here")
	// ErrExpired means that the token is genuine but has expired.
	ErrExpired = errors.New("the sealed value has expired")
)

var text = base64.RawURLEncoding.Strict()

// Ring seals with its first key and opens with all of them. It is safe for concurrent use.
type Ring struct {
	path string // "" if the keys are in memory only

	mu   sync.RWMutex
	keys []opener
	seen stamp // the state of the file from which the keys were read
}

// opener is a key with its cipher.
type opener struct {
	Key
	aead cipher.AEAD
}

// NewRing returns a ring of keys in memory. The first one seals.
func NewRing(keys ...Key) (*Ring, error) {
	o, err := openers(keys)
	if err != nil {
		return nil, err
	}
	return &Ring{keys: o}, nil
}

// Ephemeral returns a ring with one new key. Its tokens cannot be opened after a restart, nor by
// another process.
func Ephemeral() *Ring {
	r, err := NewRing(NewKey())
	if err != nil {
		panic(err) // cannot fail for a new key
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
			return nil, fmt.Errorf("key id %08x occurs twice", k.ID)
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

// Seal returns a URL-safe token of plain. Only the same purpose and binding open it, before expires;
// the zero time means that it does not expire until its key is rotated out. For more than MaxPlain
// bytes it returns a token that Open refuses. Times are in milliseconds.
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

// Open returns the value that was sealed for this purpose and binding. The error is ErrAltered or
// ErrExpired.
func (r *Ring) Open(purpose string, bind []byte, token string, now time.Time) ([]byte, error) {
	plain, _, err := r.unseal(purpose, bind, token, now)
	return plain, err
}

// unseal also returns the time at which the token expires, in milliseconds since 1970.
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

// OpenWithin is Open for tokens that are valid for a limited time. It also refuses a token with a
// longer validity, because that was sealed before the clock was set back, and the record of its use may
// have expired by the new time.
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

// decodeToken accepts exactly one encoding of each token.
func decodeToken(token string) ([]byte, error) {
	// The decoder skips line ends even in strict mode.
	if len(token) > MaxToken || strings.ContainsAny(token, "\r\n") {
		return nil, ErrAltered
	}
	raw, err := text.DecodeString(token)
	if err != nil || len(raw) < overhead || raw[0] != version {
		return nil, ErrAltered
	}
	return raw, nil
}

// extra returns the data that is authenticated with the sealed part. The length before the purpose
// distinguishes "a"+"bc" from "ab"+"c".
func extra(head []byte, purpose string, bind []byte) []byte {
	b := make([]byte, 0, len(head)+4+len(purpose)+len(bind))
	b = append(b, head...)
	b = binary.BigEndian.AppendUint32(b, uint32(len(purpose)))
	b = append(b, purpose...)
	return append(b, bind...)
}

// findKey returns the key with an ID. If it is unknown, it reads the file again, because another
// process may have rotated the keys.
func (r *Ring) findKey(id uint32) (opener, bool) {
	if k, ok := r.known(id); ok {
		return k, true
	}
	if err := r.Reload(); err != nil {
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
