package process

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"gatehouse/internal/dispatch/delayed"
	"gatehouse/tool"
)

// runLimit is the maximum timeout of a run. runGrace is the time a program has to
// end after its timeout, before it is killed.
const (
	runLimit = time.Hour
	runGrace = 2 * time.Second
)

var errTimeout = errors.New("the timeout has passed")

type runIn struct {
	Command string   `json:"command" doc:"a program, not a command line" min:"1" names:"program"`
	Args    []string `json:"args,omitempty" names:"args"`
	Dir     string   `json:"dir,omitempty" doc:"working directory, inside the roots" names:"path"`
	Env     []string `json:"env,omitempty" doc:"NAME=value, added to a minimal environment" names:"env"`
	Stdin   string   `json:"stdin,omitempty" doc:"its input, at most 1 MiB"`
	Timeout int      `json:"timeout,omitempty" doc:"seconds" default:"60" min:"1" max:"3600"`
}

type runOut struct {
	ID       string        `json:"id"`
	Command  string        `json:"command"`
	ExitCode int           `json:"exitCode" doc:"-1 if a signal ended it"`
	Signal   string        `json:"signal,omitempty"`
	Output   string        `json:"output" text:"product"`
	TimedOut bool          `json:"timedOut,omitempty"`
	Lost     int64         `json:"lost,omitempty" doc:"bytes before the output that are no longer kept"`
	Duration time.Duration `json:"duration" doc:"nanoseconds; durationSeconds is easier to read"`
	Seconds  float64       `json:"durationSeconds"`
}

// Facts returns how the program ended, and how much of its output is missing.
func (o runOut) Facts() string {
	words := []string{"exit code " + strconv.Itoa(o.ExitCode)}
	if o.Signal != "" {
		words = append(words, "ended by signal "+o.Signal)
	}
	if o.TimedOut {
		words = append(words, "timed out")
	}
	if o.Lost > 0 {
		words = append(words, fmt.Sprintf("%d bytes before this are no longer kept", o.Lost))
	}
	return tool.Facts(append(words, "id="+o.ID)...)
}

func (m *manager) runTool() tool.Tool {
	return tool.New(tool.Def{
		Name: "process_run", Title: "Run a program", Effects: allEffects, Timeout: runLimit + time.Minute,
		Description: "Runs a program until it ends and returns its output and exit code. It ends with the call, " +
			"together with every process it started.",
		Help: "Its output is also sent as progress. Its input is `stdin`, or empty. The process stays listed " +
			"for a while: if the output here is incomplete, read it with `process_output`.",
	}, m.runProcess)
}

func (m *manager) runProcess(ctx context.Context, c *tool.Call, in runIn) (runOut, error) {
	if len(in.Stdin) > maxInput {
		return runOut{}, &tool.Refusal{Code: tool.CodeTooLarge,
			Message: fmt.Sprintf("stdin has %d bytes; at most %d are "+
				"allowed", len(in.Stdin), maxInput), Next: "Write the input to a file that the program reads."}
	}
	limited, cancel := context.WithTimeoutCause(ctx, time.Duration(in.Timeout)*time.Second, errTimeout)
	defer cancel()
	feed := delayed.To(c.Peer.Output())
	defer feed.Close()
	told := func(b []byte) { feed.Write(b) } // never fails
	s := &spec{
		command: in.Command,
		args:    in.Args,
		dir:     in.Dir,
		env:     in.Env,
		grace:   runGrace,
		extra:   [2]func([]byte){told, told},
	}
	if in.Stdin != "" {
		s.stdin = strings.NewReader(in.Stdin)
	}
	r, err := m.startProcess(ctx, limited, c, s)
	if err != nil {
		return runOut{}, err
	}
	<-r.child.Done()
	end, _ := r.ended()
	if ctx.Err() != nil {
		return runOut{}, context.Cause(ctx)
	}
	r.log.mu.Lock()
	p := r.log.readSince(0, streams("both"), 2*m.cfg.Buffer, true)
	r.log.mu.Unlock()
	return runOut{
		ID: r.id, Command: r.command, ExitCode: end.Code, Signal: end.Signal, Output: visible(p.text),
		TimedOut: end.Stopped == errTimeout, Lost: p.lost, Duration: end.Took, Seconds: end.Took.Seconds(),
	}, nil
}
