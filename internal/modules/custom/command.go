package custom

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"gatehouse/internal/dispatch/contextstore"
	"gatehouse/internal/exec/proc"
	"gatehouse/internal/mcp/rawjson"
	"gatehouse/tool"
)

const (
	grace       = time.Second     // between the request to end and the kill
	stopTimeout = 5 * time.Second // for a stopped program to end
	maxStderr   = 16 << 10        // bytes at the end of a program's standard error
	maxArgBytes = 100 << 10       // bytes of one argument; systems accept little more
)

// program is a command with parsed templates.
type program struct {
	*contextstore.Command
	args   []contextstore.Template
	stdin  contextstore.Template
	bounds bounds
	turn   func(context.Context, tool.Caller) (done func(), err error)
}

func (m *Module) command(c *contextstore.Command, b bounds) (source, error) {
	p := &program{Command: c, bounds: b, turn: m.opts.Turn}
	for _, a := range c.Args {
		t, err := contextstore.ParseTemplate(a)
		if err != nil {
			return nil, err
		}
		p.args = append(p.args, t)
	}
	var err error
	p.stdin, err = contextstore.ParseTemplate(c.Stdin)
	return p.runProgram, err
}

func (p *program) runProgram(ctx context.Context, c *tool.Call, env *contextstore.Environment) (answer, error) {
	spec, err := p.spec(c)
	if err != nil {
		return answer{}, err
	}
	started, err := p.turn(ctx, c.Caller)
	if err != nil {
		return answer{}, err
	}
	defer started()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ctx, stop := context.WithTimeoutCause(ctx, p.bounds.timeout, errTimeout)
	defer stop()
	out := &limitedBuffer{max: p.bounds.max, full: func() { cancel(errTooLong) }}
	complaints := &tailBuffer{}
	spec.Env, spec.Grace = commandEnvironment(c, env), grace
	spec.Stdout, spec.Stderr = out, complaints
	child, err := proc.Start(ctx, spec)
	started()
	if err != nil {
		if context.Cause(ctx) != nil {
			return answer{}, context.Cause(ctx)
		}
		return answer{}, &tool.Refusal{
			Code:    tool.CodeUnavailable,
			Message: "the program of this tool cannot be started",
			Next:    "Ask an administrator to correct the definition of the context: " + innermost(err) + ".",
		}
	}
	state, err := child.Wait()
	if out.over {
		return answer{}, p.bounds.refusal(errTooLong)
	}
	if refusal := p.bounds.refusal(state.Stopped); refusal != nil {
		return answer{}, refusal
	}
	switch {
	case state.Stopped != nil:
		return answer{}, state.Stopped
	case err != nil:
		return answer{}, err
	case state.Signal != "":
		return answer{}, newFailure("the program was ended by a signal ("+state.Signal+")", complaints.b, out.b.Bytes())
	case state.Code != 0:
		return answer{}, newFailure(fmt.Sprintf("exit code %d", state.Code), complaints.b, out.b.Bytes())
	}
	return answer{body: out.b.Bytes()}, nil
}

// innermost returns the innermost wrapped error, whose text has no paths.
func innermost(err error) string {
	for {
		next := errors.Unwrap(err)
		if next == nil {
			return err.Error()
		}
		err = next
	}
}

// spec returns the program to start for one call.
func (p *program) spec(c *tool.Call) (s proc.Spec, err error) {
	v, err := readValues(c.Args)
	if err != nil {
		return s, err
	}
	s.Path, s.Whole, s.Owner = p.Path, true, c.Caller.Principal
	if s.Args, err = expandArgs(p.args, v); err != nil {
		return s, err
	}
	stdin, err := v.expand(p.stdin)
	if err != nil {
		return s, err
	}
	s.Stdin = strings.NewReader(stdin)
	s.Dir, err = workingDir(c, p.Dir)
	return s, err
}

// workingDir returns the working directory of a program. The roots do not confine
// the program, only file tools.
func workingDir(c *tool.Call, dir string) (string, error) {
	if dir == "" {
		if len(c.Roots.List()) == 0 {
			return os.TempDir(), nil
		}
		dir = "."
	}
	root, name, err := c.Roots.Resolve(dir)
	if err != nil {
		return "", err
	}
	return filepath.Join(root.Name(), name), nil
}

// commandEnvironment returns the environment of a program: the base environment, that of
// the context, and the identity of the call.
func commandEnvironment(c *tool.Call, own *contextstore.Environment) []string {
	return slices.Concat(proc.BaseEnv(), own.Strings(), []string{
		"GATEHOUSE_CALL=" + c.ID, "GATEHOUSE_CONTEXT=" + c.Caller.Context, "GATEHOUSE_PRINCIPAL=" + c.Caller.Principal,
	})
}

// expandArgs returns the arguments of a program. A template that is only a list
// becomes one argument for each value; a template whose optional value is
// missing is omitted. A value at the beginning of an argument cannot be an
// option, unless it is a number or follows "--".
func expandArgs(templates []contextstore.Template, v values) (args []string, err error) {
	plain := false // no options can follow
	for _, t := range templates {
		if t.Droppable(v.has) {
			continue
		}
		some, err := expandArg(t, v)
		if err != nil {
			return nil, err
		}
		lead := t.Leads()
		for _, a := range some {
			switch {
			case strings.IndexByte(a.text, 0) >= 0:
				return nil, tool.Refuse(tool.CodeInvalidArguments, "an argument of a program contains a NUL byte")
			case len(a.text) > maxArgBytes:
				return nil, tool.Refuse(tool.CodeTooLarge, "an argument of a program has more than %d bytes",
					maxArgBytes)
			case lead != "" && !plain && strings.HasPrefix(a.text, "-") && !a.number:
				return nil, tool.Refuse(
					tool.CodeInvalidArguments, "%s begins with -, and the program would read it as an option", lead,
				)
			}
			args = append(args, a.text)
		}
		plain = plain || lead == "" && some[0].text == "--"
	}
	return args, nil
}

// arg is one argument; number means that it begins with a number.
type arg struct {
	text   string
	number bool
}

func expandArg(t contextstore.Template, v values) ([]arg, error) {
	name, alone := t.Only()
	if !alone || rawjson.Kind(v[name]) != '[' {
		s, err := v.expand(t)
		return []arg{{s, rawjson.Kind(v[t.Leads()]) == '0'}}, err
	}
	var list []arg
	for e := range rawjson.Elements(v[name]) {
		list = append(list, arg{asText(e), rawjson.Kind(e) == '0'})
	}
	return list, nil
}

// limitedBuffer keeps what is written up to a limit, and calls full if there is
// more.
type limitedBuffer struct {
	b    bytes.Buffer
	max  int
	full func()
	over bool
}

func (l *limitedBuffer) Write(p []byte) (int, error) {
	if l.b.Len()+len(p) > l.max {
		l.over = true
		l.full()
		return len(p), nil // the program is being stopped
	}
	return l.b.Write(p)
}

// tailBuffer keeps the end of what is written.
type tailBuffer struct{ b []byte }

func (t *tailBuffer) Write(p []byte) (int, error) {
	t.b = append(t.b, p...)
	if over := len(t.b) - maxStderr; over > 0 {
		t.b = append(t.b[:0], t.b[over:]...)
	}
	return len(p), nil
}
