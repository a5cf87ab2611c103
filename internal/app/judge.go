package app

import (
	"context"
	"encoding/json"
	"errors"
	"slices"

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
	args := json.RawMessage("{}")
	if q.Args != nil {
		if args, err = json.Marshal(q.Args); err != nil {
			return v, err
		}
	}
	kind, name := views.Tools, q.Tool
	switch {
	case q.Prompt != "":
		kind, name = views.Prompts, q.Prompt
	case q.Resource != "":
		kind, name = views.Resources, q.Resource
	}
	got, err := a.views.Access(ctx, &who, kind, name, args)
	if errors.Is(err, views.ErrNotFound) {
		return v, &tool.Refusal{
			Code:    tool.CodeNotFound,
			Message: "there is no context " + q.Context,
			Next:    "context_list lists the contexts.",
		}
	}
	v.Verdict, v.Rule, v.Reason, v.Listed = got.Verdict, got.Rule, got.Reason, got.Listed
	return v, err
}

// Defined returns the contexts of the settings in the form of stored ones; the contexts that every host has are
// not among them.
func Defined(cfg config.Config) ([]contextstore.Record, error) {
	if len(cfg.Contexts) == 0 {
		return nil, nil
	}
	enabled, err := chooseModules(cfg, Options{}, standard.Modules(standard.Deps{}))
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
	enabled, err := chooseModules(cfg, Options{}, standard.Modules(standard.Deps{}))
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
