package secret

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"filippo.io/age"

	"gatehouse/internal/files/atomicfile"
)

// mostKeys is how many keys a file keeps: the one that encrypts, and earlier ones, which only decrypt. Data that was
// encrypted to a key that is no longer among them, as by others to an earlier public key, cannot be decrypted.
const mostKeys = 8

// ErrRotated means that another process or node has made a new key meanwhile.
var ErrRotated = errors.New("another process has just made a new key")

// Rotate makes a new key and encrypts the secrets and those of more stores that have the same key with it. Earlier keys
// stay in the file, so that what is read or written meanwhile by a process or a node that does not have the new one can
// be decrypted; if Rotate fails after the key was made, all can be decrypted as well. from is the public key that is
// replaced, with the error ErrRotated if it is not the present one; "" stands for any.
func (s *Store) Rotate(from string, more ...*Store) error {
	if err := s.changeKey(func(old []byte) ([]byte, error) { return withNewKey(old, from) }); err != nil {
		return fmt.Errorf("rotate the key in %s: %w", s.key, err)
	}
	for _, each := range append([]*Store{s}, more...) {
		if err := each.encryptAgain(); err != nil {
			return fmt.Errorf("%s was given a new key, with which %s is encrypted at its next change: %w", s.key, each.file, err)
		}
	}
	return nil
}

// changeKey replaces the file of the key by what change makes of it.
func (s *Store) changeKey(change func([]byte) ([]byte, error)) error {
	if s.shared != nil {
		return s.shared.Change(s.key, change)
	}
	unlock, err := atomicfile.Lock(s.file + ".lock")
	if err != nil {
		return err
	}
	defer unlock()
	old, err := atomicfile.Read(s.key, maxKey)
	if errors.Is(err, fs.ErrNotExist) {
		return errors.New("there is no key yet; one is made with the first secret")
	}
	if err != nil {
		return err
	}
	next, err := change(old)
	if err != nil {
		return err
	}
	return atomicfile.Write(s.key, next)
}

// withNewKey returns the content of a file of keys with a new one before the others.
func withNewKey(old []byte, from string) ([]byte, error) {
	have, err := identitiesIn(old)
	if err != nil {
		return nil, err
	}
	if from != "" && have[0].Recipient().String() != from {
		return nil, ErrRotated
	}
	text, err := NewKey()
	if err != nil {
		return nil, err
	}
	next := bytes.NewBuffer(text)
	for _, i := range have[:min(len(have), mostKeys-1)] {
		fmt.Fprintf(next, "# an earlier key: %s\n%s\n", i.Recipient(), i)
	}
	return next.Bytes(), nil
}

// encryptAgain writes the secrets anew, with the key that encrypts now.
func (s *Store) encryptAgain() error {
	_, err := atomicfile.Read(s.file, maxFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return s.changeRecords(false, func(map[string]record) error { return nil })
}

var errNoKey = errors.New("holds no key; expected a line that begins with AGE-SECRET-KEY-1, as age-keygen writes")

// identitiesIn returns the keys of a file: the first encrypts, and all decrypt. Its errors do not quote the content.
func identitiesIn(text []byte) (all []*age.X25519Identity, err error) {
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}
		i, err := age.ParseX25519Identity(line)
		if err != nil {
			return nil, errNoKey
		}
		all = append(all, i)
	}
	if len(all) == 0 {
		return nil, errNoKey
	}
	return all, nil
}
