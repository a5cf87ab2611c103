package dispatch

import (
	"bytes"
	"encoding/json"
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
	if !r.stages || res.Input != nil || r.Program != nil {
		return
	}
	says := "staged in task " + r.task
	if res.Raw != nil {
		res.Raw = r.rawStaged(res.Raw, says)
		return
	}
	res.Content = append(slices.Clip(res.Content), tool.Text(says))
	if full, ok := r.withStaged(res.Full); ok && !res.IsError {
		res.Full = full
	}
}

// withStaged adds the task to structured content, if the schema of the tool permits it.
func (r *Request) withStaged(full json.RawMessage) (json.RawMessage, bool) {
	if rawjson.Kind(full) != '{' {
		return full, false
	}
	full = rawjson.Splice(full, rawjson.Edit{Key: "staged", Value: []byte(`"in task ` + r.task + `"`)})
	out := r.Entry.WholeOut()
	return full, out == nil || out.Check(full) == nil
}

// rawStaged adds the task to a result that is as the client gets it. Structured content whose schema permits nothing
// more gets it in its text, if it has one, as that of the tools named as those of the filesystem server.
func (r *Request) rawStaged(raw json.RawMessage, says string) json.RawMessage {
	content, _ := rawjson.Get(raw, "content")
	if rawjson.Kind(content) != '[' {
		return raw
	}
	block := append(rawjson.AppendString([]byte(`{"type":"text","text":`), says), '}')
	blocks := slices.AppendSeq([][]byte{}, rawjson.Elements(content))
	blocks = append(blocks, block)
	whole := slices.Concat([]byte("["), bytes.Join(blocks, []byte(",")), []byte("]"))
	edits := []rawjson.Edit{{Key: "content", Value: whole}}
	structured, _ := rawjson.Get(raw, "structuredContent")
	if full, ok := r.withStaged(structured); ok {
		edits = append(edits, rawjson.Edit{Key: "structuredContent", Value: full})
	} else if v, ok := rawjson.Get(structured, "content"); ok && rawjson.Kind(v) == '"' {
		text, _ := rawjson.String(v)
		edits = append(edits, rawjson.Edit{Key: "structuredContent", Value: rawjson.Splice(structured,
			rawjson.Edit{Key: "content", Value: rawjson.AppendString(nil, text+"\n"+says)})})
	}
	return rawjson.Splice(raw, edits...)
}

// notStaged answers a call for which there is no task.
func (d *Dispatcher) notStaged(r *Request, err error) (bool, Result, error) {
	res, err := d.failed(r, err)
	return false, res, err
}
