// Gatehouse-nats is the engine of a cluster: a NATS server with JetStream, which a host starts as its child.
//
// It is a program of its own, and a module of its own, since a host that is no node of a cluster does not need it.
// Its argument is the file of its configuration. It ends when its standard input ends, which it does with the host
// however that ends. It writes one line of JSON to
// standard output when clients can connect.
package main

import (
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// startTime is how long the server may need until clients can connect.
const startTime = time.Minute

// collectAt is how many percent of what is in use may be garbage. The records of many sessions are what an engine has
// in memory: of Go's 100 it would be twice as much, and what is collected more often costs nothing that can be
// measured, because each write waits for the disk.
const collectAt = 25

// releaseEvery is how often memory is returned that a burst of writes has left: garbage, and the buffers of its blocks.
const releaseEvery = time.Minute

// releaseMemory collects and returns to the system what is not in use, until the program ends.
func releaseMemory() {
	for range time.Tick(releaseEvery) {
		runtime.GC() // the first collection leaves what is in pools
		debug.FreeOSMemory()
	}
}

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
	debug.SetGCPercent(collectAt)
	go releaseMemory()
	opts.NoSigs = true
	refuseRemoved(opts, filepath.Join(filepath.Dir(os.Args[1]), "removed"))
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

// refuseRemoved makes the server refuse the certificates of nodes that were removed from the cluster. The host writes
// their ids to a file, one a line; each certificate has the id of its node as the serial number of its subject.
func refuseRemoved(opts *server.Options, path string) {
	if opts.Cluster.TLSConfig == nil {
		return
	}
	opts.Cluster.TLSConfig.VerifyConnection = func(s tls.ConnectionState) error {
		raw, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		for _, c := range s.PeerCertificates {
			if id := c.Subject.SerialNumber; id != "" && slices.Contains(strings.Fields(string(raw)), id) {
				time.Sleep(time.Second) // it tries again at once
				return fmt.Errorf("node %s was removed from the cluster", id)
			}
		}
		return nil
	}
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
