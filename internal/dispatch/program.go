package dispatch

import (
	"context"
	"encoding/json"
	"errors"
	"maps"

	"gatehouse/internal/access/approvals"
	"gatehouse/internal/mcp/session"
	"gatehouse/module"
	"gatehouse/tool"
)

// Program runs a call of a program for the caller of a running call, in the same view and with the same gate,
// limits and ledger, one level deeper. Its result is whole: neither cut nor in the form that the view sends.
func (d *Dispatcher) Program(
	ctx context.Context, who tool.Caller, depth int, call *module.InnerCall,
) (tool.Result, error) {
	if depth >= d.opts.Depth {
		return tool.Result{}, tool.Refuse(tool.CodeDenied, "calls inside calls go at most %d deep", d.opts.Depth)
	}
	f := session.Facts{Caller: who}
	// What the host has said of the client is said again for this call.
	f.Can &^= tool.OnlyOperator | tool.WordCounts
	if !call.Asks {
		f.Can = 0
	}
	f.Cut = d.opts.Views.Cut(who)
	e, err := d.entryOf(ctx, &f, call.Name)
	if err != nil {
		return tool.Result{}, err
	}
	r := &Request{
		ID: call.ID, Facts: &f, Entry: e, Method: "tools/call", Args: call.Args, Depth: depth + 1, Program: call,
		Recorded: maps.Clone(call.Recorded), State: call.State,
	}
	for key, answer := range call.Answers {
		if r.Recorded == nil {
			r.Recorded = map[string]json.RawMessage{}
		}
		r.Recorded[key] = answer
	}
	res, err := d.doApproved(ctx, r)
	call.ID, call.Recorded, call.State = r.ID, nil, nil
	if err == nil && res.Input != nil {
		if call.Recorded, call.State = res.Recorded, res.Input.State; !call.Asks {
			return tool.Result{}, tool.Refuse(tool.CodeDenied,
				"%s asks its caller, and programs of this context may not call tools that ask", e.Listed)
		}
	}
	if res.Full != nil {
		res.Result.Structured = res.Full
	}
	return res.Result, err
}

// doApproved runs a call of a program and waits for the operator that it may need.
func (d *Dispatcher) doApproved(ctx context.Context, r *Request) (Result, error) {
	for {
		res, err := d.Do(ctx, r)
		p, ok := errors.AsType[*Pending](err)
		if !ok {
			return res, err
		}
		done := r.Program.Waits()
		decided := make(chan approvals.Request, 1)
		p.Then(func(a approvals.Request) { decided <- a })
		select {
		case a := <-decided:
			done()
			r.Args = r.CallerArgs() // as further rounds of a client's call are made
			r.sent = nil
			if !d.Approved(r, a) {
				return refusalResult(tool.Refuse(tool.CodeDenied, "%s was not approved", r.Entry.Listed)), nil
			}
		case <-ctx.Done():
			d.Withdraw(p)
			done()
			return Result{}, context.Cause(ctx)
		}
	}
}
