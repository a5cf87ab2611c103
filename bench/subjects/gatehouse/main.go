// Command gatehouse is the subject itself: the host as other programs embed
// it, with every layer that a host has by default, a token that is asked for,
// and the ledger.
package main

import (
	"bytes"
	"context"
	"log"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"gatehouse"
	"gatehouse/bench/load"
	"gatehouse/bench/subject"
	"gatehouse/module"
	"gatehouse/tool"
)

func main() {
	task := subject.Parse()
	dir, err := os.MkdirTemp("", "gatehouse-bench-") // in the driver's folder, which it removes
	if err != nil {
		log.Fatal(err)
	}
	o := &offering{}
	o.offer(task.Names(), task.Flood)
	s, err := gatehouse.New(
		gatehouse.WithWorkspaceRoot(dir),
		gatehouse.WithState(filepath.Join(dir, "state")),
		gatehouse.WithAuthToken(load.Token),
		gatehouse.WithModules(),
		gatehouse.WithModule("bench", o.module),
		gatehouse.WithTools("echo", "echo_*", "flood"),
		gatehouse.WithLogger(slog.New(slog.NewTextHandler(os.Stderr, nil))),
	)
	if err != nil {
		log.Fatal(err)
	}
	task.Run(subject.Server{
		Serve: func(ln net.Listener) error { return s.Serve(context.Background(), ln) },
		Unix:  func(path string) error { return s.ServeUnix(context.Background(), path) },
		Stdio: func() error { return s.ServeStdio(context.Background()) },
		Extra: map[string]func(string) error{"change": func(string) error { o.change(); return nil }},
	})
}

// offering is the module. A change adds a tool or takes it away again.
type offering struct {
	now     atomic.Pointer[module.Offer]
	other   atomic.Pointer[module.Offer]
	changed func(module.Audience)
}

func (o *offering) offer(names []string, flooding bool) {
	var all []tool.Tool
	if flooding {
		all = append(all, tool.New(tool.Def{Name: "flood", Description: "Streams 100 MB.", Effects: tool.Reads}, flood))
	}
	for _, name := range names {
		all = append(all, tool.New(tool.Def{Name: name, Description: subject.Description, Effects: tool.Reads}, echo))
	}
	o.now.Store(&module.Offer{Tools: all})
	more := tool.New(tool.Def{Name: "echo_more", Description: subject.Description, Effects: tool.Reads}, echo)
	o.other.Store(&module.Offer{Tools: append(all[:len(all):len(all)], more)})
}

func (o *offering) module(_ context.Context, d module.Deps) (module.Module, error) {
	o.changed = d.Changed
	return o, nil
}

func (o *offering) Offer(context.Context, module.Audience) (*module.Offer, error) {
	return o.now.Load(), nil
}

func (o *offering) Close(context.Context) error { return nil }

func (o *offering) change() {
	o.other.Store(o.now.Swap(o.other.Load()))
	o.changed(module.Audience{})
}

func echo(_ context.Context, _ *tool.Call, in subject.Echo) (tool.Result, error) {
	return tool.Result{Content: []tool.Content{tool.Text(in.Text)}}, nil
}

// The tool that streams tells floodTotal bytes, each piece both as output and
// as the note of its progress.
const (
	floodTotal = 100_000_000
	floodPiece = 64_000
	floodPause = 2 * time.Millisecond // after each piece, so that there is time to tell
)

func flood(_ context.Context, c *tool.Call, _ struct{}) (tool.Result, error) {
	piece := bytes.Repeat([]byte("a line of 32 bytes to be printed"), floodPiece/32)
	note := string(piece)
	out := c.Peer.Output()
	for done := 0; done < floodTotal; done += floodPiece {
		if _, err := out.Write(piece); err != nil {
			return tool.Result{}, err
		}
		c.Peer.Progress(float64(done+floodPiece), floodTotal, note)
		time.Sleep(floodPause)
	}
	return tool.Result{Content: []tool.Content{tool.Text("the flood is over")}}, nil
}
