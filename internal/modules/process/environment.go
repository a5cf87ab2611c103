package process

import (
	"slices"
	"strings"

	"gatehouse/internal/dispatch/contextstore"
	"gatehouse/internal/exec/proc"
	"gatehouse/tool"
)

const (
	maxArgs       = 1000
	maxArgBytes   = 100 << 10 // bytes of one argument or variable; systems accept little more
	maxTotalBytes = 1 << 20   // bytes of all of them
)

// contextEnv returns the environment of the caller's context.
func (m *manager) contextEnv(who tool.Caller) (env contextstore.Environment, err error) {
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

// environment checks the arguments and variables of a program and returns its
// environment: the base environment, then that of the context, then that of the
// caller. A later value overrides an earlier one.
func environment(s *spec, dir string) ([]string, error) {
	if len(s.args) > maxArgs || len(s.env) > maxArgs {
		return nil, tool.Refuse(
			tool.CodeTooLarge, "too many arguments or variables: expected at most %d arguments and %d variables",
			maxArgs,
			maxArgs,
		)
	}
	all := 0
	for _, a := range slices.Concat([]string{s.command}, s.args, s.env) {
		if strings.IndexByte(a, 0) >= 0 {
			return nil, tool.Refuse(tool.CodeInvalidArguments,
				"an argument or variable contains a NUL byte, which the system does not allow")
		}
		if all += len(a); len(a) > maxArgBytes || all > maxTotalBytes {
			return nil, tool.Refuse(tool.CodeTooLarge, "the arguments and variables are too long: expected at most %d "+
				"bytes each and %d bytes in all; pass longer data in a file or with process_input", maxArgBytes,
				maxTotalBytes)
		}
	}
	for _, kv := range s.env {
		if name, _, ok := strings.Cut(kv, "="); !ok || name == "" {
			return nil, tool.Refuse(tool.CodeInvalidArguments, "env: %q does not have the form NAME=value", kv)
		}
	}
	env := append(append(proc.BaseEnv(), s.contextEnv.Strings()...), "PWD="+dir)
	if s.size != nil {
		env = slices.DeleteFunc(env, func(kv string) bool { return strings.HasPrefix(kv, "TERM=") })
		env = append(env, "TERM=xterm-256color")
	}
	return append(env, s.env...), nil
}
