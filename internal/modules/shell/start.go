package shell

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"gatehouse/internal/access/secret"
	"gatehouse/internal/dispatch/contextstore"
	"gatehouse/internal/dispatch/delayed"
	"gatehouse/internal/exec/proc"
	"gatehouse/internal/exec/shellpolicy"
	"gatehouse/internal/exec/supervisor"
	"gatehouse/internal/files/roots"
	"gatehouse/tool"
)

const (
	maxCommand = 100 << 10 // bytes of a command; systems accept little more in one argument
	maxInput   = 1 << 20   // bytes of stdin
	maxEnv     = 100       // variables
	maxValue   = 32 << 10  // bytes of the value of a variable
)

var errTimeout = errors.New("the timeout has passed")

// spec describes a command to run.
type spec struct {
	command string
	shell   string   // "" means the configured one
	dir     string   // "" means the configured one
	env     []string // of the context, then of the caller
	stdin   string
	seconds int
}

// outcome is the result of a command.
type outcome struct {
	stdout, stderr *capture
	state          proc.State
	notes          []string // of programs that were refused, or that lack privileges
}

func (o *outcome) timedOut() bool { return o.state.Stopped == errTimeout }

// truncated reports whether a part of the output is missing.
func (o *outcome) truncated() bool { return o.stdout.cut() || o.stderr.cut() || o.state.Cut }

// runCommand runs a command until it ends. The exit code of the command is not an
// error.
func (m *runner) runCommand(ctx context.Context, c *tool.Call, o spec) (*outcome, error) {
	if o.shell == "" {
		o.shell = m.cfg.Shell
	}
	if err := o.checkSpec(); err != nil {
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
	seen := &programs{m: m, call: c, hide: hide, seen: map[string]*program{}}
	to := streams{hide.Writer(io.MultiWriter(out.stdout, feed)), hide.Writer(io.MultiWriter(out.stderr, feed))}

	if m.cfg.Confine {
		err = m.runConfined(ctx, c, o, where.Path, out, to, seen)
	} else {
		err = m.runUnconfined(ctx, c, o, where, out, to, seen)
	}
	to.stdout.Flush() // cannot fail: neither a capture nor progress does
	to.stderr.Flush()
	return out, err
}

// streams are the writers of a command's output.
type streams struct{ stdout, stderr *secret.HidingWriter }

// runUnconfined runs a command as a process of the host.
func (m *runner) runUnconfined(
	ctx context.Context, c *tool.Call, o spec, where roots.Workplace, out *outcome, to streams, seen *programs,
) error {
	started, err := m.cfg.Turn(ctx, c.Caller)
	if err != nil {
		return err
	}
	defer started()
	limited, cancel := context.WithTimeoutCause(ctx, time.Duration(o.seconds)*time.Second, errTimeout)
	defer cancel()
	spec := proc.Spec{
		Path: o.shell, Args: []string{"-c", asArgument(o.command)}, Dir: where.Dir,
		Env:    slices.Concat(proc.BaseEnv(), []string{"PWD=" + where.Path}, o.env),
		Stdout: to.stdout, Stderr: to.stderr,
		Whole: true, Processes: m.cfg.Processes, Grace: grace, Owner: c.Caller.Principal,
	}
	if spec.Space, err = where.Space(false); err != nil {
		return err
	}
	defer spec.Space.Close()
	if o.stdin != "" {
		spec.Stdin = strings.NewReader(o.stdin)
	}
	if m.cfg.NoStderr {
		spec.Stderr = nil
	}
	notStarted := func(err error) error {
		return &tool.Refusal{
			Code:    tool.CodeNotStarted,
			Message: where.Says(err),
			Next:    "This host may not have the shell, or the command may be too long.",
		}
	}
	var line *supervisor.Line
	if m.judged() {
		if line, err = m.supervise(c, &spec, where.Path, seen); err != nil {
			return notStarted(err)
		}
	}
	p, err := proc.Start(limited, spec)
	started()
	if line != nil {
		line.Started()
	}
	if err != nil {
		if line != nil {
			line.Close()
		}
		return notStarted(err)
	}
	if out.state, err = p.Wait(); err != nil {
		m.log.WarnContext(ctx, "cannot wait for the end of a command", "call", c.ID, "err", err)
	}
	if line != nil {
		report := line.Close()
		seen.close()
		if out.notes = notes(report, os.Geteuid() == 0); report.Failed != "" {
			return notStarted(errors.New(report.Failed))
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}

// asArgument prevents a shell from reading a command as an option.
func asArgument(line string) string {
	if strings.HasPrefix(line, "-") || strings.HasPrefix(line, "+") {
		return " " + line
	}
	return line
}

func (o *spec) checkSpec() error {
	switch {
	case strings.TrimSpace(o.command) == "":
		return &tool.Refusal{
			Code:    tool.CodeInvalidArguments,
			Message: "command is empty",
			Next:    "Give a command line such as ls -l.",
		}
	case len(o.command) > maxCommand:
		return &tool.Refusal{
			Code:    tool.CodeTooLarge,
			Message: fmt.Sprintf("command has more than %d bytes", maxCommand),
			Next:    "Write it to a file and run the file, or give a part of it as stdin.",
		}
	case len(o.stdin) > maxInput:
		return &tool.Refusal{
			Code:    tool.CodeTooLarge,
			Message: fmt.Sprintf("stdin has more than %d bytes", maxInput),
			Next:    "Write the input to a file that the command reads.",
		}
	case strings.IndexByte(o.command, 0) >= 0:
		return tool.Refuse(tool.CodeInvalidArguments, "command contains a NUL byte")
	case o.seconds < 1 || o.seconds > MaxSeconds:
		return tool.Refuse(tool.CodeInvalidArguments, "timeout: %d s is not between 1 and %d", o.seconds, MaxSeconds)
	}
	return nil
}

// codeDenied is the error code of a command that the lists refuse.
const codeDenied = "denied"

// checkPolicy checks the command, and the variables that could change what it
// does, against the lists.
func (m *runner) checkPolicy(c *tool.Call, o *spec) error {
	if m.rules.Empty() {
		return nil
	}
	v := m.judge(o)
	for _, kv := range o.env {
		name, value, _ := strings.Cut(kv, "=")
		if v.Allowed() && (shellpolicy.Steers(name) || shellpolicy.Runs(value)) {
			v = shellpolicy.Verdict{
				Command: name + "=…",
				Reason:  fmt.Sprintf("the variable %s can change what commands run", name),
			}
		}
	}
	if v.Allowed() {
		return nil
	}
	// The log does not have the command, because it may contain secrets; the
	// ledger has it redacted.
	m.log.Info(
		"command refused", "call", c.ID, "principal", c.Caller.Principal, "decision", v.Decision.String(), "pattern",
		v.Pattern,
	)
	next := "Every command in the line must be on this host's allow list."
	switch {
	case v.Decision == shellpolicy.Denied:
		next = "Do not use this command; the host refuses it in any form."
	case v.Decision == shellpolicy.Unclear:
		next = "Run one simple command at a time, and give the names of programs literally."
	}
	return &tool.Refusal{Code: codeDenied, Message: v.Reason, Next: next}
}

// isVariable reports whether name is a valid name of an environment variable.
func isVariable(name string) bool {
	for i, c := range []byte(name) {
		if c != '_' && (c|0x20 < 'a' || c|0x20 > 'z') && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return name != ""
}

// contextEnv returns the environment of the caller's context.
func (m *runner) contextEnv(who tool.Caller) (env contextstore.Environment, err error) {
	if m.cfg.Env == nil {
		return env, nil
	}
	if env, err = m.cfg.Env(who); err != nil {
		return env, &tool.Refusal{
			Code:    tool.CodeUnavailable,
			Message: "the environment of this context is incomplete: " + err.Error(),
			Next:    "Ask an administrator to correct the definition of the context.",
		}
	}
	return env, nil
}

// checkEnv checks the variables of the caller. They are added to the base
// environment and to that of the context; a command gets no other variable of
// the host.
func checkEnv(add []string) error {
	if len(add) > maxEnv {
		return tool.Refuse(tool.CodeTooLarge, "env has more than %d variables", maxEnv)
	}
	for _, kv := range add {
		name, value, ok := strings.Cut(kv, "=")
		switch {
		case !ok || !isVariable(name):
			return tool.Refuse(tool.CodeInvalidArguments, "env: %.100q does not have the form NAME=value", kv)
		case strings.HasPrefix(strings.ToUpper(name), "GATEHOUSE_"):
			return tool.Refuse(tool.CodeInvalidArguments,
				"env: names that begin with GATEHOUSE_ are reserved for the host")
		case len(value) > maxValue || strings.IndexByte(value, 0) >= 0:
			return tool.Refuse(tool.CodeTooLarge, "env: a value has more than %d bytes, or a NUL byte", maxValue)
		}
	}
	return nil
}
