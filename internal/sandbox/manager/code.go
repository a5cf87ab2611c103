package manager

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/interpreter"
)

// mostContexts is how many contexts a sandbox may have.
const mostContexts = 16

// ErrNoContext is returned for an id that is not a context of the sandbox.
var ErrNoContext = errors.New("the context does not exist in this sandbox")

// ErrTooManyContexts is returned if the sandbox has the most contexts allowed.
var ErrTooManyContexts = fmt.Errorf("this sandbox has %d contexts, which is the most: remove one first", mostContexts)

// Context keeps the state of code between calls.
type Context struct {
	ID       string
	Language interpreter.Language
	Created  time.Time

	kernel interpreter.Context
	box    *Box
}

// contextTable holds the contexts of one sandbox by id. It is guarded by Box.mu.
type contextTable struct {
	all    map[string]*Context
	making int
}

func (c *contextTable) size() int { return len(c.all) }

// NewContext creates a context of a language.
func (b *Box) NewContext(l interpreter.Language) (*Context, error) {
	b.mu.Lock()
	if len(b.contexts.all)+b.contexts.making >= mostContexts {
		b.mu.Unlock()
		return nil, ErrTooManyContexts
	}
	b.contexts.making++
	b.mu.Unlock()
	c := &Context{ID: b.manager.o.NewID("context"), Language: l, Created: time.Now(), box: b}
	var err error
	c.kernel, err = interpreter.NewContext(b.manager.life, b.Sandbox, l, c.ID)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.contexts.making--
	if err != nil {
		return nil, err
	}
	if b.contexts.all == nil {
		b.contexts.all = map[string]*Context{}
	}
	b.contexts.all[c.ID] = c
	return c, nil
}

// Context returns the context with an id, or ErrNoContext.
func (b *Box) Context(id string) (*Context, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if c := b.contexts.all[id]; c != nil {
		return c, nil
	}
	return nil, ErrNoContext
}

// Contexts returns all contexts, the oldest first.
func (b *Box) Contexts() (all []*Context) {
	b.mu.Lock()
	for _, c := range b.contexts.all {
		all = append(all, c)
	}
	b.mu.Unlock()
	slices.SortFunc(all, func(a, b *Context) int { return a.Created.Compare(b.Created) })
	return all
}

// RemoveContext ends a context and drops its state.
func (b *Box) RemoveContext(id string) error {
	b.mu.Lock()
	c := b.contexts.all[id]
	delete(b.contexts.all, id)
	b.mu.Unlock()
	if c == nil {
		return ErrNoContext
	}
	c.kernel.Close()
	return nil
}

// RestartContext drops the state of a context and ends the code that runs in it.
func (b *Box) RestartContext(id string) error {
	c, err := b.Context(id)
	if err != nil {
		return err
	}
	c.kernel.Close()
	k, err := interpreter.NewContext(b.manager.life, b.Sandbox, c.Language, c.ID)
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.contexts.all[id] == nil {
		k.Close()
		return ErrNoContext
	}
	b.contexts.all[id] = &Context{ID: id, Language: c.Language, Created: c.Created, kernel: k, box: b}
	return nil
}

// Interrupt interrupts the code that runs in it.
func (c *Context) Interrupt() { c.kernel.Interrupt() }

// Run runs code in the context.
func (c *Context) Run(ctx context.Context, code interpreter.Code) (interpreter.Result, error) {
	code.Env = c.box.with(code.Env)
	return c.kernel.Run(ctx, code)
}

// Code runs code as a process of its own, which ends with all its descendants. It uses a waiting interpreter
// if one is free.
func (b *Box) Code(ctx context.Context, l interpreter.Language, code interpreter.Code) (interpreter.Result, error) {
	code.Env = b.with(code.Env)
	if l == interpreter.Python {
		if f := b.forker(ctx); f != nil {
			// The interpreter may have been started before these were known.
			code.Env = append(slices.Clone(b.env), code.Env...)
			r, err := f.Run(ctx, code)
			if !errors.Is(err, interpreter.ErrBusy) {
				return r, err
			}
		}
	}
	if l == interpreter.Node {
		b.kind.scripted()
		if n := b.starter(); n != nil {
			code.Env = slices.Concat(b.env, code.Env)
			r, err := n.Run(ctx, code)
			if !errors.Is(err, interpreter.ErrBusy) {
				return r, err
			}
		}
	}
	return interpreter.RunOnce(ctx, b.Sandbox, l, code)
}

// Shell runs a line for a shell, which is Bash if it exists.
func (b *Box) Shell(ctx context.Context, line string, code interpreter.Code) (interpreter.Result, error) {
	code.Source, code.Env = line, b.with(code.Env)
	r, err := b.shell(ctx, interpreter.Bash, code)
	if errors.Is(err, fs.ErrNotExist) {
		r, err = b.shell(ctx, interpreter.Shell, code)
	}
	return r, err
}

// longestLine is how many bytes of code are passed as an argument; longer code is passed in a file.
const longestLine = 32 << 10

func (b *Box) shell(ctx context.Context, l interpreter.Language, code interpreter.Code) (interpreter.Result, error) {
	if len(code.Source) > longestLine {
		return interpreter.RunFile(ctx, b.Sandbox, l, code)
	}
	c := sandbox.Command{
		Argv: []string{string(l), "-c", code.Source}, Dir: code.Dir, Env: code.Env,
		Stdout: code.Stdout, Stderr: code.Stderr, Timeout: code.Timeout, OutputBytes: code.OutputBytes,
	}
	if len(code.Stdin) > 0 {
		c.Stdin = bytes.NewReader(code.Stdin)
	}
	r, err := b.Run(ctx, c)
	return interpreter.Result{Result: r}, err
}
