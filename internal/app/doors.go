package app

import (
	"context"
	"gatehouse/internal/transport/newline"
	"gatehouse/tool"
)

// Kinds of doors, as a person reads them.
const (
	Stdio = "stdio"
	HTTP  = "HTTP"
	TCP   = "TCP"
	Unix  = "Unix"
)

// Door is an open door.
type Door struct {
	Kind    string
	Address string // a URL; "" where there is none

	part  Part
	close func() // when it is never served
}

// Doors are the doors that are open, in a fixed order.
func (a *App) Doors() []Door { return a.doors }

func (a *App) doorsPart() Part {
	var parts []Part
	for _, d := range a.doors {
		parts = append(parts, d.part)
	}
	return together("doors", parts...)
}

func (a *App) openDoors(context.Context) error {
	if a.opts.Conn != nil {
		a.doors = append(a.doors, Door{Kind: "pipe", part: Part{"pipe", a.servePipe}, close: func() { a.opts.Conn.Close() }})
	}
	return nil
}

func (a *App) servePipe(ctx context.Context) error {
	conn := a.opts.Conn
	defer conn.Close()
	p := a.engine.Pipe(tool.Caller{Principal: "anonymous"}, func(m []byte) error {
		_, err := conn.Write(append(m[:len(m):len(m)], 10))
		return err
	})
	defer p.Close(nil)
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	in := newline.NewReader(conn, 0)
	for {
		f, err := in.Next()
		if err != nil {
			return nil
		}
		p.Receive(f)
	}
}
