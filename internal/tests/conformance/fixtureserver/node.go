package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"time"

	"gatehouse/internal/app"
	"gatehouse/internal/config"
	"gatehouse/internal/mcp/protocol"
	"gatehouse/internal/tests/conformance"
	"gatehouse/internal/tests/conformance/fixture"
)

// nodeLease is long, because the machine that runs the tests is slow at times.
const nodeLease = 8 * time.Second

// serveNode serves the fixture as a node of a cluster, which is not part of the API for embedding.
func serveNode(ctx context.Context, f flags) error {
	ln, err := net.Listen("tcp", f.http)
	if err != nil {
		return err
	}
	defer ln.Close()
	c := config.Default()
	c.Auth.Insecure = true // the suites bring no credentials
	c.Listen.HTTP.Open = true
	c.Roots.Folders = []string{f.data}
	c.Folders = config.Folders{
		Data: filepath.Join(f.data, "data"), State: filepath.Join(f.data, "state"),
		Cache: filepath.Join(f.data, "cache"),
	}
	c.Cluster.Name, c.Cluster.Listen, c.Cluster.Lease, c.Cluster.Program = "fixture", f.listen, nodeLease, f.engine
	if f.join != "" {
		c.Cluster.Join = []string{f.join}
	}
	host, err := app.New(ctx, c, app.Options{
		Log:       slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
		Info:      protocol.Info{Name: "gatehouse-fixture", Version: "1.0.0"},
		Bare:      true,
		Extra:     []app.Module{{Name: "fixture", New: fixture.New}},
		Listeners: map[string]net.Listener{app.HTTP: ln},
	})
	if err != nil {
		return err
	}
	ready, err := json.Marshal(conformance.Endpoints{URL: "http://" + ln.Addr().String() + "/mcp"})
	if err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "%s%s\n", conformance.Ready, ready)
	return host.Run(ctx)
}
