package app

import (
	"context"
	"errors"
	nethttp "net/http"
	"net/netip"
	"strconv"

	"gatehouse/internal/access/identity"
	"gatehouse/internal/access/limit"
	"gatehouse/internal/mcp/protocol"
	"gatehouse/internal/server/httpserver"
)

// mostSessionKey is the longest session id that has a rate of its own.
const mostSessionKey = 128

// origin is the source of a request.
type origin struct {
	addr netip.Addr // the zero Addr of a Unix socket
	here bool       // this machine, and no proxy on it
}

// pace limits a request to the rates: that of its principal, or of its address while no users exist, and that of
// its session. A rate that is not set applies only to requests from other machines.
func (a *App) pace(ctx context.Context, principal, session string, from origin) error {
	if from.here && !a.pacing.Load() {
		return nil
	}
	who := "principal " + principal
	if principal == "" || principal == "anonymous" {
		who = "address " + from.addr.String()
	}
	if session != "" && len(session) <= mostSessionKey {
		session = "session " + session
	} else {
		session = ""
	}
	return a.limits.Rates.Wait(ctx, who, session)
}

// paced limits the requests of one connection to the rates. The connection counts as a session.
func (a *App) paced(who protocol.Caller, from origin) protocol.Caller {
	connection := "connection " + strconv.FormatUint(a.connections.Add(1), 10)
	who.Pace = func(ctx context.Context) error { return a.pace(ctx, who.Principal, connection, from) }
	return who
}

// tooMany returns the answer to a request that exceeded a rate.
func tooMany(err error) *httpserver.Denied {
	busy, ok := errors.AsType[*limit.Busy](err)
	if !ok { // the client has disconnected
		return &httpserver.Denied{Status: nethttp.StatusServiceUnavailable, Message: err.Error()}
	}
	return &httpserver.Denied{
		Status:  nethttp.StatusTooManyRequests,
		Message: busy.Error(),
		Header:  nethttp.Header{"Retry-After": {strconv.Itoa(busy.Seconds())}},
	}
}

// remote returns the source of a request. A client behind a proxy on this machine is treated like one on another
// machine.
func remote(r *nethttp.Request) origin {
	if addr, here := identity.From(r); addr.IsValid() {
		return origin{addr, here}
	}
	return origin{here: true}
}

// remoteEnd returns the source of a connection.
func remoteEnd(addr netip.Addr) origin { return origin{addr, !addr.IsValid() || addr.IsLoopback()} }
