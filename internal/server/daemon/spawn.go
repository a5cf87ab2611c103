package daemon

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"
)

// Spawn describes how a daemon is started in the background.
type Spawn struct {
	Path string   // of the program
	Args []string // without the program's name
	Dir  string   // "" means this process's directory
	Logs string   // folder of the daemon's log
}

// startReport is the one line that a daemon writes to its standard output for the process that started
// it, after it serves or has failed to start.
type startReport struct {
	About *About `json:"about,omitempty"`
	Error string `json:"error,omitempty"`
	Usage bool   `json:"usage,omitempty"` // the error is a mistake in the settings
}

const longestProof = 256 << 10

// StartError is the reason for which a daemon that was started does not serve.
type StartError struct {
	Reason string
	Usage  bool // a mistake in the settings
}

func (e *StartError) Error() string { return e.Reason }

// Start starts a daemon in a session of its own and waits until it has reported that it serves. If ctx
// ends before that, the daemon is killed. The error is a *StartError if the daemon has reported, or
// logged, why it does not serve.
func (s Spawn) Start(ctx context.Context) (About, error) {
	log, err := OpenLog(s.Logs)
	if err != nil {
		return About{}, err
	}
	defer log.Close()
	began := log.Position()
	out, in, err := os.Pipe()
	if err != nil {
		return About{}, err
	}
	defer out.Close()
	cmd := exec.Command(s.Path, s.Args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = s.Dir, in, log.File()
	alone(cmd)
	err = cmd.Start()
	in.Close()
	if err != nil {
		return About{}, fmt.Errorf("start the daemon: %w", err)
	}
	defer context.AfterFunc(ctx, func() { cmd.Process.Kill() })()
	line, _ := bufio.NewReader(io.LimitReader(out, longestProof)).ReadBytes('\n')
	var p startReport
	if json.Unmarshal(line, &p) == nil && p.About != nil {
		cmd.Process.Release()
		return *p.About, nil
	}
	end := cmd.Wait()
	switch {
	case ctx.Err() != nil:
		return About{}, fmt.Errorf("start the daemon: %w", context.Cause(ctx))
	case p.Error != "":
		return About{}, &StartError{p.Error, p.Usage}
	}
	return About{}, &StartError{Reason: lastLogLines(s.Logs, began, end)}
}

// lastLogLines returns the log of a daemon that ended without a report.
func lastLogLines(dir string, from int64, end error) string {
	why := "the daemon ended before it served"
	if end != nil {
		why += " (" + end.Error() + ")"
	}
	r, err := ReadLog(dir, from)
	if err != nil {
		return why
	}
	var text bytes.Buffer
	r.Copy(&text)
	words := strings.TrimSpace(text.String())
	if words == "" {
		return why
	}
	const most = 4 << 10
	return why + ":\n" + words[:min(len(words), most)]
}

// Prove reports to the process that started this daemon that it serves, and closes standard output.
func Prove(out *os.File, a About) error { return prove(out, startReport{About: &a}) }

// GiveUp reports to the process that started this daemon why it cannot serve.
func GiveUp(out *os.File, reason error, usage bool) error {
	return prove(out, startReport{Error: reason.Error(), Usage: usage})
}

func prove(out *os.File, p startReport) error {
	line, err := json.Marshal(p)
	if err != nil {
		return err
	}
	_, err = out.Write(append(line, '\n'))
	return errors.Join(err, clearFile(out))
}

// Stop asks a daemon to end, and kills it if it has not ended after patience. ended reports whether it
// has ended; it is called ten times a second.
func Stop(ctx context.Context, pid int, patience time.Duration, ended func() (bool, error)) (killed bool, err error) {
	p, err := os.FindProcess(pid)
	if err != nil {
		return false, err
	}
	defer p.Release()
	if err := terminate(p); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return false, fmt.Errorf("stop process %d: %w", pid, err)
	}
	for _, wait := range []time.Duration{patience, 10 * time.Second} {
		done, err := until(ctx, wait, ended)
		if done || err != nil {
			return killed, err
		}
		if killed {
			break
		}
		killed = true
		if err := p.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return true, fmt.Errorf("kill process %d: %w", pid, err)
		}
	}
	return true, fmt.Errorf("process %d does not end, although it was killed", pid)
}

// until calls so until it returns true, at most for a time.
func until(ctx context.Context, wait time.Duration, so func() (bool, error)) (bool, error) {
	late := time.NewTimer(wait)
	defer late.Stop()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		if yes, err := so(); yes || err != nil {
			return yes, err
		}
		select {
		case <-tick.C:
		case <-late.C:
			return so()
		case <-ctx.Done():
			return false, context.Cause(ctx)
		}
	}
}
