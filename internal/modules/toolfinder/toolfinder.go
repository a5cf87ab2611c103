// Package toolfinder is the module tool: it finds tools by words and calls them, for contexts that do not list all of
// their tools.
package toolfinder

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"gatehouse/internal/access/displaytext"
	"gatehouse/internal/dispatch/toolsearch"
	"gatehouse/module"
	"gatehouse/tool"
)

type finder struct {
	toolsearch.Finder
	contexts Contexts
}

// Contexts are the contexts that callers may enter.
type Contexts interface {
	// Names returns those of a caller, sorted.
	Names(ctx context.Context, who tool.Caller) []string
	// Use moves the session of a caller to a context. The error is a *tool.Refusal.
	Use(ctx context.Context, who tool.Caller, name string) error
}

// New returns what makes the module.
func New(f toolsearch.Finder, c Contexts) module.New {
	return func(context.Context, module.Deps) (module.Module, error) { return &finder{f, c}, nil }
}

func (f *finder) Close(context.Context) error { return nil }

func (f *finder) Offer(context.Context, module.Audience) (*module.Offer, error) {
	return &module.Offer{Tools: []tool.Tool{
		tool.New(tool.Def{
			Name: "tool_search", Title: "Search tools", Effects: tool.Reads, Task: tool.TaskNever,
			Description: "Finds tools that are not listed, by what you want to do. Call one that it finds with the tool " +
				"named in its line.",
			Help: searchHelp,
		}, f.search),
		tool.New(tool.Def{
			Name: "tool_describe", Title: "Describe a tool", Effects: tool.Reads, Task: tool.TaskNever,
			Description: "Returns the description and the schema of the arguments of a tool.",
		}, f.describe),
		tool.New(tool.Def{
			Name: "context_use", Title: "Change the context", Effects: tool.Reads, Task: tool.TaskNever,
			NeedsSession: true,
			Description: "Moves this session to another context, which has other tools; without a name it lists the contexts " +
				"that you may enter.",
		}, f.useContext),
		f.caller("tool_call_read", "Call a reading tool", tool.Reads,
			"Calls a tool that only reads, found by tool_search."),
		f.caller("tool_call_write", "Call a changing tool", tool.Writes,
			"Calls a tool that changes something, found by tool_search."),
		f.caller("tool_call_destructive", "Call a destructive tool", tool.Writes|tool.Destroys|tool.OpenWorld,
			"Calls a tool that may delete or overwrite, or does not say what it does, found by tool_search."),
	}}, nil
}

const searchHelp = `The search compares the words of the query with the names, titles, descriptions, parameters and packages
of the tools that you may call. Other words for the same thing are found too. It uses no model and nothing outside of this
host, unless the settings name an embedder.

- A line of the result is the signature of a tool, the tool that calls it, and the begin of its description. A parameter
  with ? may be left out.
- tool_describe returns the whole description and the schema.
- tool_call_read, tool_call_write and tool_call_destructive call a tool by its name. Each only calls tools of its class, so
  that a client that always allows one of them allows no more. The call is that of the tool itself: the same permissions,
  questions and results.
- Tools that you called lately rank higher.`

// caller returns a tool that calls others. It has no output schema, because its result is that of the other tool.
func (f *finder) caller(name, title string, effects tool.Effects, description string) tool.Tool {
	return tool.New(tool.Def{Name: name, Title: title, Effects: effects, Description: description},
		func(ctx context.Context, c *tool.Call, in callIn) (tool.Result, error) {
			return tool.Result{}, f.refusal(ctx, c, name, in.Name)
		})
}

type searchIn struct {
	Query   string `json:"query" doc:"what you want to do, in a few words" min:"1" max:"1000"`
	Limit   int    `json:"limit,omitempty" doc:"results" default:"5" min:"1" max:"20"`
	Schemas bool   `json:"schemas,omitempty" doc:"with the whole descriptions and schemas"`
}

type searchOut struct {
	Text  string   `json:"text" text:"product"`
	Tools []string `json:"tools" doc:"the names, the best first"`
}

func (f *finder) search(ctx context.Context, c *tool.Call, in searchIn) (out searchOut, err error) {
	var b strings.Builder
	for _, t := range f.SearchTools(ctx, c.Caller, in.Query, in.Limit) {
		out.Tools = append(out.Tools, t.Name)
		if in.Schemas {
			b.WriteString(whole(&t) + "\n\n")
		} else {
			b.WriteString(signature(&t) + "\n")
		}
	}
	if len(out.Tools) == 0 {
		out.Tools = []string{}
		b.WriteString("No tool fits these words. Try others for the same thing, or fewer.")
	}
	out.Text = strings.TrimRight(b.String(), "\n")
	return out, nil
}

// mostDescription limits a description in a line of the result, in bytes.
const mostDescription = 160

// signature returns the line of a tool. Texts of packages are shown without control characters.
func signature(t *toolsearch.Tool) string {
	var b strings.Builder
	b.WriteString(t.Name + "(")
	for i, p := range t.Parameters {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(displaytext.Line(p.Name))
		if !p.Required {
			b.WriteString("?")
		}
		if p.Type != "" {
			b.WriteString(": " + displaytext.Cut(displaytext.Line(p.Type), 80, "..."))
		}
	}
	fmt.Fprintf(&b, ") [%s]", t.Caller)
	if d := displaytext.Line(t.Description); d != "" {
		b.WriteString(" " + displaytext.Cut(d, mostDescription, "..."))
	}
	return b.String()
}

func whole(t *toolsearch.Tool) string {
	return fmt.Sprintf("%s [%s]\n%s\n%s", t.Name, t.Caller, t.Description, t.Input)
}

type describeIn struct {
	Name string `json:"name" doc:"the tool" min:"1" max:"200"`
}

type describeOut struct {
	Text   string          `json:"text" text:"product"`
	Caller string          `json:"caller" doc:"the tool that calls it"`
	Schema json.RawMessage `json:"schema" text:"facts" doc:"of its arguments"`
}

func (f *finder) describe(ctx context.Context, c *tool.Call, in describeIn) (describeOut, error) {
	t, near, ok := f.FindTool(ctx, c.Caller, in.Name)
	if !ok {
		return describeOut{}, unknown(in.Name, near)
	}
	return describeOut{Text: whole(&t), Caller: t.Caller, Schema: t.Input}, nil
}

func unknown(name, near string) error {
	next := "tool_search finds tools by words."
	if near != "" {
		next = "Did you mean " + near + "? " + next
	}
	return &tool.Refusal{Code: tool.CodeNotFound, Message: "there is no tool " + displaytext.Line(name), Next: next}
}

type callIn struct {
	Name      string         `json:"name" doc:"the tool" min:"1" max:"200"`
	Arguments map[string]any `json:"arguments,omitempty" doc:"its arguments"`
}

// refusal says why a call of a tool that calls others did not become the call of another tool, before it came here.
func (f *finder) refusal(ctx context.Context, c *tool.Call, by, name string) error {
	t, near, ok := f.FindTool(ctx, c.Caller, name)
	switch {
	case !ok:
		return unknown(name, near)
	case strings.HasPrefix(t.Name, "tool_"):
		return &tool.Refusal{
			Code: tool.CodeInvalidArguments, Message: t.Name + " is listed and is called directly",
			Next: "Call it by its name.",
		}
	case t.Caller != by:
		return &tool.Refusal{
			Code:    tool.CodeInvalidArguments,
			Message: fmt.Sprintf("%s is not of the class that %s calls", t.Name, by),
			Next:    "Call it with " + t.Caller + ".",
		}
	}
	return &tool.Refusal{
		Code: tool.CodeUnsupported, Message: by + " can only be called by a client", Next: "Call " + t.Name + ".",
	}
}

type useIn struct {
	Name string `json:"name,omitempty" doc:"the context; default: only list them" max:"200"`
}

type useOut struct {
	Context  string   `json:"context" doc:"the context of further requests"`
	Contexts []string `json:"contexts" doc:"the contexts that you may enter"`
}

// useContext moves the session of the caller to another context.
func (f *finder) useContext(ctx context.Context, c *tool.Call, in useIn) (useOut, error) {
	out := useOut{Context: c.Caller.Context, Contexts: f.contexts.Names(ctx, c.Caller)}
	if in.Name == "" {
		return out, nil
	}
	if err := f.contexts.Use(ctx, c.Caller, in.Name); err != nil {
		return useOut{}, err
	}
	out.Context = in.Name
	return out, nil
}
