// Package httpserver serves Streamable HTTP: one endpoint that accepts messages by POST and answers
// with JSON or with an event stream.
//
// It checks the Host and Origin of a request before it reads the body, passes the message to the engine
// and writes what the engine returns. A stream that stays open costs a connection and a few hundred
// bytes, not a goroutine, wherever HTTP allows the connection to be taken over. The server keeps no
// protocol state of its own: sessions and streams belong to internal/mcp/session.
package httpserver

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	nethttp "net/http"
	"strings"
	"sync/atomic"
	"time"

	"gatehouse/internal/access/limit"
	"gatehouse/internal/access/operator"
	"gatehouse/internal/mcp/protocol"
	"gatehouse/internal/mcp/rawjson"
	"gatehouse/internal/mcp/session"
	"gatehouse/tool"
)

// Options configures a Server. The zero value serves loopback clients. One struct, because each field is one thing that
// a listener is told when it is made.
type Options struct {
	Bind    string   // the host to listen on; "" means loopback
	Hosts   []string // names that a Host header may have besides the loopback names
	Origins []string // origins of web pages that may call, as scheme://host[:port]; "*" means any, without credentials

	MaxBody   int64         // bytes of one POST; 0 means 24 MiB
	BodyTime  time.Duration // until a body must have arrived; 0 means 60 s
	BodySpan  time.Duration // in which 64 KiB of a body must arrive, or its end; 0 means 10 s
	BytesWait time.Duration // for the bytes that other requests of a caller hold; 0 means 5 s
	KeepAlive time.Duration // the longest silence of a stream; 0 means 25 s
	Retry     time.Duration // how long a client waits before it resumes a stream that ended; 0 means 3 s
	Patience  time.Duration // for running requests when the server stops; 0 means 10 s

	// Pages serves GET requests for / and below /ui/ to every caller, because its files have no data;
	// nil means none.
	Pages nethttp.Handler
	// KeepView serves POST requests of identified callers to /ui/view/, with which a page keeps a document that it
	// shows in a frame; nil means that there are none.
	KeepView func(w nethttp.ResponseWriter, r *nethttp.Request, who protocol.Caller)

	// Degraded returns what the host cannot do at the moment, "" if it can do everything. Any client
	// may read it at /ready, so it contains no path and no user. nil means never degraded.
	Degraded func() string

	// Identify returns the caller before the body is read. nil
	// means that every caller is anonymous.
	Identify func(*nethttp.Request) (protocol.Caller, *Denied)
	// Public reports whether a request needs no identity; nil means that only the
	// message endpoints require one.
	Public func(*nethttp.Request) bool
	// Auth serves the paths below /auth/ and the metadata of the protected resource; nil means none.
	Auth nethttp.Handler
	// Metrics is served at /metrics; nil means none.
	Metrics nethttp.Handler
	// Watches returns a refusal for callers that may not read the metrics; if nil, every caller may.
	Watches func(protocol.Caller) *Denied
	// Socket upgrades requests of identified callers to /ws; nil means that
	// there are no WebSockets.
	Socket func(w nethttp.ResponseWriter, r *nethttp.Request, who protocol.Caller)
	// Forwards returns the canonical names of the headers that calls carry for relays; see tool.Call. It is
	// called for each message. nil means none.
	Forwards func() []string
	// Registry serves GET requests of identified callers to /v0.1/servers and below, the
	// read API of the MCP registry; nil means that there is none.
	Registry func(w nethttp.ResponseWriter, r *nethttp.Request, who protocol.Caller)
	// Client is the document that describes the host to authorization servers, served to everyone at ClientPath; nil
	// means that there is none.
	Client []byte
	// Stream serves a request to /ws whose ticket is its only credential, and reports whether it did; nil means that
	// there is none.
	Stream func(w nethttp.ResponseWriter, r *nethttp.Request) bool
	// Alone serves Socket and nothing else.
	Alone bool

	// Nodes reaches the sessions of other nodes of a cluster; nil means that there are none.
	Nodes Nodes

	// Bytes and Streams are what callers share of the bytes of messages that have not
	// been answered, and of event streams; nil means no limit.
	Bytes, Streams *limit.Shares
	// Opens holds callers to a rate of opening sessions; nil means that there is none.
	Opens *limit.Rates
	// Administrator reports who gets what is kept of the streams of the old transport;
	// nil means no caller.
	Administrator operator.Func

	Log *slog.Logger // nil: nothing is logged
}

// Nodes are the nodes of a cluster, as far as sessions are concerned.
type Nodes interface {
	// Serve serves a request whose session is on another node, and reports whether it did. If not, the session is
	// here or nowhere; it stays where it is until done is called. body is that of a POST.
	Serve(w nethttp.ResponseWriter, r *nethttp.Request, who *protocol.Caller, id string, body []byte) (
		served bool, done func())
	// Begin serves a request that opens a session on another node if this one takes none, and reports whether it did.
	Begin(w nethttp.ResponseWriter, r *nethttp.Request, who *protocol.Caller, body []byte) bool
	// Task serves a modern request for a task of another node, and reports whether it did.
	Task(w nethttp.ResponseWriter, r *nethttp.Request, who *protocol.Caller, id string, body []byte) bool
	// Draining reports whether this node takes no new sessions.
	Draining() bool
	// Changed stores what another node has to know of a session to adopt it.
	Changed(ctx context.Context, s *session.Session)
}

// Denied is the refusal of a caller.
type Denied struct {
	Status  int            // 401 or 403
	Message string         // states what was expected
	Header  nethttp.Header // for example WWW-Authenticate; may be nil
}

// engine is the part of *protocol.Engine that the server uses.
type engine interface {
	EraOf(m *protocol.Message, h protocol.Header) protocol.Era
	Open(who protocol.Caller, m *protocol.Message) (*session.Session, []byte, *protocol.Fault)
	Accept(s *session.Session, m *protocol.Message) *protocol.Fault
	Legacy(s *session.Session, m *protocol.Message, sink protocol.Sink)
	Stateless(who protocol.Caller, version string) (*session.Session, *protocol.Fault)
	Modern(ctx context.Context, who protocol.Caller, m *protocol.Message, h protocol.Header, sink protocol.Sink)
	Sessions() *session.Table
}

// Server serves HTTP. It is safe for concurrent use.
type Server struct {
	engine   engine
	opts     Options
	log      *slog.Logger
	origins  origins
	hosts    *hosts
	mux      *nethttp.ServeMux
	pulse    keepAlive
	stopping atomic.Bool
	serving  atomic.Int64 // requests

	newPipe func(who protocol.Caller, write func([]byte) error) pipe
	legacy  legacyStreams
	// legacyShares divide the streams of the old transport, each of which costs a
	// goroutine.
	legacyShares *limit.Shares
}

// New returns a server. The error names an origin or host that cannot be parsed.
func New(e *protocol.Engine, o Options) (*Server, error) {
	d, err := newServer(e, o)
	if err == nil {
		d.newPipe = func(who protocol.Caller, write func([]byte) error) pipe { return e.Pipe(who, write) }
	}
	return d, err
}

func newServer(e engine, o Options) (*Server, error) {
	o.setDefaults()
	d := &Server{engine: e, opts: o, log: o.Log, legacyShares: limit.NewShares(limit.Resource{
		Name: "streams of the old transport", Total: legacyStreamLimit, Administrator: o.Administrator,
	})}
	var err error
	if d.origins, err = newOrigins(o.Origins, loopbackBind(o.Bind)); err != nil {
		return nil, err
	}
	if d.hosts, err = newHosts(o.Hosts, loopbackBind(o.Bind)); err != nil {
		return nil, err
	}
	d.pulse.every = o.KeepAlive / 2
	d.routes()
	return d, nil
}

func (o *Options) setDefaults() {
	o.MaxBody = cmp.Or(o.MaxBody, 24<<20)
	o.BodyTime = cmp.Or(o.BodyTime, time.Minute)
	o.BodySpan = cmp.Or(o.BodySpan, 10*time.Second)
	o.BytesWait = cmp.Or(o.BytesWait, 5*time.Second)
	o.KeepAlive = cmp.Or(o.KeepAlive, 25*time.Second)
	o.Retry = cmp.Or(o.Retry, 3*time.Second)
	o.Patience = cmp.Or(o.Patience, 10*time.Second)
	if o.Identify == nil {
		o.Identify = func(*nethttp.Request) (protocol.Caller, *Denied) {
			return protocol.Caller{Caller: tool.Caller{Principal: "anonymous"}}, nil
		}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
}

func (d *Server) routes() {
	d.mux = nethttp.NewServeMux()
	if d.opts.Socket != nil {
		d.mux.HandleFunc("/ws", d.only("GET", d.socket))
		d.mux.HandleFunc("/ws/{context}", d.only("GET", d.socket))
	}
	if d.opts.Alone {
		d.mux.HandleFunc("/", func(w nethttp.ResponseWriter, r *nethttp.Request) {
			writeFault(
				w,
				404,
				protocol.CodeInvalidRequest,
				"there is nothing at "+clip(r.URL.Path)+"; the WebSocket endpoint is /ws",
			)
		})
		return
	}
	d.mux.HandleFunc("/mcp", d.endpoint)
	d.mux.HandleFunc("/mcp/{context}", d.endpoint)
	d.mux.HandleFunc("/sse", d.only("GET", d.openLegacyStream))
	d.mux.HandleFunc("/messages", d.only("POST", d.postLegacyStream))
	if d.opts.Registry != nil {
		d.mux.HandleFunc("/v0.1/servers", d.only("GET", d.registry))
		d.mux.HandleFunc("/v0.1/servers/", d.only("GET", d.registry))
	}
	d.mux.HandleFunc("/.well-known/mcp", d.only("GET", writeText(200, "application/json", `{"mcp_endpoint":"/mcp"}`)))
	if d.opts.Auth != nil {
		d.mux.Handle("/auth/", d.opts.Auth)
		d.mux.Handle("/.well-known/oauth-protected-resource", d.opts.Auth)
		d.mux.Handle("/.well-known/oauth-protected-resource/", d.opts.Auth)
		d.mux.Handle("/.well-known/oauth-authorization-server", d.opts.Auth)
	}
	if d.opts.Client != nil {
		d.mux.HandleFunc(ClientPath, d.only("GET", writeText(200, "application/json", string(d.opts.Client))))
	}
	if d.opts.Metrics != nil {
		d.mux.HandleFunc("/metrics", d.only("GET", d.opts.Metrics.ServeHTTP))
	}
	d.mux.HandleFunc(
		"/health",
		d.only("GET", writeText(200, "application/json", `{"status":"healthy","service":"gatehouse"}`)),
	)
	d.mux.HandleFunc("/healthz", d.only("GET", writeText(200, "application/json", `{"ok":true}`)))
	d.mux.HandleFunc("/ready", d.only("GET", d.ready))
	if d.opts.Pages != nil {
		d.mux.Handle("/{$}", d.opts.Pages)
		d.mux.Handle("/ui/", d.opts.Pages)
	}
	if d.opts.KeepView != nil {
		d.mux.HandleFunc("POST /ui/view/{$}", func(w nethttp.ResponseWriter, r *nethttp.Request) {
			if who, ok := d.identify(w, r); ok {
				d.opts.KeepView(w, r, who)
			}
		})
	}
	d.mux.HandleFunc("/", func(w nethttp.ResponseWriter, r *nethttp.Request) {
		writeFault(w, 404, protocol.CodeInvalidRequest,
			"there is nothing at "+clip(r.URL.Path)+"; the MCP endpoint is /mcp")
	})
}

// ServeHTTP serves one request. It checks the origin first, so that a page of a foreign site can
// neither read nor start anything.
func (d *Server) ServeHTTP(w nethttp.ResponseWriter, r *nethttp.Request) {
	d.serving.Add(1)
	defer d.serving.Add(-1)
	if !d.hosts.allow(r.Host) {
		d.refuseRequest(
			w,
			r,
			"Host "+clip(r.Host)+" is not a name of this server; to allow it, add it to the allowed hosts",
		)
		return
	}
	if !d.origins.admit(w.Header(), r) {
		d.refuseRequest(
			w,
			r,
			"Origin "+clip(
				r.Header.Get("Origin"),
			)+" is not allowed to call this server; to allow it, the administrator adds it to the allowed origins "+
				"(--origin, listen.http.origins)",
		)
		return
	}
	if r.Method == "OPTIONS" {
		d.preflight(w, r)
		return
	}
	if d.stopping.Load() {
		w.Header().Set("Connection", "close")
		w.Header().Set("Retry-After", "5")
		writeFault(w, 503, protocol.CodeInternal, "the server is stopping; try again later")
		return
	}
	if r.URL.Path == "/mcp" && !d.opts.Alone { // the mux would find it as well, but at a higher cost
		d.endpoint(w, r)
		return
	}
	if !d.known(w, r) {
		return
	}
	d.mux.ServeHTTP(w, r)
}

// known identifies the caller of a path that is not a message endpoint. The message endpoints identify
// their callers themselves.
func (d *Server) known(w nethttp.ResponseWriter, r *nethttp.Request) bool {
	if d.opts.Public == nil || d.opts.Public(r) || identifiesItself(r) || d.isRegistry(r) || d.isPage(r) ||
		d.opts.Client != nil && r.URL.Path == ClientPath {
		return true
	}
	who, ok := d.identify(w, r)
	if !ok || d.opts.Watches == nil || r.URL.Path != "/metrics" {
		return ok
	}
	return d.admitted(w, d.opts.Watches(who))
}

// ClientPath is the path of Options.Client. Authorization servers fetch it without credentials.
const ClientPath = "/oauth-client.json"

// isRegistry reports whether a request comes to the registry's API, which identifies
// its callers itself.
func (d *Server) isRegistry(r *nethttp.Request) bool {
	p := r.URL.Path
	return d.opts.Registry != nil && (r.Method == "GET" || r.Method == "HEAD") &&
		(p == "/v0.1/servers" || strings.HasPrefix(p, "/v0.1/servers/"))
}

// isPage reports whether a request is for a file of the pages.
func (d *Server) isPage(r *nethttp.Request) bool {
	return d.opts.Pages != nil && (r.URL.Path == "/" || strings.HasPrefix(r.URL.Path, "/ui/"))
}

func (d *Server) registry(w nethttp.ResponseWriter, r *nethttp.Request) {
	if who, ok := d.identify(w, r); ok {
		d.opts.Registry(w, r, who)
	}
}

// admitted reports whether denied is nil, and otherwise answers with it.
func (d *Server) admitted(w nethttp.ResponseWriter, denied *Denied) bool {
	if denied != nil {
		maps.Copy(w.Header(), denied.Header)
		writeFault(w, denied.Status, protocol.CodeInvalidRequest, denied.Message)
	}
	return denied == nil
}

// identifiesItself reports whether a request is for a message endpoint, which identifies its callers
// itself. Other paths, and methods that the endpoints do not have, need known.
func identifiesItself(r *nethttp.Request) bool {
	switch p := r.URL.Path; p {
	case "/mcp":
		return true
	case "/sse", "/ws":
		return r.Method == "GET" || r.Method == "HEAD"
	case "/messages":
		return r.Method == "POST"
	default:
		name, below := strings.CutPrefix(p, "/mcp/")
		return below && name != "" && name != "." && name != ".." && !strings.Contains(name, "/")
	}
}

// Serving returns how many requests are being served, streams included.
func (d *Server) Serving() int { return int(d.serving.Load()) }

// Streams returns how many event streams are open.
func (d *Server) Streams() int { return d.pulse.wireCount() }

// poke sends on a channel with a buffer of one, unless the buffer is full.
func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func (d *Server) refuseRequest(w nethttp.ResponseWriter, r *nethttp.Request, why string) {
	d.log.DebugContext(r.Context(), "request refused", "from", r.RemoteAddr, "why", why)
	w.Header().Set("Connection", "close")
	writeFault(w, 403, protocol.CodeInvalidRequest, why)
}

// endpoint serves /mcp.
func (d *Server) endpoint(w nethttp.ResponseWriter, r *nethttp.Request) {
	x := d.newExchange(w, r)
	if !d.identifyInto(&x.who, w, r) {
		return
	}
	switch r.Method {
	case "POST":
		d.post(x, r)
	case "GET":
		if served, done := d.elsewhere(w, r, &x.who, nil); !served {
			d.serveGet(w, r, x.who, done)
		}
	case "DELETE":
		if served, done := d.elsewhere(w, r, &x.who, nil); !served {
			d.delete(w, r, x.who)
			done()
		}
	default:
		notAllowed(w, "POST, GET, DELETE, OPTIONS")
	}
}

// elsewhere serves a request whose session is on another node, and reports whether it did. If not, its session does not
// move until done is called.
func (d *Server) elsewhere(w nethttp.ResponseWriter, r *nethttp.Request, who *protocol.Caller, body []byte) (
	served bool, done func(),
) {
	ids := r.Header["Mcp-Session-Id"]
	if d.opts.Nodes == nil || len(ids) != 1 {
		return false, func() {}
	}
	return d.opts.Nodes.Serve(w, r, who, ids[0], body)
}

// socket serves /ws. A client with a WebSocket can do more than with a GET, so it is admitted under the
// same conditions as a POST: not with the cookie of another origin's page.
func (d *Server) socket(w nethttp.ResponseWriter, r *nethttp.Request) {
	if d.opts.Stream != nil && d.opts.Stream(w, r) {
		return
	}
	as := r.WithContext(r.Context())
	as.Method = "POST"
	if who, ok := d.identify(w, as); ok {
		d.opts.Socket(w, r, who)
	}
}

// identify returns the caller. If the caller is refused, it answers the request.
func (d *Server) identify(w nethttp.ResponseWriter, r *nethttp.Request) (who protocol.Caller, ok bool) {
	ok = d.identifyInto(&who, w, r)
	return who, ok
}

// identifyInto is identify for a caller that is part of a larger allocation.
func (d *Server) identifyInto(who *protocol.Caller, w nethttp.ResponseWriter, r *nethttp.Request) bool {
	var denied *Denied
	if *who, denied = d.opts.Identify(r); !d.admitted(w, denied) {
		return false
	}
	name, ok := chosen(w.Header(), r)
	if !ok {
		writeFault(
			w,
			400,
			protocol.CodeInvalidRequest,
			"the header X-MCP-Context may be sent once, with the name of one context",
		)
		return false
	}
	if name != "" {
		who.Context = name
	}
	if t := r.Header["Traceparent"]; len(t) == 1 && len(t[0]) <= 64 {
		who.Trace = t[0]
	}
	return true
}

// chosen returns the context that a request names: in its path or otherwise in a header, which it then
// adds to the Vary header of the answer. It returns false if the header names several contexts.
func chosen(answer nethttp.Header, r *nethttp.Request) (name string, ok bool) {
	if name := r.PathValue("context"); name != "" {
		return name, true
	}
	values := r.Header["X-Mcp-Context"]
	if len(values) == 0 {
		return "", true
	}
	answer["Vary"] = varyContext
	name = strings.Trim(values[0], " \t")
	return name, len(values) == 1 && !strings.ContainsAny(name, ", ")
}

// otherContext reports whether a caller chose, or is bound to, another context than the one in which a
// session was opened; the session is valid in that one only.
func otherContext(who protocol.Caller, context string) bool {
	return who.Context != "" && who.Context != context || who.Bound != "" && who.Bound != context
}

// only serves one method; HEAD counts as GET.
func (d *Server) only(method string, f nethttp.HandlerFunc) nethttp.HandlerFunc {
	return func(w nethttp.ResponseWriter, r *nethttp.Request) {
		if r.Method != method && !(method == "GET" && r.Method == "HEAD") {
			notAllowed(w, method+", OPTIONS")
			return
		}
		f(w, r)
	}
}

func (d *Server) ready(w nethttp.ResponseWriter, r *nethttp.Request) {
	body := []byte(`{"status":"ready","service":"gatehouse"}`)
	if d.opts.Degraded != nil {
		if reason := d.opts.Degraded(); reason != "" {
			body = fmt.Appendf(
				nil,
				`{"status":"degraded","service":"gatehouse","reason":%s}`,
				rawjson.AppendString(nil, reason),
			)
		}
	}
	status := 200
	if d.opts.Nodes != nil && d.opts.Nodes.Draining() {
		status, body = 503, []byte(`{"status":"draining","service":"gatehouse"}`)
	}
	writeText(status, "application/json", string(body))(w, r)
}

// writeText returns a handler that always writes the same body.
func writeText(status int, mime, body string) nethttp.HandlerFunc {
	return func(w nethttp.ResponseWriter, _ *nethttp.Request) {
		w.Header().Set("Content-Type", mime)
		w.Header().Set("Cache-Control", "no-store")
		w.WriteHeader(status)
		w.Write([]byte(body))
	}
}
