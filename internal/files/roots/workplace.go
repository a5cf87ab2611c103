package roots

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"gatehouse/internal/exec/overlay"
	"gatehouse/tool"
)

// Workplace is a folder in which a program starts. The program may access others, because roots restrict file tools
// and not programs.
type Workplace struct {
	Path string // for display
	Dir  string // the working directory, until Close

	view View     // nil for the file system of the host
	open *os.File // nil if Dir is a name
}

// OpenWorkplace finds the folder dir in r; "" means the first folder of r, or the system's temporary folder if r is
// empty. If the system permits, the program starts in the opened directory, whatever has its name by then. field is
// the name of the caller's argument. The caller calls Close after the program was started.
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
	// does not wait for the writer of a pipe
	open := place.Root.OpenFile
	if place.layer != nil { // the program runs in the folder itself, because it cannot see a layer
		open = func(_ string, flag int, perm os.FileMode) (*os.File, error) {
			return os.OpenFile(filepath.Join(place.Folder(), place.Name), flag, perm)
		}
	}
	f, err := open(place.Name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
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
	w := Workplace{Path: filepath.Join(place.Folder(), place.Name), open: f}
	w.Dir = w.Path
	if w.view = ViewOf(r); w.view != nil {
		return w, nil
	}
	if runtime.GOOS == "linux" {
		w.Dir = fmt.Sprintf("/proc/self/fd/%d", f.Fd())
	}
	return w, nil
}

// Space returns the view in which the program runs, nil for the file system of the host. loose means that the program
// may outlive the call. The caller closes the space after the program was started.
func (w Workplace) Space(loose bool) (*overlay.Space, error) {
	if w.view == nil {
		return nil, nil
	}
	return w.view.Space(loose)
}

// Close closes the folder.
func (w Workplace) Close() error {
	if w.open == nil {
		return nil
	}
	return w.open.Close()
}

// Says returns the text of an error in which the path that was used is replaced by the one that the caller knows.
func (w Workplace) Says(err error) string { return strings.ReplaceAll(err.Error(), w.Dir, w.Path) }
