package protocol

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"time"

	"gatehouse/internal/dispatch/jobs"
	"gatehouse/internal/dispatch/views"
	"gatehouse/internal/mcp/rawjson"
	"gatehouse/tool"
)

// maxWatched is how many resources and tasks one client may watch at once.
const maxWatched = 1000

// listener is one open subscriptions/listen.
type listener struct {
	r     *request
	lists [3]bool // which list notifications it wants

	// compareMu is held while the lists are compared with seen, which may block. It is
	// acquired before sendMu.
	compareMu sync.Mutex
	seen      stamps
	watched   map[string]func() // stops what is watched, by URI; nil while the caller may not read it

	// sendMu is held while a message is sent; the acknowledgement is the first.
	sendMu  sync.Mutex
	stopped bool

	pending pendingNotes
	stops   []func()
}

// filter is the set of notifications that a client requests, and the part of it that
// the server grants.
type filter struct {
	Tools     bool     `json:"toolsListChanged,omitempty"`
	Prompts   bool     `json:"promptsListChanged,omitempty"`
	Resources bool     `json:"resourcesListChanged,omitempty"`
	Watch     []string `json:"resourceSubscriptions,omitempty"`
	Tasks     []string `json:"taskIds,omitempty"`
}

// readFilter decodes the requested notifications; it omits unknown ones.
func readFilter(raw []byte) (want filter, err error) {
	if rawjson.Kind(raw) != '{' {
		return want, errors.New("an object such as {\"toolsListChanged\":true}")
	}
	for k, v := range rawjson.Object(raw) {
		var into any
		switch string(k) {
		case "toolsListChanged":
			into = &want.Tools
		case "promptsListChanged":
			into = &want.Prompts
		case "resourcesListChanged":
			into = &want.Resources
		case "resourceSubscriptions":
			into = &want.Watch
		case "taskIds":
			into = &want.Tasks
		default:
			continue
		}
		if json.Unmarshal(v, into) != nil {
			return want, errors.New(string(k) + " to be true or false, or a list of strings where it names things")
		}
	}
	if len(want.Watch)+len(want.Tasks) > maxWatched {
		return want, errors.New("at most 1000 resources and tasks")
	}
	return want, nil
}

// listen serves subscriptions/listen. It returns at once; the subscription lasts until the client
// disconnects or cancels it, the credential expires, or the host stops.
func (r *request) listen() {
	raw, _ := rawjson.Get(r.msg.Params, "notifications")
	want, err := readFilter(raw)
	if err != nil {
		r.sendFault(badParam("notifications", err.Error()))
		return
	}
	if !r.loadView() {
		return
	}
	l := &listener{r: r, watched: map[string]func(){}, lists: [3]bool{want.Tools, want.Prompts, want.Resources}}
	l.seen, _ = r.e.stampsOf(r.ctx, r.facts)
	if !l.startListening(&want) {
		l.stopListening()
		r.sendFault(
			&Fault{
				Status:  406,
				Code:    CodeInvalidRequest,
				Message: "subscriptions/listen needs a client that accepts text/event-stream",
			},
		)
		return
	}
	if !r.facts.Until.IsZero() {
		expiry := time.AfterFunc(time.Until(r.facts.Until), l.finishListening)
		r.onRelease(func() { expiry.Stop() })
	}
	r.e.changes.addListener(l)
	l.compareLists(r.ctx) // for changes between stampsOf and add
	r.park(l.finishListening)
}

// startListening opens the watches and sends the acknowledgement. It returns false if the client
// accepts no message before the answer.
func (l *listener) startListening(want *filter) bool {
	l.sendMu.Lock()
	defer l.sendMu.Unlock()
	ack, _ := json.Marshal(l.openFilter(want))
	params := append([]byte(`{"notifications":`), ack...)
	return l.r.sendBeforeAnswer(
		appendNote(nil, "notifications/subscriptions/acknowledged", l.withSubscriptionID(append(params, '}'))),
	)
}

// openFilter starts the subscriptions that can be granted and returns them.
func (l *listener) openFilter(want *filter) filter {
	r := l.r
	got := filter{Tools: want.Tools, Prompts: want.Prompts, Resources: want.Resources}
	for _, uri := range want.Watch {
		entry, _ := r.view.Resource(uri)
		if entry == nil || slices.Contains(got.Watch, uri) {
			continue
		}
		stop, err := r.e.watchResource(r.ctx, r.facts, r.view, entry, uri, l.resourceNotifier(uri))
		if err == nil {
			l.stops, got.Watch = append(l.stops, stop), append(got.Watch, uri)
			l.watched[uri] = stop
		}
	}
	if r.facts.Can&tool.CanTasks == 0 {
		return got
	}
	for _, id := range want.Tasks {
		if slices.Contains(got.Tasks, id) {
			continue
		}
		stop, err := r.e.opts.Tasks.Watch(r.facts.Owner, id, func(rec jobs.Record) {
			l.sendNotification("notifications/tasks", taskState(&rec))
		})
		if err == nil {
			l.stops, got.Tasks = append(l.stops, stop), append(got.Tasks, id)
		}
	}
	return got
}

// withSubscriptionID adds the subscription's ID to params.
func (l *listener) withSubscriptionID(params []byte) []byte {
	meta, ok := rawjson.Get(params, "_meta")
	if !ok {
		meta = []byte("{}")
	}
	meta = rawjson.Splice(meta, rawjson.Edit{Key: metaSub, Value: l.r.msg.ID})
	return rawjson.Splice(params, rawjson.Edit{Key: "_meta", Value: meta})
}

func (l *listener) sendNotification(method string, params []byte) {
	l.sendMu.Lock()
	defer l.sendMu.Unlock()
	if !l.stopped {
		l.r.sendNotification(method, l.withSubscriptionID(params))
	}
}

// compareLists notifies the client of lists that differ from those it saw last, and
// suspends or restores watches of resources.
func (l *listener) compareLists(ctx context.Context) {
	l.compareMu.Lock()
	defer l.compareMu.Unlock()
	now, view := l.r.e.stampsOf(ctx, l.r.facts)
	if view == nil {
		l.finishListening()
		return
	}
	for uri, stop := range l.watched {
		switch there := hasResource(view, uri); {
		case !there && stop != nil:
			stop()
			l.watched[uri] = nil
		case there && stop == nil:
			l.restore(ctx, view, uri)
		}
	}
	for i := range now {
		if l.lists[i] && now[i] != l.seen[i] {
			l.enqueue(noteKey{note: listNotes[i]}, nil)
		}
	}
	l.seen = now
}

// resourceNotifier returns a function that queues changes of a resource.
func (l *listener) resourceNotifier(uri string) func(json.RawMessage) {
	return func(meta json.RawMessage) { l.enqueue(noteKey{uri: uri}, meta) }
}

// restore resumes the watch of a resource that the caller could not read for a while,
// and notifies the client to read it again. l.compareMu is held.
func (l *listener) restore(ctx context.Context, v *views.View, uri string) {
	f := *l.r.facts
	f.Cut = l.r.e.opts.Views.Cut(f.Caller)
	entry, _ := v.Resource(uri)
	told := l.resourceNotifier(uri)
	stop, err := l.r.e.watchResource(ctx, &f, v, entry, uri, told)
	if err != nil {
		return // the caller may still not watch it
	}
	l.sendMu.Lock()
	if l.stopped {
		defer stop()
	} else {
		l.stops, l.watched[uri] = append(l.stops, stop), stop
	}
	l.sendMu.Unlock()
	told(nil)
}

// addListener registers a listener until its request ends. When the host stops, the request
// ends with a result.
func (c *changes) addListener(l *listener) {
	c.mu.Lock()
	c.listeners[l] = struct{}{}
	c.mu.Unlock()
	context.AfterFunc(l.r.ctx, func() {
		c.mu.Lock()
		delete(c.listeners, l)
		c.mu.Unlock()
		l.finishListening()
	})
}

func (l *listener) stopListening() {
	l.sendMu.Lock()
	stops := l.stops
	l.stops, l.stopped = nil, true
	l.sendMu.Unlock()
	for _, f := range stops {
		f()
	}
}

// finishListening ends the subscription with a result. If the client has ended it already,
// finish only closes the watches.
func (l *listener) finishListening() {
	l.stopListening()
	l.r.sendResult(append(append([]byte(`{"resultType":"complete","_meta":{"`+metaSub+`":`), l.r.msg.ID...), "}}"...))
}
