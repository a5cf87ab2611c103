package dispatch

import (
	"slices"

	"gatehouse/internal/access/permit"
	"gatehouse/internal/mcp/rawjson"
	"gatehouse/tool"
)

// Stager keeps the tasks in which calls are staged; see package stage.
type Stager interface {
	// Begin returns the caller's open task, and makes one if there is none.
	Begin(tool.Caller) (task string, err error)
	// Current returns the caller's open task; "" if there is none.
	Current(tool.Caller) string
}

// stage puts a call that the gate admits in the task of its caller. A call that only reads sees the changes of a task
// that has begun, and begins none.
func (d *Dispatcher) stage(r *Request, v permit.Verdict) (err error) {
	if d.opts.Stage == nil {
		return nil
	}
	switch {
	case changes(r) && v.Kind == permit.Stage:
		r.stages = true
		r.task, err = d.opts.Stage.Begin(r.Facts.Caller)
	case !changes(r) && (v.Kind == permit.Stage || v.Kind == permit.Allow):
		r.task = d.opts.Stage.Current(r.Facts.Caller)
	}
	return err
}

// changes reports whether the call may change something.
func changes(r *Request) bool {
	return r.Method == "tools/call" && r.Entry.Tool != nil && !r.Entry.Tool.Effects.ReadOnly()
}

// sayStaged adds to a result that what the call changed waits in its task: to the texts, and to structured content,
// because some clients give their model that alone.
func (r *Request) sayStaged(res *Result) {
	if !r.stages || res.Raw != nil || res.Input != nil || r.Program != nil {
		return
	}
	res.Content = append(slices.Clip(res.Content), tool.Text("staged in task "+r.task))
	if res.IsError || rawjson.Kind(res.Full) != '{' {
		return
	}
	full := rawjson.Splice(res.Full, rawjson.Edit{Key: "staged", Value: []byte(`"in task ` + r.task + `"`)})
	if out := r.Entry.WholeOut(); out == nil || out.Check(full) == nil {
		res.Full = full
	}
}

// notStaged answers a call for which there is no task.
func (d *Dispatcher) notStaged(r *Request, err error) (bool, Result, error) {
	res, err := d.failed(r, err)
	return false, res, err
}
