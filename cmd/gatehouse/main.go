// Command gatehouse gives AI agents their tools over MCP: see
// internal/cli for its commands and internal/app for the tour.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"gatehouse/internal/cli"
)

func main() { os.Exit(run()) }

func run() int {
	tuneMemory(os.Getenv)
	defer time.AfterFunc(startTakes, unmapProgram).Stop()
	defer time.AfterFunc(slowStartTakes, unmapProgram).Stop()
	ctx := untilSignalled(context.Background())
	return cli.Run(ctx, os.Args[1:], cli.Environment{In: os.Stdin, Out: os.Stdout, Err: os.Stderr, Getenv: os.Getenv})
}

// untilSignalled ends when this process is asked to end. Before any goroutine
// hears of that, a second signal ends it at once.
func untilSignalled(ctx context.Context) context.Context {
	ctx, stop := context.WithCancelCause(ctx)
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, os.Interrupt, syscall.SIGTERM)
	go func() {
		s := <-asked
		signal.Stop(asked)
		stop(fmt.Errorf("%v: %w", s, context.Canceled))
	}()
	return ctx
}
