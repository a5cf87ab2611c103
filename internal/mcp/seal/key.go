package seal

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
)

// A Key is one secret of a ring. It does not print itself.
type Key struct {
	ID     uint32   // travels in every token, in the clear
	Secret [32]byte // from a random source, never from a password
}

// NewKey makes a key with a random id.
func NewKey() Key {
	var k Key
	var id [4]byte
	rand.Read(id[:])       // never fails
	rand.Read(k.Secret[:]) // never fails
	k.ID = binary.BigEndian.Uint32(id[:])
	return k
}

// Format prints the id alone, whatever the verb.
func (k Key) Format(f fmt.State, _ rune) { io.WriteString(f, k.keyName()) }

// LogValue logs the id alone.
func (k Key) LogValue() slog.Value { return slog.StringValue(k.keyName()) }

// MarshalText keeps the secret out of JSON and its like.
func (k Key) MarshalText() ([]byte, error) { return []byte(k.keyName()), nil }

func (k Key) keyName() string { return fmt.Sprintf("key %08x", k.ID) }
