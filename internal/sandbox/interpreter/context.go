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

// nodeText is what a Node that remembers runs.
func nodeText() string { return withShow(nodePlain) }

// withShow puts in what both kinds of Node have.
func withShow(text string) string {
	return strings.Replace(text, "/* show.js */", showText+fetchText, 1)
}

// nodeStart gives Node channels apart from its streams, so that what the code
// starts cannot write into them by accident.
const nodeStart = `exec node -e "$1" 3>&1 4<&0 1>&2 0</dev/null`

// NewContext makes a context of a language, which lives until life ends or it
// is closed. name tells it apart from others in the same sandbox.
func NewContext(life context.Context, box sandbox.Sandbox, l Language, name string) (Context, error) {
	var argv []string
	request := asFields
	switch l {
	case Python:
		argv = []string{"python3", "-c", pythonText, "state"}
	case Node:
		argv, request = []string{"sh", "-c", nodeStart, "sh", nodeText()}, asJSON
	case Bash:
		return newShell(box, name)
	default:
		return nil, fmt.Errorf("there are contexts of Python, Node and Bash; none of %s", l)
	}
	t, err := begin(life, box, argv, request)
	if err != nil {
		return nil, err
	}
	return &remembering{life: life, box: box, argv: argv, request: request, t: t}, nil
}

// remembering is an interpreter that remembers.
type remembering struct {
	// life is that of the manager, because the interpreter outlives the call that started it.
	life context.Context
	box  sandbox.Sandbox
	argv []string

	request func(Code) []byte

	mu     sync.Mutex
	t      *talk
	closed bool
}

var errClosed = errors.New("the context is closed; make another one")

// current is the interpreter; one that was taken along by code is replaced.
func (k *remembering) current() (*talk, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return nil, errClosed
	}
	if !k.t.alive() {
		t, err := begin(k.life, k.box, k.argv, k.request)
		if err != nil {
			return nil, err
		}
		k.t = t
	}
	return k.t, nil
}

// Run is that of Context. Code that has to end is interrupted first, and what
// it did is kept if it stops then.
func (k *remembering) Run(ctx context.Context, c Code) (Result, error) {
	t, err := k.current()
	if err != nil {
		return Result{}, err
	}
	if !t.turn.TryLock() {
		return Result{}, ErrBusy
	}
	defer t.turn.Unlock()
	r, err := t.run(ctx, c, func() { t.p.Signal(2) })
	r.Forgot = r.Forgot || !t.alive()
	return r, err
}

// Interrupt is that of Context.
func (k *remembering) Interrupt() {
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

// Close is that of Context.
func (k *remembering) Close() {
	k.mu.Lock()
	k.closed = true
	t := k.t
	k.mu.Unlock()
	t.close()
}

// shell is a Bash that remembers by writing down, after each piece, what the
// next one is to find.
type shell struct {
	box   sandbox.Sandbox
	files sandbox.Files
	dir   string

	// turn lets one piece of code run at a time. It is taken before mu.
	turn sync.Mutex

	// mu guards what follows. It is another lock than turn, so that Close can end the code that
	// runs.
	mu     sync.Mutex
	now    sandbox.Process // nil while nothing runs
	closed bool
}

func newShell(box sandbox.Sandbox, name string) (*shell, error) {
	f, ok := box.(sandbox.Files)
	if !ok {
		return nil, errors.New("a context of Bash needs a driver that offers files")
	}
	return &shell{box: box, files: f, dir: "/tmp/.context-" + name}, nil
}

// Run is that of Context.
func (s *shell) Run(ctx context.Context, c Code) (Result, error) {
	if !s.turn.TryLock() {
		return Result{}, ErrBusy
	}
	defer s.turn.Unlock()
	code := s.dir + "/code"
	if _, err := s.files.WriteFile(ctx, code, strings.NewReader(c.Source), sandbox.Writing{Parents: true, Mode: 0o600}); err != nil {
		return Result{}, err
	}
	p, err := s.box.Exec(ctx, sandbox.Command{
		Argv: []string{"bash", "-c", bashText, "bash", s.dir + "/state", code}, Dir: c.Dir, Env: c.Env, Stdin: input(c),
		Stdout: c.Stdout, Stderr: c.Stderr, Timeout: c.Timeout, OutputBytes: c.OutputBytes,
	})
	if err != nil {
		return Result{}, err
	}
	if !s.set(p) {
		p.Signal(9)
	}
	r, err := p.Wait()
	s.set(nil)
	return Result{Result: r}, err
}

// set says what runs; false means that the context is closed.
func (s *shell) set(p sandbox.Process) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now = p
	return !s.closed
}

// Interrupt is that of Context.
func (s *shell) Interrupt() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.now != nil {
		s.now.Signal(2)
	}
}

// Close is that of Context. What was written down is taken away.
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
	s.files.Remove(ctx, s.dir, true) // it may be gone with the sandbox
}
