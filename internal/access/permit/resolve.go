package permit

import (
	"encoding/json"
	"fmt"
	"iter"
	"slices"
	"strings"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/ast"

	"gatehouse/tool"
)

// Host resolves the paths and commands in the arguments of a call. An error means that they cannot be
// determined, so that rules that read them fail closed.
type Host interface {
	// Paths returns the paths that the arguments name, absolute and with links resolved. If a path is
	// itself a link, its unresolved form is included as well.
	Paths(caller *tool.Caller, op Op, args json.RawMessage) ([]string, error)
	// Commands are the programs that the arguments make the call run.
	Commands(caller *tool.Caller, op Op, args json.RawMessage) ([]Command, error)
}

// Command is a program that a call runs.
type Command struct {
	Program string   // as written, without quotes: /bin/rm
	Name    string   // its last element in lower case: rm
	Args    []string // without quotes
	Open    bool     // an expansion produces some of the arguments, so rules get none
}

// needs states which members of op that the host resolves an expression reads.
type needs struct{ paths, commands bool }

func (n needs) or(o needs) needs { return needs{n.paths || o.paths, n.commands || o.commands} }

// resolve adds op.paths and op.commands if a rule of this gate reads them. A member that cannot be
// resolved is omitted, so that an expression that reads it has no value.
func (g *Gate) resolve(op map[string]any, args json.RawMessage, caller *tool.Caller) {
	if g.needs == (needs{}) || g.host == nil || caller == nil {
		return
	}
	if g.needs.paths {
		if paths, err := g.host.Paths(caller, g.op, args); err == nil {
			op["paths"] = nonNil(paths)
		}
	}
	if g.needs.commands {
		if found, err := g.host.Commands(caller, g.op, args); err == nil {
			list := make([]map[string]any, len(found))
			for i, c := range found {
				list[i] = map[string]any{"program": c.Program, "name": c.Name}
				if !c.Open {
					list[i]["args"] = nonNil(c.Args)
				}
			}
			op["commands"] = list
		}
	}
}

// needsOf returns the members of op that an expression reads. If the name of a member is computed, it
// returns all.
func needsOf(a *cel.Ast) (n needs) {
	for name := range members(a, "op", true) {
		n.paths = n.paths || name == "paths" || name == ""
		n.commands = n.commands || name == "commands" || name == ""
	}
	return n
}

// members yields the members of a variable that an expression reads, and "" for a member whose name is
// computed. has(args.path) only tests whether the member exists, and is omitted if tests is false.
func members(a *cel.Ast, variable string, tests bool) iter.Seq[string] {
	return func(yield func(string) bool) {
		root := ast.NavigateAST(a.NativeRep())
		for _, e := range ast.MatchDescendants(root, ast.KindMatcher(ast.IdentKind)) {
			if e.AsIdent() != variable {
				continue
			}
			if p, ok := e.Parent(); !tests && ok && p.Kind() == ast.SelectKind && p.AsSelect().IsTestOnly() {
				continue
			}
			if !yield(member(e)) {
				return
			}
		}
	}
}

func member(e ast.NavigableExpr) string {
	parent, ok := e.Parent()
	if !ok {
		return ""
	}
	switch parent.Kind() {
	case ast.SelectKind:
		return parent.AsSelect().FieldName()
	case ast.CallKind:
		call := parent.AsCall()
		if args := call.Args(); call.FunctionName() == "_[_]" && len(args) == 2 && args[0].ID() == e.ID() {
			if key := args[1]; key.Kind() == ast.LiteralKind {
				name, _ := key.AsLiteral().Value().(string)
				return name
			}
		}
	}
	return ""
}

// Warnings returns a warning for each rule that compares an argument with a path or a program as text,
// because one file and one program have many spellings. tools are those of the host, with their
// modules.
func Warnings(rules []Rule, tools iter.Seq2[string, *tool.Tool]) (all []string) {
	for i := range rules {
		r := &rules[i]
		e, err := parseExpression(r.When)
		if r.When == "" || err != nil {
			continue
		}
		use := map[string]string{} // by argument
		for module, t := range tools {
			if len(r.Modules) > 0 && !slices.Contains(r.Modules, module) ||
				len(r.Names) > 0 && !matches(r.Names, t.Name) {
				continue
			}
			for name := range members(e, "args", false) {
				switch kind := t.NameKind(name); {
				case kind == tool.NamesPath, kind == tool.NamesUnknown:
					use[name] = "op.paths"
				case kind != "" && use[name] == "":
					use[name] = "op.commands"
				}
			}
		}
		var names []string
		for name := range use {
			names = append(names, name)
		}
		slices.Sort(names)
		for _, name := range names {
			label := r.Name
			if label == "" {
				label = fmt.Sprintf("rule %d", i+1)
			}
			all = append(
				all,
				fmt.Sprintf(
					"%s compares args.%s as text, which other spellings pass; compare %s, which the host resolves",
					strings.TrimSpace(label),
					name,
					use[name],
				),
			)
		}
	}
	return all
}

// ReadArguments reports whether a rule reads the arguments of calls.
func ReadArguments(rules []Rule) bool {
	return slices.ContainsFunc(rules, func(r Rule) bool { return r.When != "" })
}
