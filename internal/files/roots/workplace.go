package roots

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"gatehouse/tool"
)

// Workplace is a folder that a program begins in. The program may go elsewhere:
// roots hold file tools, not programs.
type Workplace struct {
	Path string // to be shown
	Dir  string // to start in, until Close

	open *os.File // nil where Dir is a name
}

// OpenWorkplace finds the folder dir in r; "" means the first of r, or the
// system's place for temporary files where r is empty. Where the system can,
// the program begins in what was opened, whatever has the name by then. field
// is what the caller knows dir by. The caller calls Close once the
// program has begun.
func OpenWorkplace(r tool.Roots, dir, field string) (Workplace, error) {
	if dir == "" {
		if len(r.List()) == 0 {
			return Workplace{Path: os.TempDir(), Dir: os.TempDir()}, nil
		}
		dir = "."
	}
	place, err := Locate(r, dir)
	if err != nil {
		return Workplace{}, err
	}
	f, err := place.Root.OpenFile(place.Name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe is not waited for
	if err != nil {
		return Workplace{}, &tool.Refusal{
			Code:    tool.CodeNotFound,
			Message: field + ": " + dir + " cannot be opened",
			Next:    "Give a folder that exists, or leave " + field + " out.",
		}
	}
	if info, err := f.Stat(); err != nil || !info.IsDir() {
		f.Close()
		return Workplace{}, tool.Refuse(tool.CodeInvalidArguments, "%s: %s is not a folder", field, dir)
	}
	w := Workplace{Path: filepath.Join(place.Root.Name(), place.Name), open: f}
	w.Dir = w.Path
	if runtime.GOOS == "linux" {
		w.Dir = fmt.Sprintf("/proc/self/fd/%d", f.Fd())
	}
	return w, nil
}

// Close gives back what was opened.
func (w Workplace) Close() error {
	if w.open == nil {
		return nil
	}
	return w.open.Close()
}

// Says is the text of an error with the path that means something in the place
// of the one that was used.
func (w Workplace) Says(err error) string { return strings.ReplaceAll(err.Error(), w.Dir, w.Path) }
