// Package websocket serves the message hub over WebSockets: at /ws of the host's HTTP server, and at a
// listener on loopback that serves nothing else.
//
// A program that cannot send a header uses a ticket, which the caller of Start gets and which is valid
// once. Only app imports this package.
package websocket

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"gatehouse/internal/access/identity"
	"gatehouse/internal/dispatch/bus"
	"gatehouse/internal/dispatch/hub"
	"gatehouse/internal/mcp/protocol"
	"gatehouse/internal/server/httpserver"
	"gatehouse/tool"
)

// MaxClients is how many clients there are at once.
const MaxClients = 4096

const (
	hubModule     = "ws"      // a caller whose view has none of its tools may not connect
	processModule = "process" // a caller who may not read the output of a process may not subscribe to it

	eventQueue       = 4096            // events that may wait for the hub
	ticketTime       = 2 * time.Minute // how long a ticket can be used
	ticketLife       = time.Hour       // how long a client that used one may stay connected
	maxTickets       = 1000            // unused ones at once
	listenerPatience = 2 * time.Second // for the listener to close
)

// Options configures a Server. All fields are required.
type Options struct {
	Bus    bus.Bus
	Engine *protocol.Engine
	// Sees reports whether the view of a caller has a tool of a module; name ""
	// means any tool of it.
	Sees func(ctx context.Context, c tool.Caller, module, name string) (bool, error)
	// Identify returns the caller of a request without a ticket.
	Identify func(*http.Request) (protocol.Caller, *httpserver.Denied)
	// Pace delays the messages of a connection to the rates of its caller.
	Pace func(who protocol.Caller, r *http.Request) func(context.Context) error
	// Claim takes one of the MaxClients clients for a caller, or returns why it gets none.
	Claim func(tool.Caller) (release func(), err error)
	// Origins are the web origins that may connect besides the listener's own.
	Origins func() []string
	// Elsewhere has the channels of processes on other hosts; nil means that there are none.
	Elsewhere hub.Elsewhere
	Log       *slog.Logger
}

// Server serves the hub. New makes one; Run serves it. It is safe for concurrent use.
type Server struct {
	opts Options
	hub  *hub.Hub

	mu        sync.Mutex
	life      context.Context // of the listener, which ends with Run; nil while Run does not serve
	addr      string          // of the listener; "" while it is not open
	listeners sync.WaitGroup
	tickets   map[string]ticket
}

// ticket admits a client once with the identity of a caller.
type ticket struct {
	caller tool.Caller
	until  time.Time
}

// New returns a server and its hub, which has no clients before Run.
func New(o Options) *Server {
	s := &Server{opts: o, tickets: map[string]ticket{}}
	s.hub = hub.New(hub.Options{
		May: s.mayHear, Claim: o.Claim, Clients: MaxClients, Elsewhere: o.Elsewhere, Log: o.Log,
	})
	return s
}

// Hub returns the hub.
func (s *Server) Hub() *hub.Hub { return s.hub }

// Revoke disconnects the clients whose credential was revoked.
func (s *Server) Revoke(r identity.Revocation) {
	s.hub.Drop(func(c tool.Caller) bool {
		return c.Principal == r.Principal && (r.Credential == "" || c.Credential == r.Credential)
	}, "your credential was revoked")
}

// Run serves the hub until ctx is done. Then the listener closes first, so that
// no client can connect to a hub that has stopped.
func (s *Server) Run(ctx context.Context) error {
	life, stop := context.WithCancel(context.WithoutCancel(ctx))
	s.mu.Lock()
	s.life = life
	s.mu.Unlock()
	events, stopEvents := context.WithCancel(context.WithoutCancel(ctx))
	var all sync.WaitGroup
	all.Go(func() { s.forward(events) })
	all.Go(func() { s.hub.Run(events) })
	<-ctx.Done()
	s.mu.Lock()
	s.life = nil
	s.mu.Unlock()
	stop()
	s.listeners.Wait()
	stopEvents()
	all.Wait()
	return nil
}

// forward sends each event on the bus to the clients of its owner, those of other nodes included.
func (s *Server) forward(ctx context.Context) {
	for f := range s.opts.Bus.FollowAll(ctx, ">", eventQueue) {
		owner := ownerOf(f)
		if owner == "" {
			continue
		}
		for _, channel := range []string{hub.Event + ":" + f.Subject, hub.Event + ":*"} {
			if !s.hub.HasListeners(owner, channel) {
				continue
			}
			data, err := json.Marshal(struct {
				Subject string          `json:"subject"`
				Fact    json.RawMessage `json:"fact,omitempty"`
				Lost    int             `json:"lost,omitempty"` // events lost before this one
				Node    string          `json:"node,omitempty"` // of the cluster, if it happened on another one
			}{f.Subject, f.Data, f.Lost, f.Node})
			if err == nil {
				_, err = s.hub.Send(owner, channel, hub.Message{Type: "event", Data: data, Timestamp: f.At})
			}
			if err != nil {
				s.opts.Log.Error("an event cannot be forwarded", "subject", f.Subject, "err", err)
			}
		}
	}
}

// moduleEvent is the member of a module's events that names the owner.
type moduleEvent struct{ Owner string }

// ownerOf returns the owner of an event; an event of a module has it in its data. "" means that it has
// none.
func ownerOf(f bus.Event) string {
	if f.Owner != "" || !strings.HasPrefix(f.Subject, "module.") {
		return f.Owner
	}
	of, _ := bus.Decode[moduleEvent](f)
	return of.Owner
}

// mayHear decides whether a caller may subscribe to a kind of channel. Channels of processes are for
// callers who may read the output of processes.
func (s *Server) mayHear(ctx context.Context, c tool.Caller, kind string) error {
	ok, err := s.opts.Sees(ctx, c, hubModule, "")
	if ok && err == nil && kind == hub.Process {
		ok, err = s.opts.Sees(ctx, c, processModule, "process_output")
	}
	switch {
	case err != nil:
		return tool.Refuse(tool.CodeDenied, "%v", err)
	case !ok:
		return &tool.Refusal{
			Code:    tool.CodeDenied,
			Message: "you may not subscribe to this channel",
			Next:    "This needs a tool of " + hubModule + " in your context, and process_output for processes.",
		}
	}
	return nil
}

// Serve serves a client that the HTTP server has identified, with the owner that it has in the context
// of the request. s is nil on a host without the hub.
func (s *Server) Serve(w http.ResponseWriter, r *http.Request, who protocol.Caller) {
	if s == nil {
		refuseUpgrade(w, "this host serves no WebSockets: enable its module "+hubModule)
		return
	}
	stateless, fault := s.opts.Engine.Stateless(who, "")
	if fault != nil {
		respond(w, fault)
		return
	}
	f := stateless.Facts()
	if err := s.mayHear(r.Context(), f.Caller, ""); err != nil {
		refuseUpgrade(w, "you have no access to WebSockets in the context "+f.Context)
		return
	}
	s.hub.Serve(w, r, hub.Caller{Caller: f.Caller, Until: f.Until, Pace: s.opts.Pace(who, r)})
}

func refuseUpgrade(w http.ResponseWriter, message string) {
	respond(w, &protocol.Fault{Status: http.StatusForbidden, Code: protocol.CodeInvalidRequest, Message: message})
}

func respond(w http.ResponseWriter, f *protocol.Fault) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(f.Status)
	w.Write(protocol.Respond(f))
}

// Started is an open listener and a ticket that admits one client.
type Started struct {
	Addr   string
	Ticket string
	Until  time.Time // when the ticket stops being valid
}

// Start opens the listener that serves only the hub, unless it is open, and returns its address with a
// ticket for the caller.
func (s *Server) Start(ctx context.Context, c tool.Caller, addr string) (Started, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.listen(ctx, addr); err != nil {
		return Started{}, err
	}
	now := time.Now()
	for t, k := range s.tickets {
		if now.After(k.until) {
			delete(s.tickets, t)
		}
	}
	if len(s.tickets) >= maxTickets {
		return Started{}, &tool.Refusal{
			Code:    tool.CodeBusy,
			Message: "too many tickets have not been used",
			Next:    "Try again in two minutes.",
		}
	}
	t, until := rand.Text()+rand.Text(), now.Add(ticketTime)
	s.tickets[t] = ticket{c, until}
	return Started{Addr: s.addr, Ticket: t, Until: until}, nil
}

// listen opens the listener; the caller holds s.mu. It listens on loopback only, because other machines
// need the HTTP server with its certificates.
func (s *Server) listen(ctx context.Context, addr string) error {
	at, err := netip.ParseAddrPort(strings.Replace(addr, "localhost:", "127.0.0.1:", 1))
	switch {
	case s.life == nil:
		return tool.Refuse(tool.CodeBusy, "the host is starting or stopping")
	case err != nil:
		return &tool.Refusal{
			Code:    tool.CodeInvalidArguments,
			Message: fmt.Sprintf("addr is %q", addr),
			Next:    "Give an address of loopback with a port, such as 127.0.0.1:0 for a free one.",
		}
	case !at.Addr().Unmap().IsLoopback():
		return &tool.Refusal{
			Code:    tool.CodeDenied,
			Message: "the WebSocket listener opens on loopback only",
			Next:    "Other machines use /ws of the host's HTTP server.",
		}
	case s.addr != "" && at.Port() != 0 && at.String() != s.addr:
		return &tool.Refusal{
			Code:    tool.CodeExists,
			Message: "the WebSocket listener is open already, at " + s.addr,
			Next:    "Leave addr out to use that.",
		}
	case s.addr != "":
		return nil
	}
	server, err := httpserver.New(s.opts.Engine, httpserver.Options{
		Identify: s.identify,
		Public:   identity.Public,
		Origins:  s.opts.Origins(),
		Socket:   s.Serve,
		Alone:    true,
		Patience: listenerPatience,
		Log:      s.opts.Log,
	})
	if err != nil {
		return err
	}
	ln, err := new(net.ListenConfig).Listen(ctx, "tcp", at.String())
	if err != nil {
		return tool.Refuse(tool.CodeUnsupported, "%v", err)
	}
	life := s.life
	s.addr = ln.Addr().String()
	s.listeners.Go(func() {
		if err := server.Serve(life, ln); err != nil {
			s.opts.Log.Error("the listener for WebSockets has failed", "err", err)
		}
		s.mu.Lock()
		s.addr = ""
		s.mu.Unlock()
	})
	return nil
}

// Addr returns the address of the listener; "" if it is not open.
func (s *Server) Addr() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.addr
}

var errTicket = errors.New("this ticket is not valid: it is good once, for two minutes")

// identify returns the caller of the ticket in the address of a request, or the caller of a request
// without a ticket.
func (s *Server) identify(r *http.Request) (protocol.Caller, *httpserver.Denied) {
	presented, there := r.URL.Query()["ticket"]
	if !there {
		return s.opts.Identify(r)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	t, ok := s.tickets[presented[0]]
	delete(s.tickets, presented[0])
	if !ok || len(presented) > 1 || time.Now().After(t.until) {
		return protocol.Caller{}, &httpserver.Denied{Status: http.StatusUnauthorized, Message: errTicket.Error()}
	}
	c := t.caller
	c.Session, c.Owner = "", "" // the engine sets them for the context of the ticket
	return protocol.Caller{Caller: c, Bound: c.Context, Until: time.Now().Add(ticketLife)}, nil
}
