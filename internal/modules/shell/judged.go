package shell

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"gatehouse/internal/access/secret"
	"gatehouse/internal/exec/proc"
	"gatehouse/internal/exec/shellpolicy"
	"gatehouse/internal/exec/supervisor"
	"gatehouse/tool"
)

// supervisorThreads are threads that the supervisor of a line adds to its number of processes.
const supervisorThreads = 16

// prepareLists finds out what decides about the commands of a host with lists: the kernel's report of each program, or
// the line alone.
func (m *runner) prepareLists(ctx context.Context) {
	if m.rules.Empty() {
		return
	}
	try := supervisor.Available
	if m.cfg.Confine {
		try = m.tryLists
	}
	if err := try(ctx); err != nil {
		m.hints = err.Error()
	}
	if m.hints != "" {
		m.log.WarnContext(ctx, "allow and deny lists of commands are hints on this host: a line is judged by its text "+
			"alone, and programs that run others are refused", "reason", m.hints)
	}
}

// judged reports whether the kernel reports the programs of lines.
func (m *runner) judged() bool { return !m.rules.Empty() && m.hints == "" }

// judge judges the text of a line.
func (m *runner) judge(o *spec) shellpolicy.Verdict {
	if m.judged() {
		return m.rules.JudgeEarly(o.command, o.shell)
	}
	return m.rules.Judge(o.command, o.shell)
}

// program is what the ledger gets of a program of a line.
type program struct {
	Principal string   `json:"principal"`
	Context   string   `json:"context"`
	Call      string   `json:"call"`
	Task      string   `json:"task,omitempty"` // the staged task
	Tool      string   `json:"tool"`
	Outcome   string   `json:"outcome"`
	Reason    string   `json:"reason,omitempty"`
	Rule      string   `json:"rule,omitempty"`
	Program   string   `json:"program"`
	Script    string   `json:"script,omitempty"`
	Args      []string `json:"argv,omitempty"`
	Parent    string   `json:"parent,omitempty"`
	Times     int      `json:"times,omitempty"` // how often it was started, of one that was more than once
}

// programs publishes the programs of a line for the ledger: each that differs from the others when it is first
// started, and how often those were that were started more than once when the line has ended.
type programs struct {
	m     *runner
	call  *tool.Call
	hide  secret.Hider
	order []string
	seen  map[string]*program
}

// mostPrograms limits the programs of a line that are told apart.
const mostPrograms = supervisor.MaxPrograms

func (s *programs) noteProgram(p supervisor.Program) {
	args := make([]string, len(p.Args))
	for i, a := range p.Args {
		args[i] = string(s.hide.Hide([]byte(a)))
	}
	key := strings.Join(append([]string{p.Path, p.Script, p.Parent, p.Refused}, args...), "\x00")
	if one := s.seen[key]; one != nil {
		one.Times++
		return
	}
	f := &program{
		Principal: s.call.Caller.Principal, Context: s.call.Caller.Context, Call: s.call.ID, Task: s.call.Task,
		Tool: s.call.Name, Outcome: "ok", Program: p.Path, Script: p.Script, Args: args, Parent: p.Parent,
	}
	if p.Refused != "" {
		f.Outcome, f.Reason, f.Rule = "denied", p.Refused, p.Pattern
	}
	s.publish(f)
	if len(s.seen) < mostPrograms {
		f.Times = 1
		s.order, s.seen[key] = append(s.order, key), f
	}
}

func (s *programs) publish(f *program) {
	subject := "program.started"
	if f.Outcome != "ok" {
		subject = "program.refused"
	}
	s.m.tell(subject, f)
}

// close publishes how often programs were started.
func (s *programs) close() {
	for _, key := range s.order {
		if f := s.seen[key]; f.Times > 1 {
			s.publish(f)
		}
	}
}

// supervise makes a line of a process that would run the shell itself. It changes what is to be started.
func (m *runner) supervise(c *tool.Call, start *proc.Spec, dir string, seen *programs) (*supervisor.Line, error) {
	shell, err := exec.LookPath(start.Path)
	if err == nil {
		shell, err = filepath.Abs(shell)
	}
	if err != nil {
		return nil, err
	}
	s := supervisor.Spec{
		Argv: append([]string{shell}, start.Args...), Env: start.Env, Dir: dir, Allow: m.cfg.Allow, Deny: m.cfg.Deny,
		Writable: m.writable(c.Roots.List()), Each: seen.noteProgram,
	}
	s.Unconfined = slices.Contains(s.Writable, "/")
	line, err := supervisor.New(s)
	if err != nil {
		return nil, err
	}
	start.Path, start.Args, start.Env, start.Files = line.Path, line.Args, line.Env, line.Files
	start.Processes += supervisorThreads
	return line, nil
}

// writable returns the folders in which a line may write: those of the caller, for temporary files, and of the
// settings.
func (m *runner) writable(folders []tool.Root) (all []string) {
	for _, r := range folders {
		all = append(all, filepath.Clean(r.Path))
	}
	home, _ := os.UserHomeDir()
	for _, w := range append([]string{os.TempDir(), "/tmp", "/var/tmp"}, m.cfg.Writable...) {
		if rest, ok := strings.CutPrefix(w, "~/"); ok && home != "" {
			w = filepath.Join(home, rest)
		}
		if filepath.IsAbs(w) {
			all = append(all, filepath.Clean(w))
		}
	}
	return all
}

// mostNotes limits the programs that a result names.
const mostNotes = 5

// notes returns what a caller has to know of the programs of a line, one sentence each. root says that they run as root.
func notes(r supervisor.Report, root bool) (all []string) {
	for _, p := range r.Refused[:min(len(r.Refused), mostNotes)] {
		all = append(all, p.Verdict())
	}
	if root {
		return all // it loses nothing that a file could give
	}
	for _, p := range r.Programs {
		note := fmt.Sprintf("%s has no privileges here, because lines run with no_new_privs where lists of commands "+
			"are set", filepath.Base(p.Path))
		if p.Privileged && p.Refused == "" && !slices.Contains(all, note) && len(all) < 2*mostNotes {
			all = append(all, note)
		}
	}
	return all
}
