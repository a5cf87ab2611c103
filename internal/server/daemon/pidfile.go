package daemon

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"gatehouse/internal/files/filelock"
)

// PIDFile is the claim of the one daemon. The operating system releases it when the process ends in any
// way, so the file of a killed daemon is recognized as stale.
type PIDFile struct {
	f    *os.File
	path string
}

const (
	claimTries = 10 // another process may only be checking
	claimPause = 20 * time.Millisecond
	longestPID = 32 // bytes
)

// ClaimPID writes this process's number into the file and keeps it claimed until Release. The error is
// a *Running if another daemon has claimed it.
func ClaimPID(path string) (*PIDFile, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("PID file: %w", err)
	}
	for try := 0; ; try++ {
		p, err := claimOnce(path)
		if err == nil {
			return p, nil
		}
		if _, running := errors.AsType[*Running](err); running && try < claimTries || errors.Is(err, errMoved) {
			time.Sleep(claimPause)
			continue
		}
		return nil, err
	}
}

// errMoved means that the file was removed before it was claimed.
var errMoved = errors.New("the PID file was removed meanwhile")

func claimOnce(path string) (*PIDFile, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, fmt.Errorf("PID file: %w", err)
	}
	p := &PIDFile{f, path}
	if err := p.claim(); err != nil {
		f.Close()
		return nil, err
	}
	if err := p.writePID(); err != nil {
		return nil, errors.Join(
			fmt.Errorf("PID file: %w; free some space, or choose another place with --pid-file", err),
			p.Release(),
		)
	}
	return p, nil
}

func (p *PIDFile) claim() error {
	if err := filelock.TryOpen(p.f, filelock.Exclusive); err != nil {
		if !errors.Is(err, filelock.ErrHeld) {
			return fmt.Errorf("PID file: %w", err)
		}
		pid, err := readPID(p.f)
		return errors.Join(&Running{pid}, err)
	}
	if !p.same() {
		return errMoved
	}
	if _, err := readPID(p.f); err != nil { // the file belongs to another program, so it is not overwritten
		return fmt.Errorf("PID file %s: %w", p.path, err)
	}
	return nil
}

// same reports whether the open file is still the one at its path.
func (p *PIDFile) same() bool {
	ours, err := p.f.Stat()
	there, err2 := os.Lstat(p.path)
	return err == nil && err2 == nil && os.SameFile(ours, there)
}

func (p *PIDFile) writePID() error {
	if err := p.f.Truncate(0); err != nil {
		return err
	}
	_, err := p.f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	return err
}

// Release removes the file and releases the claim.
func (p *PIDFile) Release() error {
	var err error
	if p.same() {
		err = os.Remove(p.path)
	}
	return errors.Join(err, p.f.Close())
}

// FindPID returns the process that has claimed a file. pid is 0 if there is no file, or a daemon has
// not written its number yet; if running is false, pid is the number of a daemon that ended without
// removing the file.
func FindPID(path string) (pid int, running bool, err error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, fmt.Errorf("PID file: %w", err)
	}
	defer f.Close()
	if pid, err = readPID(f); err != nil {
		return 0, false, fmt.Errorf("PID file %s: %w", path, err)
	}
	switch err := filelock.TryOpen(f, filelock.Exclusive); {
	case errors.Is(err, filelock.ErrHeld):
		return pid, true, nil
	case err != nil:
		return 0, false, fmt.Errorf("PID file: %w", err)
	}
	return pid, false, nil
}

// RemoveStale removes a file that no process has claimed.
func RemoveStale(path string) error {
	p, err := claimOnce(path)
	if err != nil {
		return err
	}
	return p.Release()
}

func readPID(f *os.File) (int, error) {
	b, err := io.ReadAll(io.NewSectionReader(f, 0, longestPID+1))
	text := strings.TrimSpace(string(b))
	if err != nil || text == "" {
		return 0, err
	}
	pid, err := strconv.Atoi(text)
	if err != nil || pid <= 1 || len(b) > longestPID {
		return 0, errors.New("it holds no process number; remove it when no daemon runs")
	}
	return pid, nil
}
