package process

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"gatehouse/internal/contextbook"
	"gatehouse/internal/proc"
	"gatehouse/tool"
)

const (
	mostArgs = 1000
	argBytes = 100 << 10 // of one argument or variable; systems take little more
	allBytes = 1 << 20   // of all of them
)

// folder is where a program begins. It may go elsewhere: roots hold file tools,
// not programs.
type folder struct {
	path string   // to be shown
	dir  string   // to start in
	open *os.File // as long as dir is needed; may be nil
}

// openFolder finds a folder in the caller's roots. Where the system can, the
// program begins in what was opened there, whatever has the name by then.
func openFolder(c *tool.Call, dir string) (folder, error) {
	if dir == "" {
		if len(c.Roots.List()) == 0 {
			return folder{path: os.TempDir(), dir: os.TempDir()}, nil
		}
		dir = "."
	}
	root, name, err := c.Roots.Resolve(dir)
	if err != nil {
		return folder{}, err
	}
	f, err := root.Open(name)
	if err != nil {
		return folder{}, &tool.Refusal{Code: "not_found", Message: "dir: " + dir + " cannot be opened", Next: "Give a folder that exists, or leave dir out."}
	}
	if info, err := f.Stat(); err != nil || !info.IsDir() {
		f.Close()
		return folder{}, tool.Refuse("invalid_arguments", "dir: %s is not a folder", dir)
	}
	at := folder{path: filepath.Join(root.Name(), name), open: f}
	at.dir = at.path
	if runtime.GOOS == "linux" {
		at.dir = fmt.Sprintf("/proc/self/fd/%d", f.Fd())
	}
	return at, nil
}

func (f folder) close() {
	if f.open != nil {
		f.open.Close()
	}
}

// hide puts the path that means something in the place of the one that was used.
func (f folder) hide(err error) string { return strings.ReplaceAll(err.Error(), f.dir, f.path) }

// own is the environment of the caller's context.
func (m *manager) own(who tool.Caller) (env contextbook.Environment, err error) {
	if m.cfg.Env == nil {
		return env, nil
	}
	if env, err = m.cfg.Env(who); err != nil {
		return env, &tool.Refusal{Code: "unavailable", Message: "the environment of this context is not complete: " + err.Error(), Next: "Whoever runs this host should look at the context's definition."}
	}
	return env, nil
}

// environment checks what a program is given, and makes its environment: what
// every program needs, what the context gives, and what the caller adds.
func environment(s *spec, dir string) ([]string, error) {
	if len(s.args) > mostArgs || len(s.env) > mostArgs {
		return nil, tool.Refuse("too_large", "a program is given at most %d arguments and %d variables", mostArgs, mostArgs)
	}
	all := 0
	for _, a := range slices.Concat([]string{s.command}, s.args, s.env) {
		if strings.IndexByte(a, 0) >= 0 {
			return nil, tool.Refuse("invalid_arguments", "nothing a program is given can hold a NUL byte")
		}
		if all += len(a); len(a) > argBytes || all > allBytes {
			return nil, tool.Refuse("too_large", "an argument has at most %d bytes, all together have %d; put what is longer into a file or type it", argBytes, allBytes)
		}
	}
	for _, kv := range s.env {
		if name, _, ok := strings.Cut(kv, "="); !ok || name == "" {
			return nil, tool.Refuse("invalid_arguments", "env: %q is not of the form NAME=value", kv)
		}
	}
	env := append(append(proc.BaseEnv(), s.own.Strings()...), "PWD="+dir)
	if s.size != nil {
		env = slices.DeleteFunc(env, func(kv string) bool { return strings.HasPrefix(kv, "TERM=") })
		env = append(env, "TERM=xterm-256color")
	}
	return append(env, s.env...), nil
}
