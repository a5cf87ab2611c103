package protocol

import (
	"context"
	"encoding/json"
	"slices"
	"sync"

	"gatehouse/internal/jobs"
	"gatehouse/internal/rawjson"
)

// maxWatched is how many resources and tasks one subscription may name.
const maxWatched = 1000

// listener is one open subscriptions/listen.
type listener struct {
	r       *request
	lists   [3]bool // which lists it wants to hear of
	mu      sync.Mutex
	seen    stamps
	stops   []func()
	stopped bool
}

// filter is what a client wants to hear of, and what it is promised.
type filter struct {
	Tools     bool     `json:"toolsListChanged,omitempty"`
	Prompts   bool     `json:"promptsListChanged,omitempty"`
	Resources bool     `json:"resourcesListChanged,omitempty"`
	Watch     []string `json:"resourceSubscriptions,omitempty"`
	Tasks     []string `json:"taskIds,omitempty"`
}

// listen serves subscriptions/listen. It returns at once; the subscription
// lives until the client goes, cancels it, or the host stops.
func (r *request) listen() {
	raw, _ := rawjson.Get(r.msg.Params, "notifications")
	var want filter
	if rawjson.Kind(raw) != '{' || json.Unmarshal(raw, &want) != nil {
		r.fail(badParam("notifications", "an object such as {\"toolsListChanged\":true}"))
		return
	}
	if len(want.Watch)+len(want.Tasks) > maxWatched {
		r.fail(badParam("notifications", "at most 1000 resources and tasks"))
		return
	}
	if !r.see() {
		return
	}
	l := &listener{r: r, lists: [3]bool{want.Tools, want.Prompts, want.Resources}}
	l.mu.Lock() // nothing is told before the acknowledgement
	honoured := l.open(&want)
	ack, _ := json.Marshal(honoured)
	params := append([]byte(`{"notifications":`), ack...)
	told := r.sayNow(appendNote(nil, "notifications/subscriptions/acknowledged", l.mark(append(params, '}'))))
	l.mu.Unlock()
	if !told {
		l.stop()
		r.fail(&Fault{Status: 406, Code: CodeInvalidRequest, Message: "subscriptions/listen needs a client that accepts text/event-stream"})
		return
	}
	r.e.changes.add(l)
}

// open starts what can be honoured and says what that is. l.mu is held.
func (l *listener) open(want *filter) filter {
	r := l.r
	got := filter{Tools: want.Tools, Prompts: want.Prompts, Resources: want.Resources}
	l.seen, _ = r.e.stampsOf(r.ctx, &r.facts)
	for _, uri := range want.Watch {
		entry, _ := r.view.Resource(uri)
		if entry == nil || slices.Contains(got.Watch, uri) {
			continue
		}
		stop, err := r.e.watches.open(entry, &r.facts, uri, func(meta json.RawMessage) {
			go l.tell("notifications/resources/updated", updated(uri, meta))
		})
		if err == nil {
			l.stops, got.Watch = append(l.stops, stop), append(got.Watch, uri)
		}
	}
	for _, id := range want.Tasks {
		if slices.Contains(got.Tasks, id) {
			continue
		}
		stop, err := r.e.opts.Jobs.Watch(r.facts.Owner, id, func(rec jobs.Record) {
			go l.tell("notifications/tasks", taskState(&rec))
		})
		if err == nil {
			l.stops, got.Tasks = append(l.stops, stop), append(got.Tasks, id)
		}
	}
	return got
}

// mark adds the subscription's id to params.
func (l *listener) mark(params []byte) []byte {
	id := append([]byte(`"`+metaSub+`":`), l.r.msg.ID...)
	if meta, ok := rawjson.Get(params, "_meta"); ok {
		meta = rawjson.Splice(meta, rawjson.Edit{Key: metaSub, Value: l.r.msg.ID})
		return rawjson.Splice(params, rawjson.Edit{Key: "_meta", Value: meta})
	}
	id = append(append([]byte("{"), id...), '}')
	return rawjson.Splice(params, rawjson.Edit{Key: "_meta", Value: id})
}

func (l *listener) tell(method string, params []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.stopped {
		l.r.tell(method, l.mark(params))
	}
}

// look compares the lists with what was last seen.
func (l *listener) look(ctx context.Context) {
	now, ok := l.r.e.stampsOf(ctx, &l.r.facts)
	if !ok {
		return
	}
	l.mu.Lock()
	old := l.seen
	l.seen = now
	l.mu.Unlock()
	for i := range now {
		if l.lists[i] && now[i] != old[i] {
			l.tell(listNotes[i], []byte("{}"))
		}
	}
}

// add keeps the listener until its request ends.
func (c *changes) add(l *listener) {
	c.mu.Lock()
	c.listeners[l] = struct{}{}
	c.mu.Unlock()
	context.AfterFunc(l.r.ctx, func() {
		c.mu.Lock()
		delete(c.listeners, l)
		c.mu.Unlock()
		l.stop()
	})
}

func (l *listener) stop() {
	l.mu.Lock()
	stops := l.stops
	l.stops, l.stopped = nil, true
	l.mu.Unlock()
	for _, f := range stops {
		f()
	}
}

// finish ends the subscription from our side, gracefully.
func (l *listener) finish() {
	l.stop()
	l.r.result(append(append([]byte(`{"resultType":"complete","_meta":{"`+metaSub+`":`), l.r.msg.ID...), "}}"...))
}
