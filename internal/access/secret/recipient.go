package secret

import (
	"errors"
	"fmt"
	"io/fs"
)

// Recipient is the public key of the store, as age writes it: what is
// encrypted to it is opened with the store's key alone. The key is made if
// there is none.
func (s *Store) Recipient() (string, error) {
	i, err := s.identity()
	if errors.Is(err, fs.ErrNotExist) {
		// A change of nothing makes the key, or says that it was lost.
		if err = s.changeRecords(true, func(map[string]record) error { return nil }); err == nil {
			i, err = s.identity()
		}
	}
	if err != nil {
		return "", fmt.Errorf("the public key of this host: %w", err)
	}
	return i.Recipient().String(), nil
}
