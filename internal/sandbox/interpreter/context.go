package interpreter

import (
	"context"
	_ "embed" // of what the interpreters run
	"errors"
	"fmt"
	"strings"
	"sync"

	"gatehouse/internal/sandbox"
)

var (
	//go:embed fetch.js
	fetchText string
	//go:embed node.js
	nodePlain string
	//go:embed show.js
	showText string
	//go:embed bash.sh
	bashText string
)

// nodeText is the program of a Node with state.
func nodeText() string { return withShow(nodePlain) }

// withShow inserts the part that both Node programs share.
func withShow(text string) string {
	return strings.Replace(text, "/* show.js */", showText+fetchText, 1)
}

// nodeStart gives Node file descriptors apart from its standard streams, so that processes of the code do not
// write to them by accident.
const nodeStart = `exec node -e "$1" 3>&1 4<&0 1>&2 0</dev/null`

// NewContext creates a context of a language. It lives until life ends or it is closed. name distinguishes it
// from others in the same sandbox.
func NewContext(life context.Context, box sandbox.Sandbox, l Language, name string) (Context, error) {
	var argv []string
	request := encodeFields
	switch l {
	case Python:
		argv = []string{"python3", "-c", pythonText, "state"}
	case Node:
		argv, request = []string{"sh", "-c", nodeStart, "sh", nodeText()}, encodeJSON
	case Bash:
		return newShell(box, name)
	default:
		return nil, fmt.Errorf("%s has no contexts; expected python, node or bash", l)
	}
	t, err := startInterpreter(life, box, argv, request)
	if err != nil {
		return nil, err
	}
	return &stateful{life: life, box: box, argv: argv, request: request, t: t}, nil
}

// stateful is an interpreter that keeps state between pieces of code.
type stateful struct {
	// life bounds the interpreters, which outlive the call that starts them, so it must be a field.
	life context.Context
	box  sandbox.Sandbox
	argv []string

	request func(Code) []byte

	mu     sync.Mutex
	t      *connection
	closed bool
}

var errClosed = errors.New("the context is closed; create another one")

// current returns the interpreter. One that the code ended is replaced.
func (k *stateful) current() (*connection, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return nil, errClosed
	}
	if !k.t.alive() {
		t, err := startInterpreter(k.life, k.box, k.argv, k.request)
		if err != nil {
			return nil, err
		}
		k.t = t
	}
	return k.t, nil
}

// Run implements Context. Code whose time is up is interrupted first, and its state is kept if it stops then.
func (k *stateful) Run(ctx context.Context, c Code) (Result, error) {
	t, err := k.current()
	if err != nil {
		return Result{}, err
	}
	if !t.turn.TryLock() {
		return Result{}, ErrBusy
	}
	defer t.turn.Unlock()
	r, err := t.runCode(ctx, c, func() { t.p.Signal(2) })
	r.StateLost = r.StateLost || !t.alive()
	return r, err
}

// Interrupt implements Context.
func (k *stateful) Interrupt() {
	k.mu.Lock()
	t := k.t
	k.mu.Unlock()
	t.mu.Lock()
	busy := t.now != nil
	t.mu.Unlock()
	if busy {
		t.p.Signal(2)
	}
}

// Close implements Context.
func (k *stateful) Close() {
	k.mu.Lock()
	k.closed = true
	t := k.t
	k.mu.Unlock()
	t.closeConn()
}

// shell is a Bash context, which saves its state to a file after each piece of code.
type shell struct {
	box   sandbox.Sandbox
	files sandbox.Files
	dir   string

	// turn is held while a piece of code runs; locked before mu.
	turn sync.Mutex

	// mu guards the fields below. It is separate from turn so that Close can end running code.
	mu     sync.Mutex
	now    sandbox.Process // nil while nothing runs
	closed bool
}

func newShell(box sandbox.Sandbox, name string) (*shell, error) {
	f, ok := box.(sandbox.Files)
	if !ok {
		return nil, errors.New("a context of Bash requires a driver that supports files")
	}
	return &shell{box: box, files: f, dir: "/tmp/.context-" + name}, nil
}

// Run implements Context.
func (s *shell) Run(ctx context.Context, c Code) (Result, error) {
	if !s.turn.TryLock() {
		return Result{}, ErrBusy
	}
	defer s.turn.Unlock()
	code := s.dir + "/code"
	if _, err := s.files.WriteFile(ctx, code, strings.NewReader(c.Source),
		sandbox.WriteOptions{Parents: true, Mode: 0o600}); err != nil {
		return Result{}, err
	}
	p, err := s.box.Exec(ctx, sandbox.Command{
		Argv: []string{"bash", "-c", bashText, "bash", s.dir + "/state", code}, Dir: c.Dir, Env: c.Env, Stdin: input(c),
		Stdout: c.Stdout, Stderr: c.Stderr, Timeout: c.Timeout, OutputBytes: c.OutputBytes,
	})
	if err != nil {
		return Result{}, err
	}
	if !s.setProcess(p) {
		p.Signal(9)
	}
	r, err := p.Wait()
	s.setProcess(nil)
	return Result{Result: r}, err
}

// setProcess sets the running process. It returns false if the context is closed.
func (s *shell) setProcess(p sandbox.Process) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now = p
	return !s.closed
}

// Interrupt implements Context.
func (s *shell) Interrupt() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.now != nil {
		s.now.Signal(2)
	}
}

// Close implements Context. It removes the saved state.
func (s *shell) Close() {
	s.mu.Lock()
	s.closed = true
	if s.now != nil {
		s.now.Signal(9)
	}
	s.mu.Unlock()
	s.turn.Lock()
	defer s.turn.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), startWait)
	defer cancel()
	s.files.Remove(ctx, s.dir, true) // the sandbox may have ended
}
