package process

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"gatehouse/internal/exec/proc"
	"gatehouse/internal/files/filelock"
)

// The suffixes of the three files of a detached process.
const (
	cardFile   = ".json"
	stdoutFile = ".out"
	stderrFile = ".err"

	maxCard = 4 << 20 // bytes; the arguments of a process have at most a quarter of it
)

// card describes a detached process to a later host.
type card struct {
	ID        string    `json:"id"`
	Owner     string    `json:"owner"`
	Context   string    `json:"context,omitempty"`
	Command   string    `json:"command"`
	Args      []string  `json:"args,omitempty"`
	Dir       string    `json:"dir"`
	StartedAt time.Time `json:"began"`
	Mark      proc.Mark `json:"mark"`
	End       *ending   `json:"end,omitempty"` // nil while it runs
}

// ending is how a detached process ended.
type ending struct {
	At      time.Time     `json:"at"`
	Code    int           `json:"code"`
	Signal  string        `json:"signal,omitempty"`
	Took    time.Duration `json:"took"`
	CPU     time.Duration `json:"cpu,omitempty"`
	Stopped bool          `json:"stopped,omitempty"`
	Unseen  bool          `json:"unseen,omitempty"` // no host was running when it ended, so how it ended is not known
	Lost    bool          `json:"lost,omitempty"`   // nor is it known when it ended
}

func endingOf(s proc.State, lost bool) *ending {
	return &ending{time.Now(), s.Code, s.Signal, s.Took, s.CPU, s.Stopped != nil, s.Unseen, lost}
}

func (e *ending) state() proc.State {
	s := proc.State{Code: e.Code, Signal: e.Signal, Took: e.Took, CPU: e.CPU, Unseen: e.Unseen}
	if e.Stopped {
		s.Stopped = proc.ErrStopped
	}
	return s
}

// files are the files of a detached process: its card, on which this host holds
// a lock while it follows the process, and its output. They belong to one record.
type files struct {
	base string // path without the suffix
	card *os.File
	out  [2]*os.File
}

// newFiles makes the files. The card gets its name when write is called, so that
// no other host finds an incomplete card.
func newFiles(folder, id string) (_ *files, err error) {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, err
	}
	f := &files{base: filepath.Join(folder, filepath.Base(id))}
	defer func() {
		if err != nil {
			f.removeFiles()
		}
	}()
	if f.card, err = os.OpenFile(f.base+".new", os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600); err != nil {
		return nil, err
	}
	if err := filelock.TryOpen(f.card, filelock.Exclusive); err != nil {
		return nil, err
	}
	return f, f.openOutput(os.O_CREATE | os.O_EXCL)
}

func (f *files) openOutput(how int) (err error) {
	for i, ending := range []string{stdoutFile, stderrFile} {
		if f.out[i], err = os.OpenFile(f.base+ending, os.O_RDWR|os.O_APPEND|how, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// claimFiles opens the files of a process and locks its card. The error matches
// os.ErrExist if another host follows the process.
func claimFiles(path string) (_ *files, c card, err error) {
	f := &files{base: path[:len(path)-len(cardFile)]}
	defer func() {
		if err != nil {
			f.closeFiles()
		}
	}()
	if f.card, err = os.OpenFile(path, os.O_RDWR, 0); err != nil {
		return nil, c, err
	}
	if err := filelock.TryOpen(f.card, filelock.Exclusive); err != nil {
		return nil, c, os.ErrExist
	}
	// The host that held the lock may have removed the card.
	opened, err := f.card.Stat()
	if err != nil {
		return nil, c, err
	}
	if named, err := os.Stat(path); err != nil || !os.SameFile(opened, named) {
		return nil, c, os.ErrExist
	}
	if err := json.NewDecoder(io.LimitReader(f.card, maxCard)).Decode(&c); err != nil {
		return nil, c, fmt.Errorf("%s: %w", path, err)
	}
	if c.ID == "" || filepath.Base(c.ID) != filepath.Base(f.base) {
		return nil, c, fmt.Errorf("%s is the card of another process than its name says", path)
	}
	return f, c, f.openOutput(0)
}

// writeCard writes the card and, the first time, gives it its name.
func (f *files) writeCard(c *card) error {
	b, err := json.Marshal(c)
	if err != nil {
		return err
	}
	if _, err := f.card.WriteAt(b, 0); err != nil {
		return err
	}
	if err := f.card.Truncate(int64(len(b))); err != nil {
		return err
	}
	err = os.Rename(f.base+".new", f.base+cardFile)
	if errors.Is(err, os.ErrNotExist) {
		return nil // it has its name
	}
	return err
}

// closeFiles closes the files, so that another host can claim them.
func (f *files) closeFiles() {
	for _, file := range []*os.File{f.out[0], f.out[1], f.card} {
		if file != nil {
			file.Close()
		}
	}
}

func (f *files) removeFiles() {
	for _, ending := range []string{cardFile, ".new", stdoutFile, stderrFile} {
		os.Remove(f.base + ending)
	}
	f.closeFiles()
}
