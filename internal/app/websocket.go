package app

import (
	"context"
	"net/http"
	"net/netip"
	"net/url"
	"slices"

	"gatehouse/internal/dispatch/hub"
	"gatehouse/internal/mcp/protocol"
	"gatehouse/internal/modules/ws"
	"gatehouse/internal/server/websocket"
	"gatehouse/tool"
)

const socketModule = "ws"

// openWebSockets creates the hub and its server, if the host has their module.
func (a *App) openWebSockets() *hub.Hub {
	if !a.hasModule(socketModule) {
		return nil
	}
	if a.sockets == nil {
		a.sockets = websocket.New(websocket.Options{
			Bus:      a.bus,
			Engine:   a.engine,
			Sees:     a.views.Sees,
			Identify: a.identify,
			Claim:    a.claimSocket(),
			Pace: func(who protocol.Caller, r *http.Request) func(context.Context) error {
				return a.paced(who, remote(r)).Pace
			},
			Elsewhere: a.nodes.channelElsewhere(),
			Origins:   func() []string { return slices.Concat(a.cfg.Listen.HTTP.Origins, a.ownOrigins()) },
			Log:       a.log,
		})
		a.who.OnRevoked(a.sockets.Revoke)
		a.addPart("hub", a.sockets.Run)
	}
	return a.sockets.Hub()
}

// openStreams creates what serves streams of bytes over WebSockets, such as the output of terminals.
func (a *App) openStreams() *websocket.Streams {
	if a.streams == nil {
		a.streams = &websocket.Streams{Claim: a.claimSocket(), Log: a.log}
		a.who.OnRevoked(a.streams.Revoke)
		a.addPart("streams", a.streams.Run)
	}
	return a.streams
}

func (a *App) webSocketDeps() (c ws.Config, err error) {
	if c.Hub = a.openWebSockets(); c.Hub == nil {
		return c, nil
	}
	c.Addr = a.sockets.Addr
	c.Start = func(ctx context.Context, who tool.Caller, addr string) (ws.Started, error) {
		started, err := a.sockets.Start(ctx, who, addr)
		return ws.Started(started), err
	}
	return c, nil
}

// ownOrigins returns the origins of pages that the host's own HTTP listeners on loopback serve.
func (a *App) ownOrigins() (all []string) {
	for _, d := range a.Listeners() {
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
