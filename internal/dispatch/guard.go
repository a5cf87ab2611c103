package dispatch

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"unicode/utf8"

	"gatehouse/internal/access/audit"
	"gatehouse/internal/access/guardrail"
	"gatehouse/internal/dispatch/bus"
	"gatehouse/internal/mcp/rawjson"
	"gatehouse/tool"
)

// guard returns what judges a call; nil if nothing does.
func (d *Dispatcher) guard(r *Request) *guardrail.Guard {
	name := r.Name
	if name == "" {
		name = r.Entry.Name
	}
	return d.opts.Guards.For(r.Facts.Context, r.Entry.Module, name)
}

func (r *Request) guarded() guardrail.Call {
	c := guardrail.Call{
		ID: r.ID, Method: r.Method, Context: r.Facts.Context, Principal: r.Facts.Principal, Module: r.Entry.Module,
		Name: r.Entry.Name, Arguments: r.Args,
	}
	if r.Name != "" {
		c.Name = r.Name
	}
	return c
}

// guardArgs has the guardrails judge what a caller sends, before rules and approvals do. The
// arguments of a refused call are masked, because the ledger records them. Only arguments of tools
// can be rewritten.
func (d *Dispatcher) guardArgs(ctx context.Context, r *Request, g *guardrail.Guard) *tool.Refusal {
	if !g.Judges(guardrail.Arguments) {
		return nil
	}
	value := r.CallerArgs()
	isTool := r.Method == "tools/call"
	switch {
	case !isTool && len(r.Params) > 0:
		value = r.Params
	case !isTool:
		name, err := json.Marshal(
			map[string]any{"name": r.guarded().Name, "arguments": json.RawMessage(orEmpty(r.Args))},
		)
		if err != nil {
			return denied(r, "its arguments cannot be judged")
		}
		value = name
	}
	v := g.Judge(ctx, guardrail.Arguments, r.guarded(), orEmpty(value))
	if v.Refused == "" && v.Changed && !isTool {
		v.Refused = "its parameters would have to be changed, which is done for tools alone"
	}
	var err error
	if v.Changed && isTool {
		if v.Refused != "" {
			r.Args = v.Value
		} else if r.sent, r.Args, err = r.Entry.Arguments(v.Value); err != nil {
			r.Args = v.Value
			v.Refused = "what the guardrails left of its arguments is not what the tool expects: " + unquoted(err)
		}
	}
	d.recordGuard(r, v.Events)
	if v.Refused != "" {
		return denied(r, v.Refused)
	}
	return nil
}

func orEmpty(text json.RawMessage) json.RawMessage {
	if len(text) == 0 {
		return json.RawMessage("{}")
	}
	return text
}

func denied(r *Request, why string) *tool.Refusal {
	return &tool.Refusal{
		Code: tool.CodeDenied, Message: r.Entry.Listed + ": " + why + "; nothing was run",
		Next: "Leave out what a guardrail of this host does not let pass.",
	}
}

// refuseGuarded answers a call that the guardrails refuse.
func (d *Dispatcher) refuseGuarded(r *Request, ref *tool.Refusal) (Result, error) {
	d.recordRefused(r, audit.Denied, ref.Message)
	if r.Method == "tools/call" {
		return refusalResult(ref), nil
	}
	return Result{}, ref
}

// recordGuard writes what the guardrails did to a call, which names kinds and never what was found.
func (d *Dispatcher) recordGuard(r *Request, events []guardrail.Event) {
	for _, e := range events {
		d.opts.Log.Info("a guardrail acted", "call", r.ID, "name", r.Entry.Listed, "rule", e.Rule, "outcome", e.Outcome,
			"reason", e.Reason)
		if d.opts.Ledger == nil {
			continue
		}
		line := d.ledgerEntry(r, e.Outcome)
		line.Kind, line.Level, line.Args, line.Input = "guardrail", audit.Security, nil, nil
		line.Rule, line.Reason = e.Rule, e.Reason
		d.opts.Ledger.Note(line)
	}
}

// withheld is the error of a result that the guardrails refuse.
func withheld(why string) *tool.Refusal {
	return &tool.Refusal{
		Code: tool.CodeDenied, Message: "it has run, and its result is withheld: " + why,
		Next: "Ask for something else, or ask the administrator of this host.",
	}
}

// guardOutcome has the guardrails judge the result or the error of a call.
func (d *Dispatcher) guardOutcome(
	ctx context.Context, r *Request, g *guardrail.Guard, got bus.Outcome, err error,
) (bus.Outcome, error) {
	if !g.Judges(guardrail.Results) {
		return got, err
	}
	j := outcomeJudge{g: g}
	if err != nil {
		err = j.failure(err)
	} else {
		j.result(ctx, r, &got)
	}
	d.recordGuard(r, j.verdict.Events)
	if j.verdict.Refused != "" {
		return bus.Outcome{}, withheld(j.verdict.Refused)
	}
	return got, err
}

type outcomeJudge struct {
	g       *guardrail.Guard
	verdict guardrail.Verdict
}

func (j *outcomeJudge) judgeText(judgeText string) string {
	return j.g.Text(guardrail.Results, judgeText, &j.verdict)
}

// failure scans what an error says. Hooks judge results alone.
func (j *outcomeJudge) failure(err error) error {
	if w, ok := errors.AsType[*tool.WireError](err); ok {
		return &tool.WireError{Code: w.Code, Message: j.judgeText(w.Message), Data: json.RawMessage(j.judgeText(string(w.Data)))}
	}
	if f, ok := errors.AsType[*tool.Refusal](err); ok {
		return &tool.Refusal{Code: f.Code, Message: j.judgeText(f.Message), Next: j.judgeText(f.Next)}
	}
	if text := err.Error(); j.judgeText(text) != text {
		return &tool.Refusal{Code: tool.CodeFailed, Message: j.judgeText(text)}
	}
	return err
}

// result judges a result as one JSON text, as a client would get it.
func (j *outcomeJudge) result(ctx context.Context, r *Request, got *bus.Outcome) {
	whole, err := resultJSON(&got.Result)
	if err != nil {
		j.verdict.Refused = "it cannot be judged"
		return
	}
	v := j.g.Judge(ctx, guardrail.Results, r.guarded(), whole)
	j.verdict = v
	if v.Refused != "" || !v.Changed {
		return
	}
	if err := replaceResult(r, got, v.Value); err != nil {
		j.verdict.Refused = err.Error()
	}
}

// judged is the form in which a result that is no relay's is judged: with the names of the protocol.
type judged struct {
	Content     []tool.Content             `json:"content,omitempty"`
	Structured  json.RawMessage            `json:"structuredContent,omitempty"`
	Facts       string                     `json:"facts,omitempty"`
	IsError     bool                       `json:"isError,omitempty"`
	Meta        map[string]json.RawMessage `json:"_meta,omitempty"`
	Messages    []tool.Message             `json:"messages,omitempty"`
	Description string                     `json:"description,omitempty"`
	Completion  *tool.Completion           `json:"completion,omitempty"`
	Questions   []tool.Question            `json:"questions,omitempty"`
}

// resultJSON returns a result as JSON: that of a relay as it came, and any other as judged.
func resultJSON(res *tool.Result) (json.RawMessage, error) {
	if res.Raw != nil {
		return res.Raw, rawjson.Check(res.Raw, 0)
	}
	j := judged{
		Content: decodedBlobs(
			res.Content,
		), Facts: res.Facts, IsError: res.IsError, Meta: res.Meta, Messages: res.Messages,
		Description: res.Description, Completion: res.Completion,
	}
	if res.Input != nil {
		j.Questions = res.Input.Questions
	}
	if res.Structured != nil {
		full, err := encodeJSON(tool.Filled(res.Structured))
		if err != nil {
			return nil, err
		}
		j.Structured = full
	}
	return encodeJSON(j)
}

// decodedBlobs returns blocks whose data are texts with these as texts, so that scanners read them.
func decodedBlobs(all []tool.Content) []tool.Content {
	var out []tool.Content
	for _, c := range all {
		if len(c.Data) > 0 && c.Text == "" && utf8.Valid(c.Data) && !bytes.ContainsRune(c.Data, 0) {
			c.Text, c.Data = string(c.Data), nil
		}
		out = append(out, c)
	}
	return out
}

// replaceResult puts a rewritten result in place of one. It keeps the form: a relay's stays a relay's.
func replaceResult(r *Request, got *bus.Outcome, value json.RawMessage) error {
	if got.Result.Raw != nil {
		if out := r.Entry.WholeOut(); out != nil {
			structured, ok := rawjson.Get(value, "structuredContent")
			if isError, _ := rawjson.Get(value, "isError"); string(isError) != "true" && ok &&
				out.Check(structured) != nil {
				return errors.New("what the guardrails left of it is not what the tool promises")
			}
		}
		got.Result.Raw = value
		return nil
	}
	var now judged
	decoder := json.NewDecoder(bytes.NewReader(value))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&now); err != nil {
		return errors.New("what the guardrails left of it is no result")
	}
	res := &got.Result
	if out := r.Entry.WholeOut(); out != nil && !now.IsError && (now.Structured != nil || res.Structured != nil) &&
		out.Check(now.Structured) != nil {
		return errors.New("what the guardrails left of it is not what the tool promises")
	}
	if res.Structured = nil; now.Structured != nil {
		res.Structured = now.Structured
	}
	res.Content, res.Facts, res.IsError, res.Meta = now.Content, now.Facts, now.IsError, now.Meta
	res.Messages, res.Description, res.Completion = now.Messages, now.Description, now.Completion
	if res.Input != nil {
		input := *res.Input
		input.Questions = now.Questions
		res.Input = &input
	}
	return nil
}

// silentNotes keeps what a running call prints and reports from everyone, because a guardrail
// judges whole results. Only how far it is passes.
type silentNotes struct{ bus.Notes }

func (n silentNotes) Progress(done, total float64, _ string) { n.Notes.Progress(done, total, "") }
func (n silentNotes) Log(slog.Level, json.RawMessage)        {}
func (n silentNotes) Output([]byte)                          {}
