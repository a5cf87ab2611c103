package process

import (
	"bytes"
	"context"
	"regexp"
	"time"

	"gatehouse/internal/access/displaytext"
	"gatehouse/tool"
)

const (
	pageBytes = 30_000                 // of output in one answer
	idleTime  = 500 * time.Millisecond // without output
	portInterval = 100 * time.Millisecond // between two looks at the ports
	overlap   = 4 << 10                // of what has been searched, in case a match began there
)

type outputIn struct {
	ID      string `json:"id" min:"1"`
	Since   *int64 `json:"since,omitempty" doc:"next of the answer before; without it, the newest" min:"0"`
	Tail    int    `json:"tail,omitempty" doc:"only the last lines" min:"0" max:"10000"`
	Stream  string `json:"stream,omitempty" enum:"both,stdout,stderr" default:"both"`
	Wait    string `json:"wait,omitempty" doc:"first wait for any output, text, a regexp, the exit, half a second of silence, or a listening port" enum:"output,text,regexp,exit,idle,port"`
	Match   string `json:"match,omitempty" doc:"the text or regexp (RE2) to wait for"`
	Timeout int    `json:"timeout,omitempty" doc:"seconds to wait" default:"30" min:"0" max:"45"`
	Raw     bool   `json:"raw,omitempty" doc:"keep a terminal's control sequences"`
}

type outputOut struct {
	ID     string `json:"id"`
	Output string `json:"output" text:"product"`
	condition
	Next     int64 `json:"next" doc:"since of the next call"`
	More     bool  `json:"more,omitempty" doc:"there is more already"`
	Lost     int64 `json:"lost,omitempty" doc:"bytes before this that are not kept any more"`
	TimedOut bool  `json:"timedOut,omitempty" doc:"what was waited for did not come"`
	Ports    []int `json:"ports,omitempty"`
}

func (m *manager) outputTool() tool.Tool {
	return tool.New(tool.Def{
		Name: "process_output", Title: "Read a process's output", Effects: tool.Reads, Handle: "id",
		Description: "Gives what a process has printed since a cursor, or the newest of it. It can first wait for text, for its exit or for more.",
		Help:        "Both streams share one cursor: `next` of an answer is `since` of the next call, whatever `stream` is. The newest part of each stream is kept (1 MiB unless configured); `lost` tells how much before it is gone. Bytes that are no UTF-8 are shown as `\\xNN`. Control sequences of a terminal are left out unless `raw`; `process_screen` shows what they draw.\n\n`wait` with `text` or `regexp` searches from `since` on, or from the oldest output that is kept. A wait ends early when the process ends, and with `timedOut` after `timeout` seconds; the process goes on.",
	}, m.output)
}

func (m *manager) output(ctx context.Context, c *tool.Call, in outputIn) (outputOut, error) {
	r, err := m.find(c, in.ID)
	if err != nil {
		return outputOut{}, err
	}
	out := outputOut{ID: in.ID}
	if in.Wait != "" {
		ok, err := r.waitFor(ctx, &in, &out)
		if err != nil {
			return outputOut{}, err
		}
		out.TimedOut = !ok
	}
	out.condition = r.condition() // before the output, so that an ended process has no more
	r.page(&in, &out, c.Unpaged)
	return out, nil
}

// streams are those a caller asks for.
func streams(name string) []int {
	switch name {
	case "stdout":
		return []int{stdout}
	case "stderr":
		return []int{stderr}
	}
	return []int{stdout, stderr}
}

// page fills in the output: a page of it or, unpaged and without a cursor, all
// that is kept.
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
	p := r.log.read(since, streams(in.Stream), most, last)
	total := r.log.total
	r.log.mu.Unlock()
	if !last || out.Status == "running" {
		p.endOnCharacter(total > p.end || out.Status == "running")
	}
	text := p.text
	if r.terminal && !in.Raw {
		text = plain(text)
	}
	if in.Tail > 0 {
		text = lastLines(text, in.Tail)
	}
	out.Output, out.Next, out.More = visible(text), p.end, total > p.end && !last
	if out.Lost = p.lost; last && in.Since == nil {
		out.Lost += max(p.start-since-p.lost, 0)
	}
}

// endOnCharacter leaves the beginning of a character for the next page.
func (p *part) endOnCharacter(more bool) {
	if n := len(p.text) - displaytext.Whole(p.text); more && n > 0 && n <= p.whole && n < len(p.text) {
		p.text = p.text[:len(p.text)-n]
		p.end -= int64(n)
	}
}

// tail is the last n lines; what follows the last line's end is a line of its own.
func lastLines(text []byte, n int) []byte {
	at := len(bytes.TrimSuffix(text, []byte("\n")))
	for ; n > 0 && at >= 0; n-- {
		at = bytes.LastIndexByte(text[:at], '\n')
	}
	return text[at+1:]
}

// waitFor tells whether what is waited for came.
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

// more tells whether there is output after the cursor, or after now.
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
		return len(r.log.read(from, streams(in.Stream), 1, false).text) > 0
	}
}

// search looks for what is to be matched, in what has come since it last looked.
func (r *record) matcher(in *outputIn) (func() bool, error) {
	if in.Match == "" || len(in.Match) > overlap {
		return nil, &tool.Refusal{Code: "invalid_arguments", Message: "match: give what to wait for, of at most 4096 bytes", Next: "Or wait for output, exit or idle."}
	}
	pattern := regexp.QuoteMeta(in.Match)
	if in.Wait == "regexp" {
		pattern = "(?m)" + in.Match
	}
	re, err := regexp.Compile(pattern)
	if err != nil {
		return nil, tool.Refuse("invalid_arguments", "match: %v", err)
	}
	from := int64(0)
	if in.Since != nil {
		from = *in.Since
	}
	first := from
	return func() bool {
		r.log.mu.Lock()
		p := r.log.read(from, streams(in.Stream), 2*len(r.log.rings)<<20, false)
		r.log.mu.Unlock()
		text := p.text
		if r.terminal && !in.Raw {
			text = plain(text)
		}
		from = max(first, p.end-overlap)
		return re.Match(text)
	}, nil
}

// await waits until ok or the process has ended, and tells what ok says then. It
// looks when something was printed, and every so often if that is not 0.
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
