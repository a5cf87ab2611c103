package protocol

import (
	"errors"
	"fmt"
	"sync"

	"gatehouse/internal/dispatch"
	"gatehouse/internal/mcp/rawjson"
	"gatehouse/internal/mcp/session"
	"gatehouse/tool"
)

// ending makes sure that a request ends once: with its answer, or silently
// when it was cancelled.
type ending struct {
	flights *session.Session // where the request can be cancelled by its id; nil when nobody can name it
	key     string           // its name there

	mu      sync.Mutex
	release func() // what the request holds; may be nil
	ended   bool
	kept    bool // the work goes on after the answer: its context is not ended
}

// flightKey names a request by its id: two spellings of one string are one.
func flightKey(id []byte) string {
	if s, ok := rawjson.String(id); ok {
		return `"` + s
	}
	return string(id)
}

// errCancelled is why a cancelled request's context ended.
var errCancelled = errors.New("the client cancelled the request")

// over marks the end and reports whether this was the first to do so.
func (r *request) over() bool {
	r.end.mu.Lock()
	defer r.end.mu.Unlock()
	if r.end.ended {
		return false
	}
	r.end.ended = true
	return true
}

// ended reports whether nobody waits for an answer any more.
func (r *request) ended() bool {
	r.end.mu.Lock()
	defer r.end.mu.Unlock()
	return r.end.ended
}

// result answers with a raw result object.
func (r *request) result(raw []byte) {
	if !r.over() {
		return
	}
	r.note.flush(r)
	r.close()
	f := takeFrame()
	*f = appendResult(*f, r.msg.ID, raw)
	r.sink.Answer(200, *f)
	f.give()
}

// answer answers with the result of a call.
func (r *request) answer(c *conversation, res *dispatch.Result) {
	if !r.over() {
		return
	}
	r.note.flush(r)
	if n := r.msg.Replaced; n > 0 && c.method == "tools/call" && res.Raw == nil {
		res.Content = append(res.Content, tool.Text(fmt.Sprintf("[lone surrogates in the request, replaced by U+FFFD: %d]", n)))
	}
	f := takeFrame()
	*f = append(append(append(*f, `{"jsonrpc":"2.0","id":`...), r.msg.ID...), `,"result":`...)
	*f = append(r.render(*f, c, res), '}')
	r.close()
	r.sink.Answer(200, *f)
	f.give()
}

// frame is a buffer for one answer. A sink keeps nothing of it, so it can be
// used again.
type frame []byte

// frames holds the buffers between answers; it is the one thing requests
// share, and holds no state.
var frames = sync.Pool{New: func() any { return new(frame) }}

func takeFrame() *frame { return frames.Get().(*frame) }

func (f *frame) give() {
	if cap(*f) > 1<<20 {
		return // a rare giant is not worth keeping
	}
	*f = (*f)[:0]
	frames.Put(f)
}

// fail answers with an error.
func (r *request) fail(f *Fault) {
	if !r.over() {
		return
	}
	r.note.flush(r)
	f.ID = r.msg.ID
	status := f.Status
	if status == 0 || r.sess != nil && f.Code != CodeInvalidRequest && !f.Outside {
		status = 200 // a legacy client takes any other status for an accident on the way
	}
	r.close()
	if c, ok := r.sink.(challenger); ok && f.Challenge != "" {
		c.Challenge(f.Challenge)
	}
	r.sink.Answer(status, appendError(nil, f))
}

// challenger is a sink that can say in a header what credential is wanted.
type challenger interface{ Challenge(header string) }

// abandon ends the request without an answer.
func (r *request) abandon(cause error) {
	if !r.over() {
		return
	}
	if cause == nil {
		cause = errCancelled
	}
	r.cancel(cause)
	r.close()
	r.sink.Drop()
}

// close gives back what the request held.
func (r *request) close() {
	if r.end.flights != nil {
		r.end.flights.Finish(r.end.key)
	}
	r.end.mu.Lock()
	release, kept := r.end.release, r.end.kept
	r.end.release = nil
	r.end.mu.Unlock()
	if release != nil {
		release()
	}
	if !kept {
		r.cancel(nil)
	}
}

// keep lets the work go on after the answer.
func (r *request) keep() {
	r.end.mu.Lock()
	defer r.end.mu.Unlock()
	r.end.kept = true
}

// onClose adds to what is given back at the end, which may be now.
func (r *request) onClose(f func()) {
	r.end.mu.Lock()
	if r.end.ended {
		r.end.mu.Unlock()
		f()
		return
	}
	defer r.end.mu.Unlock()
	earlier := r.end.release
	r.end.release = func() {
		f()
		if earlier != nil {
			earlier()
		}
	}
}

// parker is a sink that wants to know while a request waits for its client.
type parker interface {
	Park(end func())
	Unpark()
}

// park says that the request waits for its client; end ends the waiting, with
// an answer, when the client will send nothing more.
func (r *request) park(end func()) {
	p, ok := r.sink.(parker)
	if !ok {
		return
	}
	p.Park(end)
	if r.ended() {
		p.Unpark()
	}
}

// unpark says that it goes on.
func (r *request) unpark() {
	if p, ok := r.sink.(parker); ok {
		p.Unpark()
	}
}
