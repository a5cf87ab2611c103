package progress

import (
	"context"
	"fmt"

	"gatehouse/module"
	"gatehouse/tool"
)

// Show receives the progress of an owner's job: step is called for each step, and ended once with the job's error,
// nil for success. A nil Show does nothing.
type Show func(who tool.Caller, job, title string) (step func(Progress), ended func(error))

// Started is the result of a tool whose work continues as a job.
type Started struct {
	Job    string `json:"job" doc:"follow it with job_wait"`
	Status string `json:"status"`
}

// Work is what a job does. It reports its progress with tell, which is never nil, and returns the structured
// result of the job.
type Work func(ctx context.Context, c *tool.Call, tell func(Progress)) (result any, err error)

// Start runs work as a job that outlives the call. Its progress is shown, and sent to the followers of the job.
func (s Show) Start(d module.Deps, c *tool.Call, title string, work Work) (Started, error) {
	ids, who := make(chan string, 1), c.Caller
	id, err := d.Job(c, title, func(ctx context.Context, c *tool.Call) (tool.Result, error) {
		select {
		case id := <-ids:
			out, err := s.runWork(ctx, c, who, id, title, work)
			return tool.Typed(out), err
		case <-ctx.Done():
			return tool.Result{}, context.Cause(ctx)
		}
	})
	if err != nil {
		return Started{}, err
	}
	ids <- id
	return Started{id, "working"}, nil
}

func (s Show) runWork(ctx context.Context, c *tool.Call, who tool.Caller, id, title string, work Work) (any, error) {
	step, ended := func(Progress) {}, func(error) {}
	if s != nil {
		step, ended = s(who, id, title)
	}
	phases := 0
	out, err := work(ctx, c, func(p Progress) {
		phases = len(p.Phases)
		step(p)
		sendProgress(c.Peer, p)
	})
	if err == nil && phases > 0 {
		c.Peer.Progress(float64(phases), float64(phases), "done")
	}
	ended(err)
	return out, err
}

// sendProgress sends the current phase and its progress in the form of the protocol.
func sendProgress(peer tool.Peer, p Progress) {
	for i, one := range p.Phases {
		a := one.Progress
		if a.State != Running {
			continue
		}
		part, note := 0.0, one.Name
		if a.Total > 0 {
			part = float64(a.Done) / float64(a.Total)
			note = fmt.Sprintf("%s: %d of %d %s", one.Name, a.Done, a.Total, a.Units)
		} else if a.Done > 0 {
			note = fmt.Sprintf("%s: %d %s", one.Name, a.Done, a.Units)
		}
		peer.Progress(float64(i)+part, float64(len(p.Phases)), note)
	}
}
