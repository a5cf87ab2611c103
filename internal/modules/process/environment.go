package process

import (
	"slices"
	"strings"

	"gatehouse/internal/dispatch/contextstore"
	"gatehouse/internal/exec/proc"
	"gatehouse/tool"
)

const (
	maxArgs = 1000
	maxArgBytes = 100 << 10 // of one argument or variable; systems take little more
	maxTotalBytes = 1 << 20   // of all of them
)

// own is the environment of the caller's context.
func (m *manager) contextEnv(who tool.Caller) (env contextstore.Environment, err error) {
	if m.cfg.Env == nil {
		return env, nil
	}
	if env, err = m.cfg.Env(who); err != nil {
		return env, &tool.Refusal{Code: "unavailable", Message: "the environment of this context is not complete: " + err.Error(), Next: "Whoever runs this host should look at the context's definition."}
	}
	return env, nil
}

// environment checks what a program is given, and makes its environment: what
// every program needs, what the context gives, and what the caller adds.
func environment(s *spec, dir string) ([]string, error) {
	if len(s.args) > maxArgs || len(s.env) > maxArgs {
		return nil, tool.Refuse("too_large", "a program is given at most %d arguments and %d variables", maxArgs, maxArgs)
	}
	all := 0
	for _, a := range slices.Concat([]string{s.command}, s.args, s.env) {
		if strings.IndexByte(a, 0) >= 0 {
			return nil, tool.Refuse("invalid_arguments", "nothing a program is given can hold a NUL byte")
		}
		if all += len(a); len(a) > maxArgBytes || all > maxTotalBytes {
			return nil, tool.Refuse("too_large", "an argument has at most %d bytes, all together have %d; put what is longer into a file or type it", maxArgBytes, maxTotalBytes)
		}
	}
	for _, kv := range s.env {
		if name, _, ok := strings.Cut(kv, "="); !ok || name == "" {
			return nil, tool.Refuse("invalid_arguments", "env: %q is not of the form NAME=value", kv)
		}
	}
	env := append(append(proc.BaseEnv(), s.contextEnv.Strings()...), "PWD="+dir)
	if s.size != nil {
		env = slices.DeleteFunc(env, func(kv string) bool { return strings.HasPrefix(kv, "TERM=") })
		env = append(env, "TERM=xterm-256color")
	}
	return append(env, s.env...), nil
}
