package protocol

import (
	"gatehouse/internal/access/approvals"
	"gatehouse/internal/dispatch"
	"gatehouse/tool"
)

// await lets a call wait for an operator: as a job, and without a goroutine.
// When the decision comes the job goes on, or ends with the refusal.
func (r *request) await(c *conversation, p *dispatch.Pending) {
	if c.following() == nil && !c.promote() && !c.handOver("waits for an operator's approval, "+p.Approval.ID) {
		r.e.opts.Calls.Withdraw(p)
		r.refuse(c, &tool.Refusal{Code: "denied", Message: c.entry.Listed + " needs an operator's approval, and this client cannot wait for one"})
		return
	}
	t := c.following()
	t.run.Note("waits for an operator's approval, " + p.Approval.ID)
	p.Then(func(ap approvals.Request) {
		r.e.work.Go(func() { r.decided(c, t, ap) })
	})
}

// decided goes on with a job whose approval was decided.
func (r *request) decided(c *conversation, t *task, ap approvals.Request) {
	req := r.roundOf(c)
	if !r.e.opts.Calls.Approved(req, ap) {
		why := "the operator refused"
		if ap.State == approvals.Expired {
			why = "nobody decided in time"
		}
		t.settle(r, c, dispatch.Refused(tool.Refuse("denied", "%s was not approved: %s", c.entry.Listed, why)), nil)
		return
	}
	c.recorded, c.args = req.Recorded, req.Args
	t.run.Note("approved")
	r.runTask(t.run.Context(), c)
}
