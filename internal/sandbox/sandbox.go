package sandbox

import (
	"context"
	"errors"
	"io"
	"time"
)

// ErrClosed is what a sandbox answers when it is gone, for whatever reason.
var ErrClosed = errors.New("the sandbox is gone; create another one")

// ErrPaused is what a sandbox answers while it is paused.
var ErrPaused = errors.New("the sandbox is paused; resume it first")

// Driver makes sandboxes of one kind. It is safe for concurrent use, and making,
// using and closing different sandboxes do not wait for each other.
type Driver interface {
	// Name is a word for configuration and reports, such as "namespaces".
	Name() string
	// Capabilities tells what this driver holds on this machine. It is found
	// out once and answered at once afterwards.
	Capabilities() Capabilities
	// Doctor tries each thing the driver needs and says what is missing and
	// what to do about it.
	Doctor(ctx context.Context) []Finding
	// Create makes a sandbox that is ready for Exec. ctx bounds the making
	// only. The error names the system call that failed where one did.
	Create(ctx context.Context, spec Spec) (Sandbox, error)
	// Close ends every sandbox that is left and gives back what the driver
	// holds.
	Close() error
}

// Spec is what is asked of a new sandbox. Its zero value is an ordinary one.
type Spec struct {
	Limits Limits   // zero members take the defaults
	Env    []string // NAME=value, for every call in it; nothing comes from the host
	Trees  []Tree   // more of the host's folders
	Image  *Image   // what it has for a system; nil means the host's own programs
	Strict bool     // only the system calls of the strict profile may be made, see package seccomp
}

// Image is a system to run code in, laid out in a folder of the host. It is
// only read.
type Image struct {
	ID   string   // names what is in it; two with one ID are the same
	Root string   // an absolute path of the host, of the folder that is / in the sandbox
	Env  []string // NAME=value, what its programs expect
}

// Tree is a folder of the host that can be read in the sandbox and not written.
type Tree struct {
	From string // an absolute path of the host
	To   string // an absolute path in the sandbox; "" means the same
}

// Sandbox is one closed place with its own files, processes and network. It is
// safe for concurrent use.
type Sandbox interface {
	// Limits are those that hold, which may be lower than what was asked for.
	Limits() Limits
	// Exec starts a program. When ctx ends, the program and all that came of
	// it are killed; a program that is to outlive a call gets a context that
	// does. The sandbox lives on whatever happens to the program.
	Exec(ctx context.Context, c Command) (Process, error)
	// Ping asks whether the sandbox answers.
	Ping(ctx context.Context) error
	// Done is closed when the sandbox is gone, by Close or by itself.
	Done() <-chan struct{}
	// Close ends everything in the sandbox and returns when nothing of it is
	// left. It may be called more than once.
	Close() error
}

// Command is a program to run. Only Argv is needed.
type Command struct {
	// Argv[0] is a path in the sandbox or a name that is looked up in its
	// PATH. All of Argv, Env and Dir together may have 60,000 bytes; what is
	// longer goes through Stdin or a file.
	Argv []string
	Dir  string   // "" means the home folder
	Env  []string // NAME=value, on top of the sandbox's; the later wins

	// Stdin nil means nothing to read. It is read as the program asks for
	// more. A Reader that is an io.Closer is closed at the program's end.
	Stdin io.Reader
	// Stdout and Stderr nil mean thrown away. Each is written to by one
	// goroutine; a Writer that blocks holds up the program, nothing else. One
	// Writer for both must be safe for concurrent use.
	Stdout, Stderr io.Writer

	Timeout     time.Duration // 0 means Limits.Call, less than 0 none
	OutputBytes int           // what each stream may bring before the call is ended; 0 means Limits.OutputBytes, less than 0 no limit

	// Terminal gives the program a terminal of this size. Stdin types into
	// it, Stdout gets what it shows, Stderr nothing.
	Terminal *Size
}

// Size is that of a terminal, in characters.
type Size struct{ Cols, Rows uint16 }

// Process is a program that was started.
type Process interface {
	// Signal sends a signal to the program's process group. SIGKILL ends
	// everything that came of it. After the end it does nothing.
	Signal(number int) error
	// Resize changes the size of its terminal.
	Resize(Size) error
	// Done is closed when the program and its output have ended.
	Done() <-chan struct{}
	// Wait waits for Done and tells how it ended. The error says why the
	// outcome is Lost, why the call was ended from outside, or that a Writer
	// did not take the output. It may be called more than once.
	Wait() (Result, error)
}

// Result is how a call ended.
type Result struct {
	Outcome    Outcome
	Code       int           // the exit code, when it ended by itself
	Signal     int           // the signal that ended it, else 0
	Took       time.Duration // from the request to the end
	CPU        time.Duration // user and system time of the program and what it waited for
	MaxRSS     int64         // bytes of memory of the largest of them
	StdoutSize int64         // bytes that were written to Stdout
	StderrSize int64         // bytes that were written to Stderr
}

// Adjustable is what a Sandbox offers that can be made another one before its
// first call, so that one made in advance serves whatever is asked for. Limits
// are checked and defaulted as in Create; a limit that cannot be changed any
// more is an error, and the sandbox is then of no use.
type Adjustable interface {
	Adjust(ctx context.Context, limits Limits, env []string) error
}
