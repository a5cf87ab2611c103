//go:build linux && (amd64 || arm64)

// Command agent is the first process in a sandbox. The host starts it with the channel as file 3; it is not
// for use by hand.
package main

import (
	"encoding/json"

	"gatehouse/internal/exec/supervisor"
	"gatehouse/internal/sandbox/agent"

	"golang.org/x/sys/unix"
)

func main() { agent.Main(supervise) }

// supervise judges the programs that a program with lists starts.
func supervise(p agent.Supervised) (unix.WaitStatus, unix.Rusage, error) {
	var lists struct{ Allow, Deny []string }
	if err := json.Unmarshal([]byte(p.Lists), &lists); err != nil {
		return 0, unix.Rusage{}, err
	}
	spec := supervisor.Spec{
		Argv: []string{p.File}, Env: p.Env, Dir: p.Dir, Allow: lists.Allow, Deny: lists.Deny, Writable: p.Writable,
	}
	return supervisor.Supervise(spec, supervisor.Start{
		Restrict: p.Restrict, Process: p.Process, Started: p.Started, Failed: p.Failed, Report: p.Report,
	})
}
