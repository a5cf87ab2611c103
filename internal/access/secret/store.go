package secret

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"filippo.io/age"

	"gatehouse/internal/files/atomicfile"
)

// Limits of a Store.
const (
	MaxValue = 64 << 10 // bytes of one secret
	maxFile  = 8 << 20  // bytes of all secrets, encrypted
	maxCount = 1000
	maxKey   = 4 << 10 // bytes of the key's file
)

// Errors of a Store.
var (
	ErrNotFound = errors.New("there is no such secret")
	ErrName     = errors.New("expected 1 to 64 of letters, digits, _, - and ., beginning with a letter or _")
	ErrLost     = errors.New("the key of the secrets is missing")
)

// Store is a file of named secrets, encrypted with age to a key of its own. Several processes may share
// it; a reader sees a change completely or not at all. Nothing is cached between calls. It is safe for
// concurrent use.
type Store struct {
	file   string
	key    string
	shared Shared // nil if the file is this host's alone
}

// Shared changes files that several hosts have in common.
type Shared interface {
	// Change replaces a file by what change makes of its newest content, nil if there is none. It may call change
	// again.
	Change(path string, change func(old []byte) ([]byte, error)) error
	// Refresh gets the newest content of a file.
	Refresh(path string) error
}

// Share returns the store with a file that other hosts have too. They must have the same key. A nil x changes nothing.
func (s *Store) Share(x Shared) *Store {
	with := *s
	with.shared = x
	return &with
}

// In returns the store of a folder: the file secrets.age, and the key in keyFile, or in secrets.key of
// the same folder if keyFile is "". The files are opened only when they are needed.
func In(folder, keyFile string) *Store {
	if keyFile == "" {
		keyFile = filepath.Join(folder, "secrets.key")
	}
	return &Store{file: filepath.Join(folder, "secrets.age"), key: keyFile}
}

// Logins returns the store of the logins of a folder: the file logins.age, with the key of In. Settings cannot refer
// to what is in it.
func Logins(folder, keyFile string) *Store {
	return In(folder, keyFile).Logins()
}

// Logins returns the store of the logins beside this one, with the same key and the same other hosts.
func (s *Store) Logins() *Store {
	l := *s
	l.file = filepath.Join(filepath.Dir(s.file), "logins.age")
	return &l
}

// record is one secret in the encrypted file.
type record struct {
	Value string    `json:"value"`
	Set   time.Time `json:"set"`
}

// Entry describes a secret without its value.
type Entry struct {
	Name string    `json:"name"`
	Set  time.Time `json:"set"`
}

// CheckName returns an error if a name is not valid.
func CheckName(name string) error {
	for i, c := range []byte(name) {
		letter := c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z' || c == '_'
		if !letter && (i == 0 || (c < '0' || c > '9') && c != '-' && c != '.') {
			return fmt.Errorf("name %q: %w", name, ErrName)
		}
	}
	if name == "" || len(name) > 64 {
		return fmt.Errorf("name %q: %w", name, ErrName)
	}
	return nil
}

// Set stores a value under a name, and creates the key if it does not exist.
func (s *Store) Set(name string, value Text) error {
	if err := CheckName(name); err != nil {
		return err
	}
	if n := len(value.Reveal()); n == 0 || n > MaxValue {
		return fmt.Errorf("the value has %d bytes; expected 1 to %d", n, MaxValue)
	}
	return s.changeRecords(true, func(all map[string]record) error {
		if _, there := all[name]; !there && len(all) >= maxCount {
			return fmt.Errorf("there are %d secrets, which is the limit; remove one", len(all))
		}
		all[name] = record{value.Reveal(), time.Now().UTC().Truncate(time.Second)}
		return nil
	})
}

// Remove deletes a secret; the error is ErrNotFound if it does not exist.
func (s *Store) Remove(name string) error {
	return s.changeRecords(false, func(all map[string]record) error {
		if _, there := all[name]; !there {
			return fmt.Errorf("%s: %w", name, ErrNotFound)
		}
		delete(all, name)
		return nil
	})
}

// Get returns the value under a name; the error is ErrNotFound if it does not exist.
func (s *Store) Get(name string) (Text, error) {
	all, err := s.readRecords()
	if err != nil {
		return Text{}, err
	}
	r, there := all[name]
	if !there {
		return Text{}, fmt.Errorf("%s: %w", name, ErrNotFound)
	}
	return New(r.Value), nil
}

// List lists the secrets by name, without their values.
func (s *Store) List() ([]Entry, error) {
	all, err := s.readRecords()
	if err != nil {
		return nil, err
	}
	var entries []Entry
	for name, r := range all {
		entries = append(entries, Entry{name, r.Set})
	}
	slices.SortFunc(entries, func(a, b Entry) int { return strings.Compare(a.Name, b.Name) })
	return entries, nil
}

// changeRecords reads, changes and writes all secrets, under a lock that excludes other processes.
func (s *Store) changeRecords(create bool, f func(map[string]record) error) error {
	if s.shared != nil {
		return s.shared.Change(s.file, func(sealed []byte) ([]byte, error) { return s.changeSealed(sealed, create, f) })
	}
	unlock, err := atomicfile.Lock(s.file + ".lock")
	if err != nil {
		return fmt.Errorf("change secrets: %w", err)
	}
	defer unlock()
	sealed, err := atomicfile.Read(s.file, maxFile)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read secrets: %w", err)
	}
	if sealed, err = s.changeSealed(sealed, create, f); err != nil {
		return err
	}
	return atomicfile.Write(s.file, sealed)
}

// changeSealed returns encrypted secrets with a change. nil holds none.
func (s *Store) changeSealed(sealed []byte, create bool, f func(map[string]record) error) ([]byte, error) {
	all, err := s.open(sealed)
	if err != nil {
		return nil, err
	}
	if err := f(all); err != nil {
		return nil, err
	}
	identity, err := s.identity()
	if errors.Is(err, fs.ErrNotExist) && create {
		identity, err = s.newIdentity()
	}
	if err != nil {
		return nil, err
	}
	if sealed, err = encrypt(all, identity.Recipient()); err != nil {
		return nil, fmt.Errorf("encrypt secrets: %w", err)
	}
	return sealed, nil
}

// readRecords decrypts all secrets. A missing file holds no secrets.
func (s *Store) readRecords() (map[string]record, error) {
	sealed, err := atomicfile.Read(s.file, maxFile)
	if errors.Is(err, fs.ErrNotExist) {
		return map[string]record{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read secrets: %w", err)
	}
	return s.open(sealed)
}

// open decrypts the content of the file. nil holds no secrets.
func (s *Store) open(sealed []byte) (map[string]record, error) {
	if sealed == nil {
		return map[string]record{}, nil
	}
	identities, err := s.identities()
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf(
			"%w: %s was encrypted with the key that was in %s; restore it, or remove %s and set the secrets again",
			ErrLost,
			s.file,
			s.key,
			s.file,
		)
	}
	if err != nil {
		return nil, err
	}
	all, err := decrypt(sealed, identities)
	if _, other := errors.AsType[*age.NoIdentityMatchError](err); other && s.shared != nil {
		// Another node has rotated the key, and this one gets it in a moment.
		if e := s.shared.Refresh(s.key); e == nil {
			if identities, e = s.identities(); e == nil {
				all, err = decrypt(sealed, identities)
			}
		}
	}
	if err != nil {
		return nil, fmt.Errorf("decrypt %s with the key in %s: %w", s.file, s.key, err)
	}
	return all, nil
}

// identity reads the key that encrypts.
func (s *Store) identity() (*age.X25519Identity, error) {
	all, err := s.identities()
	if err != nil {
		return nil, err
	}
	return all[0], nil
}

// identities reads the keys; see identitiesIn.
func (s *Store) identities() ([]*age.X25519Identity, error) {
	b, err := atomicfile.Read(s.key, maxKey)
	if err != nil {
		return nil, fmt.Errorf("read the key of the secrets: %w", err)
	}
	all, err := identitiesIn(b)
	if err != nil {
		return nil, fmt.Errorf("%s %w", s.key, err)
	}
	return all, nil
}

// NewKey returns the content of the file of a new key.
func NewKey() ([]byte, error) {
	i, err := age.GenerateX25519Identity()
	if err != nil {
		return nil, err
	}
	return fmt.Appendf(nil, "# opens secrets.age; both files together give the secrets\n# public key: %s\n%s\n",
		i.Recipient(), i), nil
}

func (s *Store) newIdentity() (*age.X25519Identity, error) {
	text, err := NewKey()
	if err != nil {
		return nil, err
	}
	if err := atomicfile.Create(s.key, text); errors.Is(err, fs.ErrExist) {
		return s.identity() // another store with this key has just made it
	} else if err != nil {
		return nil, fmt.Errorf("write the key of the secrets: %w", err)
	}
	return s.identity()
}

func encrypt(all map[string]record, to age.Recipient) ([]byte, error) {
	plain, err := json.Marshal(all)
	if err != nil {
		return nil, err
	}
	var sealed bytes.Buffer
	w, err := age.Encrypt(&sealed, to)
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(plain); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	if sealed.Len() > maxFile {
		return nil, fmt.Errorf("all secrets together have more than %d bytes", maxFile)
	}
	return sealed.Bytes(), nil
}

func decrypt(sealed []byte, keys []*age.X25519Identity) (map[string]record, error) {
	var by []age.Identity
	for _, k := range keys {
		by = append(by, k)
	}
	r, err := age.Decrypt(bytes.NewReader(sealed), by...)
	if err != nil {
		return nil, err
	}
	plain, err := io.ReadAll(io.LimitReader(r, maxFile))
	if err != nil {
		return nil, err
	}
	all := map[string]record{}
	if err := json.Unmarshal(plain, &all); err != nil {
		return nil, errors.New("the decrypted content is not a list of secrets") // the decoder's error would quote them
	}
	return all, nil
}
