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

// instance is a folder and the programs that run for it.
type instance struct {
	driver *Driver
	home   string
	root   *os.Root // of home
	limits sandbox.Limits
	env    []string

	life   context.Context // ends with Close; programs outlive the call that starts them, so it is a field
	end    context.CancelCauseFunc
	closed func() error
	gone   chan struct{}

	mu   sync.Mutex
	shut bool
	runs sync.WaitGroup // programs; added to under mu
}

func newInstance(d *Driver, home string, root *os.Root, limits sandbox.Limits, env []string) *instance {
	b := &instance{driver: d, home: home, root: root, limits: limits, gone: make(chan struct{})}
	b.env = append(ownEnvironment(home), env...)
	b.life, b.end = context.WithCancelCause(context.Background())
	b.closed = sync.OnceValue(b.finishInstance)
	return b
}

// ownEnvironment returns the host's variables that programs require, with home as their home folder.
func ownEnvironment(home string) []string {
	env := proc.BaseEnv()
	for _, name := range []string{"HOME", "USERPROFILE", "TMPDIR", "TEMP", "TMP", "PWD"} {
		env = append(env, name+"="+home)
	}
	return env
}

// merged merges lists of variables; later values override earlier ones.
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

// Limits returns the limits. Only those of output and time are enforced.
func (b *instance) Limits() sandbox.Limits { return b.limits }

// Ping returns an error if the sandbox is closed.
func (b *instance) Ping(context.Context) error {
	if b.life.Err() != nil {
		return sandbox.ErrClosed
	}
	return nil
}

// Done implements sandbox.Sandbox.
func (b *instance) Done() <-chan struct{} { return b.gone }

// Close ends every program and removes the folder.
func (b *instance) Close() error { return b.closed() }

func (b *instance) finishInstance() error {
	defer close(b.gone)
	b.mu.Lock()
	b.shut = true
	b.mu.Unlock()
	b.end(sandbox.ErrClosed)
	b.runs.Wait()
	err := errors.Join(b.root.Close(), os.RemoveAll(b.home))
	b.driver.instances.Remove(b)
	if err != nil {
		b.driver.o.Log.Warn("a sandbox left something behind", "error", err)
	}
	return err
}

// enter counts a program, unless the sandbox is closed.
func (b *instance) enter() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.shut {
		return sandbox.ErrClosed
	}
	b.runs.Add(1)
	return nil
}

// folder returns the working directory of a program.
func (b *instance) folder(dir string) string {
	if filepath.IsAbs(dir) {
		return dir
	}
	return filepath.Join(b.home, dir)
}

var (
	_ sandbox.Sandbox = (*instance)(nil)
	_ sandbox.Files   = (*instance)(nil)
)
