// Package protocol is the engine: JSON-RPC and the Model Context Protocol in
// every released revision, both eras on one endpoint, chosen per message.
//
// It knows no tools. A door hands it frames (see door.go), it works out who
// asks for what in which revision, and calls does the rest. What comes back
// is written the way the caller's revision has it.
package protocol

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"time"

	"gatehouse/internal/dispatch"
	"gatehouse/internal/dispatch/bus"
	"gatehouse/internal/dispatch/jobs"
	"gatehouse/internal/dispatch/views"
	"gatehouse/internal/mcp/mcpversion"
	"gatehouse/internal/mcp/rawjson"
	"gatehouse/internal/mcp/seal"
	"gatehouse/internal/mcp/session"
	"gatehouse/tool"
)

// Options of an Engine. All but the noted ones are needed.
type Options struct {
	Calls    *dispatch.Calls
	Views    *views.Contexts
	Sessions *session.Table // nil: HTTP is served without sessions
	Jobs     *jobs.Jobs
	Seal     *seal.Ring
	Bus      bus.Bus
	Log      *slog.Logger

	Info Info
	// Instructions are what a client is told that gets a view; "" is nothing.
	// nil tells clients nothing.
	Instructions func(*views.View) string
	Promote      time.Duration // a call this slow becomes a task if the client can follow one; 0 means 20 s
	Silence      time.Duration // before a client without tasks hears that a call still runs; 0 means 40 s
	AskFor       time.Duration // how long a person may think; 0 means 10 minutes
	InFlight     int           // requests of one newline connection at once; 0 means 256

	// StepUp is asked when something is out of a caller's reach and its
	// credential has scopes. enough says whether it would be within with
	// others. The answer names those the caller could ask its provider for, and
	// the challenge that says so; nil means that there are none.
	StepUp func(who tool.Caller, enough func(scopes []string) bool) (needed []string, challenge string)
}

// Info is how the host introduces itself.
type Info struct {
	Name, Title, Version, Description, Website string
	Icons                                      []tool.Icon
}

// Engine serves every door. Safe for concurrent use.
type Engine struct {
	opts     Options
	sessions *session.Table
	// base is the context of work that outlives its connection.
	base    context.Context
	stop    context.CancelCauseFunc
	hello   [mcpversion.Latest + 1]hello // what is said at the start, by revision
	tails   map[bool]string              // by shared: what a modern list ends with
	watches watches
	changes changes
	work    crew // rounds that run on goroutines of ours
	rounds  rounds
}

// New makes an engine. Run must be running while it is used.
func New(o Options) *Engine {
	if o.Promote == 0 {
		o.Promote = 20 * time.Second
	}
	if o.Silence == 0 {
		o.Silence = 40 * time.Second
	}
	if o.AskFor == 0 {
		o.AskFor = 10 * time.Minute
	}
	if o.InFlight == 0 {
		o.InFlight = 256
	}
	e := &Engine{opts: o, sessions: o.Sessions}
	e.base, e.stop = context.WithCancelCause(context.Background())
	e.introduce()
	e.watches.init()
	e.changes.init()
	e.rounds.init()
	o.Jobs.SetResume(e.resumeJob)
	return e
}

// errStopping ends what is in flight when the host stops.
var errStopping = errors.New("the host is stopping")

// stopTime is how long Run waits for handlers that do not heed the end of
// their context.
const stopTime = 5 * time.Second

// Run tells clients of changes until ctx is done, then ends subscriptions and
// cancels what is in flight.
func (e *Engine) Run(ctx context.Context) error {
	e.changes.run(ctx, e)
	e.stop(errStopping)
	if !e.work.Wait(stopTime) {
		e.opts.Log.Warn("handlers still run after the engine has stopped")
	}
	return nil
}

// request is one request on its way through the engine.
type request struct {
	e    *Engine
	msg  *Message // never nil
	rev  mcpversion.Revision
	sess *session.Session // nil for a modern request
	sink Sink
	head Header

	facts *session.Facts // may be shared: changed by way of own
	owns  bool           // facts are this request's alone
	ready bool           // the session had its handshake
	view  *views.View
	// ctx is that of this one request; a request is handed on in place of it.
	ctx    context.Context
	cancel context.CancelCauseFunc
	note   notes
	end    ending
}

// Legacy serves one legacy request to its end. It returns when the engine
// needs the calling goroutine no longer, which may be before the answer: the
// sink tells when that is. The request does not end with the connection it
// came in on.
func (e *Engine) Legacy(s *session.Session, m *Message, sink Sink) {
	parent := e.base
	if s.ID != "" {
		parent = context.Background() // the end of its session ends it, at the latest when the host stops
	}
	if r := e.newLegacy(parent, s, m, sink); r.takeOff(s) {
		r.dispatch()
	}
}

// newLegacy makes a request whose work ends with parent at the latest.
func (e *Engine) newLegacy(parent context.Context, s *session.Session, m *Message, sink Sink) *request {
	r := &request{e: e, msg: m, sess: s, sink: sink}
	r.ctx, r.cancel = context.WithCancelCause(parent)
	return r
}

// own are the facts, to be changed.
func (r *request) own() *session.Facts {
	if !r.owns {
		f := *r.facts
		r.facts, r.owns = &f, true
	}
	return r.facts
}

// takeOff makes the request one that can be cancelled by its id. It reports
// false when the id is taken, which was answered.
func (r *request) takeOff(s *session.Session) bool {
	r.end.flights, r.end.key = s, flightKey(r.msg.ID)
	if terms, ok := s.Begin(r.end.key, r.abandon); ok {
		r.accept(terms)
		return true
	}
	r.end.flights = nil // the flight of that name is another's
	why := "this id is in flight already"
	if s.Ended() {
		why = "the session has ended"
	}
	r.fail(invalid(nil, why))
	return false
}

// accept has a request of a session served by the session's terms.
func (r *request) accept(t session.Terms) {
	if r.sess == nil {
		return // it only shares the ids
	}
	r.facts, r.ready = cmp.Or(r.msg.By, t.Facts), t.Initialized
	r.rev = r.facts.Revision
	if trace := cmp.Or(r.traceparent(), r.msg.Trace); trace != "" && trace != r.facts.Trace {
		r.own().Trace = trace
	}
	r.note.init(&r.msg.has, t.Level)
}

// dispatch finds the method and runs it.
func (r *request) dispatch() {
	if r.ended() {
		return // cancelled before it began
	}
	meth, ok := methods[r.msg.Method]
	if ok && r.rev >= meth.from && r.rev <= meth.to {
		if r.sess != nil && !r.ready && r.msg.Method != "ping" {
			r.fail(invalid(nil, "initialize first"))
			return
		}
		meth.run(r)
		return
	}
	r.extension()
}

// method is one entry of the table below.
type method struct {
	from, to mcpversion.Revision
	run      func(*request)
}

const (
	first  = mcpversion.V20241105
	legacy = mcpversion.LatestLegacy
	modern = mcpversion.V20260728
	latest = mcpversion.Latest
)

// methods is which revision has which method.
var methods map[string]method

func init() {
	methods = map[string]method{
		"ping":                     {first, legacy, (*request).ping},
		"server/discover":          {modern, latest, (*request).discover},
		"tools/list":               {first, latest, listOf(views.Tools)},
		"prompts/list":             {first, latest, listOf(views.Prompts)},
		"resources/list":           {first, latest, listOf(views.Resources)},
		"resources/templates/list": {first, latest, listOf(views.Templates)},
		"tools/call":               {first, latest, (*request).callTool},
		"prompts/get":              {first, latest, (*request).getPrompt},
		"resources/read":           {first, latest, (*request).readResource},
		"completion/complete":      {first, latest, (*request).complete},
		"logging/setLevel":         {first, legacy, (*request).setLevel},
		"resources/subscribe":      {first, legacy, (*request).subscribe},
		"resources/unsubscribe":    {first, legacy, (*request).unsubscribe},
		"subscriptions/listen":     {modern, latest, (*request).listen},
		"tasks/get":                {mcpversion.V20251125, latest, (*request).taskGet},
		"tasks/cancel":             {mcpversion.V20251125, latest, (*request).taskCancel},
		"tasks/update":             {modern, latest, (*request).taskUpdate},
		"tasks/result":             {mcpversion.V20251125, legacy, (*request).taskResult},
		"tasks/list":               {mcpversion.V20251125, legacy, (*request).taskList},
	}
}

// see makes the caller's view known to the request. It reports false when
// that has failed and was answered.
func (r *request) see() bool {
	if cut := r.e.opts.Views.Cut(r.facts.Caller); cut != r.facts.Cut {
		r.own().Cut = cut // the policy is another than at the handshake
	}
	v, err := r.e.opts.Views.View(r.ctx, &r.facts.Caller, r.facts.Cut)
	if err != nil {
		r.fail(notFound(err))
		return false
	}
	r.view = v
	return true
}

func (r *request) ping() { r.result(r.empty()) }

// extension serves a method that some module of the view brings.
func (r *request) extension() {
	if r.sess != nil && !r.ready {
		r.fail(invalid(nil, "initialize first"))
		return
	}
	if !r.see() {
		return
	}
	if entry := r.view.Method(r.msg.Method); entry != nil {
		r.begin(&conversation{entry: entry, method: r.msg.Method, args: r.msg.Params})
		return
	}
	r.fail(&Fault{Status: 404, Code: CodeMethodNotFound, Message: "method not found: " + r.msg.Method})
}

// param reads one member of params that must be a string; "" when absent.
func (r *request) param(name string) (string, *Fault) {
	v, ok := r.msg.has.name, true
	if name != "name" {
		v, ok = rawjson.Get(r.msg.Params, name)
	}
	if !ok || v == nil {
		return "", nil
	}
	s, ok := rawjson.String(v)
	if !ok {
		return "", badParam(name, "a string")
	}
	return s, nil
}

// required is param for one that must be there.
func (r *request) required(name string) (string, *Fault) {
	s, f := r.param(name)
	if f == nil && s == "" {
		f = badParam(name, "a string")
	}
	return s, f
}

func badParam(name, expected string) *Fault {
	return &Fault{Status: 400, Code: CodeInvalidParams, Message: "params." + name + ": expected " + expected}
}

// listOf serves the list of a kind.
func listOf(k views.Kind) func(*request) {
	return func(r *request) {
		cursor, f := r.param("cursor")
		if f != nil {
			r.fail(f)
			return
		}
		if !r.see() {
			return
		}
		page, err := r.view.Page(k, r.rev, cursor)
		if err != nil {
			r.fail(&Fault{Status: 400, Code: CodeInvalidParams, Message: err.Error() + ": use a nextCursor exactly as it was given, with the same method"})
			return
		}
		r.result(page)
	}
}
