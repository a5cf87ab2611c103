//go:build linux && (amd64 || arm64)

// Package agent is what runs inside a sandbox on behalf of the host: it makes
// the place, and then starts programs, passes on what they say, and reaches
// files, as the host asks over one channel.
//
// The agent is process 1 in there and another user than the code. For each
// program it starts itself once more as the first process of a space of process
// numbers below its own (see stage.go), so that a program ends with everything
// that came of it. Neither trusts the program, and the agent does not trust the
// host's bytes either: a malformed frame ends it, and with it the sandbox.
package agent

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"gatehouse/internal/sandbox/wire"

	"golang.org/x/sys/unix"
)

const (
	channelFD = 3       // of the agent and of a stage, towards whoever started it
	imageFD   = 4       // of the agent: the file it was started from, not needed any more
	stageName = "stage" // argv[0] of the agent when it is a stage
)

// The kernel ends the agent when the host's thread that started it is gone. It
// keeps that in mind for the agent's first thread only, and forgets it when
// that thread changes its user, so the first thread does nothing but wait.
func init() { runtime.LockOSThread() }

// Main is the whole life of the agent, or of a stage. It does not return.
func Main() {
	run := serve
	if os.Args[0] == stageName {
		run = stage
	}
	if err := run(); err != nil {
		os.Exit(1)
	}
	os.Exit(0)
}

// serve makes the place and answers requests until the host is gone.
func serve() error {
	unix.CloseOnExec(channelFD)
	unix.Close(imageFD)
	channel := os.NewFile(channelFD, "channel")
	f, err := wire.Read(channel)
	if err != nil || f.Kind != wire.Setup {
		return errors.Join(errors.New("no plan came first"), err)
	}
	plan, err := wire.ParsePlan(f.Body)
	if err != nil {
		return err
	}
	if err := makePlace(plan); err != nil {
		wire.Write(channel, wire.Frame{Kind: wire.Failed, ID: f.ID, Body: failure(err).Body()})
		return err
	}
	if err := wire.Write(channel, wire.Frame{Kind: wire.Ready, ID: f.ID}); err != nil {
		return err
	}
	done := make(chan error)
	go func() { done <- newDesk(plan, channel).run() }()
	return <-done
}

// failure puts an error into a frame's words.
func failure(err error) wire.Failure {
	f := wire.Failure{Text: err.Error()}
	if errno, ok := errors.AsType[unix.Errno](err); ok {
		f.Errno = errno
	}
	return f
}

// call names a system call, and what it was about, in the error it gave.
func call(name, about string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s(%s): %w", name, about, err)
}
