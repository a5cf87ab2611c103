// Command fixtureserver serves the conformance fixture on any number of listeners.
//
//	fixtureserver --http HOST:PORT --tcp HOST:PORT --unix PATH --stdio
//	fixtureserver --http HOST:PORT --data FOLDER --cluster-listen HOST:PORT --engine PROGRAM [--join HOST:PORT]
//
// The second form serves the fixture as a node of a cluster.
// Port 0 means a free one. When all listeners but stdio are open, it prints one line on stderr with the addresses
// as JSON. It exits on a signal, or at the end of stdin if that is its only listener.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"gatehouse"
	"gatehouse/internal/tests/conformance"
	"gatehouse/internal/tests/conformance/fixture"
)

type flags struct {
	http, tcp, unix string
	stdio           bool
	token           string

	data, listen, join, engine string // of a node
}

func main() {
	var f flags
	flag.StringVar(&f.http, "http", "", "serve HTTP at `HOST:PORT`, path /mcp")
	flag.StringVar(&f.tcp, "tcp", "", "serve lines at `HOST:PORT`")
	flag.StringVar(&f.unix, "unix", "", "serve lines at the socket `PATH`")
	flag.BoolVar(&f.stdio, "stdio", false, "serve lines on standard input and output")
	flag.StringVar(&f.token, "auth-token", "", "serve only those who bring this `TOKEN`")
	flag.StringVar(&f.data, "data", "", "the `FOLDER` of a node's data")
	flag.StringVar(&f.listen, "cluster-listen", "", "be the node of a cluster at `HOST:PORT`")
	flag.StringVar(&f.engine, "engine", "", "the `PROGRAM` of a node's engine")
	flag.StringVar(&f.join, "join", "", "the `HOST:PORT` of another node")
	flag.Parse()
	f.stdio = f.stdio || flag.Arg(0) == "stdio" // as servers are often started
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, f); err != nil {
		fmt.Fprintln(os.Stderr, "fixtureserver:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, f flags) (err error) {
	if f == (flags{}) {
		return errors.New("no listener: give --http, --tcp, --unix or --stdio")
	}
	if f.listen != "" {
		return serveNode(ctx, f)
	}
	options := []gatehouse.Option{
		gatehouse.WithModules(),
		gatehouse.WithModule("fixture", fixture.New),
		gatehouse.WithInfo("gatehouse-fixture", "1.0.0"),
		gatehouse.WithLogger(slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))),
	}
	if f.token != "" {
		options = append(options, gatehouse.WithAuthToken(f.token))
	} else {
		options = append(options, gatehouse.WithInsecure()) // the suites bring no credentials
	}
	s, err := gatehouse.New(options...)
	if err != nil {
		return err
	}
	defer func() {
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
		defer cancel()
		err = errors.Join(err, s.Shutdown(last))
	}()
	return serve(ctx, s, f)
}

// serve opens the listeners and returns when all of them have closed. If one fails, all close.
func serve(ctx context.Context, s *gatehouse.Server, f flags) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var listening sync.WaitGroup
	failed := make(chan error, 5)
	open := func(name string, listener func() error) {
		listening.Go(func() {
			if err := listener(); err != nil && ctx.Err() == nil {
				failed <- fmt.Errorf("%s: %w", name, err)
				cancel()
			}
		})
	}
	var at conformance.Endpoints
	if f.http != "" {
		l, err := net.Listen("tcp", f.http)
		if err != nil {
			return err
		}
		at.URL = "http://" + l.Addr().String() + "/mcp"
		open("http", func() error { return serveHTTP(ctx, s, l) })
	}
	if f.tcp != "" {
		addr, err := free(f.tcp)
		if err != nil {
			return err
		}
		at.TCP = addr
		open("tcp", func() error { return s.ServeTCP(ctx, addr) })
	}
	if f.unix != "" {
		at.Unix = f.unix
		open("unix", func() error { return s.ServeUnix(ctx, f.unix) })
	}
	if f.stdio {
		open("stdio", func() error { return s.ServeStdio(ctx) })
	}
	if answering(ctx, at) {
		b, err := json.Marshal(at)
		if err != nil {
			return err
		}
		fmt.Fprintf(os.Stderr, "%s%s\n", conformance.Ready, b)
	}
	listening.Wait()
	close(failed)
	return <-failed
}

func serveHTTP(ctx context.Context, s *gatehouse.Server, l net.Listener) error {
	server := &http.Server{Handler: s.Handler(), ReadHeaderTimeout: 10 * time.Second}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	return server.Serve(l)
}

// free replaces port 0 by a port that is free now.
func free(addr string) (string, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}

// answering waits until the listeners that open on their own accept connections, and reports whether they do.
func answering(ctx context.Context, at conformance.Endpoints) bool {
	for network, addr := range map[string]string{"tcp": at.TCP, "unix": at.Unix} {
		if addr == "" {
			continue
		}
		for {
			c, err := new(net.Dialer).DialContext(ctx, network, addr)
			if err == nil {
				_ = c.Close()
				break
			}
			select {
			case <-ctx.Done():
				return false
			case <-time.After(10 * time.Millisecond):
			}
		}
	}
	return true
}
