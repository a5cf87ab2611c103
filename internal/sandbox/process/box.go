package process

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"

	"gatehouse/internal/exec/proc"
	"gatehouse/internal/sandbox"
)

// box is a folder, and the programs that run for it.
type box struct {
	driver *Driver
	home   string
	root   *os.Root // of home
	limits sandbox.Limits
	env    []string

	// life ends with Close. Programs outlive the calls that started them.
	life   context.Context
	end    context.CancelCauseFunc
	closed func() error
	gone   chan struct{}

	mu   sync.Mutex
	shut bool
	runs sync.WaitGroup // programs, added to under mu
}

func newBox(d *Driver, home string, root *os.Root, limits sandbox.Limits, env []string) *box {
	b := &box{driver: d, home: home, root: root, limits: limits, gone: make(chan struct{})}
	b.env = append(ownEnvironment(home), env...)
	b.life, b.end = context.WithCancelCause(context.Background())
	b.closed = sync.OnceValue(b.finish)
	return b
}

// ownEnvironment is what programs need of the host's, with home as their place.
func ownEnvironment(home string) []string {
	env := proc.BaseEnv()
	for _, name := range []string{"HOME", "USERPROFILE", "TMPDIR", "TEMP", "TMP", "PWD"} {
		env = append(env, name+"="+home)
	}
	return env
}

// merged has one variable of each name, the later one.
func merged(lists ...[]string) (env []string) {
	at := map[string]int{}
	for _, l := range lists {
		for _, v := range l {
			name, _, _ := strings.Cut(v, "=")
			if runtime.GOOS == "windows" {
				name = strings.ToUpper(name)
			}
			if i, ok := at[name]; ok {
				env[i] = v
				continue
			}
			at[name] = len(env)
			env = append(env, v)
		}
	}
	return env
}

// Limits are those of output and time; the others are not held.
func (b *box) Limits() sandbox.Limits { return b.limits }

// Ping answers as long as it is not closed.
func (b *box) Ping(context.Context) error {
	if b.life.Err() != nil {
		return sandbox.ErrClosed
	}
	return nil
}

// Done is closed when it is gone.
func (b *box) Done() <-chan struct{} { return b.gone }

// Close ends every program and removes the folder.
func (b *box) Close() error { return b.closed() }

func (b *box) finish() error {
	defer close(b.gone)
	b.mu.Lock()
	b.shut = true
	b.mu.Unlock()
	b.end(sandbox.ErrClosed)
	b.runs.Wait()
	err := errors.Join(b.root.Close(), os.RemoveAll(b.home))
	b.driver.boxes.Remove(b)
	if err != nil {
		b.driver.o.Log.Warn("a sandbox left something behind", "error", err)
	}
	return err
}

// enter counts a program in, unless the box is closed.
func (b *box) enter() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.shut {
		return sandbox.ErrClosed
	}
	b.runs.Add(1)
	return nil
}

// folder is where a program begins.
func (b *box) folder(dir string) string {
	if filepath.IsAbs(dir) {
		return dir
	}
	return filepath.Join(b.home, dir)
}

var (
	_ sandbox.Sandbox = (*box)(nil)
	_ sandbox.Files   = (*box)(nil)
)
