package seal

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	"gatehouse/internal/files/atomicfile"
)

const (
	keepKeys = 4        // keys of a ring after Rotate, including the new one
	maxFile  = 64 << 10 // bytes
)

// keyFile is the content of the file. Secrets are base64 in JSON.
type keyFile struct {
	Keys []fileKey `json:"keys"` // the first one seals
}

type fileKey struct {
	ID     uint32 `json:"id"`
	Secret []byte `json:"secret"`
}

// stamp identifies one state of a file.
type stamp struct {
	at   time.Time
	size int64
	info fs.FileInfo
}

// Load reads the ring stored at path, or creates one there with a new key. The file has mode 0600, and
// Load refuses a file that other users can read. Several processes may load the same path at the same
// time, also while it does not exist: all of them get the same keys. A key that another process rotates
// in later is read when a token names it.
func Load(path string) (*Ring, error) {
	r := &Ring{path: path}
	err := r.reload()
	if errors.Is(err, fs.ErrNotExist) {
		if err = create(path); err == nil {
			err = r.reload()
		}
	}
	if err != nil {
		return nil, fmt.Errorf("load sealing keys: %w", err)
	}
	return r, nil
}

// Rotate adds a new first key and drops all but the last four. Tokens under a dropped key can no longer
// be opened. Rotate also changes the file of a loaded ring.
func (r *Ring) Rotate() error {
	if r.path == "" {
		return r.rotateHere()
	}
	unlock, err := atomicfile.Lock(r.path + ".lock")
	if err != nil {
		return fmt.Errorf("rotate sealing keys: %w", err)
	}
	defer unlock()
	keys, _, err := readKeys(r.path) // keeps the keys that another process has rotated in
	if err != nil {
		return fmt.Errorf("rotate sealing keys: %w", err)
	}
	content, err := encodeKeys(turn(keys))
	if err == nil {
		err = atomicfile.Write(r.path, content)
	}
	if err != nil {
		return fmt.Errorf("rotate sealing keys: %w", err)
	}
	return r.reload()
}

func (r *Ring) rotateHere() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var keys []Key
	for _, k := range r.keys {
		keys = append(keys, k.Key)
	}
	o, err := openers(turn(keys))
	if err == nil {
		r.keys = o
	}
	return err
}

// turn adds a new first key. IDs are random, so it looks for an unused one.
func turn(keys []Key) []Key {
	fresh := NewKey()
	for taken := true; taken; {
		taken = false
		for _, k := range keys {
			if k.ID == fresh.ID {
				fresh, taken = NewKey(), true
			}
		}
	}
	return append([]Key{fresh}, keys[:min(len(keys), keepKeys-1)]...)
}

// Stage returns the content of a key file with a new key that opens and does not seal yet, and its id. Programs on
// several machines can thus all have a key before one of them seals with it; see Promote.
func Stage(content []byte) (next []byte, id uint32, err error) {
	keys, err := parseKeys(content)
	if err != nil {
		return nil, 0, err
	}
	if len(keys) == 0 {
		return nil, 0, errors.New("it has no keys")
	}
	all := turn(keys)
	all[0], all[1] = all[1], all[0]
	next, err = encodeKeys(all)
	return next, all[1].ID, err
}

// Promote returns the content of a key file in which a staged key seals. ok is false if the file does not have the key,
// or it seals already.
func Promote(content []byte, id uint32) (next []byte, ok bool, err error) {
	keys, err := parseKeys(content)
	if err != nil {
		return nil, false, err
	}
	at := slices.IndexFunc(keys, func(k Key) bool { return k.ID == id })
	if at <= 0 {
		return nil, false, nil
	}
	staged := keys[at]
	next, err = encodeKeys(append([]Key{staged}, slices.Delete(keys, at, at+1)...))
	return next, true, err
}

func (r *Ring) stale() bool {
	info, err := os.Stat(r.path)
	if err != nil {
		return false
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	return !info.ModTime().Equal(r.seen.at) || info.Size() != r.seen.size || !os.SameFile(info, r.seen.info)
}

// Reload reads the file of the keys if it has changed. An ephemeral ring has none.
func (r *Ring) Reload() error {
	if r.path == "" || !r.stale() {
		return nil
	}
	return r.reload()
}

func (r *Ring) reload() error {
	keys, seen, err := readKeys(r.path)
	if err != nil {
		return err
	}
	o, err := openers(keys)
	if err != nil {
		return fmt.Errorf("%s: %w", r.path, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.keys, r.seen = o, seen
	return nil
}

func readKeys(path string) ([]Key, stamp, error) {
	b, info, err := atomicfile.ReadState(path, maxFile)
	if err != nil {
		return nil, stamp{}, err
	}
	keys, err := parseKeys(b)
	if err != nil {
		return nil, stamp{}, fmt.Errorf(
			"%s: %w; remove it and a new one is created; values sealed with the old keys can then not be opened",
			path,
			err,
		)
	}
	return keys, stamp{info.ModTime(), info.Size(), info}, nil
}

// parseKeys parses a key file. Its errors never quote the content, which may be secret.
func parseKeys(b []byte) ([]Key, error) {
	var file keyFile
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&file); err != nil {
		return nil, errors.New("not a key file")
	}
	var keys []Key
	for _, k := range file.Keys {
		if len(k.Secret) != 32 {
			return nil, fmt.Errorf("the secret of key %08x does not have 32 bytes", k.ID)
		}
		keys = append(keys, Key{k.ID, [32]byte(k.Secret)})
	}
	return keys, nil
}

// create creates the file with one new key, completely or not at all. It succeeds if another process
// created it first.
func create(path string) error {
	content, err := encodeKeys([]Key{NewKey()})
	if err != nil {
		return err
	}
	if err := atomicfile.Create(path, content); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%w; keep the keys on a file system that supports hard links", err)
	}
	return nil
}

func encodeKeys(keys []Key) ([]byte, error) {
	var file keyFile
	for _, k := range keys {
		file.Keys = append(file.Keys, fileKey{k.ID, k.Secret[:]})
	}
	b, err := json.Marshal(file)
	return append(b, '\n'), err
}
