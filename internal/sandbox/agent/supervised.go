//go:build linux && (amd64 || arm64)

package agent

import (
	"errors"
	"os"

	"gatehouse/internal/sandbox/agentprotocol"

	"golang.org/x/sys/unix"
)

// Supervised is a program whose lists decide which programs its processes start. Its functions are those of
// supervisor.Start.
type Supervised struct {
	Lists    string // as JSON of sandbox.Lists
	File     string // of the program
	Dir      string
	Env      []string
	Writable []string

	Restrict func(executable []string) error
	Process  func() (pid int, err error)
	Started  func(pid int)
	Failed   func(error)
	Report   reportWriter
}

// Supervise runs a program to its end, in a launcher.
type Supervise func(Supervised) (unix.WaitStatus, unix.Rusage, error)

// runSupervised is the rest of runToExit for a program with lists. The launcher itself judges which programs start: it
// is process 1, has privileges that the program lacks, and none of the program's restrictions.
func runSupervised(
	channel *os.File, plan agentprotocol.Plan, program agentprotocol.Program, supervise Supervise,
) (agentprotocol.ExitStatus, error) {
	if supervise == nil {
		return agentprotocol.ExitStatus{}, errors.New("this agent does not judge which programs a command starts")
	}
	file, dir, env, err := located(plan, program)
	if err != nil {
		return agentprotocol.ExitStatus{}, err
	}
	leave := func() {}
	runs := make(chan struct{})
	status, usage, err := supervise(Supervised{
		Lists: program.Lists, File: file, Dir: dir, Env: env, Writable: writableFolders,
		Restrict: func(executable []string) (err error) {
			if leave, err = joinPidsGroup(); err != nil {
				return err
			}
			return confineThread(plan, executable)
		},
		Process: func() (int, error) {
			defer func() { leave() }()
			return startProgram(plan, program)
		},
		Started: func(pid int) {
			if programRuns(channel, pid) != nil {
				os.Exit(1)
			}
			close(runs)
		},
		Failed: func(err error) {
			sendFailure(channel, err)
			os.Exit(1)
		},
		Report: reportWriter{channel, runs},
	})
	if err != nil {
		return agentprotocol.ExitStatus{}, err
	}
	<-runs
	return exitStatus(status, usage), nil
}

// reportWriter sends a report once the program runs, because the frame that says so is the first one.
type reportWriter struct {
	channel *os.File
	runs    <-chan struct{}
}

// Write implements io.Writer.
func (w reportWriter) Write(b []byte) (int, error) {
	<-w.runs
	return len(b), agentprotocol.Write(w.channel, agentprotocol.Frame{Kind: agentprotocol.Judged, ID: 1, Body: b})
}
