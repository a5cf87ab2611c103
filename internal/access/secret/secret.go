// Package secret keeps what must not be seen: values that cannot print
// themselves, and a file of them that is encrypted at rest.
//
// A Text says "[secret]" to fmt, to logs and to code that reads it by
// reflection, and refuses to become JSON, YAML or text. The only way to what
// it holds is Reveal, a name that is easy to look for.
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

// Mask is what a Text shows instead of itself.
const Mask = "[secret]"

// ErrSealed is the answer to an attempt to write a Text somewhere.
var ErrSealed = errors.New("a secret cannot be written out")

// Text is a secret. The zero value is an empty one. Texts are compared with
// Equal, and only so.
type Text struct {
	// A function, because fmt shows unexported fields of other structs
	// without asking their methods. It follows pointers there, but of a
	// function it shows the address.
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

// New makes a secret of a value.
func New(value string) Text { return Text{func() string { return value }} }

// Reveal returns the value of the secret. The caller passes the value to
// the code that needs it, and to no other.
func (t Text) Reveal() string {
	if t.reveal == nil {
		return ""
	}
	return t.reveal()
}

// Empty reports whether there is nothing to hide.
func (t Text) Empty() bool { return t.Reveal() == "" }

// Equal compares in a time that says nothing about the values, not even how
// long they are.
func (t Text) Equal(other Text) bool {
	a, b := sha256.Sum256([]byte(t.Reveal())), sha256.Sum256([]byte(other.Reveal()))
	return subtle.ConstantTimeCompare(a[:], b[:]) == 1
}

func (t Text) Format(s fmt.State, _ rune) { io.WriteString(s, Mask) }
func (t Text) String() string             { return Mask }
func (t Text) GoString() string           { return Mask }
func (t Text) LogValue() slog.Value       { return slog.StringValue(Mask) }

// The writers refuse rather than mask: a mask that is read back would become
// the value.
func (t Text) MarshalJSON() ([]byte, error)        { return nil, ErrSealed }
func (t Text) MarshalText() ([]byte, error)        { return nil, ErrSealed }
func (t Text) AppendText(b []byte) ([]byte, error) { return b, ErrSealed }
func (t Text) MarshalBinary() ([]byte, error)      { return nil, ErrSealed }
func (t Text) MarshalYAML() (any, error)           { return nil, ErrSealed }

// UnmarshalText takes a value in, from a setting for instance.
func (t *Text) UnmarshalText(b []byte) error {
	*t = New(string(b))
	return nil
}
