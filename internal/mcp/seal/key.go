package seal

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
)

// Key is one secret of a ring. It never prints its secret.
type Key struct {
	ID     uint32   // part of every token, not encrypted
	Secret [32]byte // from a random source, never from a password
}

// NewKey returns a key with a random ID.
func NewKey() Key {
	var k Key
	var id [4]byte
	rand.Read(id[:])       // never fails
	rand.Read(k.Secret[:]) // never fails
	k.ID = binary.BigEndian.Uint32(id[:])
	return k
}

// Format prints only the ID, for every verb.
func (k Key) Format(f fmt.State, _ rune) { io.WriteString(f, k.keyName()) }

// LogValue logs only the ID.
func (k Key) LogValue() slog.Value { return slog.StringValue(k.keyName()) }

// MarshalText keeps the secret out of JSON and other encodings.
func (k Key) MarshalText() ([]byte, error) { return []byte(k.keyName()), nil }

func (k Key) keyName() string { return fmt.Sprintf("key %08x", k.ID) }
