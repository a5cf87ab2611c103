package dispatch

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"time"
	"unicode/utf8"

	"gatehouse/internal/access/displaytext"
	"gatehouse/internal/dispatch/spool"
	"gatehouse/tool"
)

// tailBytes are the most of a call's output that one progress notification
// carries.
const tailBytes = 4 << 10

// output takes what a call tells while it runs. What it prints goes to the
// spool, whatever its size. At most every 100 ms the part of it that was not
// told yet is told as progress, and of more than tailBytes the newest.
type output struct {
	calls *Dispatcher
	req   *Request

	mu      sync.Mutex
	w       *spool.Writer
	failed  bool
	tail    []byte // printed since the last notification, at most tailBytes
	told    time.Time
	done    float64 // as the handler told it, and a little more for every tail told since
	total   float64
	written int64
}

// nudge is how far progress gets with each tail of the output: a step that the
// handler's own progress passes.
const nudge = 1e-6

func (o *output) Progress(done, total float64, note string) {
	o.mu.Lock()
	o.done, o.total = done, total
	o.mu.Unlock()
	if o.req.Notes != nil {
		o.req.Notes.Progress(done, total, note)
	}
}

func (o *output) Log(level slog.Level, data json.RawMessage) {
	if o.req.Notes != nil {
		o.req.Notes.Log(level, data)
	}
}

func (o *output) Detach() {
	if o.req.Notes != nil {
		o.req.Notes.Detach()
	}
}

func (o *output) Output(chunk []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.spool(chunk)
	o.written += int64(len(chunk))
	if o.req.Notes == nil {
		return
	}
	o.keepTail(chunk)
	whole := displaytext.Whole(o.tail)
	if now := time.Now(); whole > 0 && now.Sub(o.told) >= 100*time.Millisecond {
		o.told = now
		o.done += nudge
		o.req.Notes.Progress(o.done, o.total, printableText(o.tail[:whole]))
		o.tail = append(o.tail[:0], o.tail[whole:]...)
	}
}

func (o *output) spool(chunk []byte) {
	if o.failed {
		return
	}
	if o.w == nil {
		w, err := o.calls.opts.Spool.Create(o.req.Facts.Owner, "text/plain")
		if err != nil {
			o.failed = true
			o.calls.opts.Log.Warn("output is not kept", "call", o.req.ID, "err", err)
			return
		}
		o.w = w
	}
	o.w.Write(chunk) // never fails its caller; what did not fit is counted there
}

func (o *output) keepTail(chunk []byte) {
	if len(chunk) >= tailBytes {
		o.tail = append(o.tail[:0], chunk[len(chunk)-tailBytes:]...)
		return
	}
	if over := len(o.tail) + len(chunk) - tailBytes; over > 0 {
		o.tail = append(o.tail[:0], o.tail[over:]...)
	}
	o.tail = append(o.tail, chunk...)
}

// printableText makes output that may start within a character fit for a message.
func printableText(b []byte) string {
	for len(b) > 0 && !utf8.RuneStart(b[0]) {
		b = b[1:]
	}
	return string(b)
}

func (o *output) closeSpool() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.w != nil {
		o.w.Close()
	}
}

// link adds where the output can be read to the result. Where the product is
// text, the address is text too: there are agents that end with an error when a
// result has a link, because their model's API has no place for one.
func (o *output) link(res *Result) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.w == nil {
		return
	}
	uri := SpoolURI + o.w.Handle()
	if res.HasProduct {
		if res.Facts != "" {
			res.Facts += "\n"
		}
		res.Facts += fmt.Sprintf("[all %d bytes of the output: read %s]", o.written, uri)
		return
	}
	l := tool.Link(uri, "output", "text/plain")
	l.Size = o.written
	res.Content = append(res.Content, l)
}
