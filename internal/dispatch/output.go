package dispatch

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"
	"unicode/utf8"

	"gatehouse/internal/access/displaytext"
	"gatehouse/internal/dispatch/spool"
	"gatehouse/tool"
)

// tailBytes is the largest part of a call's output that one progress notification contains.
const tailBytes = 4 << 10

// output receives what a call reports while it runs. Printed output goes to the spool, whatever its size. At most
// every 100 ms the part that was not sent yet is sent as progress: if it is longer than tailBytes, only the
// newest.
type output struct {
	calls *Dispatcher
	req   *Request

	mu      sync.Mutex
	w       *spool.Writer
	failed  bool
	tail    []byte // printed since the last notification, at most tailBytes
	sentAt  time.Time
	done    float64 // as the handler reported it, plus nudge for every tail sent since
	total   float64
	written int64
}

// nudge is added to the progress for each tail of the output, because progress must increase. It is so small that
// the handler's own progress exceeds it.
const nudge = 1e-6

func (o *output) Progress(done, total float64, note string) {
	o.mu.Lock()
	o.done, o.total = done, total
	o.mu.Unlock()
	if o.req.Notes != nil {
		o.req.Notes.Progress(done, total, note)
	}
}

func (o *output) Log(level slog.Level, params json.RawMessage) {
	if o.req.Notes != nil {
		o.req.Notes.Log(level, params)
	}
}

func (o *output) Detach() {
	if o.req.Notes != nil {
		o.req.Notes.Detach()
	}
}

// Keep adds what approval has recorded, which the handler does not see.
func (o *output) Keep(recorded map[string]json.RawMessage) bool {
	if o.req.Notes == nil {
		return false
	}
	if ours, _ := split(o.req.Recorded); ours != nil {
		recorded = maps.Clone(recorded)
		maps.Copy(recorded, ours)
	}
	return o.req.Notes.Keep(recorded)
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
	if now := time.Now(); whole > 0 && now.Sub(o.sentAt) >= 100*time.Millisecond {
		o.sentAt = now
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
			o.calls.opts.Log.Warn("output cannot be spooled", "call", o.req.ID, "err", err)
			return
		}
		o.w = w
	}
	o.w.Write(chunk) // never fails; it counts what did not fit
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

// printableText makes output valid for a message, because it may start within a character.
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

// link adds the URI of the output to the result. If the tool produces text, the URI is text too, because some
// agents fail on a result with a link: their model's API has no place for one.
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
