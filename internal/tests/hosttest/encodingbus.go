package hosttest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"

	"gatehouse/internal/dispatch/bus"
	"gatehouse/tool"
)

// encodingBus encodes requests and results as JSON, as a bus between processes does: only what has a JSON form
// reaches the other side.
type encodingBus struct{ bus.Bus }

// Do encodes the request, serves its decoded form, and returns the outcome in the same way.
func (b encodingBus) Do(ctx context.Context, r *bus.Request, n bus.Notes) (bus.Outcome, error) {
	var there bus.Request
	if err := recode(r, &there); err != nil {
		return bus.Outcome{}, fmt.Errorf("request: %w", err)
	}
	// Another process learns that a context has ended, but not why.
	far, cancel := context.WithCancel(context.Background())
	defer cancel()
	defer context.AfterFunc(ctx, cancel)()
	if there.Left > 0 {
		far, cancel = context.WithTimeout(far, there.Left)
		defer cancel()
	}
	if n != nil {
		n = encodingNotes{n}
	}
	out, err := b.Bus.Do(far, &there, n)
	if err != nil {
		return bus.Outcome{}, recodeError(err)
	}
	return recodeOutcome(out)
}

// Followed forwards to the local bus.
func (b encodingBus) Followed(subject string) bool {
	f, ok := b.Bus.(interface{ Followed(string) bool })
	return !ok || f.Followed(subject)
}

// recode writes a value as JSON and reads it into another one. Raw JSON stays unchanged.
func recode(from, into any) error {
	raw, err := encode(from)
	if err != nil {
		return err
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	return d.Decode(into)
}

func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}

// recodeOutcome leaves the structured output as raw JSON, because as a Go value it would lose the precision of
// large numbers.
func recodeOutcome(out bus.Outcome) (bus.Outcome, error) {
	var structured json.RawMessage
	if v := out.Result.Structured; v != nil {
		raw, err := encode(v)
		if err != nil {
			return bus.Outcome{}, fmt.Errorf("outcome: %w", err)
		}
		structured, out.Result.Structured = raw, nil
	}
	var here bus.Outcome
	if err := recode(out, &here); err != nil {
		return bus.Outcome{}, fmt.Errorf("outcome: %w", err)
	}
	if structured != nil {
		here.Result.Structured = structured
	}
	return here, nil
}

// wireFailure is an encoded error: one of the kinds that have a meaning to the caller, or text.
type wireFailure struct {
	Refusal *tool.Refusal   `json:"refusal,omitempty"`
	Wire    *tool.WireError `json:"wire,omitempty"`
	Absent  bool            `json:"absent,omitempty"`
	Lost    bool            `json:"lost,omitempty"`
	Text    string          `json:"text,omitempty"`
}

func recodeError(err error) error {
	f := wireFailure{Absent: errors.Is(err, bus.ErrAbsent), Lost: errors.Is(err, bus.ErrLost), Text: err.Error()}
	f.Refusal, _ = errors.AsType[*tool.Refusal](err)
	f.Wire, _ = errors.AsType[*tool.WireError](err)
	var here wireFailure
	if err := recode(f, &here); err != nil {
		return fmt.Errorf("error: %w", err)
	}
	switch {
	case here.Refusal != nil:
		return here.Refusal
	case here.Wire != nil:
		return here.Wire
	case here.Absent:
		return fmt.Errorf("%s: %w", here.Text, bus.ErrAbsent)
	case here.Lost:
		return fmt.Errorf("%s: %w", here.Text, bus.ErrLost)
	}
	return errors.New(here.Text)
}

// encodingNotes sends each notification as JSON.
type encodingNotes struct{ n bus.Notes }

type wireNote struct {
	Progress *wireProgress   `json:"progress,omitempty"`
	Level    slog.Level      `json:"level,omitempty"`
	Data     json.RawMessage `json:"data,omitempty"`
	Output   int             `json:"output,omitempty"` // bytes that follow the note: a real bus carries them as they are, too
	Detach   bool            `json:"detach,omitempty"`
}

type wireProgress struct {
	Done  float64 `json:"done"`
	Total float64 `json:"total,omitempty"`
	Note  string  `json:"note,omitempty"`
}

func (e encodingNotes) send(w wireNote, follow []byte) {
	var here wireNote
	if recode(w, &here) != nil {
		return // a number that JSON does not know
	}
	switch {
	case here.Progress != nil:
		e.n.Progress(here.Progress.Done, here.Progress.Total, here.Progress.Note)
	case here.Data != nil:
		e.n.Log(here.Level, here.Data)
	case here.Output > 0:
		e.n.Output(bytes.Clone(follow)[:here.Output])
	case here.Detach:
		e.n.Detach()
	}
}

func (e encodingNotes) Progress(done, total float64, note string) {
	e.send(wireNote{Progress: &wireProgress{done, total, note}}, nil)
}

func (e encodingNotes) Log(l slog.Level, data json.RawMessage) {
	e.send(wireNote{Level: l, Data: data}, nil)
}

func (e encodingNotes) Output(chunk []byte) { e.send(wireNote{Output: len(chunk)}, chunk) }
func (e encodingNotes) Detach()             { e.send(wireNote{Detach: true}, nil) }

func (e encodingNotes) Keep(recorded map[string]json.RawMessage) bool {
	var here map[string]json.RawMessage
	return recode(recorded, &here) == nil && e.n.Keep(here)
}
