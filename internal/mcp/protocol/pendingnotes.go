package protocol

import (
	"encoding/json"
	"sync"
)

// pendingNotes are the changes that a listener has not sent yet. Adding one never waits
// for the client: a goroutine, which exits when the queue is empty, sends them. Of two
// waiting changes of one list or resource only the later is sent.
type pendingNotes struct {
	mu    sync.Mutex
	order []noteKey
	metas map[noteKey]json.RawMessage // of those in order
	busy  bool
}

// noteKey identifies what has changed: the list of a notification, or the resource of a
// URI.
type noteKey struct{ note, uri string }

// enqueue adds a change.
func (l *listener) enqueue(what noteKey, meta json.RawMessage) {
	n := &l.pending
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.metas == nil {
		n.metas = make(map[noteKey]json.RawMessage)
	}
	if _, waits := n.metas[what]; !waits {
		n.order = append(n.order, what)
	}
	n.metas[what] = meta
	if !n.busy {
		n.busy = true
		l.r.e.work.Go(l.sendPending)
	}
}

func (l *listener) sendPending() {
	for {
		what, meta, ok := l.pending.nextNote()
		if !ok {
			return
		}
		if what.note != "" {
			l.sendNotification(what.note, []byte("{}"))
		} else {
			l.sendNotification("notifications/resources/updated", updatedParams(what.uri, meta))
		}
	}
}

// isBusy reports whether notifications wait or are being sent.
func (n *pendingNotes) isBusy() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.busy
}

func (n *pendingNotes) nextNote() (what noteKey, meta json.RawMessage, ok bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.order) == 0 {
		n.busy = false
		return noteKey{}, nil, false
	}
	what = n.order[0]
	n.order = n.order[1:]
	meta = n.metas[what]
	delete(n.metas, what)
	return what, meta, true
}
