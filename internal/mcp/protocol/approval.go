package protocol

import (
	"context"
	"errors"

	"gatehouse/internal/access/approvals"
	"gatehouse/internal/dispatch"
	"gatehouse/internal/dispatch/jobs"
	"gatehouse/tool"
)

// awaitApproval turns a call that needs an operator's approval into a task or a job, if
// the client can follow one. After the decision the job continues, or ends with the
// refusal.
func (r *request) awaitApproval(c *call, p *dispatch.Pending) {
	if c.currentTask() == nil && !c.convertToTask() &&
		!c.convertToJob(p.Error()) {
		r.e.opts.Calls.Withdraw(p)
		r.sendRefusal(
			c,
			&tool.Refusal{
				Code:    tool.CodeDenied,
				Message: c.entry.Listed + " needs an operator's approval, and this client cannot wait for one",
			},
		)
		return
	}
	t := c.currentTask()
	t.run.Note(p.Error())
	stop := context.AfterFunc(t.run.Context(), func() {
		if errors.Is(context.Cause(t.run.Context()), jobs.ErrCancelled) { // no operator shall decide what does not run
			r.e.work.Go(func() { r.e.opts.Calls.Withdraw(p) })
		}
	})
	p.Then(func(ap approvals.Request) {
		stop()
		r.e.work.Go(func() { r.approvalDecided(c, t, ap) })
	})
}

// approvalDecided continues a job after the operator's decision.
func (r *request) approvalDecided(c *call, t *task, ap approvals.Request) {
	req := r.roundRequest(c)
	if !r.e.opts.Calls.Approved(req, ap) {
		why := "the operator refused"
		if ap.State == approvals.Expired {
			why = "no operator decided in time"
		}
		t.storeOutcome(
			r,
			c,
			dispatch.Refused(tool.Refuse(tool.CodeDenied, "%s was not approved: %s", c.entry.Listed, why)),
			nil,
		)
		return
	}
	c.recorded, c.args = req.Recorded, req.CallerArgs()
	t.run.Note("approved")
	r.runTask(t.run.Context(), c)
}
