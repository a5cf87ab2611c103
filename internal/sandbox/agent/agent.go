//go:build linux && (amd64 || arm64)

// Package agent is the program that runs inside a sandbox on behalf of the host. It sets up the sandbox's file
// system and limits, and then starts programs, relays their streams, and reads and writes files, as the host
// requests over one channel.
//
// The agent is process 1 in the sandbox and runs as another user than the code. For each program it starts
// itself once more as a launcher, the first process of a PID namespace nested in its own (see launcher.go), so
// that a program ends with all its descendants. Neither trusts the program, and the agent does not trust the
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
	channelFD    = 3          // of the agent and of a launcher: the channel to the process that started it
	imageFD      = 4          // of the agent: its own executable, which it closes
	launcherName = "launcher" // argv[0] of the agent when it runs as a launcher
	stdioName    = "stdio"    // the agent's argument if its standard streams are the channel
)

// The kernel kills the agent when the host thread that started it exits (PR_SET_PDEATHSIG). That setting
// belongs to the agent's first thread and is lost when that thread changes its user, so the first thread only
// waits.
func init() { runtime.LockOSThread() }

// Main runs the agent or a launcher and exits the process. A launcher supervises programs that have lists by
// supervise; without it they are not started.
func Main(supervise Supervise) {
	run := serveAgent
	switch os.Args[0] {
	case launcherName:
		run = func() error { return runLauncher(supervise) }
	case userName:
		run = becomeProgram
	case initName:
		run = bootGuest
	case guestName:
		run = runGuest
	}
	if err := run(); err != nil {
		os.Exit(1)
	}
	os.Exit(0)
}

// serveAgent sets up the sandbox and handles requests until the channel ends.
func serveAgent() error {
	if len(os.Args) == 2 && os.Args[1] == stdioName {
		return serveOn(standardStreams(), nil)
	}
	if len(os.Args) == 3 {
		switch os.Args[2] {
		case WaitForMap:
			return waitForMap()
		case mappedName: // with its capabilities it lost what the host had set; this runs on the first thread
			if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
				return sysErr("prctl", "PR_SET_PDEATHSIG", err)
			}
		}
	}
	if err := closeInherited(); err != nil {
		return err
	}
	// A non-blocking channel is polled by the runtime, so that no thread is woken for each frame.
	if err := unix.SetNonblock(channelFD, true); err != nil {
		return sysErr("fcntl", "O_NONBLOCK", err)
	}
	return serveOn(os.NewFile(channelFD, "channel"), nil)
}

// standardStreams returns a channel for runtimes that pass no other file on.
func standardStreams() io.ReadWriter {
	unix.CloseOnExec(0)
	unix.CloseOnExec(1)
	return struct {
		io.Reader
		io.Writer
	}{os.NewFile(0, "channel"), os.NewFile(1, "channel")}
}

// serveOn sets up the sandbox as the first frame of the channel describes, and handles requests until the
// channel ends. reopen returns the channel that replaces one that has ended; it is nil if there never is one.
func serveOn(channel io.ReadWriter, again func() (io.ReadWriter, error)) error {
	f, err := agentprotocol.Read(channel)
	if err != nil || f.Kind != agentprotocol.Setup {
		return errors.Join(errors.New("the first frame is not a Setup"), err)
	}
	plan, err := agentprotocol.ParsePlan(f.Body)
	if err != nil {
		return err
	}
	if err := setUpRoot(plan); err != nil {
		agentprotocol.Write(channel,
			agentprotocol.Frame{Kind: agentprotocol.Failed, ID: f.ID, Body: failure(err).Body()})
		return err
	}
	if err := agentprotocol.Write(channel, agentprotocol.Frame{Kind: agentprotocol.Ready, ID: f.ID}); err != nil {
		return err
	}
	releaseCode()
	done := make(chan error)
	go func() { done <- newServer(plan, channel, again).serveLoop() }()
	return <-done
}

// closeInherited closes every file that the host did not pass on purpose, for instance those that the host
// itself inherited and does not know of. The argument of the process is the number of the first such file.
func closeInherited() error {
	if len(os.Args) < 2 {
		return errors.New("the agent requires an argument; it is started by the host, not by hand")
	}
	first, err := strconv.ParseUint(os.Args[1], 10, 16)
	if err != nil || first <= imageFD {
		return fmt.Errorf("the argument %q is not the number of a file above %d", os.Args[1], imageFD)
	}
	if err := unix.CloseRange(uint(first), math.MaxInt32, 0); err != nil {
		return sysErr("close_range", os.Args[1], err)
	}
	for fd := channelFD; fd < int(first); fd++ {
		unix.CloseOnExec(fd)
	}
	return unix.Close(imageFD)
}

// failure encodes an error for a Failed frame.
func failure(err error) agentprotocol.Failure {
	f := agentprotocol.Failure{Text: err.Error()}
	if errno, ok := errors.AsType[unix.Errno](err); ok {
		f.Errno = errno
	}
	return f
}

// sysErr wraps the error of a system call with the call's name and argument. It returns nil for a nil error.
func sysErr(name, about string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s(%s): %w", name, about, err)
}
