package protocol

import (
	"encoding/json"
	"log/slog"
	"math"
	"strconv"
	"sync"
	"time"

	"gatehouse/internal/mcp/mcpversion"
	"gatehouse/internal/mcp/rawjson"
)

// progressEvery is the least time between two progress notifications of one
// request; what comes faster is coalesced, and the latest is told before the
// answer.
const progressEvery = 10 * time.Millisecond

// notes is what a request may tell before its answer.
type notes struct {
	token []byte // raw; nil when the client asked for no progress
	level slog.Level
	logs  bool

	mu      sync.Mutex // held while progress is told, which keeps its order
	last    time.Time
	reached progress // the last progress told, or waiting to be
	told    bool
	waiting bool // reached has not been told yet
}

type progress struct {
	done, total float64
	note        string
}

func (n *notes) init(has *members, level slog.Level) {
	n.level, n.logs = level, true
	n.setToken(has)
}

// initModern: logs only for a request that asks for them.
func (n *notes) initModern(has *members) *Fault {
	n.setToken(has)
	if has.of().level == nil {
		return nil
	}
	name, _ := rawjson.String(has.of().level)
	if n.level, n.logs = parseLevel(name); !n.logs {
		return badEnvelope(metaLevel, levelNames)
	}
	return nil
}

func (n *notes) setToken(has *members) {
	if validID(has.of().progressToken) {
		n.token = has.of().progressToken
	}
}

// Progress tells how far the call is: its task once it is one.
func (c *conversation) Progress(done, total float64, note string) {
	if t := c.following(); t != nil {
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
	if n.told && done <= n.reached.done {
		return
	}
	n.reached = progress{done, total, note}
	if wait := progressEvery - time.Since(n.last); n.told && wait > 0 {
		if !n.waiting {
			n.waiting = true
			time.AfterFunc(wait, r.catchUp)
		}
		return
	}
	r.tellProgress()
}

// catchUp tells the progress that was held back, if nothing newer has.
func (r *request) catchUp() {
	r.note.mu.Lock()
	defer r.note.mu.Unlock()
	if r.note.waiting {
		r.tellProgress()
	}
}

// tellProgress tells how far the request is; r.note.mu is held. What comes
// while the answer is on its way is left to flush.
func (r *request) tellProgress() {
	n := &r.note
	n.told, n.last = true, time.Now()
	n.waiting = !r.tell("notifications/progress", n.encode(r.rev, n.reached))
}

// alive tells a client that the request goes on, by a step so small that the
// next real progress passes it.
func (r *request) alive(note string) {
	r.note.mu.Lock()
	at := r.note.reached
	r.note.mu.Unlock()
	r.progress(at.done+max(1e-6, math.Abs(at.done)*1e-12), at.total, note)
}

// flush tells the progress that was held back; the answer follows.
func (n *notes) flush(r *request) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.waiting {
		n.waiting = false
		r.sink.Note(appendNote(nil, "notifications/progress", n.encode(r.rev, n.reached)))
	}
}

func (n *notes) encode(rev mcpversion.Revision, p progress) []byte {
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

// Log sends a log message to a client that wants its level.
func (c *conversation) Log(level slog.Level, data json.RawMessage) {
	r := c.r
	if !r.note.logs || level < r.note.level {
		return
	}
	b := append([]byte(`{"level":"`), levelName(level)...)
	b = append(b, `","data":`...)
	b = append(b, data...)
	r.tell("notifications/message", append(b, '}'))
}

// tell sends a notification that belongs to this request, and reports false
// when the request has ended.
func (r *request) tell(method string, params []byte) bool {
	r.end.mu.Lock() // a note never follows the answer
	defer r.end.mu.Unlock()
	if !r.end.ended {
		r.sink.Note(appendNote(nil, method, params))
	}
	return !r.end.ended
}

// Detach sends the client away to come back for the rest: as a task if it
// can follow one, else by the door's own means.
func (c *conversation) Detach() {
	if c.promote() {
		return
	}
	r := c.r
	r.end.mu.Lock()
	defer r.end.mu.Unlock()
	if !r.end.ended {
		r.sink.Detach()
	}
}

const levelNames = "debug, info, notice, warning, error, critical, alert or emergency"

var levels = [...]struct {
	name  string
	level slog.Level
}{
	{"debug", slog.LevelDebug}, {"info", slog.LevelInfo}, {"notice", slog.LevelInfo + 2},
	{"warning", slog.LevelWarn}, {"error", slog.LevelError}, {"critical", slog.LevelError + 4},
	{"alert", slog.LevelError + 8}, {"emergency", slog.LevelError + 12},
}

func parseLevel(name string) (slog.Level, bool) {
	for _, l := range levels {
		if l.name == name {
			return l.level, true
		}
	}
	return 0, false
}

// levelName is the highest named level that is not above l.
func levelName(l slog.Level) string {
	name := levels[0].name
	for _, x := range levels {
		if x.level <= l {
			name = x.name
		}
	}
	return name
}

// setLevel changes what a legacy session wants to hear.
func (r *request) setLevel() {
	name, f := r.required("level")
	if f != nil {
		r.fail(f)
		return
	}
	l, ok := parseLevel(name)
	if !ok {
		r.fail(badParam("level", levelNames))
		return
	}
	r.sess.SetLevel(l)
	r.result(r.empty())
}
