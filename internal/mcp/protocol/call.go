package protocol

import (
	"encoding/json"
	"errors"
	"sync"

	"gatehouse/internal/dispatch"
	"gatehouse/internal/dispatch/views"
	"gatehouse/internal/mcp/mcpversion"
	"gatehouse/internal/mcp/rawjson"
	"gatehouse/module"
	"gatehouse/tool"
)

// conversation is one call over all its rounds.
type conversation struct {
	r      *request
	entry  *views.Entry
	method string
	name   string // the URI of a read; "" otherwise
	args   json.RawMessage

	id       string // of the call, the same in every round
	recorded map[string]json.RawMessage
	state    []byte
	round    int                        // how many have ended with a question
	asked    []string                   // keys of the last questions; nil before the first
	offered  map[string]json.RawMessage // answers that came before their questions

	mu     sync.Mutex
	task   *task // set when the call has become one
	closed bool  // its outcome is being settled
}

// named reads what a request is about, holds the header to it and makes the
// view known. It reports false when one of these failed, which was answered.
func (r *request) named(member string) (string, bool) {
	name, f := r.required(member)
	if f == nil {
		f = r.nameHeader(name)
	}
	if f != nil {
		r.fail(f)
		return "", false
	}
	return name, r.see()
}

// unknown says that the caller's view holds no such name, and which it may have
// meant of those it does hold.
func (r *request) unknown(what string, k views.Kind, name string) string {
	said := "unknown " + what + ": " + name
	if near := r.view.Near(k, name); near != "" {
		said += "; did you mean " + near + "?"
	}
	return said
}

// callTool serves tools/call.
func (r *request) callTool() {
	name, ok := r.named("name")
	if !ok {
		return
	}
	entry := r.view.Tool(name)
	if entry == nil {
		r.missing(&Fault{Status: 400, Code: CodeInvalidParams, Message: r.unknown("tool", views.Tools, name)},
			func(v *views.View) bool { return v.Tool(name) != nil })
		return
	}
	args := r.msg.has.arguments
	if rawjson.Kind(args) == 'n' {
		args = nil
	}
	if args != nil && rawjson.Kind(args) != '{' {
		r.fail(badParam("arguments", "an object"))
		return
	}
	if f := r.paramHeaders(entry, args); f != nil {
		r.fail(f)
		return
	}
	r.begin(&conversation{entry: entry, method: "tools/call", args: args})
}

// getPrompt serves prompts/get.
func (r *request) getPrompt() {
	name, ok := r.named("name")
	if !ok {
		return
	}
	entry := r.view.Prompt(name)
	if entry == nil {
		r.missing(&Fault{Status: 400, Code: CodeInvalidParams, Message: r.unknown("prompt", views.Prompts, name)},
			func(v *views.View) bool { return v.Prompt(name) != nil })
		return
	}
	args := r.msg.has.arguments
	if rawjson.Kind(args) == 'n' {
		args = nil
	}
	if f := checkPromptArgs(entry.Prompt, args); f != nil {
		r.fail(f)
		return
	}
	if args == nil {
		args = []byte("{}")
	}
	r.begin(&conversation{entry: entry, method: "prompts/get", args: args})
}

// checkPromptArgs: known names, strings, the required ones there. A relayed
// prompt is the upstream's to check.
func checkPromptArgs(p *module.Prompt, args []byte) *Fault {
	if p.Raw != nil {
		return nil
	}
	if args != nil && rawjson.Kind(args) != '{' {
		return badParam("arguments", "an object of strings")
	}
	given := map[string]bool{}
	for k, v := range rawjson.Object(args) {
		if rawjson.Kind(v) != '"' {
			return badParam("arguments."+string(k), "a string")
		}
		given[string(k)] = true
	}
	for _, a := range p.Args {
		if a.Required && !given[a.Name] {
			return badParam("arguments."+a.Name, "a string; it is required")
		}
		delete(given, a.Name)
	}
	for k := range given {
		return &Fault{Status: 400, Code: CodeInvalidParams, Message: "params.arguments: the prompt has no argument " + k}
	}
	return nil
}

// readResource serves resources/read.
func (r *request) readResource() {
	uri, ok := r.named("uri")
	if !ok {
		return
	}
	entry, vars := r.view.Resource(uri)
	if entry == nil || entry.Resource.Read == nil {
		r.missing(r.noResource(uri, "resource not found: "+uri), func(v *views.View) bool {
			e, _ := v.Resource(uri)
			return e != nil && e.Resource.Read != nil
		})
		return
	}
	args := []byte("{}")
	if len(vars) > 0 {
		args, _ = json.Marshal(vars)
	}
	r.begin(&conversation{entry: entry, method: "resources/read", name: uri, args: args})
}

// noResource is the error for a resource that is not there, in the number its
// revision has.
func (r *request) noResource(uri, msg string) *Fault {
	data, _ := json.Marshal(map[string]string{"uri": uri})
	f := &Fault{Status: 400, Code: CodeInvalidParams, Message: msg, Data: data}
	if r.rev.Has(mcpversion.ResourceErrorLegacy) {
		f.Code = CodeResourceNotFound
	}
	return f
}

// complete serves completion/complete.
func (r *request) complete() {
	if !r.see() {
		return
	}
	entry, f := r.completed()
	if f != nil {
		r.fail(f)
		return
	}
	c, f := completing(r.msg.Params)
	if f != nil {
		r.fail(f)
		return
	}
	if entry.Prompt != nil && entry.Prompt.Complete == nil || entry.Resource != nil && entry.Resource.Complete == nil {
		r.answer(&conversation{method: "completion/complete"}, &dispatch.Result{})
		return
	}
	args, _ := json.Marshal(c)
	r.begin(&conversation{entry: entry, method: "completion/complete", args: args})
}

// completed finds what the completion is about.
func (r *request) completed() (*views.Entry, *Fault) {
	ref, _ := rawjson.Get(r.msg.Params, "ref")
	if rawjson.Kind(ref) != '{' {
		return nil, badParam("ref", "an object with a type")
	}
	typ, _ := rawjson.Get(ref, "type")
	member, find := "name", r.view.Prompt
	switch {
	case rawjson.Equal(typ, "ref/prompt"):
	case rawjson.Equal(typ, "ref/resource"):
		member, find = "uri", r.view.Template
	default:
		return nil, badParam("ref.type", "ref/prompt or ref/resource")
	}
	v, _ := rawjson.Get(ref, member)
	name, ok := rawjson.String(v)
	if !ok {
		return nil, badParam("ref."+member, "a string")
	}
	if e := find(name); e != nil {
		return e, nil
	}
	return nil, &Fault{Status: 400, Code: CodeInvalidParams, Message: "params.ref: there is no " + name}
}

// completing reads what is being typed.
func completing(params []byte) (c module.Completing, f *Fault) {
	arg, _ := rawjson.Get(params, "argument")
	var a struct{ Name, Value *string }
	if rawjson.Kind(arg) != '{' || json.Unmarshal(arg, &a) != nil || a.Name == nil || a.Value == nil {
		return c, badParam("argument", "an object with name and value, both strings")
	}
	c.Argument, c.Value = *a.Name, *a.Value
	if known, ok := rawjson.Get(params, "context"); ok {
		var ctx struct{ Arguments map[string]string }
		if json.Unmarshal(known, &ctx) != nil {
			return c, badParam("context.arguments", "an object of strings")
		}
		c.Known = ctx.Arguments
	}
	return c, nil
}

// begin starts the conversation, or goes on with one whose answers have come.
func (r *request) begin(c *conversation) {
	c.r, c.id = r, dispatch.NewID()
	if r.rev.Modern() && resumable(c.method) {
		if f := r.resume(c); f != nil {
			r.fail(f)
			return
		}
	}
	if c.method == "tools/call" && r.asTask(c) {
		return
	}
	r.run(c)
}

// following is the task the call has become, if it has.
func (c *conversation) following() *task {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.task
}

// run runs one round on this goroutine.
func (r *request) run(c *conversation) {
	req := r.roundOf(c)
	req.Cancel = r.cancel
	req.Late = func(res dispatch.Result, err error) {
		r.early()
		r.conclude(c, res, err)
	}
	if c.method == "tools/call" {
		req.Slow, req.SlowAfter = c.slow, r.patience()
	}
	res, err := r.e.opts.Calls.Do(r.ctx, req)
	if dispatch.IsLate(err) {
		return
	}
	r.conclude(c, res, err)
}

func (r *request) roundOf(c *conversation) *dispatch.Request {
	return &dispatch.Request{
		ID: c.id, Facts: r.facts, Entry: c.entry, Method: c.method, Name: c.name,
		Args: c.args, Params: r.msg.Params, Recorded: c.recorded, State: c.state, Notes: c,
		Complete: rawjson.Equal(r.msg.has.of().results, views.Structured),
	}
}

// conclude settles the outcome of a round: with an answer, with a question,
// or in the task the call has become.
func (r *request) conclude(c *conversation, res dispatch.Result, err error) {
	if p, ok := errors.AsType[*dispatch.Pending](err); ok {
		r.await(c, p)
		return
	}
	c.mu.Lock()
	t := c.task
	c.closed = t == nil
	c.mu.Unlock()
	if t != nil {
		t.settle(r, c, res, err)
		return
	}
	res, err = r.unable(c, res, err)
	switch {
	case err != nil:
		r.fail(r.fault(c, err))
	case res.Input != nil:
		r.ask(c, &res)
	default:
		r.answer(c, &res)
	}
}

// unable makes a tool error of a question that an older client cannot answer:
// its revision has no number for that, and the model can choose another way.
func (r *request) unable(c *conversation, res dispatch.Result, err error) (dispatch.Result, error) {
	w, ok := errors.AsType[*tool.WireError](err)
	if !ok || w.Code != CodeMissingCapability || r.rev.Modern() || c.method != "tools/call" {
		return res, err
	}
	return dispatch.Refused(&tool.Refusal{Code: "unsupported", Message: w.Message}), nil
}

// fault makes a JSON-RPC error of what went wrong, for the client's revision.
func (r *request) fault(c *conversation, err error) *Fault {
	if w, ok := errors.AsType[*tool.WireError](err); ok {
		f := &Fault{Status: 200, Code: w.Code, Message: w.Message, Data: w.Data}
		if w.Code <= CodeHeaderMismatch && w.Code > CodeHeaderMismatch-80 {
			f.Status = 400
			if !r.rev.Modern() && (w.Code != CodeURLElicitation || r.rev != mcpversion.V20251125) {
				f.Code, f.Data = CodeInvalidRequest, nil // a number this revision does not have
			}
		}
		return f
	}
	ref, ok := errors.AsType[*tool.Refusal](err)
	if !ok {
		return &Fault{Status: 200, Code: CodeInternal, Message: err.Error()}
	}
	if c.method == "resources/read" && (ref.Code == "not_found" || ref.Code == "outside_root") {
		return r.noResource(c.name, ref.Text())
	}
	code := CodeInternal
	if ref.Code == "invalid_arguments" || ref.Code == "denied" || ref.Code == "not_found" {
		code = CodeInvalidParams
	}
	return &Fault{Status: 200, Code: code, Message: ref.Text()}
}
