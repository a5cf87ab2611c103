package sandbox

import (
	"context"
	"errors"

	"gatehouse/internal/sandbox/manager"
	"gatehouse/tool"
)

type portIn struct {
	ID   string `json:"sandbox_id"`
	Port int    `json:"port" doc:"a TCP port on the sandbox's loopback interface" min:"1" max:"65535"`
}

type openPort struct {
	Port    int    `json:"port" doc:"in the sandbox"`
	Address string `json:"address" doc:"on the host, as host:port"`
}

func (m *sandboxTools) exposeTool() tool.Tool {
	return tool.New(tool.Def{
		Name: "sandbox_expose", Title: "Open a port of a sandbox", Effects: tool.Writes | tool.Idempotent,
		Handle: "sandbox_id",
		Description: "Lets programs of the host reach a server in a sandbox: returns an address on the host's " +
			"loopback interface that is forwarded to it.",
		Help: `The server must listen on 127.0.0.1 in the sandbox; it may start later. Every program of this machine can reach the address. No other sandbox has the same address, so a browser sends it no cookies of this host. A sandbox can have 8 ports open, each with 64 connections at once.

It closes with ` + "`sandbox_unexpose`" + ` and with the sandbox, whose idle time stops while a client is connected.`,
	}, func(_ context.Context, c *tool.Call, in portIn) (openPort, error) {
		if !m.cfg.Settings.Ports {
			return openPort{}, &tool.Refusal{
				Code:    tool.CodeDenied,
				Message: "this host does not allow opening ports of sandboxes",
				Next:    "The administrator can set modules.sandbox.ports.",
			}
		}
		b, done, err := m.findBox(c, in.ID)
		if err != nil {
			return openPort{}, err
		}
		defer done()
		p, err := b.Expose(uint16(in.Port))
		switch {
		case errors.Is(err, manager.ErrTooManyPorts):
			return openPort{}, beyond(err)
		case err != nil:
			return openPort{}, able(err)
		}
		return openPort{int(p.Port), p.Address}, nil
	})
}

func (m *sandboxTools) unexposeTool() tool.Tool {
	return tool.New(tool.Def{
		Name: "sandbox_unexpose", Title: "Close a port of a sandbox", Effects: tool.Destroys, Handle: "sandbox_id",
		Description: "Closes a port that sandbox_expose has opened, and its connections.",
	}, func(_ context.Context, c *tool.Call, in portIn) (successOut, error) {
		b, done, err := m.findAny(c, in.ID)
		if err != nil {
			return successOut{}, err
		}
		defer done()
		if err := b.Unexpose(uint16(in.Port)); err != nil {
			return successOut{}, &tool.Refusal{
				Code:    tool.CodeNotFound,
				Message: err.Error(),
				Next:    "sandbox_stats lists the open ports.",
			}
		}
		return successOut{true}, nil
	})
}
