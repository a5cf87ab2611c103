// Package secret holds secret values: a type that never prints its value, and a file of values that is
// encrypted at rest.
//
// A Text prints as "[secret]" in fmt, in logs and under reflection, and refuses to be encoded as JSON,
// YAML or text. Only Reveal returns the value, under a name that is easy to search for.
package secret

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
)

// Mask is printed in place of a Text.
const Mask = "[secret]"

// ErrSealed is the error of encoding a Text.
var ErrSealed = errors.New("a secret cannot be written out")

// Text is a secret. The zero value is an empty one. Compare Texts with Equal only.
type Text struct {
	// The value is inside a function, because fmt prints unexported fields of other structs without
	// calling their methods, and follows pointers there, but prints a function as its address.
	reveal func() string
}

var (
	_ fmt.Formatter          = Text{}
	_ fmt.Stringer           = Text{}
	_ fmt.GoStringer         = Text{}
	_ slog.LogValuer         = Text{}
	_ json.Marshaler         = Text{}
	_ encoding.TextMarshaler = Text{}
	_ encoding.TextAppender  = Text{}

	_ encoding.BinaryMarshaler = Text{}
)

// New returns a secret with a value.
func New(value string) Text { return Text{func() string { return value }} }

// Reveal returns the value of the secret. The caller must pass it to the code that needs it, and to no
// other.
func (t Text) Reveal() string {
	if t.reveal == nil {
		return ""
	}
	return t.reveal()
}

// Empty reports whether the secret is empty.
func (t Text) Empty() bool { return t.Reveal() == "" }

// Equal compares in constant time, so that the time reveals neither the values nor their lengths.
func (t Text) Equal(other Text) bool {
	a, b := sha256.Sum256([]byte(t.Reveal())), sha256.Sum256([]byte(other.Reveal()))
	return subtle.ConstantTimeCompare(a[:], b[:]) == 1
}

func (t Text) Format(s fmt.State, _ rune) { io.WriteString(s, Mask) }
func (t Text) String() string             { return Mask }
func (t Text) GoString() string           { return Mask }
func (t Text) LogValue() slog.Value       { return slog.StringValue(Mask) }

// The encoders return an error instead of a mask, because a mask that is read back would become the
// value.
func (t Text) MarshalJSON() ([]byte, error)        { return nil, ErrSealed }
func (t Text) MarshalText() ([]byte, error)        { return nil, ErrSealed }
func (t Text) AppendText(b []byte) ([]byte, error) { return b, ErrSealed }
func (t Text) MarshalBinary() ([]byte, error)      { return nil, ErrSealed }
func (t Text) MarshalYAML() (any, error)           { return nil, ErrSealed }

// UnmarshalText sets the secret, for example from a setting.
func (t *Text) UnmarshalText(b []byte) error {
	*t = New(string(b))
	return nil
}
