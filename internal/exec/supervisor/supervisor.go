// Package supervisor runs a command line so that the kernel reports each program that any of its processes starts,
// and lets the lists of package shellpolicy decide about it after the program was loaded.
//
// A line runs below a process of its own, which is this program started again, see supervise. The seccomp filter of
// the line reports each execve and execveat to it and holds the caller. The supervisor attaches to the thread with
// ptrace and lets the call continue. When the kernel has loaded the program, the thread stops before its first
// instruction. By then the memory is new, there is one thread, and the arguments are final, so the supervisor reads
// which file was loaded and the arguments, and detaches from the process or kills it. A process that nothing reports
// costs nothing: it is attached to for the time of the call alone.
//
// What is promised: no file that the allow list does not contain, and no file or command that the deny list
// contains, becomes the program of a process of the line. What an allowed program does without starting another,
// such as an interpreter that removes a file, is restricted by Landlock: the line writes only below some folders.
//
// With an allow list, Landlock lets the line start only the files of the list, as a second barrier,
// see executableFiles. In a sandbox the launcher of the agent is the supervisor, see Supervise.
//
// What cannot be told apart is refused: files without a name (memfd, deleted), programs that the supervisor may not
// read, processes that it may not trace, a loader that is told to load a file which the line could replace. Not
// promised: copies that were changed, programs that another service of the host starts for the line, and loaders
// written in an interpreter.
package supervisor

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
)

// ErrNone is returned by Available where the kernel reports no programs to us.
var ErrNone = errors.New("the kernel does not report started programs to this host")

// Spec describes a line. Argv is required.
type Spec struct {
	Argv []string // the program that reads the line, by its path, and its arguments; the lists do not judge it
	Env  []string
	Dir  string // where the line begins, for patterns with a relative path

	Allow, Deny []string // patterns of package shellpolicy

	// Writable are the folders below which the line may write; devices such as /dev/null are added. With
	// Unconfined it may write wherever its user may.
	Writable   []string
	Unconfined bool

	// Each gets each program when it was started or refused, on a goroutine of its own; nil means that the
	// report is enough.
	Each func(Program) `json:"-"`

	Learn bool // name programs as patterns do, and follow which program started which
}

// Program is one start of a program in a line.
type Program struct {
	PID    int      `json:"pid"`
	Path   string   `json:"path"`             // the file that was loaded; "" if it has no name
	Script string   `json:"script,omitempty"` // the script for which it was loaded
	Args   []string `json:"args,omitempty"`   // with the program's name, shortened
	Parent string   `json:"parent,omitempty"` // the program that started it

	// With Learn, Name is what an allow pattern calls it, and Scope is the Name of the program of the line below which
	// it runs; "" if the line itself started it.
	Name  string `json:"name,omitempty"`
	Scope string `json:"scope,omitempty"`

	Refused    string `json:"refused,omitempty"`    // why it was not started; "" if it was
	Pattern    string `json:"pattern,omitempty"`    // the pattern that decided
	Privileged bool   `json:"privileged,omitempty"` // it has privileges of its file, which it does not get in a line
}

// Report is what the programs of a line were.
type Report struct {
	Programs []Program // the first ones, at most MaxPrograms
	More     int       // how many programs followed those
	Refused  []Program // the first ones, at most maxRefused
	Failed   string    // why the line could not be started; "" if it was
	Ended    bool      // the supervisor reported the end of the line
}

// Verdict returns a sentence about a program that was refused, without its full stop.
func (p Program) Verdict() string {
	child, parent := filepath.Base(p.Path), p.Parent
	if p.Path == "" {
		child = "a program"
	}
	if p.Script != "" {
		child = filepath.Base(p.Script) + " (by " + child + ")"
	}
	if parent == "" {
		parent = "the line"
	}
	return parent + " may not run " + child + ": " + p.Refused
}

// Limits of a report.
const (
	MaxPrograms = 10_000
	maxRefused  = 20
)

// maxMessage limits the bytes of a message.
const maxMessage = 64 << 10

// ReadReport reads the report of a supervisor to its end, and calls each, unless it is nil, for each program.
func ReadReport(from io.Reader, each func(Program)) (r Report) {
	in := bufio.NewScanner(from)
	in.Buffer(nil, maxMessage)
	for in.Scan() {
		var m message
		if json.Unmarshal(in.Bytes(), &m) != nil {
			continue
		}
		r.note(m)
		if m.Program != nil && each != nil {
			each(*m.Program)
		}
	}
	io.Copy(io.Discard, from) // a message that was too long
	return r
}

func (r *Report) note(m message) {
	r.Ended = r.Ended || m.Ended
	if m.Failed != "" {
		r.Failed = m.Failed
	}
	p := m.Program
	if p == nil {
		return
	}
	if p.Refused != "" && len(r.Refused) < maxRefused {
		r.Refused = append(r.Refused, *p)
	}
	if len(r.Programs) < MaxPrograms {
		r.Programs = append(r.Programs, *p)
	} else {
		r.More++
	}
}

// marker is the first argument of this program when it is started as a supervisor.
const marker = "gatehouse-supervisor"

// message is what a supervisor sends to the host.
type message struct {
	Program *Program `json:"program,omitempty"`
	Failed  string   `json:"failed,omitempty"`
	Ended   bool     `json:"ended,omitempty"`
}

// Line is a command line that is to run below a supervisor. The caller starts Path with Args and Env, and with Files
// as the files that follow standard error; then it calls Started, and Close when the process has ended.
type Line struct {
	Path  string
	Args  []string
	Env   []string
	Files []*os.File

	ours   *os.File
	each   func(Program)
	report Report
	done   chan struct{}
}
