package interpreter

import (
	"context"
	_ "embed" // of what the interpreter runs

	"gatehouse/internal/sandbox"
)

//go:embed python.py
var pythonText string

// A Forker is a Python that has started already and forks for each piece of
// code, so that each gets a process of its own without waiting for a start.
type Forker struct{ t *talk }

// StartForker starts one, which lives until life ends or it is closed.
func StartForker(life context.Context, box sandbox.Sandbox) (*Forker, error) {
	t, err := begin(life, box, []string{"python3", "-c", pythonText, "fork"}, asFields)
	if err != nil {
		return nil, err
	}
	return &Forker{t}, nil
}

// Alive reports whether it takes more code. After code that left processes
// behind or had to be killed it does not.
func (f *Forker) Alive() bool { return f.t.alive() }

// Close ends it.
func (f *Forker) Close() { f.t.close() }

// Run runs code in a process of its own. While other code runs it is ErrBusy.
// What the code started ends with it.
func (f *Forker) Run(ctx context.Context, c Code) (Result, error) {
	if !f.t.turn.TryLock() {
		return Result{}, ErrBusy
	}
	defer f.t.turn.Unlock()
	if !f.t.alive() {
		return Result{}, ErrBusy
	}
	r, err := f.t.run(ctx, c, nil)
	r.Forgot = false
	return r, err
}
