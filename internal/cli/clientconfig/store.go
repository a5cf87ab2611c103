package clientconfig

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"gatehouse/internal/files/atomicfile"
	"gatehouse/internal/files/filelock"
)

// Limits of a Book.
const (
	maxList    = 1 << 20 // bytes of the list
	maxBackups = 10      // of one file that no connection needs any more
)

// Store remembers in a folder which files were changed and what they held before.
type Store struct{ Dir string }

// connection is one server that was added to a file.
type connection struct {
	Client    string    `json:"client"`
	File      string    `json:"file"` // after links were followed
	Name      string    `json:"name"`
	Existed   bool      `json:"existed"`             // there was a file
	Container bool      `json:"container,omitempty"` // the mapping of the servers was added too
	Before    string    `json:"before,omitempty"`    // the SHA-256 of what the file held; "" if that cannot be restored
	After     string    `json:"after"`               // the SHA-256 of what was written
	At        time.Time `json:"at"`
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

func (b Store) connectionsFile() string { return filepath.Join(b.Dir, "connections.json") }

// backup is the file that keeps what another file held.
func (b Store) backup(file, sum string) string {
	return filepath.Join(b.Dir, "backups", digest([]byte(file))[:12]+"-"+sum+".bak")
}

// lockTime is how long a process waits for another one that changes files of
// clients, which takes milliseconds.
const lockTime = 15 * time.Second

// lock excludes other processes that change files of clients.
func (b Store) lock() (unlock func(), err error) {
	if err := os.MkdirAll(b.Dir, 0o700); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), lockTime)
	defer cancel()
	path := filepath.Join(b.Dir, "connections.lock")
	held, err := filelock.Wait(ctx, path, filelock.Exclusive)
	if err != nil {
		return nil, fmt.Errorf("wait for another process that changes files of clients and holds %s: %w", path, err)
	}
	return func() { held.Release() }, nil
}

func (b Store) read() ([]connection, error) {
	text, err := atomicfile.Read(b.connectionsFile(), maxList)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var all []connection
	if err := json.Unmarshal(text, &all); err != nil {
		return nil, fmt.Errorf("read %s: %w; remove it, and what was connected is no longer known", b.connectionsFile(), err)
	}
	return all, nil
}

// Any reports whether any client is connected, as far as is remembered.
func (b Store) Any() (bool, error) {
	all, err := b.read()
	return len(all) > 0, err
}

// findConnection returns the connection of a file under a name; nil if there is none.
func (b Store) findConnection(file, name string) (*connection, error) {
	all, err := b.read()
	for i, c := range all {
		if c.File == file && c.Name == name {
			return &all[i], err
		}
	}
	return nil, err
}

// saveConnection puts a connection in the place of the one of the same file and name; nil
// only removes that.
func (b Store) saveConnection(file, name string, now *connection) error {
	all, err := b.read()
	if err != nil {
		return err
	}
	all = slices.DeleteFunc(all, func(c connection) bool { return c.File == file && c.Name == name })
	if now != nil {
		all = append(all, *now)
	}
	text, err := json.MarshalIndent(all, "", "  ")
	if err != nil {
		return err
	}
	if err := atomicfile.Write(b.connectionsFile(), append(text, '\n')); err != nil {
		return err
	}
	return b.prune(file, all)
}

// store keeps what a file held and returns where.
func (b Store) store(file string, held []byte) (string, error) {
	path := b.backup(file, digest(held))
	return path, atomicfile.Write(path, held)
}

// prune removes the oldest backups of a file that no connection needs.
func (b Store) prune(file string, all []connection) error {
	folder := filepath.Join(b.Dir, "backups")
	entries, err := os.ReadDir(folder)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var found []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), digest([]byte(file))[:12]+"-") {
			found = append(found, filepath.Join(folder, e.Name()))
		}
	}
	if err != nil || len(found) <= maxBackups {
		return err
	}
	age := map[string]time.Time{}
	for _, path := range found {
		if info, err := os.Stat(path); err == nil {
			age[path] = info.ModTime()
		}
	}
	slices.SortFunc(found, func(x, y string) int { return age[y].Compare(age[x]) })
	for _, path := range found[maxBackups:] {
		needed := slices.ContainsFunc(all, func(c connection) bool {
			return c.Before != "" && strings.HasSuffix(path, "-"+c.Before+".bak")
		})
		if !needed {
			err = errors.Join(err, os.Remove(path))
		}
	}
	return err
}
