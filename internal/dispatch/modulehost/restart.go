package modulehost

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"gatehouse/internal/dispatch/bus"
	"gatehouse/module"
	"gatehouse/tool"
)

// Start is the call that has started a job, as far as another node needs it to run the job again. It is JSON.
type Start struct {
	Call     string                     `json:"call"`
	Module   string                     `json:"module"`
	Name     string                     `json:"name"`
	Args     json.RawMessage            `json:"args,omitempty"`
	Params   json.RawMessage            `json:"params,omitempty"`
	Recorded map[string]json.RawMessage `json:"recorded,omitempty"`
	Approved bool                       `json:"approved,omitempty"` // see bus.Request
}

// restart is one run of a handler for a job that runs again.
type restart struct {
	job   string
	round Round // what the handler gave to Deps.Job
}

// againKey is the key under which a context holds the restart that it belongs to.
type againKey struct{}

// restartable reports whether a request calls a tool whose jobs may run again on another node.
func (o *offered) restartable(r *bus.Request) bool {
	if r.Method != "tools/call" || r.Depth > 0 || r.Task != "" {
		return false // what called it is lost, and what a staged task changes is on this node
	}
	t := o.tools[cmp.Or(r.Entry, r.Name)]
	return t != nil && t.Restartable
}

// start returns what another node needs to run the jobs of this call again; nil if they end with this node.
func (rc *running) start() *Start {
	if rc == nil {
		return nil
	}
	rc.mu.Lock()
	defer rc.mu.Unlock()
	if !rc.restartable {
		return nil
	}
	r := rc.req
	return &Start{
		Call: r.Call, Module: r.Module, Name: cmp.Or(r.Entry, r.Name), Args: slices.Clone(r.Args),
		Params:   slices.Clone(r.Params),
		Recorded: maps.Clone(rc.recorded), Approved: r.Approved,
	}
}

// captureRound stores the round of a job that runs again, which is not started anew.
func (rc *running) captureRound(round Round) (job string, ok bool) {
	if rc == nil || rc.again == nil || rc.again.round != nil {
		return "", false
	}
	rc.again.round = round
	return rc.again.job, true
}

// Job implements tool.JobOf.
func (rc *running) Job() (id string, again bool) {
	if rc.again != nil {
		return rc.again.job, true
	}
	if j, ok := rc.notes.(interface{ Job() string }); ok {
		return j.Job(), false
	}
	return "", false
}

// Stay implements tool.Stay.
func (rc *running) Stay() {
	rc.mu.Lock()
	defer rc.mu.Unlock()
	rc.restartable = false
}

// CanRestart reports whether this host has what Restart needs for a job.
func (h *Host) CanRestart(s *Start) bool { return slices.Contains(h.Names(), s.Module) }

// Restart returns the rounds of a job that was started on a node which has died. A round runs the handler of the call
// that started the job again, which starts none now, and then what that gives to Deps.Job. If the handler gives nothing
// its result is the job's.
func (h *Host) Restart(job string, who tool.Caller, s *Start) Round {
	return func(ctx context.Context, recorded map[string]json.RawMessage, state []byte, n bus.Notes) (bus.Outcome, error) {
		again := &restart{job: job}
		out, err := h.startAgain(ctx, again, who, s, n)
		if err != nil || again.round == nil {
			return out, err
		}
		return again.round(context.WithValue(ctx, againKey{}, again), recorded, state, n)
	}
}

// startAgain runs the handler of a call that has started a job.
func (h *Host) startAgain(
	ctx context.Context, again *restart, who tool.Caller, s *Start, n bus.Notes,
) (bus.Outcome, error) {
	h.mu.RLock()
	i := slices.IndexFunc(h.order, func(in *instance) bool { return in.name == s.Module })
	var in *instance
	if i >= 0 {
		in = h.order[i]
	}
	h.mu.RUnlock()
	if in == nil || in.isNotFor(who.Context) {
		return bus.Outcome{}, tool.Refuse(tool.CodeNotFound, "%s is not offered on this node", s.Name)
	}
	o, err := in.offer(ctx, module.Audience{Principal: who.Principal, Context: who.Context})
	if err != nil {
		return bus.Outcome{}, fmt.Errorf("offer of %s: %w", in.name, err)
	}
	r := &bus.Request{
		Call: s.Call, Module: s.Module, Method: "tools/call", Name: s.Name, Caller: &who,
		Args: s.Args, Params: s.Params, Recorded: s.Recorded,
	}
	if !o.restartable(r) {
		return bus.Outcome{}, tool.Refuse(tool.CodeNotFound, "%s is no longer offered", s.Name)
	}
	return h.execute(ctx, r, n, o.handler(r), func(rc *running) { rc.again = again })
}
