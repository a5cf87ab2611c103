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

// runLimit is the longest a run may take, and runGrace what is left to a program
// that is asked to end.
const (
	runLimit = time.Hour
	runGrace = 2 * time.Second
)

var errTimeout = errors.New("its time was over")

type runIn struct {
	Command string   `json:"command" doc:"a program, not a command line" min:"1" names:"program"`
	Args    []string `json:"args,omitempty" names:"args"`
	Dir     string   `json:"dir,omitempty" doc:"where it begins, inside the roots" names:"path"`
	Env     []string `json:"env,omitempty" doc:"NAME=value, added to a minimal environment" names:"env"`
	Stdin   string   `json:"stdin,omitempty" doc:"what it reads, at most 1 MiB; then its input ends"`
	Timeout int      `json:"timeout,omitempty" doc:"seconds" default:"60" min:"1" max:"3600"`
}

type runOut struct {
	ID       string        `json:"id"`
	Command  string        `json:"command"`
	ExitCode int           `json:"exitCode" doc:"-1 when a signal ended it"`
	Signal   string        `json:"signal,omitempty"`
	Output   string        `json:"output" text:"product"`
	TimedOut bool          `json:"timedOut,omitempty"`
	Lost     int64         `json:"lost,omitempty" doc:"bytes before the output that are not kept"`
	Duration time.Duration `json:"duration" doc:"nanoseconds; durationSeconds is easier to read"`
	Seconds  float64       `json:"durationSeconds"`
}

// Facts says how the program ended, and where more of its output is.
func (o runOut) Facts() string {
	words := []string{"exit code " + strconv.Itoa(o.ExitCode)}
	if o.Signal != "" {
		words = append(words, "ended by signal "+o.Signal)
	}
	if o.TimedOut {
		words = append(words, "timed out")
	}
	if o.Lost > 0 {
		words = append(words, fmt.Sprintf("%d bytes before this are not kept", o.Lost))
	}
	return tool.Facts(append(words, "id="+o.ID)...)
}

func (m *manager) runTool() tool.Tool {
	return tool.New(tool.Def{
		Name: "process_run", Title: "Run a program", Effects: allEffects, Timeout: runLimit + time.Minute,
		Description: "Runs a program to its end and gives its output and exit code; it and all it started end with the call.",
		Help:        "What it prints rides on progress. It reads `stdin`, or nothing. The record stays for a while, so `process_output` reads on where the output here was too long.",
	}, m.run)
}

func (m *manager) run(ctx context.Context, c *tool.Call, in runIn) (runOut, error) {
	if len(in.Stdin) > maxInput {
		return runOut{}, &tool.Refusal{Code: "too_large", Message: fmt.Sprintf("stdin has %d bytes, the most is %d", len(in.Stdin), maxInput), Next: "Let it read a file."}
	}
	limited, cancel := context.WithTimeoutCause(ctx, time.Duration(in.Timeout)*time.Second, errTimeout)
	defer cancel()
	feed := delayed.To(c.Peer.Output())
	defer feed.Close()
	told := func(b []byte) { feed.Write(b) } // takes everything and never fails
	s := &spec{command: in.Command, args: in.Args, dir: in.Dir, env: in.Env, grace: runGrace, extra: [2]func([]byte){told, told}}
	if in.Stdin != "" {
		s.stdin = strings.NewReader(in.Stdin)
	}
	r, err := m.start(limited, c, s)
	if err != nil {
		return runOut{}, err
	}
	<-r.child.Done()
	end, _ := r.ended()
	if ctx.Err() != nil {
		return runOut{}, context.Cause(ctx)
	}
	r.log.mu.Lock()
	p := r.log.read(0, streams("both"), 2*m.cfg.Buffer, true)
	r.log.mu.Unlock()
	return runOut{
		ID: r.id, Command: r.command, ExitCode: end.Code, Signal: end.Signal, Output: visible(p.text),
		TimedOut: end.Stopped == errTimeout, Lost: p.lost, Duration: end.Took, Seconds: end.Took.Seconds(),
	}, nil
}
