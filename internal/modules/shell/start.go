package shell

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"gatehouse/internal/access/secret"
	"gatehouse/internal/dispatch/contextstore"
	"gatehouse/internal/dispatch/delayed"
	"gatehouse/internal/exec/proc"
	"gatehouse/internal/exec/shellpolicy"
	"gatehouse/internal/files/roots"
	"gatehouse/tool"
)

const (
	maxCommand = 100 << 10 // bytes of a command; systems take little more as one argument
	maxInput   = 1 << 20   // bytes of stdin
	maxEnv     = 100       // variables
	maxValue   = 32 << 10  // bytes of one of them
)

var errTimeout = errors.New("its time was over")

// order is a command that is to be run.
type spec struct {
	command string
	shell   string   // "" means the configured one
	dir     string   // "" means the configured one
	env     []string // what the caller adds, and before it what the context does
	stdin   string
	seconds int
}

// outcome is what became of it.
type outcome struct {
	stdout, stderr *capture
	state          proc.State
}

func (o *outcome) timedOut() bool { return o.state.Stopped == errTimeout }

// truncated reports whether something is missing of the output.
func (o *outcome) truncated() bool { return o.stdout.cut() || o.stderr.cut() || o.state.Cut }

// do runs a command to its end. A failing command is no error.
func (m *runner) runCommand(ctx context.Context, c *tool.Call, o spec) (*outcome, error) {
	if o.shell == "" {
		o.shell = m.cfg.Shell
	}
	if err := o.check(); err != nil {
		return nil, err
	}
	if err := m.checkPolicy(c, &o); err != nil {
		return nil, err
	}
	where, err := roots.OpenWorkplace(c.Roots, cmp.Or(o.dir, m.cfg.WorkingDir), "working_dir")
	if err != nil {
		return nil, err
	}
	defer where.Close()
	own, err := m.contextEnv(c.Caller)
	if err != nil {
		return nil, err
	}
	if err := checkEnv(o.env); err != nil {
		return nil, err
	}
	o.env = append(own.Strings(), o.env...)
	out := &outcome{stdout: newCapture(m.cfg.Output), stderr: newCapture(m.cfg.Output)}
	feed := delayed.To(c.Peer.Output())
	defer feed.Close()
	hide := own.Hider()
	to := streams{hide.Writer(io.MultiWriter(out.stdout, feed)), hide.Writer(io.MultiWriter(out.stderr, feed))}

	if m.cfg.Confine {
		err = m.runConfined(ctx, c, o, where.Path, out, to)
	} else {
		err = m.runUnconfined(ctx, c, o, where, out, to)
	}
	to.stdout.Flush() // neither what keeps output nor what passes it on fails
	to.stderr.Flush()
	return out, err
}

// streams are where a command prints to.
type streams struct{ stdout, stderr *secret.HidingWriter }

// unconfined runs a command as a process of the host.
func (m *runner) runUnconfined(ctx context.Context, c *tool.Call, o spec, where roots.Workplace, out *outcome, to streams) error {
	limited, cancel := context.WithTimeoutCause(ctx, time.Duration(o.seconds)*time.Second, errTimeout)
	defer cancel()
	spec := proc.Spec{
		Path: o.shell, Args: []string{"-c", asArgument(o.command)}, Dir: where.Dir, Env: slices.Concat(proc.BaseEnv(), []string{"PWD=" + where.Path}, o.env),
		Stdout: to.stdout, Stderr: to.stderr,
		Whole: true, Processes: m.cfg.Processes, Grace: grace,
	}
	if o.stdin != "" {
		spec.Stdin = strings.NewReader(o.stdin)
	}
	if m.cfg.NoStderr {
		spec.Stderr = nil
	}
	p, err := proc.Start(limited, spec)
	if err != nil {
		return &tool.Refusal{Code: "not_started", Message: where.Says(err), Next: "The shell of this host may be missing, or the command may be too long."}
	}
	if out.state, err = p.Wait(); err != nil {
		m.log.WarnContext(ctx, "a command was not followed to its end", "call", c.ID, "err", err)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}

// asArgument keeps a shell from taking a command for an option.
func asArgument(line string) string {
	if strings.HasPrefix(line, "-") || strings.HasPrefix(line, "+") {
		return " " + line
	}
	return line
}

func (o *spec) check() error {
	switch {
	case strings.TrimSpace(o.command) == "":
		return &tool.Refusal{Code: "invalid_arguments", Message: "command: cannot be empty", Next: "Give a command line such as ls -l."}
	case len(o.command) > maxCommand:
		return &tool.Refusal{Code: "too_large", Message: fmt.Sprintf("a command has at most %d bytes", maxCommand), Next: "Write what is longer to a file, or give it as stdin."}
	case len(o.stdin) > maxInput:
		return &tool.Refusal{Code: "too_large", Message: fmt.Sprintf("stdin has at most %d bytes", maxInput), Next: "Write what is longer to a file, and read it from there."}
	case strings.IndexByte(o.command, 0) >= 0:
		return tool.Refuse("invalid_arguments", "command: holds a NUL byte")
	case o.seconds < 1 || o.seconds > MaxSeconds:
		return tool.Refuse("invalid_arguments", "timeout: %d s is not between 1 and %d", o.seconds, MaxSeconds)
	}
	return nil
}

// refused is the code of a command that the lists do not let pass.
const codeDenied = "denied"

// permit holds the command, and the variables that could change it, against
// the lists.
func (m *runner) checkPolicy(c *tool.Call, o *spec) error {
	if m.rules.Empty() {
		return nil
	}
	v := m.rules.Judge(o.command, o.shell)
	for _, kv := range o.env {
		name, value, _ := strings.Cut(kv, "=")
		if v.Allowed() && (shellpolicy.Steers(name) || shellpolicy.Runs(value)) {
			v = shellpolicy.Verdict{Command: name + "=…", Reason: fmt.Sprintf("the variable %s can change what commands do", name)}
		}
	}
	if v.Allowed() {
		return nil
	}
	// The command itself may hold secrets; the ledger has it, redacted.
	m.log.Info("a command is refused", "call", c.ID, "principal", c.Caller.Principal, "decision", v.Decision.String(), "pattern", v.Pattern)
	next := "Only commands on this host's allow list may run; each in the line has to be on it."
	switch {
	case v.Decision == shellpolicy.Denied:
		next = "Do without this command; writing it in another way is refused too."
	case v.Decision == shellpolicy.Unclear:
		next = "Name programs as they are, and run one plain command at a time."
	}
	return &tool.Refusal{Code: codeDenied, Message: v.Reason, Next: next}
}

// isVariable reports whether a variable of the environment can have this name.
func isVariable(name string) bool {
	for i, c := range []byte(name) {
		if c != '_' && (c|0x20 < 'a' || c|0x20 > 'z') && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return name != ""
}

// own is the environment of the caller's context.
func (m *runner) contextEnv(who tool.Caller) (env contextstore.Environment, err error) {
	if m.cfg.Env == nil {
		return env, nil
	}
	if env, err = m.cfg.Env(who); err != nil {
		return env, &tool.Refusal{Code: "unavailable", Message: "the environment of this context is not complete: " + err.Error(), Next: "Whoever runs this host should look at the context's definition."}
	}
	return env, nil
}

// checkEnv checks what the caller adds to what every program needs and what the
// context gives. Nothing else of the host's environment is there.
func checkEnv(add []string) error {
	if len(add) > maxEnv {
		return tool.Refuse("too_large", "env: at most %d variables can be added", maxEnv)
	}
	for _, kv := range add {
		name, value, ok := strings.Cut(kv, "=")
		switch {
		case !ok || !isVariable(name):
			return tool.Refuse("invalid_arguments", "env: %.100q is not of the form NAME=value", kv)
		case strings.HasPrefix(strings.ToUpper(name), "GATEHOUSE_"):
			return tool.Refuse("invalid_arguments", "env: names that begin with GATEHOUSE_ are the host's own")
		case len(value) > maxValue || strings.IndexByte(value, 0) >= 0:
			return tool.Refuse("too_large", "env: a value has at most %d bytes, none of them NUL", maxValue)
		}
	}
	return nil
}
