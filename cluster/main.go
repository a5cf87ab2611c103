// Gatehouse-nats is the engine of a cluster: a NATS server with JetStream, which a host starts as its child.
//
// It is a program of its own, and a module of its own, since a host that is no node of a cluster does not need it.
// Its argument is the file of its configuration. It ends when its standard input ends, which it does with the host
// however that ends. It writes one line of JSON to
// standard output when clients can connect.
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// startTime is how long the server may need until clients can connect.
const startTime = time.Minute

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "gatehouse-nats:", err)
		os.Exit(1)
	}
}

func run() error {
	if len(os.Args) != 2 {
		return fmt.Errorf("expected one argument, the file of the configuration, or version")
	}
	if os.Args[1] == "version" {
		fmt.Println(server.VERSION)
		return nil
	}
	opts, err := server.ProcessConfigFile(os.Args[1])
	if err != nil {
		return err
	}
	opts.NoSigs = true
	s, err := server.NewServer(opts)
	if err != nil {
		return err
	}
	s.ConfigureLogger()
	s.Start()
	defer s.WaitForShutdown()
	defer s.Shutdown()
	if !s.ReadyForConnections(startTime) {
		return fmt.Errorf("the server did not accept connections within %v", startTime)
	}
	ready := map[string]string{"client": s.ClientURL(), "version": server.VERSION}
	if a := s.ClusterAddr(); a != nil {
		ready["cluster"] = a.String()
	}
	if err := json.NewEncoder(os.Stdout).Encode(ready); err != nil {
		return err
	}
	waitForEnd()
	return nil
}

// waitForEnd returns when standard input ends or a signal asks for it.
func waitForEnd() {
	// A terminal that starts the host sends its signals to this program as well, but the host ends it.
	signal.Ignore(os.Interrupt)
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		io.Copy(io.Discard, os.Stdin)
	}()
	select {
	case <-ended:
	case <-stop:
	}
}
