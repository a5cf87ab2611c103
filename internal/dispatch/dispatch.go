package dispatch

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"gatehouse/internal/access/approvals"
	"gatehouse/internal/access/audit"
	"gatehouse/internal/access/confirm"
	"gatehouse/internal/access/guardrail"
	"gatehouse/internal/access/limit"
	"gatehouse/internal/access/operator"
	"gatehouse/internal/access/permit"
	"gatehouse/internal/access/secret"
	"gatehouse/internal/dispatch/bus"
	"gatehouse/internal/dispatch/spool"
	"gatehouse/internal/dispatch/views"
	"gatehouse/internal/mcp/rawjson"
	"gatehouse/internal/mcp/schema"
	"gatehouse/internal/mcp/session"
	"gatehouse/module"
	"gatehouse/tool"
)

// Options configures a Dispatcher. Bus, Views, Spool and Log are required.
type Options struct {
	Bus   bus.Bus
	Views *views.Registry
	Spool *spool.Spool
	Log   *slog.Logger
	// Approvals stores the decisions of users and operators; nil refuses calls that need one.
	Approvals *approvals.Store
	// Secrets replaces references to secrets in texts that contexts fix as arguments; nil means that there are none.
	Secrets func(map[string]string) (map[string]secret.Text, error)
	// WordCounts lets a caller whose client cannot ask state that the user agreed. NoOperators means that no
	// operator decides the requests in Approvals.
	WordCounts, NoOperators bool

	// Measure is told of each call of a tool that has ended. It must not block; nil measures nothing.
	Measure func(Measured)

	Stage  Stager            // has the tasks of staged calls; nil stages nothing
	Guards *guardrail.Guards // judge arguments and results; nil judges nothing
	Ledger Ledger            // nil records nothing
	Queue  *limit.Queue      // decides which call runs next; nil makes one with Slots
	// Administrator reports whether a caller may use the slots that are reserved for administrators; nil means
	// that no caller may.
	Administrator operator.Func
	Timeout       time.Duration // of a call that sets no other; 0 means 60 s
	Grace         time.Duration // between the deadline and abandoning the handler; 0 means 250 ms
	Budget        int           // bytes of text in a result; 0 means 32,000
	// Slots is how many calls run at once if there is no Queue; 0 means 1,024. Tests that build no Queue set it.
	Slots int
	Depth int // calls inside calls; 0 means 8
}

// Dispatcher runs calls. It is safe for concurrent use.
type Dispatcher struct {
	opts    Options
	queue   *limit.Queue
	overdue atomic.Int64
	alarms  sync.Pool // of *alarm whose timers are stopped
}

// New returns a Dispatcher.
func New(o Options) *Dispatcher {
	if o.Timeout == 0 {
		o.Timeout = time.Minute
	}
	if o.Grace == 0 {
		o.Grace = 250 * time.Millisecond
	}
	if o.Budget == 0 {
		o.Budget = 32_000
	}
	if o.Queue == nil {
		o.Queue = limit.NewQueue(limit.Options{Calls: o.Slots})
	}
	if o.Depth == 0 {
		o.Depth = 8
	}
	c := &Dispatcher{opts: o, queue: o.Queue}
	c.alarms.New = newAlarm
	return c
}

// Request is one call.
type Request struct {
	ID     string // of the first round; "" creates one
	Facts  *session.Facts
	Entry  *views.Entry
	Method string
	Name   string          // the URI of a read; otherwise "" means the entry's own name
	Args   json.RawMessage // as the caller sent them; checked here for tools
	Params json.RawMessage // whole, for relays
	// Forward holds headers of the client's request; see tool.Call. They are in no log and no ledger.
	Forward map[string]string
	// Complete asks for the whole structured output even if the view sends text alone. It does not change the
	// text.
	Complete bool
	Logs     string // see tool.Call

	Recorded map[string]json.RawMessage // of earlier rounds
	State    []byte
	Depth    int
	// agreed reports that the user was asked by the handler that makes this call within its own.
	agreed bool
	// Program is the call of a program that this is; nil for all others.
	Program *module.InnerCall

	// Cancel ends the context that is passed to Do, which the call's deadline does too; nil if the caller's
	// context must not be ended.
	Cancel context.CancelCauseFunc

	Notes Notes // nil receives nothing
	// Slow is called once, from another goroutine, when the call has run for SlowAfter; it may be nil.
	Slow      func()
	SlowAfter time.Duration
	// Late is called once, from another goroutine, when the handler has ignored its deadline. Do returns only when
	// the handler does, and the caller discards that result. If Late is nil, the caller waits for the handler.
	Late func(Result, error)

	sent   json.RawMessage // see CallerArgs
	task   string          // in whose view the call runs; "" for the folders themselves
	stages bool            // what the call changes is staged in the task

	approved bool // a user or an operator has approved the call
}

// CallerArgs returns the arguments that the caller sent, with defaults after the call has begun. A further round of the
// call is made with these, not with Args, which then has the arguments that the context fixes.
func (r *Request) CallerArgs() json.RawMessage {
	if r.sent != nil {
		return r.sent
	}
	return r.Args
}

// completeArgs checks the arguments of a tool, and adds those that the caller did not send, once.
func (r *Request) completeArgs() error {
	if r.Method != "tools/call" || r.sent != nil {
		return nil
	}
	sent, all, err := r.Entry.Arguments(r.Args)
	if err == nil {
		r.sent, r.Args = sent, all
	}
	return err
}

// Notes receives what a running call reports. Output arrives as progress.
type Notes interface {
	Progress(done, total float64, note string)
	Log(level slog.Level, params json.RawMessage) // params of a log message; it may have no level
	Detach()
	Keep(recorded map[string]json.RawMessage) bool // see tool.Keep
}

// Result is the result of a call: checked, cut to its budget, and ready to be encoded for any revision.
type Result struct {
	tool.Result
	Full json.RawMessage // the whole output, never cut; nil if the tool gave none
	// Complete means that the client is sent Full as structured content.
	Complete bool
	// Product is the text that the tool was called for, cut to its budget. If HasProduct is set, the client is
	// sent Product and Facts, and programs can read Fields; otherwise it is sent Full as JSON.
	Product    string
	HasProduct bool
	Fields     json.RawMessage            // the output's members that are not in the text
	Recorded   map[string]json.RawMessage // when Input asks for a further round
	ID         string
}

// Overdue returns the number of handlers that have ignored their deadline and still run.
func (d *Dispatcher) Overdue() int64 { return d.overdue.Load() }

// Running returns the number of running calls.
func (d *Dispatcher) Running() int { return d.queue.Running() }

// Do runs one call. The error is a *tool.WireError, a *tool.Refusal (unless the entry is a tool, whose refusals
// are results), or the cause of ctx if it ended before the call began.
func (d *Dispatcher) Do(ctx context.Context, r *Request) (Result, error) {
	if r.ID == "" {
		r.ID = NewID()
	}
	if err := r.completeArgs(); err != nil {
		d.recordRefused(r, audit.Refused, unquoted(err))
		return refusalResult(mismatch(err)), nil
	}
	if ref := d.guardArgs(ctx, r, d.guard(r)); ref != nil {
		return d.refuseGuarded(r, ref)
	}
	if ok, res, err := d.admit(r); !ok {
		d.recordNotAdmitted(r, &res, err)
		return res, err
	}
	pass, err := d.enter(ctx, r)
	if err != nil {
		outcome, reason := outcomeOf(nil, err)
		d.recordRefused(r, outcome, reason)
		return d.finishCall(r, bus.Outcome{}, err, nil)
	}
	if r.Entry.Tool != nil && r.Entry.Tool.Hosts {
		pass.Leave() // else a program would wait for the slots that its own call holds
	} else {
		defer pass.Leave()
	}
	if err := d.recordIntent(ctx, r); err != nil {
		outcome, reason := outcomeOf(nil, err)
		d.recordRefused(r, outcome, reason)
		return d.finishCall(r, bus.Outcome{}, err, nil)
	}
	return d.runCall(ctx, r)
}

// admit asks the gate, and the user or operator that the gate names. It reports true if the call may run.
func (d *Dispatcher) admit(r *Request) (bool, Result, error) {
	v := r.Entry.Gate.Decide(r.Args, &r.Facts.Caller)
	isTool := r.Method == "tools/call"
	switch {
	case v.Kind == permit.Allow, v.Kind == permit.Stage:
		if err := d.stage(r, v); err != nil {
			return d.notStaged(r, err)
		}
		return true, Result{}, nil
	case v.Kind != permit.Refuse && isTool && r.mayAsk():
		ok, res, err := d.approve(r, v)
		r.approved = ok
		return ok, res, err
	}
	reason := v.Reason
	switch {
	case reason != "":
	case v.Kind != permit.Refuse:
		reason = "it needs an approval, which only a call that came from a client directly can get"
	default:
		reason = "not allowed here"
	}
	ref := tool.Refuse(tool.CodeDenied, "%s: %s", r.Entry.Listed, reason)
	if isTool {
		return false, refusalResult(ref), nil
	}
	return false, Result{}, ref
}

// Readmit decides again about a call whose job is to run again, because the rules and the rights of its caller may have
// changed since it was admitted. A rule that asks is content with an approval that was used for this call before. The
// error is a *tool.Refusal, and is recorded.
func (d *Dispatcher) Readmit(r *Request, approved bool) error {
	v := r.Entry.Gate.Decide(r.Args, &r.Facts.Caller)
	asks := v.Kind == permit.AskClient || v.Kind == permit.AskOperator
	if v.Kind == permit.Allow || asks && approved {
		return nil
	}
	reason := cmp.Or(v.Reason, "not allowed here")
	switch {
	case asks:
		reason = "it needs an approval now, which it had not when it was called"
	case v.Kind == permit.Stage:
		reason = "what it changes must be staged now"
	}
	d.recordRefused(r, audit.Denied, "its job did not run again: "+reason)
	ref := tool.Refuse(tool.CodeDenied, "%s was not run again after its host had ended: %s", r.Entry.Listed, reason)
	ref.Next = "Part of its work may have been done. Call it again if you still need it."
	return ref
}

// mayAsk reports whether a user or an operator can be asked about the call: if it came from a client, or from a
// program whose view says so.
func (r *Request) mayAsk() bool {
	if r.Program != nil {
		return r.Program.Asks
	}
	return r.Depth == 0
}

// enter waits until the call may run, for at most the time limit of a call. A call inside another does not wait,
// unless it is a program's.
func (d *Dispatcher) enter(ctx context.Context, r *Request) (*limit.Pass, error) {
	if r.Depth > 0 && r.Program == nil {
		return d.queue.Nested(), nil
	}
	who := limit.Who{
		Holder: limit.Holder{
			Principal:     r.Facts.Principal,
			Administrator: d.opts.Administrator.By(r.Facts.Caller),
		},
		Session: r.Facts.Session,
		Context: r.Facts.Context,
		Tool:    r.Entry.Name,
	}
	pass, err := d.queue.Enter(ctx, who, d.opts.Timeout)
	if busy, ok := errors.AsType[*limit.Busy](err); ok {
		return nil, &tool.Refusal{
			Code:    tool.CodeBusy,
			Message: busy.Why,
			Next:    fmt.Sprintf("Try again in %d s.", busy.Seconds()),
		}
	}
	return pass, err
}

// errDeadline is the cause with which a handler's context ends at its deadline.
var errDeadline = errors.New("the call's deadline passed")

// flight holds everything that one running call needs, in one allocation. It is also the handler's context, with
// the deadline of the call. The watch ends it, so it has no timer.
type flight struct {
	// A flight is the context of its call, so that a call does not allocate a second one.
	context.Context
	watch watch
	out   output
	req   bus.Request
}

// runCall sends the request over the bus and applies its deadline.
func (d *Dispatcher) runCall(ctx context.Context, r *Request) (Result, error) {
	limit := d.timeLimit(r)
	args, hider, ref := d.shapedArgs(r)
	if ref != nil {
		return d.record(r, time.Now(), refusalResult(ref), nil, ref)
	}
	cancel := r.Cancel
	if cancel == nil {
		ctx, cancel = context.WithCancelCause(ctx)
		defer cancel(nil)
	}
	began := time.Now()
	ours, theirs := split(r.Recorded)
	f := &flight{
		Context: ctx,
		watch:   watch{calls: d, req: r, began: began, limit: limit, cancel: cancel},
		out:     output{calls: d, req: r},
		req: bus.Request{
			Call: r.ID, Module: r.Entry.Module, Node: r.handleNode(), Method: r.Method, Name: r.Name, Entry: r.Entry.Name,
			Caller: d.askedCaller(r), Args: args, Params: r.Params,
			Recorded: theirs, State: r.State, Left: limit, Depth: r.Depth,
			Unpaged: r.Entry.Unpaged, Forward: r.Forward, Logs: r.Logs, Task: r.task, Stages: r.stages,
			Approved: r.approved,
		},
	}
	if r.Name == "" {
		f.req.Name = r.Entry.Name
	}
	const given = "=" + confirm.Given
	if f.req.Recorded = maps.Clone(theirs); r.agreed || d.operatorConfirmed(r) {
		if f.req.Recorded == nil {
			f.req.Recorded = map[string]json.RawMessage{}
		}
		f.req.Recorded[given] = json.RawMessage("true")
	} else {
		delete(f.req.Recorded, given)
	}
	f.watch.arm()
	defer f.out.closeSpool()
	var notes bus.Notes = &f.out
	if hider != nil {
		notes = hidingNotes{notes, hider}
	}
	guard := d.guard(r)
	if guard.Judges(guardrail.Results) {
		notes = silentNotes{notes}
	}
	got, err := d.opts.Bus.Do(f, &f.req, notes)
	if hider != nil {
		got, err = hideOutcome(got, err, hider)
	}
	if !f.watch.done() {
		d.recordOverdue(r, time.Since(began))
		return Result{}, errLate
	}
	if err != nil && context.Cause(ctx) == errDeadline {
		err = timedOut(limit)
	}
	got, err = d.guardOutcome(ctx, r, guard, got, err)
	if ref, ok := errors.AsType[*tool.Refusal](err); ok && ref.Code == confirm.Needed && r.Method == "tools/call" {
		if err = d.confirmWith(r, ref.Message); isPending(err) {
			d.recordNotAdmitted(r, nil, err)
			return Result{}, err
		}
	}
	d.recordAnswers(r, theirs, err)
	cause := err
	res, err := d.finishCall(r, got, err, &f.out)
	r.sayStaged(&res)
	if res.Input != nil && ours != nil {
		res.Recorded = maps.Clone(res.Recorded)
		if res.Recorded == nil {
			res.Recorded = ours
		} else {
			maps.Copy(res.Recorded, ours)
		}
	}
	return d.record(r, began, res, err, cause)
}

// handleNode returns what follows the last "_" of the call's handle, which names its node on a host that is one of
// several; "" without a handle.
func (r *Request) handleNode() string {
	if r.Entry.Tool == nil || r.Entry.Tool.Handle == "" {
		return ""
	}
	raw, _ := rawjson.Get(r.Args, r.Entry.Tool.Handle)
	handle, _ := rawjson.String(raw)
	return handle[strings.LastIndexByte(handle, '_')+1:]
}

func isPending(err error) bool {
	_, ok := errors.AsType[*Pending](err)
	return ok
}

// Deadline returns when the handler's context ends.
func (f *flight) Deadline() (time.Time, bool) { return f.watch.began.Add(f.watch.limit), true }

// errLate is what Do returns after Late was called, because the client has been answered already.
var errLate = errors.New("answered already: the handler ignored its deadline")

// IsLate reports whether an error of Do means that Late has answered the call.
func IsLate(err error) bool { return errors.Is(err, errLate) }

func (d *Dispatcher) timeLimit(r *Request) time.Duration {
	if r.Entry.Tool != nil && r.Entry.Tool.Timeout > 0 {
		return r.Entry.Tool.Timeout
	}
	if r.Entry.Resource != nil && r.Entry.Resource.Timeout > 0 {
		return r.Entry.Resource.Timeout
	}
	return d.opts.Timeout
}

func timedOut(after time.Duration) *tool.Refusal {
	return &tool.Refusal{
		Code:    tool.CodeTimeout,
		Message: fmt.Sprintf("no result within %v", after),
		Next:    "Part of the work may have been done. Ask for less at once.",
	}
}

// record writes the outcome to the ledger and the log and publishes it; cause is the error that came over the bus.
// It returns the result that may be sent to the client.
func (d *Dispatcher) record(r *Request, began time.Time, res Result, err, cause error) (Result, error) {
	now := time.Now()
	took := now.Sub(began)
	if cause == nil {
		cause = err
	}
	if unkept := d.recordEnd(r, now, took, &res, cause); unkept != nil {
		res, err = d.finishCall(r, bus.Outcome{}, unkept, nil)
	}
	d.publishFinished(r, took, &res, err)
	return res, err
}

// CallFinished is the topic of every call that has ended, whatever its outcome.
const CallFinished = bus.Topic[Finished]("call.finished")

// Finished describes a call that ended.
type Finished struct {
	Call    string  `json:"call"` // its id
	Method  string  `json:"method"`
	Module  string  `json:"module"`
	Name    string  `json:"name"`    // as the module offers it
	Outcome string  `json:"outcome"` // ok, refused (an isError result), asked (a question to the client) or error
	Millis  float64 `json:"ms"`
}

// Measured is what is measured of a call of a tool.
type Measured struct {
	Tool, Principal string
	Took            time.Duration
	Failed          bool
	In, Out         int64 // bytes of the arguments and of the result
}

// measure reports a call of a tool.
func (d *Dispatcher) measure(r *Request, took time.Duration, outcome string, res *Result) {
	if d.opts.Measure == nil || r.Method != "tools/call" {
		return
	}
	m := Measured{
		Tool: r.Entry.Name, Principal: r.Facts.Principal, Took: took, In: int64(len(r.Args)),
		Failed: outcome != "ok" && outcome != "asked", Out: int64(len(res.Raw)),
	}
	for i := range res.Content {
		c := &res.Content[i]
		m.Out += int64(len(c.Text) + len(c.Data) + len(c.Raw))
	}
	if res.HasProduct {
		m.Out += int64(len(res.Product) + len(res.Facts))
	} else {
		m.Out += int64(len(res.Full))
	}
	d.opts.Measure(m)
}

// publishFinished logs a call that ended and publishes CallFinished.
func (d *Dispatcher) publishFinished(r *Request, took time.Duration, res *Result, err error) {
	outcome := "ok"
	switch {
	case err != nil:
		outcome = "error"
	case res.Input != nil:
		outcome = "asked"
	case res.IsError:
		outcome = "refused"
	}
	d.measure(r, took, outcome, res)
	level := slog.LevelDebug
	if t := r.Entry.Tool; t != nil && !t.Effects.ReadOnly() {
		level = slog.LevelInfo
	}
	if d.opts.Log.Enabled(context.Background(), level) {
		d.opts.Log.LogAttrs(context.Background(), level, "call finished",
			slog.String("call", r.ID), slog.String("method", r.Method), slog.String("name", r.Entry.Listed),
			slog.String("owner", r.Facts.Owner), slog.String("outcome", outcome), slog.Duration("took", took))
	}
	if f, ok := d.opts.Bus.(interface{ Followed(string) bool }); ok && !f.Followed(string(CallFinished)) {
		return
	}
	e, _ := CallFinished.Event(
		Finished{r.ID, r.Method, r.Entry.Module, r.Entry.Name, outcome, float64(took.Microseconds()) / 1000},
	)
	e.Owner, e.Session = r.Facts.Owner, r.Facts.Session
	d.opts.Bus.Publish(e)
}

// Inner runs another tool for a running call, in the same view, with the same gate, limits and ledger, one level
// deeper. The inner call cannot ask questions; the handler may have asked before it, see confirm.WithAgreed.
func (d *Dispatcher) Inner(
	ctx context.Context,
	who tool.Caller,
	depth int,
	name string,
	args json.RawMessage,
) (tool.Result, error) {
	if depth >= d.opts.Depth {
		return tool.Result{}, tool.Refuse(tool.CodeDenied, "calls inside calls go at most %d deep", d.opts.Depth)
	}
	f := session.Facts{Caller: who}
	f.Can, f.Person = who.Can&tool.Attended, false
	if who.Can&tool.CanElicit != 0 || who.Person {
		f.Can = tool.Attended
	}
	f.Cut = d.opts.Views.Cut(who)
	e, err := d.entryOf(ctx, &f, name)
	if err != nil {
		return tool.Result{}, err
	}
	res, err := d.Do(ctx, &Request{
		Facts: &f, Entry: e, Method: "tools/call", Args: args, Depth: depth + 1,
		agreed: confirm.Agreed(ctx, e.Name, args),
	})
	if res.Full != nil {
		res.Result.Structured = res.Full
	}
	return res.Result, err
}

// entryOf returns a tool of a caller's view.
func (d *Dispatcher) entryOf(ctx context.Context, f *session.Facts, name string) (*views.Entry, error) {
	v, err := d.opts.Views.View(ctx, &f.Caller, f.Cut)
	if err != nil {
		return nil, err
	}
	if e := v.Tool(name); e != nil {
		return e, nil
	}
	ref := &tool.Refusal{Code: tool.CodeNotFound, Message: "unknown tool: " + name}
	if near := v.Near(views.Tools, name); near != "" {
		ref.Next = "Did you mean " + near + "?"
	}
	return nil, ref
}

// mismatch turns an error about arguments into a refusal that a model can act on.
func mismatch(err error) *tool.Refusal {
	if m, ok := errors.AsType[*schema.Mismatch](err); ok {
		return &tool.Refusal{Code: tool.CodeInvalidArguments, Message: m.Error()}
	}
	return &tool.Refusal{Code: tool.CodeInvalidArguments, Message: err.Error()}
}

// unquoted returns the text about wrong arguments for the ledger: what is wrong and where, without the values,
// because one of them may be a password.
func unquoted(err error) string {
	m, ok := errors.AsType[*schema.Mismatch](err)
	if !ok {
		return "invalid_arguments"
	}
	told := schema.Mismatch{}
	for _, p := range m.Problems {
		if p.Got != "" {
			p.Got = "something else"
		}
		p.Hint = ""
		told.Problems = append(told.Problems, p)
	}
	return "invalid_arguments: " + told.Error()
}

func refusalResult(r *tool.Refusal) Result {
	return Result{Result: tool.Result{IsError: true, Content: []tool.Content{tool.Text(r.Text())}}}
}

// NewID returns an id for a call. It cannot be guessed, because it comes from ChaCha8, seeded by the system.
func NewID() string {
	const letters = "abcdefghijklmnopqrstuvwxyz234567"
	id := [29]byte{'c', 'a', 'l', 'l', '_'}
	for i := 5; i < len(id); i += 12 {
		for n, j := rand.Uint64(), i; j < i+12; j++ {
			id[j] = letters[n&31]
			n >>= 5
		}
	}
	return string(id[:])
}
