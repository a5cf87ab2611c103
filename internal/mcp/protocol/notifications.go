package protocol

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"math"
	"strconv"
	"sync"
	"time"

	"gatehouse/internal/dispatch/jobs"
	"gatehouse/internal/mcp/mcpversion"
	"gatehouse/internal/mcp/rawjson"
)

// progressEvery is the minimum time between two progress notifications of one request.
// Faster progress is coalesced; the latest is sent before the answer.
const progressEvery = 10 * time.Millisecond

// notifications is the state of the notifications that a request sends before its
// answer.
type notifications struct {
	token []byte // raw; nil when the client asked for no progress
	level slog.Level
	logs  bool

	mu      sync.Mutex // held while progress is sent, to keep its order
	last    time.Time
	reached progress // the last progress that was sent or waits
	sent    bool
	waiting bool // reached has not been sent yet
}

type progress struct {
	done, total float64
	note        string
}

func (n *notifications) init(has *members, level slog.Level) {
	n.level, n.logs = level, true
	n.setToken(has)
}

// initModern enables log messages only if the request sets a level.
func (n *notifications) initModern(has *members) *Fault {
	n.setToken(has)
	if has.of().level == nil {
		return nil
	}
	name, _ := rawjson.String(has.of().level)
	if n.level, n.logs = mcpversion.ParseLevel(name); !n.logs {
		return badEnvelope(metaLevel, levelNames)
	}
	return nil
}

func (n *notifications) setToken(has *members) {
	if validID(has.of().progressToken) {
		n.token = has.of().progressToken
	}
}

// Progress reports the call's progress: in its task if it has become one, otherwise to
// the client.
func (c *call) Progress(done, total float64, note string) {
	if t := c.currentTask(); t != nil {
		t.run.Progress(done, total, note)
		return
	}
	c.r.progress(done, total, note)
}

func (r *request) progress(done, total float64, note string) {
	n := &r.note
	if n.token == nil || math.IsNaN(done) || math.IsInf(done, 0) {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.sent && done <= n.reached.done {
		return
	}
	n.reached = progress{done, total, note}
	if wait := progressEvery - time.Since(n.last); n.sent && wait > 0 {
		if !n.waiting {
			n.waiting = true
			time.AfterFunc(wait, r.sendHeldProgress)
		}
		return
	}
	r.sendProgress()
}

// sendHeldProgress sends delayed progress, unless newer progress was sent.
func (r *request) sendHeldProgress() {
	r.note.mu.Lock()
	defer r.note.mu.Unlock()
	if r.note.waiting {
		r.sendProgress()
	}
}

// sendProgress sends the request's latest progress; r.note.mu is held. If the request
// has just ended, flush sends it.
func (r *request) sendProgress() {
	n := &r.note
	n.sent, n.last = true, time.Now()
	n.waiting = !r.sendNotification("notifications/progress", n.encodeProgress(r.rev, n.reached))
}

// sendHeartbeat sends progress that shows that the request is still running. The step
// is so small that the next real progress exceeds it.
func (r *request) sendHeartbeat(note string) {
	r.note.mu.Lock()
	at := r.note.reached
	r.note.mu.Unlock()
	r.progress(at.done+max(1e-6, math.Abs(at.done)*1e-12), at.total, note)
}

// flush sends delayed progress before the answer.
func (n *notifications) flush(r *request) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.waiting {
		n.waiting = false
		r.sink.Note(appendNote(nil, "notifications/progress", n.encodeProgress(r.rev, n.reached)))
	}
}

func (n *notifications) encodeProgress(rev mcpversion.Revision, p progress) []byte {
	b := append([]byte(`{"progressToken":`), n.token...)
	b = append(b, `,"progress":`...)
	b = strconv.AppendFloat(b, p.done, 'f', -1, 64)
	if p.total > 0 && !math.IsInf(p.total, 0) {
		b = append(b, `,"total":`...)
		b = strconv.AppendFloat(b, p.total, 'f', -1, 64)
	}
	if p.note != "" && rev.Has(mcpversion.ProgressNotes) {
		b = append(b, `,"message":`...)
		b = rawjson.AppendString(b, p.note)
	}
	return append(b, '}')
}

// Log sends a log message to a client that wants its level. params is an object, to which
// the level is added if it has none.
func (c *call) Log(level slog.Level, params json.RawMessage) {
	r := c.r
	if !r.note.logs || level < r.note.level {
		return
	}
	if _, ok := rawjson.Get(params, "level"); !ok {
		b := append([]byte(`{"level":"`), mcpversion.LevelName(level)...)
		params = append(append(b, `",`...), bytes.TrimLeft(params, " \t\r\n{")...)
	}
	r.sendNotification("notifications/message", params)
}

// sendNotification sends a notification that belongs to this request. It returns false
// if the request has ended.
func (r *request) sendNotification(method string, params []byte) bool {
	r.end.mu.Lock() // a note never follows the answer
	defer r.end.mu.Unlock()
	if !r.end.ended {
		r.sink.Note(appendNote(nil, method, params))
	}
	return !r.end.ended
}

// Detach ends the client's wait: the call becomes a task if the client can follow one;
// otherwise the transport closes the stream, which the client can resume.
func (c *call) Detach() {
	if c.convertToTask() {
		return
	}
	r := c.r
	r.end.mu.Lock()
	defer r.end.mu.Unlock()
	if !r.end.ended {
		r.sink.Detach()
	}
}

// Keep stores what a call has recorded with the task that it is, so that the next host can run it again.
func (c *call) Keep(recorded map[string]json.RawMessage) bool {
	c.mu.Lock()
	t := c.task
	c.mu.Unlock()
	if t == nil {
		return false
	}
	err := t.run.Keep(recorded)
	if err != nil && !errors.Is(err, jobs.ErrSettled) {
		c.r.e.opts.Log.Warn("a task cannot outlive the host", "task", t.run.ID(), "err", err)
	}
	return err == nil
}

const levelNames = "debug, info, notice, warning, error, critical, alert or emergency"

// setLevel serves logging/setLevel.
func (r *request) setLevel() {
	name, f := r.required("level")
	if f != nil {
		r.sendFault(f)
		return
	}
	l, ok := mcpversion.ParseLevel(name)
	if !ok {
		r.sendFault(badParam("level", levelNames))
		return
	}
	r.sess.SetLevel(l)
	r.sendResult(r.empty())
}
