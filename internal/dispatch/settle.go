package dispatch

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"gatehouse/internal/access/displaytext"
	"gatehouse/internal/dispatch/bus"
	"gatehouse/internal/mcp/rawjson"
	"gatehouse/tool"
)

// SpoolURI is the URI prefix of spooled texts.
const SpoolURI = "gatehouse:///spool/"

const codeInternal = -32603

// finishCall turns the outcome that came over the bus into a result: it classifies errors, checks output against
// its schema, and cuts text.
func (d *Dispatcher) finishCall(r *Request, got bus.Outcome, err error, out *output) (Result, error) {
	if err != nil {
		return d.failed(r, err)
	}
	res := Result{Result: got.Result, Recorded: got.Recorded, ID: r.ID}
	if res.Input != nil || res.Raw != nil {
		if r.Method == "tools/call" && res.Raw != nil {
			res.Raw = r.Entry.CutResult(res.Raw)
		}
		return res, nil
	}
	if err := d.checkOutput(r, &res); err != nil {
		return d.failed(r, err)
	}
	if r.Method != "tools/call" || r.Program != nil {
		return res, nil // a program gets results whole
	}
	if err := d.trim(r, &res); err != nil {
		refused, failed := d.failed(r, err)
		if big, ok := errors.AsType[*oversize](err); ok && failed == nil {
			refused.Content = append(refused.Content, big.kept)
		}
		return refused, failed
	}
	if out != nil {
		out.link(&res)
	}
	return res, nil
}

// failed turns an error into the refusal or wire error that its receiver needs.
func (d *Dispatcher) failed(r *Request, err error) (Result, error) {
	if w, ok := errors.AsType[*tool.WireError](err); ok {
		return Result{}, w
	}
	ref, ok := errors.AsType[*tool.Refusal](err)
	switch {
	case ok:
	case errors.Is(err, bus.ErrAbsent):
		ref = &tool.Refusal{
			Code:    tool.CodeUnavailable,
			Message: r.Entry.Listed + " is not available at the moment; nothing was run",
			Next:    "Try again in a moment.",
		}
	case errors.Is(err, bus.ErrLost):
		ref = &tool.Refusal{
			Code:    tool.CodeUnavailable,
			Message: "no answer came; " + r.Entry.Listed + " may have run",
			Next:    "Check the outcome before you try again.",
		}
	case errors.Is(err, context.Canceled):
		ref = tool.Refuse(tool.CodeCancelled, "the call was cancelled")
	case errors.Is(err, context.DeadlineExceeded):
		ref = timedOut(d.timeLimit(r))
	default:
		ref = &tool.Refusal{Message: err.Error()}
	}
	if r.Method == "tools/call" {
		return refusalResult(ref), nil
	}
	return Result{}, ref
}

// checkOutput encodes the handler's output and checks it against the tool's schema.
func (d *Dispatcher) checkOutput(r *Request, res *Result) error {
	e, out := r.Entry, r.Entry.WholeOut()
	if res.Result.Structured == nil {
		if out != nil && !res.IsError {
			return d.incident(r, errors.New("the tool advertises an output schema and gave no output"))
		}
		return nil
	}
	full, err := encodeJSON(tool.Filled(res.Result.Structured))
	if err != nil {
		return d.incident(r, fmt.Errorf("output: %w", err))
	}
	res.Full = full
	if out != nil {
		if err := out.Check(full); err != nil {
			return d.incident(r, fmt.Errorf("output does not fit its schema: %w", err))
		}
	}
	if e.Cuts() {
		res.Full, res.Facts = e.CutValue(full), "" // the facts are text, which may say what is cut
	}
	shape(r, res)
	return nil
}

// shape chooses which part of an output the client is sent. A view of texts sends a tool's product as text alone,
// because the most common clients give the model either the structured content of a result or its text, never
// both.
func shape(r *Request, res *Result) {
	e := r.Entry
	res.Complete = !res.IsError && (!e.Text || r.Complete)
	if !e.Text {
		res.Facts = ""
		return
	}
	v, ok := rawjson.Get(res.Full, e.Product)
	if !ok {
		res.Facts = ""
		return
	}
	res.Product, res.HasProduct = product(v)
	edits := make([]rawjson.Edit, 0, 2)
	for _, name := range e.InText {
		edits = append(edits, rawjson.Edit{Key: name})
	}
	if fields := rawjson.Splice(res.Full, edits...); len(fields) > 2 && len(fields) <= mostFields {
		res.Fields = fields
	}
}

// mostFields is the size up to which an output's fields are repeated for programs beside its text, in bytes.
const mostFields = 32 << 10

func product(v []byte) (string, bool) {
	s, _ := rawjson.String(v)
	return s, rawjson.Kind(v) == '"'
}

// EncodeResult returns the result of an entry that is not a tool: encoded, but not checked against a schema or cut
// to a budget.
func EncodeResult(res tool.Result) (Result, error) {
	out := Result{Result: res}
	if res.Structured != nil {
		full, err := encodeJSON(res.Structured)
		if err != nil {
			return Result{}, err
		}
		out.Full, out.Complete = full, !res.IsError
	}
	return out, nil
}

// Refused returns the result of a refusal.
func Refused(r *tool.Refusal) Result { return refusalResult(r) }

func encodeJSON(v any) (json.RawMessage, error) {
	if raw, ok := v.(json.RawMessage); ok {
		return raw, rawjson.Check(raw, 0)
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimRight(b.Bytes(), "\n"), nil
}

// incident logs what is wrong with one of this program's tools and returns an error with an id for the client to
// ask about.
func (d *Dispatcher) incident(r *Request, err error) *tool.WireError {
	d.opts.Log.Error("internal error", "incident", r.ID, "name", r.Entry.Listed, "err", err)
	return &tool.WireError{Code: codeInternal, Message: "internal error, see " + r.ID + " in the log"}
}

// trim cuts the text of a result to its budget; the whole text can be read from the spool for a while. Structured
// output is never cut, because the rest could be mistaken for the whole: if it is too large the call is refused.
func (d *Dispatcher) trim(r *Request, res *Result) error {
	left := d.opts.Budget
	if t := r.Entry.Tool; t != nil && t.Budget != 0 {
		left = t.Budget
	}
	if err := d.fit(r, res, left); err != nil || left < 0 {
		return err
	}
	if res.HasProduct {
		if cut, ok := d.cut(r, res.Product, left); ok {
			res.Product = cut
		}
		left -= len(res.Product)
	}
	if cut, ok := d.cut(r, res.Facts, max(left, 1000)); ok {
		res.Facts = cut
	}
	for i := range res.Content {
		b := &res.Content[i]
		if b.Type != "text" || b.Raw != nil {
			continue
		}
		if cut, ok := d.cut(r, b.Text, max(left, 1000)); ok {
			b.Text = cut
		}
		left -= len(b.Text)
	}
	return nil
}

// mostComplete is the largest structured output, in bytes, that is sent to a client that asks for all of it, by
// its view or for one call: tool.MostUnpaged plus what JSON escapes in text.
const mostComplete = 16 << 20

// fit refuses a result whose structured output is too large to be sent, and adds the URI of the whole output. A
// budget below 0 means no limit except that of a message.
func (d *Dispatcher) fit(r *Request, res *Result, budget int) error {
	most := budget
	if most < 0 || r.Entry.Whole || r.Complete {
		most = mostComplete
	}
	if res.Full == nil || len(res.Full) <= most {
		return nil
	}
	if res.HasProduct {
		res.Complete = false // the text is cut to its budget
		return nil
	}
	ref := &tool.Refusal{
		Code:    tool.CodeTooLarge,
		Message: fmt.Sprintf("the call has run; its result has %d bytes, and %d fit in an answer", len(res.Full), most),
		Next:    "Ask for less.",
	}
	if h, err := d.opts.Spool.Put(r.Facts.Owner, "application/json", res.Full); err == nil {
		ref.Next = "Read " + SpoolURI + h + " for the whole output, or ask for less."
		kept := tool.Link(SpoolURI+h, "result", "application/json")
		kept.Size = int64(len(res.Full))
		if t := r.Entry.Tool; t != nil && t.Linked != "" {
			return d.linked(r, res, t.Linked, kept)
		}
		return &oversize{ref, kept}
	} else {
		d.opts.Log.Warn("spool refuses a long result", "call", r.ID, "err", err)
	}
	return ref
}

// linked removes the large member from a result, and links to the whole output.
func (d *Dispatcher) linked(r *Request, res *Result, large string, all tool.Content) error {
	uri, err := json.Marshal(all.URI)
	if err != nil {
		return err
	}
	rest := rawjson.Splice(res.Full, rawjson.Edit{Key: large},
		rawjson.Edit{Key: "uri", Value: uri}, rawjson.Edit{Key: "bytes", Value: fmt.Append(nil, all.Size)})
	if e := r.Entry; e.Out != nil {
		if err := e.Out.Check(rest); err != nil {
			return d.incident(r, fmt.Errorf("output without %s does not fit its schema: %w", large, err))
		}
	}
	res.Full = rest
	res.Content = append(res.Content, all)
	return nil
}

// oversize refuses a result that is too large, and links to the whole output.
type oversize struct {
	*tool.Refusal
	kept tool.Content
}

func (e *oversize) Unwrap() error { return e.Refusal }

// cut ends a text after a line within the budget and adds how to read the rest.
func (d *Dispatcher) cut(r *Request, text string, budget int) (string, bool) {
	if len(text) <= budget {
		return text, false
	}
	n := lineEnd(text, budget)
	rest := "it could not be stored"
	if h, err := d.opts.Spool.Put(r.Facts.Owner, "text/plain", []byte(text)); err == nil {
		rest = fmt.Sprintf("read %s%s?offset=%d for the rest", SpoolURI, h, n)
	} else {
		d.opts.Log.Warn("spool refuses a long result", "call", r.ID, "err", err)
	}
	return fmt.Sprintf(
		"%s\n[cut after %d of %d bytes; %s]",
		strings.TrimSuffix(text[:n], "\n"),
		n,
		len(text),
		rest,
	), true
}

// lineEnd returns where to cut: after the last line that fits or, within one long line, between two characters.
func lineEnd(text string, budget int) int {
	if i := strings.LastIndexByte(text[:budget], '\n'); i >= budget/2 {
		return i + 1
	}
	return len(displaytext.Cut(text, budget, ""))
}
