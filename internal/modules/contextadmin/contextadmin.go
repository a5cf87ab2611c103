// Package contextadmin is the module with which an administrator makes,
// changes and removes contexts while the host runs.
//
// It belongs to the administration context alone, which only administrators
// enter. What it does is in force when the call returns: other clients get
// their new views and are told of them.
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

// Options of the module. Book is needed.
type Options struct {
	Book *contextstore.Book
	// Fixed lists the contexts beside those of the book: they can be seen
	// here, not changed. nil means none.
	Fixed func() []contextstore.Record
	// Judge answers what a caller may do in a context; nil leaves out the tool
	// that asks.
	Judge func(context.Context, Question) (Verdict, error)
}

// Question asks what a caller may do in a context: call a tool, read a
// resource or get a prompt, one of the three by its name there.
type Question struct {
	Context  string         `json:"context" doc:"its name" min:"1"`
	User     string         `json:"user,omitempty" doc:"who asks; with the roles that the host knows of"`
	Roles    []string       `json:"roles,omitempty" doc:"roles of the caller, besides those"`
	Tool     string         `json:"tool,omitempty" doc:"a tool, by its name in the context"`
	Resource string         `json:"resource,omitempty" doc:"a URI"`
	Prompt   string         `json:"prompt,omitempty" doc:"a prompt, by its name in the context"`
	Args     map[string]any `json:"arguments,omitempty" doc:"arguments of the call, for rules that look at them"`
}

// Verdict is the answer to a Question.
type Verdict struct {
	Verdict string   `json:"verdict" doc:"allow, ask (the person is asked), ask-operator, refuse, or absent where the context does not hold it"`
	Rule    string   `json:"rule" doc:"what decided"`
	Reason  string   `json:"reason,omitempty" doc:"what the caller is told"`
	Listed  bool     `json:"listed" doc:"whether the caller sees it in lists"`
	Roles   []string `json:"roles" doc:"those that were judged by"`
}

type admin struct {
	book  *contextstore.Book
	fixed func() []contextstore.Record
	judge func(context.Context, Question) (Verdict, error)
	offer module.Offer
}

// New returns what makes the module.
func New(o Options) module.New {
	return func(context.Context, module.Deps) (module.Module, error) {
		if o.Fixed == nil {
			o.Fixed = func() []contextstore.Record { return nil }
		}
		a := &admin{book: o.Book, fixed: o.Fixed, judge: o.Judge}
		a.offer.Tools = a.tools()
		if a.judge != nil {
			a.offer.Tools = append(a.offer.Tools, tool.New(tool.Def{
				Name: "context_check", Title: "Check a permission", Effects: tool.Reads, Task: tool.TaskNever,
				Description: "Tells whether a caller may call a tool, read a resource or get a prompt in a context, and which rule decides.",
			}, a.check))
		}
		return a, nil
	}
}

// Offer implements module.Module.
func (a *admin) Offer(context.Context, module.Audience) (*module.Offer, error) { return &a.offer, nil }

// Close implements module.Module; the book is its owner's.
func (a *admin) Close(context.Context) error { return nil }

const createHelp = `Makes a context: a named view of this host.

- modules, tools, prompts and resources choose what is in it. In a pattern * stands for anything but a slash; "!" in front takes away.
- roles and users say who may enter; without both, everyone may. known_to are roles that are told "not allowed" instead of "not found".
- rules are tried in order, the first that fits decides; they can be stricter than the host's, never laxer. effects are reads, writes, destroys, open-world and idempotent.
- limits bound what its callers can take: calls that run at once, of all of them together, and rate, calls a second of each, of which burst may come at once.
- env is what programs find in their environment; ${secret:NAME} in a value stands for a secret of the host.
- own_tools run a program (command) or make a request (http). Templates hold {{argument}}, or {{argument?}} for one that may be missing: then the whole program argument, or member of the body, is left out. No shell is involved. Headers may also hold {{env.NAME}}.
- own_prompts have a template, or messages, with {{argument}} in them.
- own_resources have a uri, or an RFC 6570 template whose variables are put in as {{name}}, and one of text, file (a path in the context's folders), command, and http (a GET request). variables propose values.

Whoever may make contexts can have any program run as the host's user.`

func (a *admin) tools() []tool.Tool {
	return []tool.Tool{
		tool.New(tool.Def{
			Name: "context_list", Title: "List contexts", Effects: tool.Reads, Task: tool.TaskNever,
			Description: "Lists the contexts of this host. Those that are fixed by its configuration cannot be changed here.",
		}, a.list),
		tool.New(tool.Def{
			Name: "context_get", Title: "Describe a context", Effects: tool.Reads, Task: tool.TaskNever,
			Description: "Shows the definition of one context.",
		}, a.get),
		tool.New(tool.Def{
			Name: "context_create", Title: "Create a context", Effects: tool.Writes, Task: tool.TaskNever,
			Description: "Makes a context: a named view with its own rules, folders, environment, tools, prompts and resources.",
			Help:        createHelp,
		}, a.create),
		tool.New(tool.Def{
			Name: "context_update", Title: "Change a context", Effects: tool.Writes | tool.Destroys, Task: tool.TaskNever,
			Description: "Changes a context: what is given replaces what was there, the rest stays.",
			Help:        "Members that are given replace those of the context as a whole; `clear` names members that go back to nothing. With `revision` the change is refused if somebody else was faster. For the members see context_create.",
		}, a.update),
		tool.New(tool.Def{
			Name: "context_delete", Title: "Delete a context", Effects: tool.Writes | tool.Destroys, Task: tool.TaskNever,
			Description: "Removes a context. Who is in it finds it gone; calls that run go on for a while.",
		}, a.delete),
	}
}

// Summary is one context of a list.
type Summary struct {
	Name        string   `json:"name"`
	Description string   `json:"description,omitempty"`
	Fixed       bool     `json:"fixed,omitempty" doc:"by configuration"`
	Roles       []string `json:"roles,omitempty"`
	Users       []string `json:"users,omitempty"`
	Revision    int64    `json:"revision,omitempty"`
	Updated     string   `json:"updated,omitempty"`
}

type listOut struct {
	Contexts []Summary `json:"contexts"`
}

func (a *admin) list(context.Context, *tool.Call, struct{}) (listOut, error) {
	out := listOut{Contexts: []Summary{}}
	for _, f := range a.fixed() {
		out.Contexts = append(out.Contexts, Summary{Name: f.Name, Description: f.Description, Fixed: true, Roles: f.Roles, Users: f.Users})
	}
	for _, r := range a.book.Current().Records {
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

func (a *admin) get(_ context.Context, _ *tool.Call, in nameIn) (contextstore.Record, error) {
	for _, f := range a.fixed() {
		if f.Name == in.Name {
			return f, nil
		}
	}
	r := a.book.Current().Find(in.Name)
	if r == nil {
		return contextstore.Record{}, refuse(contextstore.ErrNotFound, in.Name)
	}
	return *r, nil
}

func (a *admin) check(ctx context.Context, _ *tool.Call, in Question) (Verdict, error) {
	return a.judge(ctx, in)
}

type createIn struct {
	Name string `json:"name" doc:"a-z, 0-9 and -, at most 64" min:"1"`
	contextstore.Definition
}

func (a *admin) create(_ context.Context, c *tool.Call, in createIn) (contextstore.Record, error) {
	r, err := a.book.Create(contextstore.Record{Name: in.Name, Definition: in.Definition}, c.Caller.Principal)
	return r, refuse(err, in.Name)
}

type updateIn struct {
	Name     string   `json:"name" doc:"the context" min:"1"`
	Revision int64    `json:"revision,omitempty" doc:"the one this change was made from" min:"1"`
	Clear    []string `json:"clear,omitempty" doc:"members that go back to nothing"`
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
	r, err := a.book.Update(in.Name, c.Caller.Principal, func(r *contextstore.Record) error {
		if in.Revision != 0 && in.Revision != r.Revision {
			return contextstore.ErrStale
		}
		return r.Definition.Replace(given, in.Clear)
	})
	return r, refuse(err, in.Name)
}

func (a *admin) delete(_ context.Context, _ *tool.Call, in nameIn) (struct {
	Deleted string `json:"deleted"`
}, error) {
	err := a.book.Delete(in.Name)
	return struct {
		Deleted string `json:"deleted"`
	}{in.Name}, refuse(err, in.Name)
}

// refuse turns the book's errors into what a model can act on.
func refuse(err error, name string) error {
	invalid, wrong := errors.AsType[*contextstore.Invalid](err)
	switch {
	case err == nil:
		return nil
	case wrong:
		return &tool.Refusal{Code: "invalid_arguments", Message: invalid.Error(), Next: "Nothing was changed."}
	case errors.Is(err, contextstore.ErrNotFound):
		return &tool.Refusal{Code: "not_found", Message: "there is no context " + name, Next: "context_list shows those there are."}
	case errors.Is(err, contextstore.ErrExists):
		return &tool.Refusal{Code: "exists", Message: "there is a context " + name + " already", Next: "Change it with context_update, or choose another name."}
	case errors.Is(err, contextstore.ErrFixed):
		return &tool.Refusal{Code: "denied", Message: "the context " + name + " is fixed by the host's configuration", Next: "Change it there, or make one of another name."}
	case errors.Is(err, contextstore.ErrStale):
		return &tool.Refusal{Code: "stale", Message: "the context " + name + " was changed by somebody else meanwhile", Next: "Look at it with context_get and repeat the change."}
	case errors.Is(err, contextstore.ErrFull):
		return tool.Refuse("too_large", "%v", err)
	}
	return err
}
