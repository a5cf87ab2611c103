package interpreter

import (
	"context"
	_ "embed" // of what the interpreter runs

	"gatehouse/internal/sandbox"
)

var (
	//go:embed python.py
	pythonText string
	// PythonTools is the module with which a program calls functions of the host, see package toolchannel. A Forker
	// has it already, as _gatehouse_tools; elsewhere it has to be a file.
	//
	//go:embed tools.py
	PythonTools string
)

// A Forker is a running Python that forks for each piece of code, so that each gets a process of its own
// without the start-up time.
type Forker struct{ t *connection }

// StartForker starts a Forker, which lives until life ends or it is closed.
func StartForker(life context.Context, box sandbox.Sandbox) (*Forker, error) {
	t, err := startInterpreter(life, box, []string{"python3", "-c", pythonText, "fork", PythonTools}, encodeFields)
	if err != nil {
		return nil, err
	}
	return &Forker{t}, nil
}

// Alive reports whether it accepts more code. After code that left processes behind or was killed, it does
// not.
func (f *Forker) Alive() bool { return f.t.alive() }

// Close ends the Python process.
func (f *Forker) Close() { f.t.closeConn() }

// Run runs code in a process of its own. It returns ErrBusy while other code runs. Processes that the code
// started end with it.
func (f *Forker) Run(ctx context.Context, c Code) (Result, error) {
	if !f.t.turn.TryLock() {
		return Result{}, ErrBusy
	}
	defer f.t.turn.Unlock()
	if !f.t.alive() {
		return Result{}, ErrBusy
	}
	r, err := f.t.runCode(ctx, c, nil)
	r.StateLost = false
	return r, err
}
