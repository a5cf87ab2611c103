package custom

import (
	"context"
	"encoding/json"
	"slices"
	"strings"

	"gatehouse/internal/dispatch/contextstore"
	"gatehouse/module"
	"gatehouse/tool"
)

// prompt returns the prompt of a definition.
func prompt(p *contextstore.Prompt) (module.Prompt, error) {
	out := module.Prompt{Name: p.Name, Title: p.Title, Description: p.Description}
	proposed := map[string][]string{}
	for _, a := range p.Arguments {
		out.Args = append(
			out.Args, module.PromptArg{Name: a.Name, Title: a.Title, Description: a.Description, Required: a.Required},
		)
		if len(a.Values) > 0 {
			proposed[a.Name] = a.Values
		}
	}
	messages := p.Messages
	if p.Template != "" {
		messages = []contextstore.Message{{Role: "user", Text: p.Template}}
	}
	var templates []contextstore.Template
	for _, m := range messages {
		t, err := contextstore.ParseTemplate(m.Text)
		if err != nil {
			return out, err
		}
		templates = append(templates, t)
	}
	out.Get = func(_ context.Context, c *tool.Call) (tool.Result, error) {
		var given map[string]string
		if err := json.Unmarshal(c.Args, &given); err != nil {
			return tool.Result{}, err
		}
		res := tool.Result{Description: p.Description}
		for i, t := range templates {
			text, err := t.Expand(func(name, _ string) (string, bool) { return given[name], true })
			if err != nil {
				return tool.Result{}, err
			}
			res.Messages = append(res.Messages, tool.Message{Role: messages[i].Role, Content: tool.Text(text)})
		}
		return res, nil
	}
	if len(proposed) > 0 {
		out.Complete = complete(proposed)
	}
	return out, nil
}

// complete proposes the values of an argument that begin with the value so far.
func complete(values map[string][]string) tool.Handler {
	return func(_ context.Context, c *tool.Call) (tool.Result, error) {
		var in module.Completing
		if err := json.Unmarshal(c.Args, &in); err != nil {
			return tool.Result{}, err
		}
		fit := slices.DeleteFunc(
			slices.Clone(values[in.Argument]), func(v string) bool { return !strings.HasPrefix(v, in.Value) },
		)
		return tool.Result{
			Completion: &tool.Completion{Values: fit[:min(len(fit), 100)], Total: len(fit), More: len(fit) > 100},
		}, nil
	}
}
