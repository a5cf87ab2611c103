package protocol

import (
	"encoding/json"
	"time"

	"gatehouse/internal/dispatch"
	"gatehouse/internal/dispatch/modulehost"
	"gatehouse/tool"
)

// JobWait is the tool with which a client without tasks waits for a call that has become a job.
const JobWait = "job_wait"

// Clients give up on a call that sends nothing for a minute, some of them regardless of their settings.
// Before that, the client gets a task if it can follow one, else progress if it sent a progress token,
// else the ID of a job that it can wait for.

// silenceLimit returns how long a call may run without sending anything.
func (r *request) silenceLimit() time.Duration {
	if r.facts.Can&tool.CanTasks != 0 {
		return r.e.opts.Promote
	}
	return r.e.opts.Silence
}

// onSlow is called when the call has sent nothing for that long.
func (c *call) onSlow() {
	switch {
	case c.convertToTask():
	case c.r.note.token != nil:
		c.sendHeartbeats()
	case c.entry.Tool.Task != tool.TaskNever:
		c.convertToJob("still working")
	}
}

// sendHeartbeats sends a sign of life at intervals until the call ends.
func (c *call) sendHeartbeats() {
	if c.r.ended() || c.currentTask() != nil {
		return
	}
	c.r.sendHeartbeat("still working")
	time.AfterFunc(c.r.e.opts.Silence/2, c.sendHeartbeats)
}

// convertToJob answers with the ID of a job, if the view has the tool that waits for jobs. It also
// applies to tools that start jobs themselves if the call waits for an approval, because its handler
// has not run. It reports whether the call is a job now.
func (c *call) convertToJob(why string) bool {
	r := c.r
	if r.view == nil || r.view.Tool(JobWait) == nil {
		return false
	}
	return c.convert(func(t *task) []byte {
		r.warnEarlyAnswer()
		text := why + ", as job " + t.run.ID() + "\nCall " + JobWait + ` with {"id":"` + t.run.ID() +
			`"} for the result.`
		id, _ := json.Marshal(t.run.ID())
		return r.render(nil, c, &dispatch.Result{Result: tool.Result{
			Content: []tool.Content{tool.Text(text)},
			Meta:    map[string]json.RawMessage{modulehost.JobMeta: id},
		}})
	})
}

// warnEarlyAnswer warns the sink that the answer is sent while the goroutine that serves the request
// still runs the handler.
func (r *request) warnEarlyAnswer() {
	if l, ok := r.sink.(interface{ Late() }); ok {
		l.Late()
	}
}
