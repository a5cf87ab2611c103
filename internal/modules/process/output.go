package process

import (
	"bytes"
	"context"
	"regexp"
	"time"

	"gatehouse/internal/access/displaytext"
	"gatehouse/internal/exec/terminal"
	"gatehouse/tool"
)

const (
	pageBytes    = 30_000                 // bytes of output in one result
	idleTime     = 500 * time.Millisecond // without output counts as idle
	portInterval = 100 * time.Millisecond // between two checks of the ports
	overlap      = 4 << 10                // bytes that are searched again, because a match may begin there
)

type outputIn struct {
	ID      string `json:"id" min:"1"`
	Since   *int64 `json:"since,omitempty" doc:"next of the previous result; without it, the newest output" min:"0"`
	Tail    int    `json:"tail,omitempty" doc:"only the last lines" min:"0" max:"10000"`
	Stream  string `json:"stream,omitempty" enum:"both,stdout,stderr" default:"both"`
	Wait    string `json:"wait,omitempty" doc:"first wait for any output, a text, a regexp, the exit, half a second without output, or a listening port" enum:"output,text,regexp,exit,idle,port"`
	Match   string `json:"match,omitempty" doc:"the text or regexp (RE2) to wait for"`
	Timeout int    `json:"timeout,omitempty" doc:"seconds to wait" default:"30" min:"0" max:"45"`
	Raw     bool   `json:"raw,omitempty" doc:"keep a terminal's control sequences"`
	Socket  bool   `json:"socket,omitempty" doc:"return the path of a WebSocket with the output from since on, and no output"`
}

type outputOut struct {
	ID     string `json:"id"`
	Output string `json:"output" text:"product"`
	condition
	Next     int64 `json:"next" doc:"since of the next call"`
	More     bool  `json:"more,omitempty" doc:"there is more output now"`
	Lost     int64 `json:"lost,omitempty" doc:"bytes before this that are no longer kept"`
	TimedOut bool  `json:"timedOut,omitempty" doc:"the wait reached its timeout"`
	Ports    []int `json:"ports,omitempty"`

	Socket string `json:"socket,omitempty" doc:"path at the host's HTTP listener, for one WebSocket within a minute"`
}

func (m *manager) outputTool() tool.Tool {
	return tool.New(tool.Def{
		Name: "process_output", Title: "Read a process's output", Effects: tool.Reads, Handle: "id",
		Description: "Returns the output of a process since a cursor, or the newest of it. It can first wait for a " +
			"text, more output or the exit.",
		Help: "Both streams share one cursor: `next` of a result is `since` of the next call, for any " +
			"`stream`. The newest part of each stream is kept (by default 1 MiB); `lost` is the number of bytes " +
			"before it that are no longer kept. Bytes that are not UTF-8 are shown as `\\xNN`. Control " +
			"sequences of a terminal are removed unless `raw` is set; `process_screen` shows what they " +
			"draw.\n\n`wait` with `text` or `regexp` searches from `since` on, or from the oldest kept " +
			"output. A wait ends early if the process ends, and with `timedOut` after `timeout` " +
			"seconds; the process continues.\n\nThe WebSocket of `socket` sends the bytes as they are, in binary " +
			"messages, and JSON texts with `lost` or, at the end, `status`.",
	}, m.output)
}

func (m *manager) output(ctx context.Context, c *tool.Call, in outputIn) (outputOut, error) {
	r, err := m.findProcess(c, in.ID)
	if err != nil {
		return outputOut{}, err
	}
	out := outputOut{ID: in.ID}
	if in.Socket {
		return m.socket(c, r, in)
	}
	if in.Wait != "" {
		ok, err := r.waitFor(ctx, &in, &out)
		if err != nil {
			return outputOut{}, err
		}
		out.TimedOut = !ok
	}
	out.condition = r.condition() // read before the output, so that an ended process has no further output
	r.page(&in, &out, c.Unpaged)
	return out, nil
}

// socket returns a result with the path of a WebSocket in place of the output.
func (m *manager) socket(c *tool.Call, r *record, in outputIn) (out outputOut, err error) {
	if m.cfg.Stream == nil {
		return out, &tool.Refusal{
			Code: tool.CodeUnsupported, Message: "this host has no HTTP listener with WebSockets",
			Next: "Read the output with wait.",
		}
	}
	out.ID, out.condition = in.ID, r.condition()
	if in.Since != nil {
		out.Next = *in.Since
	}
	at := out.Next
	out.Socket, err = m.cfg.Stream(c.Caller, func(ctx context.Context, send func(bool, []byte) error) error {
		return r.send(ctx, at, send)
	})
	return out, err
}

// streams returns the streams of a name.
func streams(name string) []int {
	switch name {
	case "stdout":
		return []int{stdout}
	case "stderr":
		return []int{stderr}
	}
	return []int{stdout, stderr}
}

// page sets the output: a page of it or, if the result is unpaged and there is no
// cursor, everything that is kept.
func (r *record) page(in *outputIn, out *outputOut, unpaged bool) {
	most := pageBytes
	if unpaged && in.Since == nil && in.Tail == 0 {
		most = tool.MostUnpaged
	}
	since, last := int64(0), true
	if in.Since != nil {
		since, last = *in.Since, in.Tail > 0
	}
	r.log.mu.Lock()
	p := r.log.readSince(since, streams(in.Stream), most, last)
	total := r.log.total
	r.log.mu.Unlock()
	if !last || out.Status == "running" {
		p.endOnCharacter(total > p.end || out.Status == "running")
	}
	text := p.text
	if r.terminal && !in.Raw {
		text = terminal.Plain(text)
	}
	if in.Tail > 0 {
		text = lastLines(text, in.Tail)
	}
	out.Output, out.Next, out.More = visible(text), p.end, total > p.end && !last
	if out.Lost = p.lost; last && in.Since == nil {
		out.Lost += max(p.start-since-p.lost, 0)
	}
}

// endOnCharacter removes an incomplete character from the end, so that the next
// page begins with it.
func (p *part) endOnCharacter(more bool) {
	if n := len(p.text) - displaytext.Whole(p.text); more && n > 0 && n <= p.whole && n < len(p.text) {
		p.text = p.text[:len(p.text)-n]
		p.end -= int64(n)
	}
}

// lastLines returns the last n lines. Text after the last newline is a line.
func lastLines(text []byte, n int) []byte {
	at := len(bytes.TrimSuffix(text, []byte("\n")))
	for ; n > 0 && at >= 0; n-- {
		at = bytes.LastIndexByte(text[:at], '\n')
	}
	return text[at+1:]
}

// waitFor waits for the condition of in.Wait and reports whether it was met.
func (r *record) waitFor(ctx context.Context, in *outputIn, out *outputOut) (bool, error) {
	timeout := time.Duration(in.Timeout) * time.Second
	switch in.Wait {
	case "exit":
		return r.waitUntil(ctx, timeout, 0, func() bool { _, over := r.ended(); return over })
	case "idle":
		return r.waitUntil(ctx, timeout, idleTime/10, func() bool {
			r.log.mu.Lock()
			defer r.log.mu.Unlock()
			_, over := r.ended()
			return over || time.Since(r.log.lastWrite) >= idleTime
		})
	case "port":
		return r.waitUntil(ctx, timeout, portInterval, func() bool {
			u, err := r.child.Usage()
			out.Ports = u.Ports
			return err == nil && len(u.Ports) > 0
		})
	case "output":
		return r.waitUntil(ctx, timeout, 0, r.hasMore(in))
	}
	found, err := r.matcher(in)
	if err != nil {
		return false, err
	}
	return r.waitUntil(ctx, timeout, 0, found)
}

// hasMore returns a function that reports whether there is output after the
// cursor or, without one, after now.
func (r *record) hasMore(in *outputIn) func() bool {
	r.log.mu.Lock()
	from := r.log.total
	r.log.mu.Unlock()
	if in.Since != nil {
		from = *in.Since
	} else {
		in.Since = &from
	}
	return func() bool {
		r.log.mu.Lock()
		defer r.log.mu.Unlock()
		return len(r.log.readSince(from, streams(in.Stream), 1, false).text) > 0
	}
}

// matcher returns a function that searches the output since its last call for
// in.Match.
func (r *record) matcher(in *outputIn) (func() bool, error) {
	if in.Match == "" || len(in.Match) > overlap {
		return nil, &tool.Refusal{
			Code:    tool.CodeInvalidArguments,
			Message: "match: expected a text or regexp of 1 to 4096 bytes",
			Next:    "Give match, or wait for output, exit or idle.",
		}
	}
	pattern := regexp.QuoteMeta(in.Match)
	if in.Wait == "regexp" {
		pattern = "(?m)" + in.Match
	}
	re, err := regexp.Compile(pattern)
	if err != nil {
		return nil, tool.Refuse(tool.CodeInvalidArguments, "match: %v", err)
	}
	from := int64(0)
	if in.Since != nil {
		from = *in.Since
	}
	first := from
	return func() bool {
		r.log.mu.Lock()
		p := r.log.readSince(from, streams(in.Stream), 2*len(r.log.rings)<<20, false)
		r.log.mu.Unlock()
		text := p.text
		if r.terminal && !in.Raw {
			text = terminal.Plain(text)
		}
		from = max(first, p.end-overlap)
		return re.Match(text)
	}, nil
}

// waitUntil waits until ok returns true, the process has ended, or timeout has
// passed, and returns the result of ok. It calls ok when there is new output and,
// if every is not 0, at that interval.
func (r *record) waitUntil(ctx context.Context, timeout, every time.Duration, ok func() bool) (bool, error) {
	deadline := time.NewTimer(timeout)
	defer deadline.Stop()
	var tick <-chan time.Time
	if every > 0 {
		t := time.NewTicker(every)
		defer t.Stop()
		tick = t.C
	}
	for {
		r.log.mu.Lock()
		next := r.log.changed()
		r.log.mu.Unlock()
		_, over := r.ended()
		if ok() {
			return true, nil
		}
		if over {
			return false, nil
		}
		select {
		case <-next:
		case <-r.child.Done():
		case <-tick:
		case <-deadline.C:
			return false, nil
		case <-ctx.Done():
			return false, context.Cause(ctx)
		}
	}
}
