// Package protocol is the engine: JSON-RPC and the Model Context Protocol in every released revision,
// both eras on one endpoint, chosen per message.
//
// It has no tools of its own. A transport passes frames to it (see transport.go). The engine determines
// caller, method and revision, lets package dispatch run the call, and encodes the result for the
// caller's revision.
package protocol

import (
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"sync/atomic"
	"time"

	"gatehouse/internal/access/limit"
	"gatehouse/internal/dispatch"
	"gatehouse/internal/dispatch/bus"
	"gatehouse/internal/dispatch/jobs"
	"gatehouse/internal/dispatch/modulehost"
	"gatehouse/internal/dispatch/views"
	"gatehouse/internal/mcp/mcpversion"
	"gatehouse/internal/mcp/rawjson"
	"gatehouse/internal/mcp/seal"
	"gatehouse/internal/mcp/session"
	"gatehouse/tool"
)

// Options configure an Engine. Fields without a stated default are required.
type Options struct {
	Calls    *dispatch.Dispatcher
	Views    *views.Registry
	Sessions *session.Table // nil: HTTP is served without sessions
	Jobs     *jobs.Manager
	Tasks    Tasks // nil means Jobs
	// Restart runs a job of another node again that a handler has started; nil if there are no other nodes.
	Restart func(job string, who tool.Caller, from *modulehost.Start) modulehost.Round
	// Present returns a caller of an earlier time with the roles that it has now, or a *tool.Refusal if its user or its
	// credential was removed. A nil function returns all callers as they are.
	Present func(context.Context, tool.Caller) (tool.Caller, error)
	// Elsewhere watches a resource on the other nodes of a cluster, for a caller; nil means that there are none.
	Elsewhere func(who tool.Caller, uri string, changed func(json.RawMessage)) (stop func())
	Seal      *seal.Ring
	Bus       bus.Bus
	Log       *slog.Logger

	Info Info
	// Instructions returns the instructions that clients of a view get; "" for
	// none. A nil function means none for all views.
	Instructions func(*views.View) string
	Promote      time.Duration // a call this slow becomes a task if the client can follow one; 0 means 20 s
	Silence      time.Duration // after which a client without tasks gets a sign that the call continues; 0 means 40 s
	AskFor       time.Duration // how long a user may take to answer; 0 means 10 minutes
	InFlight     int           // requests of one newline connection at once; 0 means 256

	// Bytes is what callers share of the messages on newline connections that are long
	// and have not been answered, of results while they are sent, and of the arguments
	// of tasks that run; nil means no limit.
	Bytes *limit.Shares
	// Working is what callers share of the jobs that run; nil means no limit.
	Working *limit.Shares

	// StepUp is called if a caller's scopes do not cover a request. enough
	// reports whether other scopes would. StepUp returns the scopes that the
	// caller can request from its provider, and the challenge that names them;
	// nil if there are none.
	StepUp func(who tool.Caller, enough func(scopes []string) bool) (needed []string, challenge string)
}

// Tasks are the jobs that clients follow as tasks: those of this host, or of all nodes of a cluster. The methods are
// those of jobs.Manager.
type Tasks interface {
	Get(owner, id string) (jobs.Record, error)
	List(owner, cursor string, limit int) (list []jobs.Record, next string, err error)
	Watch(owner, id string, f func(jobs.Record)) (stop func(), err error)
	Cancel(owner, id string) (jobs.Record, error)
	Answer(owner, id string, answers map[string]json.RawMessage) (jobs.Record, error)
}

// Info describes the server to clients.
type Info struct {
	Name, Title, Version, Description, Website string
	Icons                                      []tool.Icon
}

// Engine serves all transports. It is safe for concurrent use.
type Engine struct {
	opts     Options
	sessions *session.Table
	// base is the context of work that outlives its connection.
	base    context.Context
	stop    context.CancelCauseFunc
	about   atomic.Pointer[about]
	watches watches
	changes changes
	work    waitGroup // goroutines that the engine started
	rounds  rounds
}

// New returns an engine. Run must be running while it is used.
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
	if o.Tasks == nil {
		o.Tasks = o.Jobs
	}
	e := &Engine{opts: o, sessions: o.Sessions}
	e.base, e.stop = context.WithCancelCause(context.Background())
	e.Describe(Description{})
	e.watches.init()
	e.changes.init()
	e.rounds.init()
	o.Jobs.SetResume(e.resumeJob)
	return e
}

// errStopping is the cause that ends requests when the host stops.
var errStopping = jobs.ErrStopping

// stopTime is how long Run waits for handlers that ignore the end of their context.
const stopTime = 5 * time.Second

// Run notifies clients of changes until ctx is done. Then it ends subscriptions and
// cancels running requests.
func (e *Engine) Run(ctx context.Context) error {
	e.changes.notifyLoop(ctx, e)
	e.stop(errStopping)
	if !e.work.Wait(stopTime) {
		e.opts.Log.Warn("handlers still run after the engine has stopped")
	}
	return nil
}

// request is one request that the engine serves.
type request struct {
	e    *Engine
	msg  *Message // never nil
	rev  mcpversion.Revision
	sess *session.Session // nil for a modern request
	sink Sink
	head Header

	facts      *session.Facts // may be shared: changed through ownFacts only
	factsOwned bool           // facts are this request's alone
	ready      bool           // the session is initialized
	view       *views.View
	// ctx is the context of this one request; functions receive the request instead of it.
	ctx    context.Context
	cancel context.CancelCauseFunc
	note   notifications
	end    requestEnd
}

// Legacy serves one legacy request. It returns when the engine no longer needs the
// calling goroutine, which may be before the answer; the sink reports the end. The
// request does not end with the connection it arrived on.
func (e *Engine) Legacy(s *session.Session, m *Message, sink Sink) {
	parent := e.base
	if s.ID != "" {
		parent = context.Background() // the end of its session cancels it, at the latest when the host stops
	}
	if r := e.newLegacy(parent, s, m, sink); r.registerCall(s) {
		r.dispatch()
	}
}

// newLegacy returns a request whose context ends with parent.
func (e *Engine) newLegacy(parent context.Context, s *session.Session, m *Message, sink Sink) *request {
	r := &request{e: e, msg: m, sess: s, sink: sink}
	r.ctx, r.cancel = context.WithCancelCause(parent)
	return r
}

// ownFacts returns facts that this request may change.
func (r *request) ownFacts() *session.Facts {
	if !r.factsOwned {
		f := *r.facts
		r.facts, r.factsOwned = &f, true
	}
	return r.facts
}

// registerCall makes the request cancellable by its ID. If the ID is in use or the session has ended it
// answers with an error and returns false.
func (r *request) registerCall(s *session.Session) bool {
	r.end.session, r.end.key = s, flightKey(r.msg.ID)
	if terms, ok := s.BeginRequest(r.end.key, r.abandon); ok {
		r.applyTerms(terms)
		return true
	}
	r.end.session = nil // another request has registered this ID
	why := "a request with this id is already running"
	if s.Ended() {
		why = "the session has ended"
	}
	r.sendFault(invalid(nil, why))
	return false
}

// applyTerms sets what the request uses of its session: facts, revision and log level.
func (r *request) applyTerms(t session.Terms) {
	if r.sess == nil {
		return // a modern request uses the session only for the IDs
	}
	r.facts, r.ready = cmp.Or(r.msg.By, t.Facts), t.Initialized
	r.rev = r.facts.Revision
	if trace := cmp.Or(r.traceparent(), r.msg.Trace); trace != "" && trace != r.facts.Trace {
		r.ownFacts().Trace = trace
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
			r.sendFault(invalid(nil, "initialize first"))
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

// methods maps each method to the revisions that have it.
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

// loadView loads the caller's view. If that fails it answers with the error and returns
// false.
func (r *request) loadView() bool {
	if cut := r.e.opts.Views.Cut(r.facts.Caller); cut != r.facts.Cut {
		r.ownFacts().Cut = cut // the policy has changed since the handshake
	}
	v, err := r.e.opts.Views.View(r.ctx, &r.facts.Caller, r.facts.Cut)
	if err != nil {
		r.sendFault(notFound(err))
		return false
	}
	r.view = v
	return true
}

func (r *request) ping() { r.sendResult(r.empty()) }

// extension serves a method that a module of the view adds.
func (r *request) extension() {
	if r.sess != nil && !r.ready {
		r.sendFault(invalid(nil, "initialize first"))
		return
	}
	if !r.loadView() {
		return
	}
	if entry := r.view.Method(r.msg.Method); entry != nil {
		r.startCall(&call{entry: entry, method: r.msg.Method, args: r.msg.Params})
		return
	}
	r.sendFault(&Fault{Status: 404, Code: CodeMethodNotFound, Message: "method not found: " + r.msg.Method})
}

// param reads a string member of params; "" if it is absent.
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

// required reads a string member of params that must be present.
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

// listOf returns the function that serves the list of a kind.
func listOf(k views.Kind) func(*request) {
	return func(r *request) {
		cursor, f := r.param("cursor")
		if f != nil {
			r.sendFault(f)
			return
		}
		if !r.loadView() {
			return
		}
		page, err := r.view.Page(k, r.rev, r.facts.Client, cursor)
		if err != nil {
			r.sendFault(
				&Fault{
					Status:  400,
					Code:    CodeInvalidParams,
					Message: err.Error() + ": use a nextCursor exactly as it was given, with the same method",
				},
			)
			return
		}
		r.sendResult(page)
	}
}
