package file

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"gatehouse/internal/files/atomicfile"
	"gatehouse/internal/files/filelock"
	"gatehouse/internal/files/roots"
	"gatehouse/tool"
)

// maxJournal is the size in bytes of the largest journal: contents in base64.
const maxJournal = 2 * maxEditBytes

// journalEntry is one file of a change of several, as it is on disk during the change.
type journalEntry struct {
	Root   string `json:"root"`
	Name   string `json:"name"`
	Before []byte `json:"before"` // of a file that exists; never null then
	Exists bool   `json:"exists"`
	Mode   uint32 `json:"mode"`
	After  string `json:"after"` // SHA-256 of the new content; "" if the file is removed
}

// journals are the files with which an interrupted change of several files is undone. Their folder is private to the
// host.
type journals struct {
	dir string // "" means none are kept, so that a change is atomic only while the host lives
	log *slog.Logger
}

// beginJournal writes the journal of a change. finish removes it; without it, the next host undoes the change.
func (j *journals) beginJournal(all []*replacement) (finish func() error, err error) {
	if j.dir == "" {
		return func() error { return nil }, nil
	}
	entries := make([]journalEntry, len(all))
	for i, r := range all {
		e := journalEntry{Root: r.place.Folder(), Name: r.place.Name, Before: r.before, Exists: r.there != nil}
		if r.there != nil {
			e.Mode = uint32(r.there.info.Mode().Perm())
		}
		if r.after != nil {
			e.After = sum(r.after)
		}
		entries[i] = e
	}
	b, err := json.Marshal(entries)
	if err != nil {
		return nil, err
	}
	path := filepath.Join(j.dir, rand.Text()+".json")
	if err := os.MkdirAll(j.dir, 0o700); err != nil {
		return nil, fmt.Errorf("the journal of the change: %w", err)
	}
	lock, err := filelock.Try(path+".lock", filelock.Exclusive)
	if err != nil {
		return nil, fmt.Errorf("the journal of the change: %w", err)
	}
	if err := atomicfile.Write(path, b); err != nil {
		return nil, errors.Join(fmt.Errorf("the journal of the change: %w", err), lock.Remove())
	}
	return func() error {
		err := os.Remove(path)
		if err == nil {
			err = atomicfile.SyncFolder(j.dir)
		}
		return errors.Join(err, lock.Remove())
	}, nil
}

func sum(b []byte) string {
	h := sha256.Sum256(b)
	return hex.EncodeToString(h[:])
}

// replaceAll replaces the contents of all files, or of none. The directories are held.
func (m *files) replaceAll(ctx context.Context, h *roots.Hold, all []*replacement) (err error) {
	finish, err := m.journals.beginJournal(all)
	if err != nil {
		return err
	}
	// The change is not left half done because its caller went away.
	ctx = context.WithoutCancel(ctx)
	for i, r := range all {
		if err = m.replaceOne(ctx, h, r); err == nil {
			continue
		}
		for _, done := range all[:i] {
			if uerr := m.putBack(ctx, h, done); uerr != nil {
				return errors.Join(err, fmt.Errorf("%s could not be restored, and is restored by the next host: %w",
					done.place.Path, uerr))
			}
		}
		break
	}
	return errors.Join(err, finish())
}

func (m *files) replaceOne(ctx context.Context, h *roots.Hold, r *replacement) (err error) {
	if r.after == nil {
		return removePlace(r.place)
	}
	if r.there == nil {
		if err := makeParents(r.place); err != nil {
			return err
		}
	}
	r.saved, err = m.save(ctx, h, r.place, r.there.fileInfo(), plainMode, writeBytes(r.after))
	return err
}

// putBack restores a file that replaceOne has replaced.
func (m *files) putBack(ctx context.Context, h *roots.Hold, r *replacement) error {
	if r.there == nil {
		return removePlace(r.place)
	}
	var was fs.FileInfo
	if r.after != nil {
		was = r.saved.info
	}
	_, err := m.save(ctx, h, r.place, was, mode{r.there.info.Mode().Perm(), true}, writeBytes(r.before))
	return err
}

// recover undoes the changes that a host left half done when it was killed. It skips those of hosts that live.
func (m *files) recover(ctx context.Context) {
	j := &m.journals
	if j.dir == "" {
		return
	}
	names, err := os.ReadDir(j.dir)
	if err != nil {
		return // there is no folder before the first change
	}
	for _, n := range names {
		path := filepath.Join(j.dir, n.Name())
		if !strings.HasSuffix(path, ".json") {
			continue
		}
		lock, err := filelock.Try(path+".lock", filelock.Exclusive)
		if err != nil {
			continue
		}
		if err := m.recoverOne(ctx, path); err != nil {
			j.log.Error("files of an interrupted change could not be restored", "journal", path, "error", err)
			_ = lock.Release() // the next host tries again
			continue
		}
		_ = errors.Join(os.Remove(path), lock.Remove()) // what remains does no harm: the contents are the old ones
	}
}

func (m *files) recoverOne(ctx context.Context, path string) error {
	b, err := atomicfile.Read(path, maxJournal)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // another host was faster
	}
	if err != nil {
		return err
	}
	var entries []journalEntry
	if err := json.Unmarshal(b, &entries); err != nil {
		return err
	}
	var errs []error
	restored := 0
	for _, e := range entries {
		was, err := m.restoreEntry(ctx, e)
		if was {
			restored++
		}
		errs = append(errs, err)
	}
	m.journals.log.Warn("an interrupted change of several files was undone", "files", len(entries), "restored",
		restored)
	return errors.Join(errs...)
}

// restoreEntry restores one file if it still has the content of the interrupted change.
func (m *files) restoreEntry(ctx context.Context, e journalEntry) (restored bool, err error) {
	set, err := roots.Open([]roots.Dir{{Path: e.Root}}, roots.Options{Protect: []string{}})
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil // the folder is gone
	}
	if err != nil {
		return false, err
	}
	defer set.Close()
	p, err := roots.Locate(set, filepath.Join(e.Root, filepath.FromSlash(e.Name)))
	if err != nil {
		return false, err
	}
	err = m.withLocks(ctx, true, func(h *roots.Hold) error {
		there, now, err := m.readEditable(p)
		if err != nil && !isCode(err, tool.CodeNotFound) {
			return err
		}
		defer there.closeOriginal()
		exists := err == nil
		if exists == e.Exists && bytes.Equal(now, e.Before) {
			return nil
		}
		if exists != (e.After != "") || exists && sum(now) != e.After {
			return nil // another caller has changed it since
		}
		restored = true
		if !e.Exists {
			return removePlace(p)
		}
		_, err = m.save(ctx, h, p, there.fileInfo(), mode{fs.FileMode(e.Mode), true}, writeBytes(e.Before))
		return err
	}, p)
	return restored, err
}
