// Command run has the official suites talk to our fixture and prints one
// table; it ends with 1 unless every check of every scenario succeeded.
//
//	run install   puts the pinned npm packages below .tools, once, and the
//	              clients and language servers that other tests drive
//	run           installs, then runs everything
//	run relay     installs, runs the suites against the servers of the SDKs,
//	              directly and through gatehouse run, and writes docs/relay.md
//	run cluster   installs, and runs the suites against one host and through a
//	              proxy to three nodes of a cluster
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"gatehouse/internal/tests/conformance"
	"gatehouse/internal/tests/conformance/clients"
	"gatehouse/internal/tests/editors"
	"gatehouse/internal/tests/webtest"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	dir, err := conformance.ToolsDir()
	if err != nil {
		return err
	}
	tools, err := conformance.Install(ctx, dir, os.Stderr)
	if err != nil {
		return err
	}
	if len(args) == 1 && args[0] == "install" {
		return errors.Join(
			clients.Install(ctx, os.Stderr), editors.Install(ctx, os.Stderr), webtest.Install(ctx, os.Stderr),
		)
	}
	if len(args) == 1 && args[0] == "relay" {
		return conformance.WriteRelayTable(ctx, tools, os.Stdout)
	}
	if len(args) == 1 && args[0] == "cluster" {
		return conformance.CompareCluster(ctx, tools, os.Stdout)
	}
	if len(args) > 0 {
		return fmt.Errorf("unknown argument %q: say install, relay, cluster, or nothing to run the suites", args[0])
	}
	return conformance.RunAll(ctx, tools, os.Stdout)
}
