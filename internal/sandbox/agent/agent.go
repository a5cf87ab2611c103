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
	"io"
	"math"
	"os"
	"runtime"
	"strconv"

	"gatehouse/internal/sandbox/agentprotocol"

	"golang.org/x/sys/unix"
)

const (
	channelFD = 3       // of the agent and of a stage, towards whoever started it
	imageFD   = 4       // of the agent: the file it was started from, not needed any more
	stageName = "stage" // argv[0] of the agent when it is a stage
	stdioName = "stdio" // the agent's argument when its standard streams are the channel
)

// The kernel ends the agent when the host's thread that started it is gone. It
// keeps that in mind for the agent's first thread only, and forgets it when
// that thread changes its user, so the first thread does nothing but wait.
func init() { runtime.LockOSThread() }

// Main is the whole life of the agent, or of a stage. It does not return.
func Main() {
	run := serve
	switch os.Args[0] {
	case stageName:
		run = stage
	case initName:
		run = bootGuest
	case guestName:
		run = guest
	}
	if err := run(); err != nil {
		os.Exit(1)
	}
	os.Exit(0)
}

// serve makes the place and answers requests until the host is gone.
func serve() error {
	if len(os.Args) == 2 && os.Args[1] == stdioName {
		return serveOn(standardStreams(), nil)
	}
	if err := keepOnly(); err != nil {
		return err
	}
	// What waits for the host then waits with everything else, and no thread
	// is woken for each frame.
	if err := unix.SetNonblock(channelFD, true); err != nil {
		return call("fcntl", "O_NONBLOCK", err)
	}
	return serveOn(os.NewFile(channelFD, "channel"), nil)
}

// standardStreams are a channel where nothing else can be passed on.
func standardStreams() io.ReadWriter {
	unix.CloseOnExec(0)
	unix.CloseOnExec(1)
	return struct {
		io.Reader
		io.Writer
	}{os.NewFile(0, "channel"), os.NewFile(1, "channel")}
}

// serveOn makes the place that the first frame of a channel tells of, and
// answers requests until the channel ends. again gives the channel that follows
// one that has ended; it is nil where none ever does.
func serveOn(channel io.ReadWriter, again func() (io.ReadWriter, error)) error {
	f, err := agentprotocol.Read(channel)
	if err != nil || f.Kind != agentprotocol.Setup {
		return errors.Join(errors.New("no plan came first"), err)
	}
	plan, err := agentprotocol.ParsePlan(f.Body)
	if err != nil {
		return err
	}
	if err := makePlace(plan); err != nil {
		agentprotocol.Write(channel, agentprotocol.Frame{Kind: agentprotocol.Failed, ID: f.ID, Body: failure(err).Body()})
		return err
	}
	if err := agentprotocol.Write(channel, agentprotocol.Frame{Kind: agentprotocol.Ready, ID: f.ID}); err != nil {
		return err
	}
	done := make(chan error)
	go func() { done <- newDesk(plan, channel, again).run() }()
	return <-done
}

// keepOnly closes every file that is not meant for the agent: what the host
// itself was started with, for one, which the host does not know of. The host
// says by an argument which number is the first of those.
func keepOnly() error {
	if len(os.Args) != 2 {
		return errors.New("the agent wants one argument; the host starts it, people do not")
	}
	first, err := strconv.ParseUint(os.Args[1], 10, 16)
	if err != nil || first <= imageFD {
		return errors.New("the argument is no number of a file")
	}
	if err := unix.CloseRange(uint(first), math.MaxInt32, 0); err != nil {
		return call("close_range", os.Args[1], err)
	}
	for fd := channelFD; fd < int(first); fd++ {
		unix.CloseOnExec(fd)
	}
	return unix.Close(imageFD)
}

// failure puts an error into a frame's words.
func failure(err error) agentprotocol.Failure {
	f := agentprotocol.Failure{Text: err.Error()}
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
