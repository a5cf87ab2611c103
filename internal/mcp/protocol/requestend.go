package protocol

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"gatehouse/internal/access/limit"
	"gatehouse/internal/dispatch"
	"gatehouse/internal/mcp/rawjson"
	"gatehouse/internal/mcp/session"
	"gatehouse/tool"
)

// requestEnd makes sure that a request ends once: with its answer, or without one if it
// was cancelled.
type requestEnd struct {
	session *session.Session // where the request can be cancelled by its id; nil if it cannot be
	key     string           // its name there

	mu       sync.Mutex
	release  func() // frees the request's resources; may be nil
	ended    bool
	detached bool // the work continues after the answer, so its context is not cancelled
}

// flightKey returns the key of a request id. Two JSON spellings of one string have the
// same key.
func flightKey(id []byte) string {
	if s, ok := rawjson.String(id); ok {
		return `"` + s
	}
	return string(id)
}

// errCancelled is why a cancelled request's context ended.
var errCancelled = errors.New("the client cancelled the request")

// markEnded marks the request as ended. Only the first call returns true; it may then
// answer.
func (r *request) markEnded() bool {
	r.end.mu.Lock()
	defer r.end.mu.Unlock()
	if r.end.ended {
		return false
	}
	r.end.ended = true
	return true
}

// ended reports whether the request was answered or cancelled.
func (r *request) ended() bool {
	r.end.mu.Lock()
	defer r.end.mu.Unlock()
	return r.end.ended
}

// sendResult answers with an encoded result object.
func (r *request) sendResult(raw []byte) {
	if !r.markEnded() {
		return
	}
	r.note.flush(r)
	r.releaseRequest()
	f := acquireFrame()
	*f = appendResult(*f, r.msg.ID, raw)
	r.sink.Answer(200, *f)
	f.recycle()
}

// largeResult is from how many bytes on a result is counted among what its caller holds.
const largeResult = 64 << 10

// reserveResult counts a result and what is rendered from it, until the client has been sent it. It waits for other
// messages of the caller. The error is a *limit.Busy or the cause of the request's end.
func (r *request) reserveResult(size int) (limit.Held, error) {
	if size < largeResult {
		return limit.Held{}, nil
	}
	return r.e.opts.Bytes.AcquireWait(r.ctx, &r.facts.Caller, 2*int64(size), bytesWait)
}

// resultSize is how many bytes a result has before it is rendered.
func resultSize(res *dispatch.Result) int {
	size := len(res.Raw) + len(res.Full) + len(res.Product) + len(res.Facts)
	for i := range res.Content {
		size += len(res.Content[i].Text) + len(res.Content[i].Data) + len(res.Content[i].Raw)
	}
	return size
}

// refuseResult answers instead of a result for which its caller has no bytes left.
func (r *request) refuseResult(c *call, err error) {
	ref := &tool.Refusal{
		Code:    tool.CodeBusy,
		Message: "the call ran, but its result cannot be sent: " + err.Error(),
		Next:    "Read the results of other calls first, or call this again for a smaller part.",
	}
	if c.method != "tools/call" {
		r.sendFault(r.errorFault(c, ref))
		return
	}
	refused := dispatch.Refused(ref)
	r.sendCallResult(c, &refused)
}

// sendCallResult answers with the result of a call.
func (r *request) sendCallResult(c *call, res *dispatch.Result) {
	size := resultSize(res)
	held, err := r.reserveResult(size)
	if _, busy := errors.AsType[*limit.Busy](err); busy {
		r.refuseResult(c, err)
		return
	}
	defer held.Release()
	if !r.markEnded() {
		return
	}
	r.note.flush(r)
	if n := r.msg.Replaced; n > 0 && c.method == "tools/call" && res.Raw == nil {
		res.Content = append(
			res.Content,
			tool.Text(fmt.Sprintf("[lone surrogates in the request, replaced by U+FFFD: %d]", n)),
		)
	}
	f := acquireFrame()
	if size >= largeResult {
		*f = slices.Grow(*f, size+size/8) // at once, because doubling would take twice as much
	}
	*f = append(append(append(*f, `{"jsonrpc":"2.0","id":`...), r.msg.ID...), `,"result":`...)
	*f = append(r.render(*f, c, res), '}')
	r.releaseRequest()
	r.sink.Answer(200, *f)
	f.recycle()
}

// frame is a buffer for one answer. It is reused, because a sink keeps no part of it.
type frame []byte

// frames is the pool of answer buffers.
var frames = sync.Pool{New: func() any { return new(frame) }}

func acquireFrame() *frame { return frames.Get().(*frame) }

func (f *frame) recycle() {
	if cap(*f) > 1<<20 {
		return // a rare giant is not worth keeping
	}
	*f = (*f)[:0]
	frames.Put(f)
}

// sendFault answers with an error.
func (r *request) sendFault(f *Fault) {
	if !r.markEnded() {
		return
	}
	r.note.flush(r)
	f.ID = r.msg.ID
	status := f.Status
	if status == 0 || r.sess != nil && f.Code != CodeInvalidRequest && !f.Outside {
		status = 200 // legacy clients treat any other status as a transport error
	}
	r.releaseRequest()
	if c, ok := r.sink.(challenger); ok && f.Challenge != "" {
		c.Challenge(f.Challenge)
	}
	r.sink.Answer(status, appendError(nil, f))
}

// challenger is a sink that can send a WWW-Authenticate header.
type challenger interface{ Challenge(header string) }

// abandon ends the request without an answer.
func (r *request) abandon(cause error) {
	if !r.markEnded() {
		return
	}
	if cause == nil {
		cause = errCancelled
	}
	r.cancel(cause)
	r.releaseRequest()
	r.sink.Drop()
}

// releaseRequest frees the request's resources and cancels its context, unless its work was
// detached.
func (r *request) releaseRequest() {
	if r.end.session != nil {
		r.end.session.FinishRequest(r.end.key)
	}
	r.end.mu.Lock()
	release, kept := r.end.release, r.end.detached
	r.end.release = nil
	r.end.mu.Unlock()
	if release != nil {
		release()
	}
	if !kept {
		r.cancel(nil)
	}
}

// detachWork lets the work continue after the answer.
func (r *request) detachWork() {
	r.end.mu.Lock()
	defer r.end.mu.Unlock()
	r.end.detached = true
}

// onRelease runs f when the request is released; at once if it has ended.
func (r *request) onRelease(f func()) {
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

// parkable is a sink that must know when a request waits for its client.
type parkable interface {
	Park(end func())
	Unpark()
}

// park reports that the request waits for its client. end is called if the client can
// send nothing more; it answers the request.
func (r *request) park(end func()) {
	p, ok := r.sink.(parkable)
	if !ok {
		return
	}
	p.Park(end)
	if r.ended() {
		p.Unpark()
	}
}

// unpark reports that the request no longer waits for its client.
func (r *request) unpark() {
	if p, ok := r.sink.(parkable); ok {
		p.Unpark()
	}
}
