// Package contextadmin is the module with which an administrator creates, changes
// and deletes contexts while the host runs.
//
// Only the administration context has it, which only administrators can use. A
// change is in effect when the call returns: other clients get their new views
// and the notifications about them.
package contextadmin

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"gatehouse/internal/dispatch/contextstore"
	"gatehouse/module"
	"gatehouse/tool"
)

// Options of the module. Store is required.
type Options struct {
	Store *contextstore.Store
	// Fixed returns the contexts that are not in the store. They are listed here
	// and cannot be changed. nil means none.
	Fixed func() []contextstore.Record
	// Judge decides what a caller may do in a context; nil means that the tool
	// context_check is not offered.
	Judge func(context.Context, Question) (Verdict, error)
}

// Question asks whether a caller may do one thing in a context: call a tool, read a
// resource or get a prompt, by its name there.
type Question struct {
	Context  string         `json:"context" doc:"its name" min:"1"`
	User     string         `json:"user,omitempty" doc:"the caller; has the roles that the host knows"`
	Roles    []string       `json:"roles,omitempty" doc:"additional roles of the caller"`
	Tool     string         `json:"tool,omitempty" doc:"a tool, by its name in the context"`
	Resource string         `json:"resource,omitempty" doc:"a URI"`
	Prompt   string         `json:"prompt,omitempty" doc:"a prompt, by its name in the context"`
	Args     map[string]any `json:"arguments,omitempty" doc:"arguments of the call, for rules that depend on them"`
}

// Verdict is the answer to a Question.
type Verdict struct {
	Verdict string   `json:"verdict" doc:"allow, ask (the user is asked), ask-operator, refuse, or absent if the context does not have it"`
	Rule    string   `json:"rule" doc:"the rule that decided"`
	Reason  string   `json:"reason,omitempty" doc:"the reason that the caller gets"`
	Listed  bool     `json:"listed" doc:"whether the caller sees it in lists"`
	Roles   []string `json:"roles" doc:"roles that the decision used"`
}

type admin struct {
	store *contextstore.Store
	fixed func() []contextstore.Record
	judge func(context.Context, Question) (Verdict, error)
	offer module.Offer
}

// New returns what makes the module with options.
func New(o Options) module.New {
	return func(context.Context, module.Deps) (module.Module, error) {
		if o.Fixed == nil {
			o.Fixed = func() []contextstore.Record { return nil }
		}
		a := &admin{store: o.Store, fixed: o.Fixed, judge: o.Judge}
		a.offer.Tools = a.definitions()
		if a.judge != nil {
			a.offer.Tools = append(a.offer.Tools, tool.New(tool.Def{
				Name: "context_check", Title: "Check a permission", Effects: tool.Reads, Task: tool.TaskNever,
				Description: "Returns whether a caller may call a tool, read a resource or get a prompt in a " +
					"context, and which rule decides.",
			}, a.checkAccess))
		}
		return a, nil
	}
}

// Offer implements module.Module.
func (a *admin) Offer(context.Context, module.Audience) (*module.Offer, error) { return &a.offer, nil }

// Close implements module.Module. It does not close the store.
func (a *admin) Close(context.Context) error { return nil }

const createHelp = `Creates a context: a named view of this host.

- modules, tools, prompts and resources select its content. In a pattern * matches anything but a slash; "!" in front
  excludes.
- roles and users select who may use it; without both, every caller may. known_to are roles that get the error "not
  allowed" instead of "not found".
- rules are tried in order, and the first that matches decides. They can be stricter than the host's rules, but not less
  strict. effects are reads, writes, destroys, open-world and idempotent.
- limits restrict its callers: calls is the number of concurrent calls of all callers together, rate the calls per
  second of each caller, burst how many of these may come at once.
- env is the environment of programs; ${secret:NAME} in a value stands for a secret of the host.
- own_tools run a program (command) or make a request (http). Templates contain {{argument}}, or {{argument?}} for an
  optional one: if it is missing, the whole program argument, or member of the body, is omitted. No shell is used.
  Headers may also contain {{env.NAME}}.
- own_prompts have a template, or messages, with {{argument}} in them.
- own_resources have a uri, or an RFC 6570 template whose variables are used as {{name}}, and one of text, file (a path
  in the context's folders), command, and http (a GET request). variables propose values.

A caller that may create contexts can run any program as the host's user.`

func (a *admin) definitions() []tool.Tool {
	return []tool.Tool{
		tool.New(tool.Def{
			Name: "context_list", Title: "List contexts", Effects: tool.Reads, Task: tool.TaskNever,
			Description: "Lists the contexts of this host. Contexts from its configuration cannot be changed here.",
		}, a.listContexts),
		tool.New(tool.Def{
			Name: "context_get", Title: "Describe a context", Effects: tool.Reads, Task: tool.TaskNever,
			Description: "Returns the definition of one context.",
		}, a.getContext),
		tool.New(tool.Def{
			Name: "context_create", Title: "Create a context", Effects: tool.Writes, Task: tool.TaskNever,
			Description: "Creates a context: a named view with its own rules, folders, environment, tools, prompts " +
				"and resources.",
			Help: createHelp,
		}, a.create),
		tool.New(tool.Def{
			Name: "context_update", Title: "Change a context", Effects: tool.Writes | tool.Destroys,
			Task:        tool.TaskNever,
			Description: "Changes a context. The given members replace those of the context; the others stay.",
			Help: "A given member replaces the whole member of the context; `clear` names members to remove. " +
				"With `revision` the change is refused if the context was changed since that revision. For the " +
				"members see context_create.",
		}, a.update),
		tool.New(tool.Def{
			Name: "context_delete", Title: "Delete a context", Effects: tool.Writes | tool.Destroys,
			Task: tool.TaskNever,
			Description: "Deletes a context. Its callers can no longer use it; running calls may finish within a " +
				"short time.",
		}, a.delete),
	}
}

// Summary is one context of a list.
type Summary struct {
	Name        string   `json:"name"`
	Description string   `json:"description,omitempty"`
	Fixed       bool     `json:"fixed,omitempty" doc:"from the configuration; cannot be changed here"`
	Roles       []string `json:"roles,omitempty"`
	Users       []string `json:"users,omitempty"`
	Revision    int64    `json:"revision,omitempty"`
	Updated     string   `json:"updated,omitempty"`
}

type listOut struct {
	Contexts []Summary `json:"contexts"`
}

func (a *admin) listContexts(context.Context, *tool.Call, struct{}) (listOut, error) {
	out := listOut{Contexts: []Summary{}}
	for _, f := range a.fixed() {
		out.Contexts = append(
			out.Contexts,
			Summary{Name: f.Name, Description: f.Description, Fixed: true, Roles: f.Roles, Users: f.Users},
		)
	}
	for _, r := range a.store.Current().Records {
		out.Contexts = append(out.Contexts, Summary{
			Name: r.Name, Description: r.Description, Roles: r.Roles, Users: r.Users,
			Revision: r.Revision, Updated: r.Updated.Format(time.RFC3339),
		})
	}
	return out, nil
}

type nameIn struct {
	Name string `json:"name" doc:"the context" min:"1"`
}

func (a *admin) getContext(_ context.Context, _ *tool.Call, in nameIn) (contextstore.Record, error) {
	for _, f := range a.fixed() {
		if f.Name == in.Name {
			return f, nil
		}
	}
	r := a.store.Current().Find(in.Name)
	if r == nil {
		return contextstore.Record{}, refusalOf(contextstore.ErrNotFound, in.Name)
	}
	return *r, nil
}

func (a *admin) checkAccess(ctx context.Context, _ *tool.Call, in Question) (Verdict, error) {
	return a.judge(ctx, in)
}

type createIn struct {
	Name string `json:"name" doc:"a-z, 0-9 and -, at most 64" min:"1"`
	contextstore.Definition
}

func (a *admin) create(_ context.Context, c *tool.Call, in createIn) (contextstore.Record, error) {
	r, err := a.store.Create(contextstore.Record{Name: in.Name, Definition: in.Definition}, c.Caller.Principal)
	return r, refusalOf(err, in.Name)
}

type updateIn struct {
	Name     string   `json:"name" doc:"the context" min:"1"`
	Revision int64    `json:"revision,omitempty" doc:"the revision on which this change is based" min:"1"`
	Clear    []string `json:"clear,omitempty" doc:"members to remove"`
	contextstore.Definition
}

func (a *admin) update(_ context.Context, c *tool.Call, in updateIn) (contextstore.Record, error) {
	var given map[string]json.RawMessage
	if err := json.Unmarshal(c.Args, &given); err != nil {
		return contextstore.Record{}, err
	}
	for _, own := range []string{"name", "revision", "clear"} {
		delete(given, own)
	}
	r, err := a.store.Update(in.Name, c.Caller.Principal, func(r *contextstore.Record) error {
		if in.Revision != 0 && in.Revision != r.Revision {
			return contextstore.ErrStale
		}
		return r.Definition.Replace(given, in.Clear)
	})
	return r, refusalOf(err, in.Name)
}

func (a *admin) delete(_ context.Context, _ *tool.Call, in nameIn) (struct {
	Deleted string `json:"deleted"`
}, error) {
	err := a.store.Delete(in.Name)
	return struct {
		Deleted string `json:"deleted"`
	}{in.Name}, refusalOf(err, in.Name)
}

// refusalOf turns the errors of the store into refusals that a model can act on.
func refusalOf(err error, name string) error {
	invalid, wrong := errors.AsType[*contextstore.Invalid](err)
	switch {
	case err == nil:
		return nil
	case wrong:
		return &tool.Refusal{Code: tool.CodeInvalidArguments, Message: invalid.Error(), Next: "Nothing was changed."}
	case errors.Is(err, contextstore.ErrNotFound):
		return &tool.Refusal{
			Code:    tool.CodeNotFound,
			Message: "there is no context " + name,
			Next:    "context_list lists the contexts.",
		}
	case errors.Is(err, contextstore.ErrExists):
		return &tool.Refusal{
			Code:    tool.CodeExists,
			Message: "the context " + name + " exists already",
			Next:    "Change it with context_update, or give another name.",
		}
	case errors.Is(err, contextstore.ErrFixed):
		return &tool.Refusal{
			Code:    tool.CodeDenied,
			Message: "the context " + name + " is defined by the host's configuration",
			Next:    "Change it there, or create a context with another name.",
		}
	case errors.Is(err, contextstore.ErrStale):
		return &tool.Refusal{
			Code:    tool.CodeStale,
			Message: "the context " + name + " was changed by another caller since that revision",
			Next:    "Read it with context_get and repeat the change.",
		}
	case errors.Is(err, contextstore.ErrFull):
		return tool.Refuse(tool.CodeTooLarge, "%v", err)
	}
	return err
}
