// Command gatehouse is the house where agents get their tools: see
// internal/cli for its commands and internal/app for the tour.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"gatehouse/internal/cli"
)

func main() { os.Exit(run()) }

func run() int {
	tuneMemory(os.Getenv)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // from here on, a second signal ends us at once
	return cli.Run(ctx, os.Args[1:], cli.World{In: os.Stdin, Out: os.Stdout, Err: os.Stderr, Getenv: os.Getenv})
}
