package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"strings"
	"time"

	"gatehouse/internal/access/displaytext"
	"gatehouse/internal/exec/terminal"
	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/manager"
	"gatehouse/tool"
)

type startIn struct {
	ID      string   `json:"sandbox_id"`
	Command string   `json:"command" doc:"a shell command line" min:"1"`
	Dir     string   `json:"dir,omitempty" doc:"working directory; default: the home folder"`
	Env     []string `json:"env,omitempty" doc:"NAME=value, in addition to the sandbox's"`

	Terminal bool `json:"terminal,omitempty" doc:"run it in a terminal, which prompts, REPLs and editors need"`
	Cols     int  `json:"cols,omitempty" default:"80" min:"1" max:"1000"`
	Rows     int  `json:"rows,omitempty" default:"24" min:"1" max:"1000"`
}

type startOut struct {
	Process string `json:"process_id"`
}

func (m *sandboxTools) startTool() tool.Tool {
	return tool.New(tool.Def{
		Name: "sandbox_start", Title: "Start a process in a sandbox", Effects: inside, Handle: "sandbox_id",
		Description: "Starts a shell command in a sandbox that continues after this call. Read its output with " +
			"sandbox_output; send input and signals with sandbox_input.",
		Help: "It ends with its sandbox at the latest. A running process does not count as use of the sandbox; " +
			"reading its output does. With terminal it runs in a terminal of cols by rows characters, which " +
			"sandbox_input resizes: type \\u0003 for Ctrl-C and \\u0004 for the end of the input.",
	}, func(_ context.Context, c *tool.Call, in startIn) (startOut, error) {
		if err := tooLarge("Command", len(in.Command), 32<<10); err != nil {
			return startOut{}, err
		}
		b, done, err := m.findBox(c, in.ID)
		if err != nil {
			return startOut{}, err
		}
		defer done()
		g, err := startProcess(b, "bash", in)
		if errors.Is(err, fs.ErrNotExist) {
			g, err = startProcess(b, "sh", in)
		}
		switch {
		case errors.Is(err, manager.ErrTooManyProcesses):
			return startOut{}, beyond(err)
		case err != nil:
			return startOut{}, notRun(b, err)
		}
		return startOut{g.ID}, nil
	})
}

// startProcess starts a command line with the same shells as sandbox_exec.
func startProcess(b *manager.Box, shell string, in startIn) (*manager.Background, error) {
	c := sandbox.Command{Argv: []string{shell, "-c", in.Command}, Dir: in.Dir, Env: in.Env}
	if in.Terminal {
		c.Terminal = &sandbox.Size{Cols: uint16(in.Cols), Rows: uint16(in.Rows)}
		c.Env = append([]string{"TERM=xterm-256color"}, c.Env...)
	}
	return b.Start(c, in.Command)
}

type outputIn struct {
	ID      string  `json:"sandbox_id"`
	Process string  `json:"process_id"`
	Since   int64   `json:"since,omitempty" doc:"next of an earlier call, to continue there" min:"0"`
	Wait    float64 `json:"wait,omitempty" doc:"seconds to wait for new output" min:"0" max:"40"`
	Raw     bool    `json:"raw,omitempty" doc:"keep a terminal's control sequences"`
	Socket  bool    `json:"socket,omitempty" doc:"return the path of a WebSocket with the output from since on, and no output"`
}

type outputOut struct {
	Output   string  `json:"output" text:"product"`
	Next     int64   `json:"next"`
	Lost     int64   `json:"lost,omitempty" doc:"number of earlier bytes that are no longer kept"`
	Running  bool    `json:"running"`
	ExitCode *int    `json:"exit_code,omitempty" doc:"-1 if it did not exit on its own"`
	Outcome  string  `json:"outcome,omitempty"`
	Took     float64 `json:"took_ms,omitempty"`
	Socket   string  `json:"socket,omitempty" doc:"path at the host's HTTP listener, for one WebSocket within a minute"`
}

// mostRead is how many bytes of output one call returns.
const mostRead = 256 << 10

func (m *sandboxTools) outputTool() tool.Tool {
	return tool.New(tool.Def{
		Name: "sandbox_output", Title: "Output of a process in a sandbox", Effects: tool.Reads, Handle: "sandbox_id",
		Description: "Returns the output of a process started by sandbox_start, and whether it runs.",
	}, func(ctx context.Context, c *tool.Call, in outputIn) (outputOut, error) {
		b, done, err := m.findBox(c, in.ID)
		if err != nil {
			return outputOut{}, err
		}
		defer done()
		g, err := process(b, in.Process)
		if err != nil {
			return outputOut{}, err
		}
		if in.Socket {
			return m.socket(c, g, in.Since)
		}
		waiting, cancel := context.WithTimeout(ctx, time.Duration(in.Wait*float64(time.Second)))
		defer cancel()
		r, over := g.Ended() // before reading, so that no output follows
		text, next, lost := g.Output(waiting, in.Since, mostRead)
		out := outputOut{Output: shownText(g, text, in.Raw), Next: next, Lost: lost, Running: !over}
		if over {
			out.ExitCode, out.Outcome, out.Took = new(exitCode(r)), string(r.Outcome), milliseconds(r.Took)
		}
		return out, ctx.Err()
	})
}

// shownText returns output as text. The control sequences of a terminal are removed, unless the caller wants them.
func shownText(g *manager.Background, text []byte, raw bool) string {
	switch {
	case raw && g.Terminal:
		return strings.ToValidUTF8(string(text), "\uFFFD")
	case g.Terminal:
		text = terminal.Plain(text)
	}
	return displaytext.Visible(text)
}

// socket returns a result with the path of a WebSocket in place of the output.
func (m *sandboxTools) socket(c *tool.Call, g *manager.Background, since int64) (out outputOut, err error) {
	if m.cfg.Stream == nil {
		return out, &tool.Refusal{
			Code: tool.CodeUnsupported, Message: "this host has no HTTP listener with WebSockets",
			Next: "Read the output with wait.",
		}
	}
	_, over := g.Ended()
	out.Next, out.Running = since, !over
	out.Socket, err = m.cfg.Stream(c.Caller, func(ctx context.Context, send func(bool, []byte) error) error {
		return sendOutput(ctx, g, since, send)
	})
	return out, err
}

// streamEvent is a text in a stream: bytes that are no longer kept, or how the process ended.
type streamEvent struct {
	Lost     int64 `json:"lost,omitempty"`
	ExitCode *int  `json:"exitCode,omitempty"`
}

// streamBytes is the size of one message of a stream.
const streamBytes = 32 << 10

// sendOutput sends the output of a process from a position on, as it is, until the process has ended.
func sendOutput(
	ctx context.Context, g *manager.Background, at int64, send func(text bool, message []byte) error,
) error {
	tell := func(e streamEvent) error {
		b, err := json.Marshal(e)
		if err != nil {
			return err
		}
		return send(true, b)
	}
	for {
		r, over := g.Ended() // before the output is read, so that none can follow
		text, next, lost := g.Output(ctx, at, streamBytes)
		at = next
		if lost > 0 {
			if err := tell(streamEvent{Lost: lost}); err != nil {
				return err
			}
		}
		switch {
		case len(text) > 0:
			if err := send(false, text); err != nil {
				return err
			}
		case over:
			return tell(streamEvent{ExitCode: new(exitCode(r))})
		case ctx.Err() != nil:
			return ctx.Err()
		}
	}
}

func exitCode(r sandbox.Result) int {
	if r.Outcome != sandbox.OK && r.Outcome != sandbox.Failed {
		return -1
	}
	return r.Code
}

func process(b *manager.Box, id string) (*manager.Background, error) {
	g, err := b.Process(id)
	if err != nil {
		return nil, &tool.Refusal{
			Code:    tool.CodeNotFound,
			Message: err.Error(),
			Next:    "sandbox_processes lists the processes.",
		}
	}
	return g, nil
}

type inputIn struct {
	ID      string `json:"sandbox_id"`
	Process string `json:"process_id"`
	Text    string `json:"text,omitempty" doc:"input to send; end lines with a newline"`
	End     bool   `json:"end,omitempty" doc:"close its input afterwards"`
	Cols    int    `json:"cols,omitempty" doc:"with rows: the new size of its terminal" min:"1" max:"1000"`
	Rows    int    `json:"rows,omitempty" min:"1" max:"1000"`
	Signal  string `json:"signal,omitempty" doc:"the signal to send; KILL also ends all its descendants" enum:"INT,TERM,HUP,USR1,USR2,STOP,CONT,KILL"`
}

var signals = map[string]int{"HUP": 1, "INT": 2, "KILL": 9, "USR1": 10, "USR2": 12, "TERM": 15, "CONT": 18, "STOP": 19}

func (m *sandboxTools) inputTool() tool.Tool {
	return tool.New(tool.Def{
		Name: "sandbox_input", Title: "Drive a process in a sandbox", Effects: inside, Handle: "sandbox_id",
		Description: "Sends input or a signal to a process started by sandbox_start, or resizes its terminal.",
	}, func(ctx context.Context, c *tool.Call, in inputIn) (successOut, error) {
		if err := tooLarge("Text", len(in.Text), mostCommand); err != nil {
			return successOut{}, err
		}
		b, done, err := m.findBox(c, in.ID)
		if err != nil {
			return successOut{}, err
		}
		defer done()
		g, err := process(b, in.Process)
		if err != nil {
			return successOut{}, err
		}
		if (in.Cols > 0) != (in.Rows > 0) {
			return successOut{}, tool.Refuse(tool.CodeInvalidArguments, "a size needs both cols and rows")
		}
		if in.Cols > 0 {
			if err := g.Resize(sandbox.Size{Cols: uint16(in.Cols), Rows: uint16(in.Rows)}); err != nil {
				return successOut{}, resizeError(err)
			}
		}
		if in.Text != "" || in.End {
			if err := g.Type(ctx, []byte(in.Text), in.End); err != nil {
				return successOut{}, &tool.Refusal{Code: tool.CodeNotTaken, Message: err.Error()}
			}
		}
		if in.Signal != "" {
			if err := g.Signal(signals[in.Signal]); err != nil {
				return successOut{}, gone(err)
			}
		}
		return successOut{true}, nil
	})
}

func resizeError(err error) error {
	if errors.Is(err, manager.ErrNoTerminal) {
		return &tool.Refusal{Code: tool.CodeUnsupported, Message: err.Error(), Next: "Leave cols and rows out."}
	}
	return gone(err)
}

type listedProcess struct {
	ID       string    `json:"process_id"`
	Command  string    `json:"command"`
	Started  time.Time `json:"started_at"`
	Terminal bool      `json:"terminal,omitempty"`
	Running  bool      `json:"running"`
	ExitCode *int      `json:"exit_code,omitempty"`
	Outcome  string    `json:"outcome,omitempty"`
}

type processesOut struct {
	Processes []listedProcess `json:"processes"`
}

func (m *sandboxTools) processesTool() tool.Tool {
	return tool.New(tool.Def{
		Name: "sandbox_processes", Title: "Processes in a sandbox", Effects: tool.Reads, Handle: "sandbox_id",
		Description: "Lists the processes that sandbox_start has started in a sandbox, including ended ones.",
	}, func(_ context.Context, c *tool.Call, in idIn) (processesOut, error) {
		b, done, err := m.findBox(c, in.ID)
		if err != nil {
			return processesOut{}, err
		}
		defer done()
		all := []listedProcess{}
		for _, g := range b.Processes() {
			one := listedProcess{
				ID:       g.ID,
				Command:  displaytext.Visible([]byte(g.Command)),
				Started:  g.Began.UTC(),
				Terminal: g.Terminal,
				Running:  true,
			}
			if r, over := g.Ended(); over {
				one.Running, one.ExitCode, one.Outcome = false, new(exitCode(r)), string(r.Outcome)
			}
			all = append(all, one)
		}
		return processesOut{all}, nil
	})
}
