package views

import (
	"context"
	"encoding/json"
	"errors"

	"gatehouse/internal/access/permit"
	"gatehouse/tool"
)

// Access is what a caller may do with one entry of its context, and why.
type Access struct {
	Verdict string // of the rules, or "absent" if the context does not have the entry
	Rule    string // that decided
	Reason  string // that the caller gets; "" for none
	Listed  bool   // the entry is in the caller's lists
}

// Access decides whether a caller may call a tool, read a resource or get a prompt in who.Context with arguments,
// as dispatch decides for a call. kind is Tools, Prompts or Resources; a resource is named by its URI, which may
// match a template. The error is ErrNotFound if there is no such context; a context that the caller may not use is
// a verdict.
func (r *Registry) Access(
	ctx context.Context, who *tool.Caller, kind Kind, name string, args json.RawMessage,
) (a Access, err error) {
	view, enter, err := r.Whole(ctx, who)
	if err != nil {
		return a, err
	}
	var closed error
	switch enter {
	case permit.Unknown:
		closed = ErrNotFound
	case permit.Forbidden:
		closed = ErrForbidden
	}
	if closed != nil {
		return Access{
			Verdict: permit.Refuse.String(), Rule: "roles and users of the context " + who.Context,
			Reason: closed.Error(),
		}, nil
	}
	var e *Entry
	switch kind {
	case Tools:
		e = view.Tool(name)
	case Prompts:
		e = view.Prompt(name)
	case Resources:
		var vars map[string]string
		if e, vars = view.Resource(name); len(vars) > 0 {
			args, _ = json.Marshal(vars)
		}
	default:
		return a, errors.New("only a tool, a prompt or a resource can be asked for")
	}
	if e == nil {
		return Access{
			Verdict: "absent", Rule: "the content of the context " + who.Context, Reason: "it is not in this context",
		}, nil
	}
	said := e.Gate.Decide(args, who)
	a = Access{Verdict: said.Kind.String(), Rule: said.Rule, Reason: said.Reason, Listed: e.Gate.Listed()}
	if a.Rule == "" {
		a.Rule = "no rule matches: the default"
	}
	return a, nil
}
