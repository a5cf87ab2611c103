package dispatch

import (
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"slices"

	"gatehouse/internal/access/secret"
	"gatehouse/internal/dispatch/bus"
	"gatehouse/internal/mcp/rawjson"
	"gatehouse/tool"
)

// shapedArgs returns the arguments that the tool gets, with the secrets that the context puts into them, and what
// removes these secrets from what the tool returns. In the ledger and in approvals they remain references.
func (d *Dispatcher) shapedArgs(r *Request) (args []byte, h *secret.Hider, ref *tool.Refusal) {
	refers, ok := r.Entry.Shaped()
	if !ok || r.Method != "tools/call" {
		return r.Args, nil, nil
	}
	var values map[string]secret.Text
	if len(refers) > 0 {
		var err error
		if d.opts.Secrets == nil {
			err = errors.New("this host stores no secrets")
		} else {
			values, err = d.opts.Secrets(refers)
		}
		if err != nil {
			return nil, nil, &tool.Refusal{
				Code:    tool.CodeUnavailable,
				Message: "nothing was run; an argument that this context sets: " + err.Error(),
				Next:    "An administrator stores secrets with gatehouse secret set.",
			}
		}
		hider := secret.NewHider(slices.Collect(maps.Values(values))...)
		h = &hider
	}
	args, err := r.Entry.SetSecrets(r.Args, values)
	if err != nil {
		return nil, nil, &tool.Refusal{
			Code:    tool.CodeUnavailable,
			Message: "nothing was run: " + err.Error(),
			Next:    "An administrator can change the shape of the tool in this context.",
		}
	}
	return args, h, nil
}

// hideOutcome removes secrets from the result and the error of a call.
func hideOutcome(got bus.Outcome, err error, h *secret.Hider) (bus.Outcome, error) {
	res := &got.Result
	hideText := func(s string) string { return string(h.Hide([]byte(s))) }
	if res.Raw != nil {
		if res.Raw = h.Hide(res.Raw); rawjson.Check(res.Raw, 0) != nil {
			return bus.Outcome{}, tool.Refuse(tool.CodeFailed,
				"it has run; its result has a secret in it that cannot be taken out")
		}
	}
	if res.Structured != nil {
		full, e := encodeJSON(tool.Filled(res.Structured))
		if e == nil {
			full = h.Hide(full)
			e = rawjson.Check(full, 0)
		}
		if e != nil {
			return bus.Outcome{}, tool.Refuse(tool.CodeFailed,
				"it has run; its result has a secret in it that cannot be taken out")
		}
		res.Structured = full
	}
	res.Facts = hideText(res.Facts)
	for i := range res.Content {
		res.Content[i].Text = hideText(res.Content[i].Text)
	}
	if w, ok := errors.AsType[*tool.WireError](err); ok {
		err = &tool.WireError{Code: w.Code, Message: hideText(w.Message), Data: h.Hide(w.Data)}
	} else if f, ok := errors.AsType[*tool.Refusal](err); ok {
		err = &tool.Refusal{Code: f.Code, Message: hideText(f.Message), Next: hideText(f.Next)}
	}
	return got, err
}

// hidingNotes removes secrets from what a running call reports.
type hidingNotes struct {
	bus.Notes
	hider *secret.Hider
}

func (n hidingNotes) Progress(done, total float64, note string) {
	n.Notes.Progress(done, total, string(n.hider.Hide([]byte(note))))
}

func (n hidingNotes) Log(level slog.Level, data json.RawMessage) {
	n.Notes.Log(level, n.hider.Hide(data))
}
func (n hidingNotes) Output(chunk []byte) { n.Notes.Output(n.hider.Hide(chunk)) }
