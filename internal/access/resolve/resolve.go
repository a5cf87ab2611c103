// Package resolve determines the paths and commands in the arguments of a call, for rules over op.paths
// and op.commands.
package resolve

import (
	"cmp"
	"encoding/json"
	"errors"
	"net/url"
	"path/filepath"
	"slices"
	"strings"

	"gatehouse/internal/access/permit"
	"gatehouse/internal/exec/shellpolicy"
	"gatehouse/internal/files/roots"
	"gatehouse/tool"
)

// Resolver implements permit.Host. All fields are required.
type Resolver struct {
	// RootsOf returns the folders in which a call of a caller runs.
	RootsOf func(tool.Caller) tool.Roots
	// Working restricts the folders of a call to those of its client; done closes what it opened.
	Working func(*tool.Call) (done func(), err error)
	// Asks reports whether the client of a call is asked for its folders, so that relative paths cannot
	// be resolved before.
	Asks func(*tool.Caller) bool
	// Shell is the program that runs command lines that name none; "" means sh.
	Shell string
}

// Paths resolves paths in the folders in which the call will look them up. Links can change between
// this and the call; the roots confine the call in any case.
func (n Resolver) Paths(caller *tool.Caller, op permit.Op, args json.RawMessage) ([]string, error) {
	written, err := pathsOf(op, args)
	if err != nil || len(written) == 0 {
		return nil, err
	}
	call := tool.Call{Caller: *caller, Roots: n.RootsOf(*caller)}
	done, err := n.Working(&call)
	if err != nil {
		return nil, err
	}
	defer done()
	asked := n.Asks(caller)
	var all []string
	for _, path := range written {
		if asked && !filepath.IsAbs(path) {
			return nil, errors.New("the path " + path + " is relative to a folder that the client has not announced")
		}
		place, err := roots.Locate(call.Roots, path)
		if err != nil {
			return nil, err
		}
		for _, last := range []bool{true, false} {
			to, err := place.Followed(last)
			if err != nil {
				return nil, err
			}
			all = append(all, filepath.Join(to.Folder(), to.Name))
		}
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}

func pathsOf(op permit.Op, args json.RawMessage) ([]string, error) {
	switch {
	case op.Tool != nil:
		in, err := op.Tool.Named(args)
		if err == nil && len(in[tool.NamesUnknown]) > 0 {
			err = errors.New(op.Name + " uses paths that its arguments do not contain")
		}
		return in[tool.NamesPath], err
	case op.Module == "file" && strings.HasPrefix(op.Method, "resources/") && strings.HasPrefix(op.Name, "file://"):
		var vars struct{ Path string }
		if err := json.Unmarshal(args, &vars); err != nil {
			return nil, err
		}
		plain, err := url.PathUnescape(vars.Path)
		if err != nil || !strings.HasPrefix(vars.Path, "/") {
			return nil, errors.New("the URI contains no path")
		}
		return []string{vars.Path, plain}, nil // matching the template may have decoded escapes
	}
	return nil, errors.New("the paths that " + op.Method + " of " + op.Name + " reads are not known")
}

// Commands parses the command of a call as the shell of the host would.
func (n Resolver) Commands(_ *tool.Caller, op permit.Op, args json.RawMessage) ([]permit.Command, error) {
	if op.Tool == nil {
		return nil, errors.New("the commands that " + op.Method + " of " + op.Name + " runs are not known")
	}
	in, err := op.Tool.Named(args)
	if err != nil {
		return nil, err
	}
	if len(in[tool.NamesCode]) > 0 {
		return nil, errors.New(op.Name + " runs programs that its arguments do not contain")
	}
	for _, v := range in[tool.NamesEnv] {
		if name, value, _ := strings.Cut(v, "="); shellpolicy.Steers(name) || shellpolicy.Runs(value) {
			return nil, errors.New("the variable " + name + " changes the effect of commands")
		}
	}
	var found []shellpolicy.Found
	for _, line := range in[tool.NamesLine] {
		var shell string
		if list := in[tool.NamesShell]; len(list) > 0 {
			shell = list[0]
		}
		one, err := shellpolicy.Line(line, cmp.Or(shell, n.Shell, "sh"))
		if err != nil {
			return nil, err
		}
		found = append(found, one...)
	}
	for _, program := range in[tool.NamesProgram] {
		one, err := shellpolicy.Program(append([]string{program}, in[tool.NamesArgs]...)...)
		if err != nil {
			return nil, err
		}
		found = append(found, one...)
	}
	all := make([]permit.Command, len(found))
	for i, f := range found {
		all[i] = permit.Command{Program: f.Program, Name: f.Name, Args: f.Args, Open: !f.Known}
	}
	return all, nil
}
