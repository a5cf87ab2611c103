package update

import (
	"errors"
	"fmt"
	"strings"

	"aead.dev/minisign"
)

// ErrSignature is returned if a manifest is not signed with the key of the settings.
var ErrSignature = errors.New("the signature is not that of the key in the settings")

// Key is the minisign public key that releases are signed with. The zero value
// verifies nothing.
type Key struct{ public minisign.PublicKey }

// ParseKey parses a public key as minisign writes it: the key alone, or the file
// with its comment.
func ParseKey(text string) (k Key, err error) {
	fields := strings.Fields(text)
	if len(fields) == 0 || k.public.UnmarshalText([]byte(fields[len(fields)-1])) != nil {
		return Key{}, errors.New("expected a minisign public key, which begins with RW")
	}
	return k, nil
}

// Verify returns an error that matches ErrSignature unless signature is a
// minisign signature of text by k, trusted comment included.
func (k Key) Verify(text, signature []byte) error {
	if k.public.Equal(minisign.PublicKey{}) { // its zero bytes are a point that anyone can sign for
		return errors.New("no key is set to verify the signature with")
	}
	var s minisign.Signature
	if err := s.UnmarshalText(signature); err != nil {
		return fmt.Errorf("%w: %w", ErrSignature, err)
	}
	if s.KeyID != k.public.ID() {
		return fmt.Errorf("%w: it was made with the key %016X, expected %016X", ErrSignature, s.KeyID, k.public.ID())
	}
	if !minisign.Verify(k.public, text, signature) {
		return ErrSignature
	}
	return nil
}
