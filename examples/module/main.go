// Command module is a host with Gatehouse's modules for files and one of its own, for the clients of this machine:
// over standard input and output, or HTTP if -http names an address.
package main

import (
	"context"
	"flag"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"syscall"
	"time"

	"gatehouse"
	"gatehouse/examples/module/notes"
)

func main() {
	addr := flag.String("http", "", "host and port to serve HTTP on; left out, standard input and output are served")
	flag.Parse()
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	if err := run(*addr, log); err != nil {
		log.Error("the host ended", "error", err)
		os.Exit(1)
	}
}

func run(addr string, log *slog.Logger) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	s, err := gatehouse.New(
		gatehouse.WithWorkspaceRoot("."),
		gatehouse.WithModules("file", "dir"),
		gatehouse.WithModule("notes", notes.New),
		gatehouse.WithModuleConfig("notes", notes.Config{Most: 1000}),
		gatehouse.WithLogger(log),
	)
	if err != nil {
		return err
	}
	defer func() {
		end, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := s.Shutdown(end); err != nil {
			log.Error("the host did not stop", "error", err)
		}
	}()
	if addr == "" {
		return s.ServeStdio(ctx)
	}
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	return s.Serve(ctx, listener)
}
