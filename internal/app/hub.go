package app

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	nethttp "net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"gatehouse/internal/access/identity"
	"gatehouse/internal/dispatch/bus"
	"gatehouse/internal/dispatch/hub"
	"gatehouse/internal/dispatch/views"
	"gatehouse/internal/mcp/protocol"
	"gatehouse/internal/modules/ws"
	"gatehouse/internal/server/httpserver"
	"gatehouse/tool"
)

const (
	socketModule  = "ws"      // a caller who sees none of its tools has no hub
	processModule = "process" // and who may not read a process cannot listen to it

	hubFacts   = 4096            // that may wait for the hub
	ticketTime = 2 * time.Minute // until a ticket is of no use
	ticketLife = time.Hour       // of a client that came with one
	tickets    = 1000            // at once
	stopDoor   = 2 * time.Second // for the door of the sockets to close
)

// sockets are the hub of a host, and the door that leads only there. The hub
// is nil on a host without the module for it.
type sockets struct {
	hub *hub.Hub

	mu      sync.Mutex
	life    context.Context // of the door; nil while the host does not run
	addr    string          // of the door; "" while there is none
	open    sync.WaitGroup
	tickets map[string]ticket
}

// ticket lets somebody in once who was let in already, where a program cannot
// send a header.
type ticket struct {
	who   tool.Caller
	until time.Time
}

// theHub is the one of this host; nil when nobody asked for one.
func (a *App) theHub() *hub.Hub {
	asked := slices.ContainsFunc(a.guests, func(g guest) bool { return g.Name == socketModule })
	s := &a.sockets
	if asked && s.hub == nil {
		s.hub, s.tickets = hub.New(hub.Options{May: a.mayHear, Log: a.log}), map[string]ticket{}
		a.who.OnRevoked(func(r identity.Revocation) {
			s.hub.Drop(func(c tool.Caller) bool {
				return c.Principal == r.Principal && (r.Credential == "" || c.Credential == r.Credential)
			}, "what let you in was revoked")
		})
		a.room(Part{"hub", a.runSockets})
	}
	return s.hub
}

// runSockets keeps the hub until the host stops. Then its own door closes
// first, so that nobody comes in any more.
func (a *App) runSockets(ctx context.Context) error {
	s := &a.sockets
	life, stop := context.WithCancel(context.WithoutCancel(ctx))
	s.mu.Lock()
	s.life = life
	s.mu.Unlock()
	facts, forget := context.WithCancel(context.WithoutCancel(ctx))
	var all sync.WaitGroup
	all.Go(func() { a.bridge(facts) })
	all.Go(func() { s.hub.Run(facts) })
	<-ctx.Done()
	s.mu.Lock()
	s.life = nil
	s.mu.Unlock()
	stop()
	s.open.Wait()
	forget()
	all.Wait()
	return nil
}

// bridge tells owners the facts that are theirs.
func (a *App) bridge(ctx context.Context) {
	for f := range a.bus.Follow(ctx, ">", hubFacts) {
		owner := ownerOf(f)
		if owner == "" {
			continue
		}
		for _, channel := range []string{hub.Event + ":" + f.Subject, hub.Event + ":*"} {
			if !a.sockets.hub.Heard(owner, channel) {
				continue
			}
			data, err := json.Marshal(struct {
				Subject string          `json:"subject"`
				Fact    json.RawMessage `json:"fact,omitempty"`
				Lost    int             `json:"lost,omitempty"` // facts before this one
			}{f.Subject, f.Data, f.Lost})
			if err == nil {
				_, err = a.sockets.hub.Send(owner, channel, hub.Message{Type: "event", Data: data, Timestamp: f.At})
			}
			if err != nil {
				a.log.Error("fact cannot be passed on", "subject", f.Subject, "err", err)
			}
		}
	}
}

// moduleEvent is the part of a module's events that says whose they are.
type moduleEvent struct{ Owner string }

// ownerOf is whose a fact is; that of a module says so itself. "" is nobody's.
func ownerOf(f bus.Event) string {
	if f.Owner != "" || !strings.HasPrefix(f.Subject, "module.") {
		return f.Owner
	}
	of, _ := bus.Decode[moduleEvent](f)
	return of.Owner
}

// mayHear decides what kind of channel a caller may listen to: whoever may not
// read the output of processes may not do it here either.
func (a *App) mayHear(ctx context.Context, c tool.Caller, kind string) error {
	view, err := a.views.View(ctx, &c, a.views.Cut(c))
	if err != nil {
		return tool.Refuse("denied", "%v", err)
	}
	ok := func(module, name string) bool {
		return slices.ContainsFunc(view.Entries(views.Tools), func(e *views.Entry) bool {
			return e.Module == module && (name == "" || e.Name == name)
		})
	}
	if !ok(socketModule, "") || kind == hub.Process && !ok(processModule, "process_output") {
		return &tool.Refusal{Code: "denied", Message: "you may not listen to this", Next: "It takes a tool of " + socketModule + " in your context, and process_output for processes."}
	}
	return nil
}

// openSocket lets in whoever a door has let in, with the owner it has in the
// context it names.
func (a *App) openSocket(w nethttp.ResponseWriter, r *nethttp.Request, who protocol.Who) {
	if a.sockets.hub == nil {
		refuseSocket(w, &protocol.Fault{Status: nethttp.StatusForbidden, Code: protocol.CodeInvalidRequest, Message: "this host serves no WebSockets: name its module " + socketModule + " to have some"})
		return
	}
	s, fault := a.engine.Stateless(who, "")
	if fault != nil {
		refuseSocket(w, fault)
		return
	}
	f := s.Facts()
	if err := a.mayHear(r.Context(), f.Caller, ""); err != nil {
		refuseSocket(w, &protocol.Fault{Status: nethttp.StatusForbidden, Code: protocol.CodeInvalidRequest, Message: "there are no WebSockets for you in the context " + f.Context})
		return
	}
	a.sockets.hub.Serve(w, r, hub.Caller{Caller: f.Caller, Until: f.Until, Pace: a.paced(who, remote(r)).Pace})
}

func refuseSocket(w nethttp.ResponseWriter, f *protocol.Fault) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(f.Status)
	w.Write(protocol.Respond(f))
}

// startSocket opens the door that leads only to the hub, unless it is open, and
// gives where it is, with a ticket for whoever called.
func (a *App) startSocket(ctx context.Context, c tool.Caller, addr string) (ws.Started, error) {
	s := &a.sockets
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := a.listenFor(ctx, addr); err != nil {
		return ws.Started{}, err
	}
	now := time.Now()
	for t, k := range s.tickets {
		if now.After(k.until) {
			delete(s.tickets, t)
		}
	}
	if len(s.tickets) >= tickets {
		return ws.Started{}, &tool.Refusal{Code: "busy", Message: "too many tickets have not been used", Next: "Try again in two minutes."}
	}
	t, until := rand.Text()+rand.Text(), now.Add(ticketTime)
	s.tickets[t] = ticket{c, until}
	return ws.Started{Addr: s.addr, Ticket: t, Until: until}, nil
}

// listenFor opens the door; s.mu is held. Only this machine reaches it: who
// wants more has the HTTP door with its certificates.
func (a *App) listenFor(ctx context.Context, addr string) error {
	s := &a.sockets
	at, err := netip.ParseAddrPort(strings.Replace(addr, "localhost:", "127.0.0.1:", 1))
	switch {
	case s.life == nil:
		return tool.Refuse("busy", "the host is starting or stopping")
	case err != nil:
		return &tool.Refusal{Code: "invalid_arguments", Message: fmt.Sprintf("addr is %q", addr), Next: "Give an address of loopback with a port, such as 127.0.0.1:0 for a free one."}
	case !at.Addr().Unmap().IsLoopback():
		return &tool.Refusal{Code: "denied", Message: "a WebSocket door is opened on loopback only", Next: "Other machines use /ws of the host's HTTP door."}
	case s.addr != "" && at.Port() != 0 && at.String() != s.addr:
		return &tool.Refusal{Code: "exists", Message: "the WebSocket door is open already, at " + s.addr, Next: "Leave addr out to use that."}
	case s.addr != "":
		return nil
	}
	door, err := httpserver.New(a.engine, httpserver.Options{Identify: a.identifyTicket, Public: identity.Public, Origins: slices.Concat(a.cfg.Doors.HTTP.Origins, a.ownOrigins()), Socket: a.openSocket, Alone: true, Patience: stopDoor, Log: a.log})
	if err != nil {
		return err
	}
	ln, err := new(net.ListenConfig).Listen(ctx, "tcp", at.String())
	if err != nil {
		return tool.Refuse("unsupported", "%v", err)
	}
	life := s.life
	s.addr = ln.Addr().String()
	s.open.Go(func() {
		if err := door.Serve(life, ln); err != nil {
			a.log.Error("the door of WebSockets has closed", "err", err)
		}
		s.mu.Lock()
		s.addr = ""
		s.mu.Unlock()
	})
	return nil
}

// ownOrigins are those of pages that the host's own HTTP listeners on loopback
// serve.
func (a *App) ownOrigins() (all []string) {
	for _, d := range a.Doors() {
		u, err := url.Parse(d.Address)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" {
			continue
		}
		if at, err := netip.ParseAddr(u.Hostname()); err == nil && at.IsLoopback() {
			all = append(all, u.Scheme+"://"+u.Host, u.Scheme+"://localhost:"+u.Port())
		}
	}
	return all
}

// socketAddr is where the door is that leads only to the hub; "" for nowhere.
func (a *App) socketAddr() string {
	a.sockets.mu.Lock()
	defer a.sockets.mu.Unlock()
	return a.sockets.addr
}

var errTicket = errors.New("this ticket is not valid: it is good once, for two minutes")

// identifyTicket says who sends a request to the door of the sockets: whoever
// was given the ticket in its address, and else as at every door.
func (a *App) identifyTicket(r *nethttp.Request) (protocol.Who, *httpserver.Denied) {
	presented, there := r.URL.Query()["ticket"]
	if !there {
		return a.identify(r)
	}
	s := &a.sockets
	s.mu.Lock()
	defer s.mu.Unlock()
	t, ok := s.tickets[presented[0]]
	delete(s.tickets, presented[0])
	if !ok || len(presented) > 1 || time.Now().After(t.until) {
		return protocol.Who{}, &httpserver.Denied{Status: nethttp.StatusUnauthorized, Message: errTicket.Error()}
	}
	c := t.who
	c.Session, c.Owner = "", "" // placed anew, where the ticket was given
	return protocol.Who{Caller: c, Bound: c.Context, Until: time.Now().Add(ticketLife)}, nil
}
