package secret

import (
	"errors"
	"fmt"
	"io/fs"
)

// Recipient returns the public key of the store in age's format: only the store's key decrypts data
// that is encrypted to it. It creates the key if there is none.
func (s *Store) Recipient() (string, error) {
	i, err := s.identity()
	if errors.Is(err, fs.ErrNotExist) {
		// A change without effect creates the key, or returns the error if it was lost.
		if err = s.changeRecords(true, func(map[string]record) error { return nil }); err == nil {
			i, err = s.identity()
		}
	}
	if err != nil {
		return "", fmt.Errorf("the public key of this host: %w", err)
	}
	return i.Recipient().String(), nil
}
