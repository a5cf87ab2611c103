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

// call is one call with all its rounds.
type call struct {
	r      *request
	entry  *views.Entry
	method string
	name   string // the URI of a read; "" otherwise
	args   json.RawMessage

	id            string // of the call, the same in every round
	recorded      map[string]json.RawMessage
	state         []byte
	round         int                        // how many have ended with a question
	askedKeys     []string                   // keys of the last questions; nil before the first
	unusedAnswers map[string]json.RawMessage // answers that came before their questions

	mu        sync.Mutex
	task      *task // set when the call has become one
	concluded bool  // its outcome is being settled
}

// requiredName reads the required string member of params, compares it with the
// Mcp-Name header, and loads the caller's view. If one of these fails it answers with
// the error and returns false.
func (r *request) requiredName(member string) (string, bool) {
	name, f := r.required(member)
	if f == nil {
		f = r.nameHeader(name)
	}
	if f != nil {
		r.sendFault(f)
		return "", false
	}
	return name, r.loadView()
}

// unknown returns the message for a name that the caller's view does not contain. It
// suggests the most similar name of the view.
func (r *request) unknown(what string, k views.Kind, name string) string {
	said := "unknown " + what + ": " + name
	if near := r.view.Near(k, name); near != "" {
		said += "; did you mean " + near + "?"
	}
	return said
}

// callTool serves tools/call. A call of a tool that calls another is from here on the call of that one: with its gate,
// its questions and its line in the ledger.
func (r *request) callTool() {
	name, ok := r.requiredName("name")
	if !ok {
		return
	}
	entry := r.view.Tool(name)
	if entry == nil {
		r.failNotFound(&Fault{Status: 400, Code: CodeInvalidParams, Message: r.unknown("tool", views.Tools, name)},
			func(v *views.View) bool { return v.Tool(name) != nil })
		return
	}
	args := r.msg.has.arguments
	if rawjson.Kind(args) == 'n' {
		args = nil
	}
	if args != nil && rawjson.Kind(args) != '{' {
		r.sendFault(badParam("arguments", "an object"))
		return
	}
	if target, inner, ok := r.view.Redirect(entry, args); ok {
		entry, args = target, inner
		r.msg.Params = rawjson.Splice(r.msg.Params,
			rawjson.Edit{Key: "name", Value: rawjson.AppendString(nil, target.Listed)},
			rawjson.Edit{Key: "arguments", Value: inner})
	} else if f := r.paramHeaders(entry, args); f != nil {
		r.sendFault(f)
		return
	}
	if r.view.Searched() && entry.Module != views.SearchModule {
		r.e.opts.Views.Used(r.facts.Principal, entry)
	}
	r.startCall(&call{entry: entry, method: "tools/call", args: args})
}

// getPrompt serves prompts/get.
func (r *request) getPrompt() {
	name, ok := r.requiredName("name")
	if !ok {
		return
	}
	entry := r.view.Prompt(name)
	if entry == nil {
		r.failNotFound(&Fault{Status: 400, Code: CodeInvalidParams, Message: r.unknown("prompt", views.Prompts, name)},
			func(v *views.View) bool { return v.Prompt(name) != nil })
		return
	}
	args := r.msg.has.arguments
	if rawjson.Kind(args) == 'n' {
		args = nil
	}
	if f := checkPromptArgs(entry.Prompt, args); f != nil {
		r.sendFault(f)
		return
	}
	if args == nil {
		args = []byte("{}")
	}
	r.startCall(&call{entry: entry, method: "prompts/get", args: args})
}

// checkPromptArgs checks that the arguments are strings, that the prompt declares each
// of them, and that all required ones are present. Prompts relayed from another server
// are not checked, because that server checks them.
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
		return &Fault{
			Status:  400,
			Code:    CodeInvalidParams,
			Message: "params.arguments: the prompt has no argument " + k,
		}
	}
	return nil
}

// readResource serves resources/read.
func (r *request) readResource() {
	uri, ok := r.requiredName("uri")
	if !ok {
		return
	}
	entry, vars := r.view.Resource(uri)
	if entry == nil || entry.Resource.Read == nil {
		r.failNotFound(r.noResource(uri, "resource not found: "+uri), func(v *views.View) bool {
			e, _ := v.Resource(uri)
			return e != nil && e.Resource.Read != nil
		})
		return
	}
	args := []byte("{}")
	if len(vars) > 0 {
		args, _ = json.Marshal(vars)
	}
	r.startCall(&call{entry: entry, method: "resources/read", name: uri, args: args})
}

// noResource returns the error for an unknown resource, with the error code of the
// client's revision.
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
	if !r.loadView() {
		return
	}
	entry, f := r.completionEntry()
	if f != nil {
		r.sendFault(f)
		return
	}
	c, f := parseCompletion(r.msg.Params)
	if f != nil {
		r.sendFault(f)
		return
	}
	if entry.Prompt != nil && entry.Prompt.Complete == nil || entry.Resource != nil && entry.Resource.Complete == nil {
		r.sendCallResult(&call{method: "completion/complete"}, &dispatch.Result{})
		return
	}
	args, _ := json.Marshal(c)
	r.startCall(&call{entry: entry, method: "completion/complete", args: args})
}

// completionEntry finds the prompt or resource template that a completion request
// refers to.
func (r *request) completionEntry() (*views.Entry, *Fault) {
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

// parseCompletion reads the argument to complete.
func parseCompletion(params []byte) (c module.Completing, f *Fault) {
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

// startCall runs the first round of a call, or the next one if the request carries the
// answers of a previous round.
func (r *request) startCall(c *call) {
	c.r, c.id = r, dispatch.NewID()
	if r.rev.Modern() && resumable(c.method) {
		if f := r.resume(c); f != nil {
			r.sendFault(f)
			return
		}
	}
	if c.method == "tools/call" && r.startAsTask(c) {
		return
	}
	r.runRound(c)
}

// currentTask returns the task that the call has become, or nil.
func (c *call) currentTask() *task {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.task
}

// runRound runs one round on the calling goroutine.
func (r *request) runRound(c *call) {
	req := r.roundRequest(c)
	req.Cancel = r.cancel
	req.Late = func(res dispatch.Result, err error) {
		r.warnEarlyAnswer()
		r.concludeRound(c, res, err)
	}
	if c.method == "tools/call" {
		req.Slow, req.SlowAfter = c.onSlow, r.silenceLimit()
	}
	res, err := r.e.opts.Calls.Do(r.ctx, req)
	if dispatch.IsLate(err) {
		return
	}
	r.concludeRound(c, res, err)
}

func (r *request) roundRequest(c *call) *dispatch.Request {
	q := &dispatch.Request{
		ID: c.id, Facts: r.facts, Entry: c.entry, Method: c.method, Name: c.name,
		Args: c.args, Params: r.msg.Params, Recorded: c.recorded, State: c.state, Notes: c, Forward: r.msg.Forward,
		Complete: rawjson.Equal(r.msg.has.of().results, views.Structured),
	}
	if r.note.logs {
		q.Logs = mcpversion.LevelName(r.note.level)
	}
	return q
}

// concludeRound handles the outcome of a round: it answers, asks the client, or stores
// the outcome in the task that the call has become.
func (r *request) concludeRound(c *call, res dispatch.Result, err error) {
	if p, ok := errors.AsType[*dispatch.Pending](err); ok {
		r.awaitApproval(c, p)
		return
	}
	c.mu.Lock()
	t := c.task
	c.concluded = t == nil
	c.mu.Unlock()
	if t != nil {
		t.storeOutcome(r, c, res, err)
		return
	}
	res, err = r.refuseMissingCapability(c, res, err)
	switch {
	case err != nil:
		r.sendFault(r.errorFault(c, err))
	case res.Input != nil:
		r.requestInput(c, &res)
	default:
		r.sendCallResult(c, &res)
	}
}

// refuseMissingCapability turns the missing capability error into a tool error for
// legacy clients, because their revisions have no code for it and the model can choose
// another tool.
func (r *request) refuseMissingCapability(c *call, res dispatch.Result, err error) (dispatch.Result, error) {
	w, ok := errors.AsType[*tool.WireError](err)
	if !ok || w.Code != CodeMissingCapability || r.rev.Modern() || c.method != "tools/call" {
		return res, err
	}
	return dispatch.Refused(&tool.Refusal{Code: tool.CodeUnsupported, Message: w.Message}), nil
}

// errorFault returns the JSON-RPC error for err in the client's revision.
func (r *request) errorFault(c *call, err error) *Fault {
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
	if c.method == "resources/read" && (ref.Code == tool.CodeNotFound || ref.Code == tool.CodeOutsideRoot) {
		return r.noResource(c.name, ref.Text())
	}
	code := CodeInternal
	if ref.Code == tool.CodeInvalidArguments || ref.Code == tool.CodeDenied || ref.Code == tool.CodeNotFound {
		code = CodeInvalidParams
	}
	return &Fault{Status: 200, Code: code, Message: ref.Text()}
}
