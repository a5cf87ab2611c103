package app

import (
	"context"
	"encoding/json"
	"errors"
	"slices"

	"gatehouse/internal/access/permit"
	"gatehouse/internal/config"
	"gatehouse/internal/dispatch/contextstore"
	"gatehouse/internal/dispatch/views"
	"gatehouse/internal/modules/contextadmin"
	"gatehouse/internal/modules/standard"
	"gatehouse/tool"
)

// Judge answers a question about the contexts of the settings and of the stored contexts without a running host.
// The caller supplies the roles of users.
func Judge(ctx context.Context, cfg config.Config, o Options, q contextadmin.Question) (contextadmin.Verdict, error) {
	o.Private, o.OneCall = true, true
	cfg.Listen = config.Listeners{}
	a, err := New(ctx, cfg, o)
	if err != nil {
		return contextadmin.Verdict{}, err
	}
	defer a.abandon()
	return a.judge(ctx, q)
}

// judge reports what a caller may do in a context.
func (a *App) judge(ctx context.Context, q contextadmin.Question) (v contextadmin.Verdict, err error) {
	asked := 0
	for _, name := range []string{q.Tool, q.Resource, q.Prompt} {
		if name != "" {
			asked++
		}
	}
	if asked != 1 {
		return v, tool.Refuse(tool.CodeInvalidArguments, "expected one of tool, resource and prompt, got %d", asked)
	}
	who := tool.Caller{Principal: q.User, Context: q.Context, Roles: slices.Clone(q.Roles)}
	if who.Principal == "" {
		who.Principal = "anyone"
	} else if users, err := a.who.Users(ctx); err == nil {
		for _, u := range users {
			if u.Name == q.User {
				who.Roles = append(who.Roles, u.Roles...)
			}
		}
	}
	slices.Sort(who.Roles)
	who.Roles = slices.Compact(who.Roles)
	who.Owner = who.Principal + "/" + who.Context
	v.Roles = append([]string{}, who.Roles...)

	view, enter, err := a.views.Whole(ctx, &who)
	switch {
	case errors.Is(err, views.ErrNotFound):
		return v, &tool.Refusal{
			Code:    tool.CodeNotFound,
			Message: "there is no context " + q.Context,
			Next:    "context_list lists the contexts.",
		}
	case err != nil:
		return v, err
	case enter == permit.Unknown:
		v.Verdict, v.Rule, v.Reason = permit.Refuse.String(), "roles and users of the context "+q.Context, views.ErrNotFound.Error()
		return v, nil
	case enter == permit.Forbidden:
		v.Verdict, v.Rule, v.Reason = permit.Refuse.String(), "roles and users of the context "+q.Context, views.ErrForbidden.Error()
		return v, nil
	}
	args := json.RawMessage("{}")
	if q.Args != nil {
		if args, err = json.Marshal(q.Args); err != nil {
			return v, err
		}
	}
	var e *views.Entry
	switch {
	case q.Tool != "":
		e = view.Tool(q.Tool)
	case q.Prompt != "":
		e = view.Prompt(q.Prompt)
	default:
		var vars map[string]string
		if e, vars = view.Resource(q.Resource); len(vars) > 0 {
			args, _ = json.Marshal(vars)
		}
	}
	if e == nil {
		v.Verdict, v.Rule, v.Reason = "absent", "the content of the context "+q.Context, "it is not in this context"
		return v, nil
	}
	said := e.Gate.Decide(args, &who)
	v.Verdict, v.Rule, v.Reason, v.Listed = said.Kind.String(), said.Rule, said.Reason, e.Gate.Listed()
	if v.Rule == "" {
		v.Rule = "no rule matches: the default"
	}
	return v, nil
}

// Defined returns the contexts of the settings in the form of stored ones; the contexts that every host has are
// not among them.
func Defined(cfg config.Config) ([]contextstore.Record, error) {
	if len(cfg.Contexts) == 0 {
		return nil, nil
	}
	enabled, err := choose(cfg, Options{}, standard.Modules(standard.Deps{}))
	if err != nil {
		return nil, err
	}
	fixed, err := fixedContexts(cfg, enabled)
	if err != nil {
		return nil, err
	}
	var all []contextstore.Record
	for _, s := range fixed.Specs {
		all = append(all, *fixed.Definition(s.Name))
	}
	return all, nil
}

// Unserved returns the modules that a host with these settings does not have, so that a context that names them
// offers none of their tools.
func Unserved(cfg config.Config, modules []string) (missing []string) {
	enabled, err := choose(cfg, Options{}, standard.Modules(standard.Deps{}))
	if err != nil {
		return nil
	}
	for _, m := range modules {
		if !slices.ContainsFunc(enabled, func(g enabledModule) bool { return g.Name == m }) {
			missing = append(missing, m)
		}
	}
	return missing
}
