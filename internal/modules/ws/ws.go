// Package ws lets agents say where news can be heard over WebSockets, and tell
// some.
//
// Who listens, and what is told of processes and by the house, is the hub's.
package ws

import (
	"context"
	"encoding/json"
	"time"

	"gatehouse/internal/dispatch/hub"
	"gatehouse/module"
	"gatehouse/tool"
)

const (
	mostData    = 64 << 10 // bytes of what is published at once
	mostClients = 100      // in an answer
)

// Config is what the module is given.
type Config struct {
	// Hub holds the clients and belongs to whoever gave it; nil means that
	// there is nobody who could listen.
	Hub *hub.Hub `json:"-"`
	// Start opens a door to the hub, if it is not open, and lets the caller in
	// there. nil means that there is no door but the host's own.
	Start func(ctx context.Context, c tool.Caller, addr string) (Started, error) `json:"-"`
	// Addr is where that door is; "" while it is not open.
	Addr func() string `json:"-"`
}

// Started is a door that is open.
type Started struct {
	Addr   string
	Ticket string    // lets one client in as the caller
	Until  time.Time // when the ticket is of no use any more
}

type sockets struct {
	cfg   Config
	offer module.Offer
}

// New makes the module.
func New(cfg Config) module.New {
	return func(_ context.Context, d module.Deps) (module.Module, error) {
		s := &sockets{}
		s.cfg = cfg
		if s.cfg.Hub == nil {
			s.cfg.Hub = hub.New(hub.Options{}) // with no door nobody comes
		}
		s.offer.Tools = []tool.Tool{
			tool.New(tool.Def{
				Name: "ws_start", Title: "Open the message hub", Effects: tool.Writes | tool.Idempotent,
				Description: "Opens a WebSocket door on this machine, if it is not open, and gives an address that lets one client in as you.",
				Help:        startHelp,
			}, s.start),
			tool.New(tool.Def{
				Name: "ws_info", Title: "Describe the message hub", Effects: tool.Reads,
				Description: "Tells who listens over WebSockets: your clients and their channels.",
			}, s.info),
			tool.New(tool.Def{
				Name: "ws_publish", Title: "Publish a message", Effects: tool.Writes,
				Description: "Tells something to those of your WebSocket clients that listen to a channel.",
				Help:        publishHelp,
			}, s.publish),
		}
		return s, nil
	}
}

// Offer implements module.Module.
func (s *sockets) Offer(context.Context, module.Audience) (*module.Offer, error) {
	return &s.offer, nil
}

// Close implements module.Module.
func (s *sockets) Close(context.Context) error { return nil }

const startHelp = `The door is on loopback only and there is one for all; a second call gives the same. Clients come in as everywhere, with a token as Authorization: Bearer, or with the ticket in url: it is good once, for two minutes, and its client for an hour. Where the host has an HTTP door, its /ws leads to the same place, for other machines too.

A client sends {"type":"subscribe","data":"process:<id>"}, one message in each frame, and is answered with the same type or with error. Channels are yours alone:

- process:<id> of a process you started: process_output, with data {stream, text, next, lost}, and process_status. ` + "`next`" + ` is a cursor for process_output's ` + "`since`" + `.
- chat:<id> and ide:<type>: what ws_publish tells.
- event:<subject> and event:*: facts of the house that are yours, such as call.finished.

unsubscribe and ping are understood too. The server pings every 30 seconds and lets go of clients that are silent for 60, of those that are too slow, with 1013 and a reason, and of those whose credential ends.`

const publishHelp = `The channel is chat:<id> or ide:<type>; those of processes and events are the host's own. Clients get {"type":"event","channel":...,"data":...}. What nobody listens to is not kept.`

type startIn struct {
	Addr string `json:"addr,omitempty" doc:"of loopback, with a port; 0 is a free one" default:"127.0.0.1:0" max:"100"`
}

type startOut struct {
	Success bool   `json:"success"`
	Addr    string `json:"addr"`
	Message string `json:"message"`
	URL     string `json:"url" doc:"lets one client in as you, once"`
	Expires string `json:"expires" doc:"when url is of no use any more"`
}

func (s *sockets) start(ctx context.Context, c *tool.Call, in startIn) (startOut, error) {
	if s.cfg.Start == nil {
		return startOut{}, &tool.Refusal{Code: "unsupported", Message: "this host opens no door for WebSockets", Next: "Use /ws of its HTTP door."}
	}
	at, err := s.cfg.Start(ctx, c.Caller, in.Addr)
	if err != nil {
		return startOut{}, err
	}
	url := "ws://" + at.Addr + "/ws"
	return startOut{true, at.Addr, "WebSockets are served at " + url, url + "?ticket=" + at.Ticket, at.Until.UTC().Format(time.RFC3339)}, nil
}

type infoOut struct {
	Clients  int        `json:"clients"`
	Channels int        `json:"channels" doc:"that these listen to"`
	Running  bool       `json:"running" doc:"whether the door of ws_start is open"`
	Addr     string     `json:"addr,omitempty"`
	List     []hub.Info `json:"list" doc:"the first 100, oldest first"`
}

func (s *sockets) info(_ context.Context, c *tool.Call, _ struct{}) (infoOut, error) {
	all := s.cfg.Hub.Clients(c.Caller.Owner)
	channels := map[string]bool{}
	for _, i := range all {
		for _, name := range i.Channels {
			channels[name] = true
		}
	}
	out := infoOut{Clients: len(all), Channels: len(channels), List: all[:min(len(all), mostClients)]}
	if s.cfg.Addr != nil {
		out.Addr = s.cfg.Addr()
	}
	out.Running = out.Addr != ""
	return out, nil
}

type publishIn struct {
	Channel string          `json:"channel" doc:"chat:<id> or ide:<type>" min:"1" max:"200"`
	Data    json.RawMessage `json:"data" doc:"anything, at most 64 KiB"`
}

type publishOut struct {
	Channel string `json:"channel"`
	Clients int    `json:"clients" doc:"that it is on its way to"`
}

func (s *sockets) publish(_ context.Context, c *tool.Call, in publishIn) (publishOut, error) {
	kind, err := hub.KindOf(in.Channel)
	if err != nil {
		return publishOut{}, err
	}
	if !hub.Public(kind) {
		return publishOut{}, &tool.Refusal{Code: "denied", Message: "what is heard on " + kind + " channels is told by the host alone", Next: "Use a channel chat:<id> or ide:<type>."}
	}
	if len(in.Data) > mostData {
		return publishOut{}, tool.Refuse("too_large", "data has %d bytes, the most is %d", len(in.Data), mostData)
	}
	n, err := s.cfg.Hub.Send(c.Caller.Owner, in.Channel, hub.Message{Type: "event", Data: in.Data})
	return publishOut{in.Channel, n}, err
}
