// Package ws is the module with which agents open a WebSocket listener for messages,
// list its clients and publish messages to them.
//
// Package hub manages the clients and the messages about processes and events.
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
	maxData    = 64 << 10 // bytes of one message
	maxClients = 100      // in one result
)

// Config is what the module is given.
type Config struct {
	// Hub has the clients. The module does not close it; nil means that there are
	// no clients.
	Hub *hub.Hub `json:"-"`
	// Start opens a WebSocket listener, if it is not open, and returns a ticket with
	// which the caller can connect. nil means that only the host's HTTP listener
	// has WebSockets.
	Start func(ctx context.Context, c tool.Caller, addr string) (Started, error) `json:"-"`
	// Addr returns the address of that listener, or "" while it is not open.
	Addr func() string `json:"-"`
}

// Started describes an open listener.
type Started struct {
	Addr   string
	Ticket string    // allows one client to connect as the caller
	Until  time.Time // when the ticket expires
}

type sockets struct {
	deps  module.Deps
	cfg   Config
	offer module.Offer
}

// New returns what makes the module with a configuration.
func New(cfg Config) module.New {
	return func(_ context.Context, d module.Deps) (module.Module, error) {
		s := &sockets{deps: d}
		s.cfg = cfg
		if s.cfg.Hub == nil {
			s.cfg.Hub = hub.New(hub.Options{}) // without a listener it has no clients
		}
		s.offer.Tools = []tool.Tool{
			tool.New(tool.Def{
				Name: "ws_start", Title: "Open the message hub", Effects: tool.Writes | tool.Idempotent,
				Description: "Opens a WebSocket listener on this machine, if it is not open, and returns a URL with " +
					"which one client can connect as you.",
				Help: startHelp,
			}, s.startSocket),
			tool.New(tool.Def{
				Name: "ws_info", Title: "Describe the message hub", Effects: tool.Reads,
				Description: "Lists your WebSocket clients and their channels.",
			}, s.socketInfo),
			tool.New(tool.Def{
				Name: "ws_publish", Title: "Publish a message", Effects: tool.Writes,
				Description: "Sends a message to those of your WebSocket clients that are subscribed to a channel.",
				Help:        publishHelp,
			}, s.publishMessage),
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

const startHelp = `The listener is on loopback only, and all callers share it: a second call returns the same one.
Clients authenticate with a token as Authorization: Bearer, or with the ticket in url. The ticket can be used once,
within two minutes, and its client stays connected for up to an hour. If the host has an HTTP listener, its /ws serves
the same messages, also to other machines.

A client sends {"type":"subscribe","data":"process:<id>"}, one message in each frame, and gets a reply with the same
type or with error. You can subscribe to these channels, of which you get only your own messages:

- process:<id> of a process you started: process_output, with data {stream, text, next, lost}, and process_status. next
  is a cursor for since of process_output.
- chat:<id> and ide:<type>: messages of ws_publish.
- event:<subject> and event:*: events of the host that are yours, such as call.finished.

A client can also send unsubscribe and ping. The server pings every 30 seconds. It disconnects clients that are silent
for 60 seconds, clients that read too slowly, with status 1013 and a reason, and clients whose credential expires.`

const publishHelp = `The channel is chat:<id> or ide:<type>; only the host publishes on channels of processes and events. Clients get {"type":"event","channel":...,"data":...}. A message without subscribers is dropped.`

type startIn struct {
	Addr string `json:"addr,omitempty" doc:"loopback address with a port; 0 selects a free port" default:"127.0.0.1:0" max:"100"`
}

type startOut struct {
	Success bool   `json:"success"`
	Addr    string `json:"addr"`
	Message string `json:"message"`
	URL     string `json:"url" doc:"one client can connect as you, once"`
	Expires string `json:"expires" doc:"when url expires"`
}

func (s *sockets) startSocket(ctx context.Context, c *tool.Call, in startIn) (startOut, error) {
	if s.cfg.Start == nil {
		return startOut{}, &tool.Refusal{
			Code:    tool.CodeUnsupported,
			Message: "this host cannot open a WebSocket listener",
			Next:    "Connect to /ws of its HTTP listener.",
		}
	}
	at, err := s.cfg.Start(ctx, c.Caller, in.Addr)
	if err != nil {
		return startOut{}, err
	}
	url := "ws://" + at.Addr + "/ws"
	return startOut{
		true,
		at.Addr,
		"WebSockets are served at " + url,
		url + "?ticket=" + at.Ticket,
		at.Until.UTC().Format(time.RFC3339),
	}, nil
}

type infoOut struct {
	Clients  int        `json:"clients"`
	Channels int        `json:"channels" doc:"number of channels with subscribers"`
	Running  bool       `json:"running" doc:"whether the listener of ws_start is open"`
	Addr     string     `json:"addr,omitempty"`
	List     []hub.Info `json:"list" doc:"the first 100, oldest first"`
}

func (s *sockets) socketInfo(_ context.Context, c *tool.Call, _ struct{}) (infoOut, error) {
	all := s.cfg.Hub.Clients(c.Caller.Owner)
	channels := map[string]bool{}
	for _, i := range all {
		for _, name := range i.Channels {
			channels[name] = true
		}
	}
	out := infoOut{Clients: len(all), Channels: len(channels), List: all[:min(len(all), maxClients)]}
	if s.cfg.Addr != nil {
		out.Addr = s.cfg.Addr()
	}
	out.Running = out.Addr != ""
	return out, nil
}

type publishIn struct {
	Channel string          `json:"channel" example:"chat:1" doc:"chat:<id> or ide:<type>" min:"1" max:"200"`
	Data    json.RawMessage `json:"data" doc:"anything, at most 64 KiB"`
}

type publishOut struct {
	Channel string `json:"channel"`
	Clients int    `json:"clients" doc:"number of clients to which it is sent"`
}

func (s *sockets) publishMessage(ctx context.Context, c *tool.Call, in publishIn) (publishOut, error) {
	kind, err := hub.KindOf(in.Channel)
	if err != nil {
		return publishOut{}, err
	}
	if !hub.Public(kind) {
		return publishOut{}, &tool.Refusal{
			Code:    tool.CodeDenied,
			Message: "only the host publishes on " + kind + " channels",
			Next:    "Use a channel chat:<id> or ide:<type>.",
		}
	}
	if len(in.Data) > maxData {
		return publishOut{}, tool.Refuse(
			tool.CodeTooLarge, "data has %d bytes; at most %d are allowed", len(in.Data), maxData,
		)
	}
	n, err := s.cfg.Hub.Send(c.Caller.Owner, in.Channel, hub.Message{Type: "event", Data: in.Data})
	if err != nil {
		return publishOut{}, err
	}
	module.Gather(ctx, s.deps, c, func(_ string, there publishOut) { n += there.Clients })
	return publishOut{in.Channel, n}, nil
}
