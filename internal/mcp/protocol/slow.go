package protocol

import (
	"encoding/json"
	"time"

	"gatehouse/internal/dispatch"
	"gatehouse/internal/dispatch/modulehost"
	"gatehouse/tool"
)

// JobWait is the tool with which a client that knows no tasks waits for a
// call that has become a job.
const JobWait = "job_wait"

// A client gives up on a call that says nothing for a minute, some of them
// whatever their own settings say. So before that it gets a task if it can
// follow one, else a sign of life if it gave a progress token, else a handle
// that it can wait for.

// patience is how long a call may stay silent.
func (r *request) patience() time.Duration {
	if r.facts.Can&tool.CanTasks != 0 {
		return r.e.opts.Promote
	}
	return r.e.opts.Silence
}

// slow is called when the call has been silent for that long.
func (c *conversation) slow() {
	switch {
	case c.promote():
	case c.r.note.token != nil:
		c.beat()
	case c.entry.Tool.Task != tool.TaskNever:
		c.handOver("still working")
	}
}

// beat tells that the call is alive, until it ends.
func (c *conversation) beat() {
	if c.r.ended() || c.following() != nil {
		return
	}
	c.r.alive("still working")
	time.AfterFunc(c.r.e.opts.Silence/2, c.beat)
}

// handOver answers with the handle of a job, where the view has the tool to
// wait for it. That a tool starts jobs itself does not matter to a call that waits
// for a person: nothing of it has run. It reports whether the call is a job now.
func (c *conversation) handOver(why string) bool {
	r := c.r
	if r.view == nil || r.view.Tool(JobWait) == nil {
		return false
	}
	return c.become(func(t *task) []byte {
		r.early()
		text := why + ", as job " + t.run.ID() + "\nCall " + JobWait + ` with {"id":"` + t.run.ID() + `"} for the result.`
		id, _ := json.Marshal(t.run.ID())
		return r.render(nil, c, &dispatch.Result{Result: tool.Result{
			Content: []tool.Content{tool.Text(text)},
			Meta:    map[string]json.RawMessage{modulehost.JobMeta: id},
		}})
	})
}

// early warns the sink that the answer comes while the goroutine that serves
// the request is still inside the handler.
func (r *request) early() {
	if l, ok := r.sink.(interface{ Late() }); ok {
		l.Late()
	}
}
