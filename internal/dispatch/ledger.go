package dispatch

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"time"

	"gatehouse/internal/access/audit"
	"gatehouse/internal/access/permit"
	"gatehouse/internal/mcp/rawjson"
	"gatehouse/tool"
)

// Ledger records calls. A call that only reads is noted; the entry of a call that writes is durable before its
// answer is sent; a call that destroys is also recorded before it begins, and does not begin if that fails.
type Ledger interface {
	// Note adds an entry soon, without waiting for the disk.
	Note(audit.Entry)
	// Keep returns when the entry is durable.
	Keep(context.Context, audit.Entry) error
	// Ready returns an error if no entry can be written at the moment. It is cheap enough for every call.
	Ready() error
}

// ledgerDuty is how the ledger records a call.
type ledgerDuty uint8

const (
	noted ledgerDuty = iota
	kept
	recordedBefore // recorded before it begins as well
)

func dutyOf(r *Request) ledgerDuty {
	var e tool.Effects
	switch t := r.Entry.Tool; {
	case t != nil:
		e = t.Effects
	case r.Method == "resources/read",
		r.Method == "resources/subscribe",
		r.Method == "prompts/get",
		r.Method == "completion/complete":
		return noted
	}
	switch {
	case e.ReadOnly():
		return noted
	case e&tool.Destroys != 0 || e&tool.Writes == 0: // a tool that declares nothing counts as destructive
		return recordedBefore
	}
	return kept
}

// ledgerEntry returns the entry of a call.
func (d *Dispatcher) ledgerEntry(r *Request, outcome string) audit.Entry {
	f := r.Facts
	e := audit.Entry{
		Kind: "call", Principal: f.Principal, Credential: f.Credential, Session: f.Session, Context: f.Context,
		Client: f.Client,
		Call:   r.ID, Method: r.Method, Module: r.Entry.Module, Tool: r.Entry.Name, Depth: r.Depth, Task: r.task,
		Args: r.Args, Input: r.Entry.In, Outcome: outcome,
	}
	if r.Name != "" {
		e.Tool = r.Name
	}
	if e.Task == "" && d.opts.Stage != nil && changes(r) {
		e.Task = d.opts.Stage.Current(f.Caller) // so that its review shows what was done beside it
		e.Direct = e.Task != ""
	}
	if t := r.Entry.Tool; t != nil {
		e.Level = audit.LevelOf(t.Name, t.Effects)
	} else if dutyOf(r) != noted {
		e.Level = audit.Security
	}
	return e
}

// recordIntent records the intent of a call that destroys, and refuses every call that changes something while the
// ledger cannot be written. It returns the reason why the call may not run.
func (d *Dispatcher) recordIntent(ctx context.Context, r *Request) error {
	owed := dutyOf(r)
	if d.opts.Ledger == nil || owed == noted {
		return nil
	}
	err := d.opts.Ledger.Ready()
	if err == nil && owed == recordedBefore {
		err = d.opts.Ledger.Keep(ctx, d.ledgerEntry(r, audit.Started))
	}
	if err == nil || ctx.Err() != nil {
		return err
	}
	d.opts.Log.Error("call refused: it cannot be recorded in the ledger", "call", r.ID, "name", r.Entry.Listed, "err", err)
	return &tool.Refusal{
		Code: tool.CodeUnavailable, Message: "this host cannot write its ledger at the moment, so it changes nothing; nothing was run",
		Next: "Tools that only read still work. The administrator finds the reason in the log of the host.",
	}
}

// recordEnd records how a call ended. It returns an error if a call that changed something could not be recorded:
// the call must then not be answered as if it had been.
func (d *Dispatcher) recordEnd(r *Request, at time.Time, took time.Duration, res *Result, cause error) error {
	if d.opts.Ledger == nil {
		return nil
	}
	e := d.ledgerEntry(r, "")
	e.At, e.Took = at, took
	e.Outcome, e.Reason = outcomeOf(res, cause)
	if dutyOf(r) == noted {
		d.opts.Ledger.Note(e)
		return nil
	}
	if err := d.opts.Ledger.Keep(context.Background(), e); err != nil {
		d.opts.Log.Error(
			"call ran and cannot be recorded in the ledger",
			"call",
			r.ID,
			"name",
			r.Entry.Listed,
			"outcome",
			e.Outcome,
			"err",
			err,
		)
		return &tool.Refusal{
			Code: tool.CodeUnavailable, Message: r.Entry.Listed +
				" may have run, but this host could not record it and therefore withholds the result",
			Next: "Check the outcome before you try again.",
		}
	}
	return nil
}

// outcomeOf classifies how a call ended; cause is the error that came over the bus.
func outcomeOf(res *Result, cause error) (outcome, reason string) {
	if ref, ok := errors.AsType[*tool.Refusal](cause); ok {
		switch ref.Code {
		case tool.CodeTimeout:
			return audit.TimedOut, ref.Message
		case tool.CodeBusy:
			return audit.Busy, ref.Message
		}
		return audit.Refused, ref.Error()
	}
	switch {
	case errors.Is(cause, context.Canceled):
		return audit.Cancelled, ""
	case errors.Is(cause, context.DeadlineExceeded):
		return audit.TimedOut, ""
	case cause != nil:
		return audit.Failed, cause.Error()
	case res.Input != nil:
		return audit.Asked, ""
	case res.IsError:
		return audit.Refused, firstLine(res.Content)
	}
	if v, ok := rawjson.Get(res.Raw, "isError"); ok && bytes.Equal(v, []byte("true")) {
		return audit.Refused, "" // the texts of a relayed result belong to the relay
	}
	return audit.OK, ""
}

func firstLine(blocks []tool.Content) string {
	for _, b := range blocks {
		if b.Type == "text" {
			line, _, _ := strings.Cut(b.Text, "\n")
			return line
		}
	}
	return ""
}

// recordRefused records a call that did not run.
func (d *Dispatcher) recordRefused(r *Request, outcome, reason string) {
	if d.opts.Ledger == nil {
		return
	}
	e := d.ledgerEntry(r, outcome)
	if e.Reason = reason; outcome == audit.Denied {
		e.Level = audit.Security
		e.Rule = r.Entry.Gate.Decide(r.Args, &r.Facts.Caller).Rule
	}
	d.opts.Ledger.Note(e)
}

// recordOverdue records that a call has ended after it was answered without its handler.
func (d *Dispatcher) recordOverdue(r *Request, took time.Duration) {
	if d.opts.Ledger != nil {
		e := d.ledgerEntry(r, audit.Overdue)
		e.Took = took
		d.opts.Ledger.Note(e)
	}
}

// recordNotAdmitted records the decision of the gate, or of approval, about a call that does not run now.
func (d *Dispatcher) recordNotAdmitted(r *Request, res *Result, err error) {
	if p, ok := errors.AsType[*Pending](err); ok {
		d.recordRefused(r, audit.Pending, "waits for an operator, "+p.Approval.ID)
		return
	}
	switch {
	case err != nil:
		d.recordRefused(r, audit.Denied, err.Error())
	case res.Input != nil:
		d.recordRefused(r, audit.Asked, "a user must approve it")
	default:
		d.recordRefused(r, audit.Denied, firstLine(res.Content))
	}
}

// recordApproved records that a user approved a call.
func (d *Dispatcher) recordApproved(r *Request, v permit.Verdict, by string) {
	if d.opts.Ledger == nil {
		return
	}
	e := d.ledgerEntry(r, audit.Approved)
	e.Kind, e.Level, e.Rule, e.Reason = "approval", audit.Security, v.Rule, by
	d.opts.Ledger.Note(e)
}
