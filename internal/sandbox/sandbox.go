package sandbox

import (
	"context"
	"errors"
	"io"
	"os"
	"time"
)

// ErrClosed is returned by a sandbox that has ended, for any reason.
var ErrClosed = errors.New("the sandbox is gone; create another one")

// ErrPaused is returned by a sandbox while it is paused.
var ErrPaused = errors.New("the sandbox is paused; resume it first")

// ErrNoMounts is returned by a driver that cannot make a sandbox with Spec.Mounts or Spec.Route. All but namespaces
// return it.
var ErrNoMounts = errors.New("this driver gives sandboxes no writable folders of the host and no route; " +
	"only the driver namespaces does")

// Driver makes sandboxes of one kind. It is safe for concurrent use. Making, using and closing different
// sandboxes do not wait for each other.
type Driver interface {
	// Name returns a word for configuration and reports, such as "namespaces".
	Name() string
	// Capabilities returns what this driver enforces on this machine. The first call probes the machine; later
	// calls return its result.
	Capabilities() Capabilities
	// Doctor tries each thing that the driver needs and reports what is missing and what to do about it.
	Doctor(ctx context.Context) []Finding
	// Create makes a sandbox that is ready for Exec. ctx bounds the creation only. If a system call failed,
	// the error names it.
	Create(ctx context.Context, spec Spec) (Sandbox, error)
	// Close ends the remaining sandboxes and releases the driver's resources.
	Close() error
}

// Spec describes a new sandbox. The zero value asks for the defaults.
type Spec struct {
	Limits Limits   // zero fields take the defaults
	Env    []string // NAME=value, for every call in the sandbox; nothing is inherited from the host
	Trees  []Tree   // further folders of the host
	Mounts []Mount  // further files and folders of the host, of which some can be written; see ErrNoMounts
	Route  *Route   // has the sandbox's network lead to the host; see ErrNoMounts; nil means that it leads nowhere
	Image  *Image   // its root file system; nil means the host's own programs
	Strict bool     // only the system calls of the strict profile are allowed, see package seccomp
	// Apart gives the sandbox processors beside the other programs of the host instead of among them, so that it
	// answers while one of these calculates, as far as the driver has groups for that.
	Apart bool
	// KeepOwners has calls that change the owner of a file, or the user of a process, report success and do nothing.
	// Without it they fail, because the sandbox has one user. Only the driver namespaces implements it.
	KeepOwners bool
	// WritableRoot lets the code write to the files of Image: to a layer over them in memory, of which Limits.DiskMiB
	// counts, and which ends with the sandbox. Only the driver namespaces implements it, and only where the kernel can
	// mount such a layer; elsewhere the files are read-only. It excludes Trees.
	WritableRoot bool
	// Users gives the sandbox users of its own instead of one, so that such calls have their effect. It excludes
	// KeepOwners. Only a driver that is a UserRanges implements it.
	Users *Users
	// Owner has the code run as a user of the host, so that it owns the files of that user in mounts whose owners
	// cannot be translated. nil means ids of its own. It excludes Users. A host that is an ordinary user ignores it,
	// because the code is that user. Only the driver namespaces implements it.
	Owner *Owner
}

// Owner is a user and a group of the host.
type Owner struct{ UID, GID uint32 }

// UserIDs is how many user ids, and group ids, a sandbox with Spec.Users has. They begin with 0.
const UserIDs = 1 << 16

// Users are the ids with which a program starts in a sandbox that has users of its own. User 0 may change the owners
// of files and become any other user, as the root of a container may, and has no other capability.
type Users struct {
	UID, GID uint32   // below UserIDs
	Groups   []uint32 // further groups
}

// UserRanges is implemented by a Driver that can make sandboxes with Spec.Users.
type UserRanges interface {
	// UserRange returns nil if it can, and otherwise why not and what to do about it.
	UserRange() error
}

// OwnedFiles is implemented by a sandbox with Spec.Users. What it, Files and Archive do there is done with all rights
// in the sandbox, and an archive contains the owners of files.
type OwnedFiles interface {
	// Chown gives what is at or below a path to a user: what belongs to user 0 or, with all, everything.
	Chown(ctx context.Context, path string, uid, gid uint32, all bool) error
	// TreeSize returns the bytes of the regular files below a folder.
	TreeSize(ctx context.Context, path string) (int64, error)
}

// Image is a root file system, unpacked into a folder of the host, which is never changed.
type Image struct {
	ID   string   // identifies the content; two images with one ID are the same
	Root string   // absolute path, on the host, of the folder that becomes / in the sandbox
	Env  []string // NAME=value, the environment that its programs expect
}

// Tree is a folder of the host that is visible read-only in the sandbox.
type Tree struct {
	From string // absolute path on the host
	To   string // absolute path in the sandbox; "" means the same as From
}

// Mount is a file or folder of the host in a sandbox. Mounts are made in their order, above everything else that the
// sandbox has, so that a later one may cover a part of an earlier one.
type Mount struct {
	// From is an absolute path on the host that contains no symbolic link. "" means an empty folder, or an empty file
	// if a file is at To, that covers what is there; it is left out if nothing is there.
	From string
	// File is a mount that the caller has opened and that is nowhere yet, in place of From; nil means From. It has its
	// attributes already, and the owners of its files are not translated, see Spec.Owner. The caller closes it.
	File *os.File
	To   string // absolute path in the sandbox; "" means the same as From
	// Write lets the code write. What it creates belongs, on the host, to the owner of From.
	Write  bool
	Device bool // From is a device that the code may open
	// Owned says that the files may belong to any user of a sandbox with Spec.Users. On the host they belong to the
	// user of this process (user 0) and to ids that the host has for this.
	Owned bool
}

// Route has every address lead to the host, except those of the loopback interface. See package egress.
type Route struct {
	// Ports are the TCP ports that the host accepts connections at, for every address; at most MaxRoutePorts.
	// Connections to other ports are refused by the kernel, and reported.
	Ports []uint16
	// Network is what may be reached. It cannot be changed while the sandbox lives.
	Network Network
}

// MaxRoutePorts is how many ports a Route may have.
const MaxRoutePorts = 64

// Sandbox isolates code with its own files, processes and network. It is safe for concurrent use.
type Sandbox interface {
	// Limits returns the limits in force, which may be lower than those requested.
	Limits() Limits
	// Exec starts a program. When ctx ends, the program and all its descendants are killed; for a program that
	// is to outlive a call, pass a context that does. The end of a program does not end the sandbox.
	Exec(ctx context.Context, c Command) (Process, error)
	// Ping checks that the sandbox answers.
	Ping(ctx context.Context) error
	// Done is closed when the sandbox has ended, by Close or on its own.
	Done() <-chan struct{}
	// Close ends everything in the sandbox and returns after its resources are released. It may be called more
	// than once.
	Close() error
}

// Command is a program to run. Only Argv is required.
type Command struct {
	// Argv[0] is a path in the sandbox or a name that is looked up in its PATH. Argv, Env and Dir together may
	// have 60,000 bytes; pass longer data by Stdin or a file.
	Argv []string
	Dir  string   // "" means the home folder
	Env  []string // NAME=value, added to the sandbox's; later values override earlier ones

	// A nil Stdin is empty. It is read as the program consumes it. If it is an io.Closer, it is closed when
	// the program ends.
	Stdin io.Reader
	// Output to a nil Stdout or Stderr is discarded. One goroutine writes to each; a Writer that blocks holds
	// up the program and nothing else. One Writer for both must be safe for concurrent use.
	Stdout, Stderr io.Writer

	Timeout time.Duration // 0 means Limits.Call, less than 0 means none
	// most bytes of each stream before the call is ended; 0 means Limits.OutputBytes, less than 0 no limit
	OutputBytes int

	// Lists decide which programs the processes of the command may start; nil means all of the sandbox. A driver that
	// cannot enforce them refuses the command.
	Lists *Lists

	// Terminal gives the program a terminal of this size. Stdin is its keyboard, Stdout receives what it
	// displays, and Stderr stays empty.
	Terminal *Size
}

// Lists are patterns of package shellpolicy. The agent judges each program when the kernel has loaded it, see package
// supervisor. The first program of the command is not judged.
type Lists struct {
	Allow, Deny []string
	// Report receives what supervisor.ReadReport reads. One goroutine writes to it; while it blocks, the sandbox waits.
	Report io.Writer
}

// Size is the size of a terminal in characters.
type Size struct{ Cols, Rows uint16 }

// Process is a program that was started.
type Process interface {
	// Signal sends a signal to the program's process group. SIGKILL also kills every descendant of the
	// program. After the program's end it does nothing.
	Signal(number int) error
	// Resize changes the size of the program's terminal.
	Resize(Size) error
	// Done is closed when the program and its output have ended.
	Done() <-chan struct{}
	// Wait waits for Done and returns how the program ended. The error says why the outcome is Lost, why the
	// call was ended from outside, or that a Writer failed. It may be called more than once.
	Wait() (Result, error)
}

// Result is how a call ended.
type Result struct {
	Outcome    Outcome
	Code       int           // exit code, if it exited
	Signal     int           // the signal that killed it, else 0
	Took       time.Duration // from the request to the end
	CPU        time.Duration // user and system time of the program and of the children it waited for
	MaxRSS     int64         // bytes of memory of the largest of these processes
	StdoutSize int64         // bytes that were written to Stdout
	StderrSize int64         // bytes that were written to Stderr
}

// Adjustable is implemented by a Sandbox that can be reconfigured before its first call, so that a sandbox
// made in advance can serve any request. Limits are checked and defaulted as in Create. If a limit can no
// longer be changed, Adjust returns an error and the sandbox must be closed.
type Adjustable interface {
	Adjust(ctx context.Context, limits Limits, env []string) error
}
