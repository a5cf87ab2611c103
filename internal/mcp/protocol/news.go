package protocol

import (
	"encoding/json"
	"sync"
)

// news is what a listener has still to be told. Whoever brings it never waits
// for the client: a goroutine tells it, which lives only while there is some.
// Of two changes of one thing that wait, the later stands for both.
type news struct {
	mu    sync.Mutex
	order []topic
	metas map[topic]json.RawMessage // of those in order
	busy  bool
}

// topic is what has changed: the list of a notification, or the resource of
// an address.
type topic struct{ note, uri string }

// post adds a change.
func (l *listener) post(what topic, meta json.RawMessage) {
	n := &l.news
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.metas == nil {
		n.metas = make(map[topic]json.RawMessage)
	}
	if _, waits := n.metas[what]; !waits {
		n.order = append(n.order, what)
	}
	n.metas[what] = meta
	if !n.busy {
		n.busy = true
		l.r.e.work.Go(l.deliver)
	}
}

func (l *listener) deliver() {
	for {
		what, meta, ok := l.news.next()
		if !ok {
			return
		}
		if what.note != "" {
			l.tell(what.note, []byte("{}"))
		} else {
			l.tell("notifications/resources/updated", updated(what.uri, meta))
		}
	}
}

// busyNow reports whether something has still to be told.
func (n *news) busyNow() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.busy
}

func (n *news) next() (what topic, meta json.RawMessage, ok bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.order) == 0 {
		n.busy = false
		return topic{}, nil, false
	}
	what = n.order[0]
	n.order = n.order[1:]
	meta = n.metas[what]
	delete(n.metas, what)
	return what, meta, true
}
