package publicstate

import (
	"context"
	"encoding/json"
	"sync"
	"sync/atomic"
	"time"

	"gatehouse/internal/state"
	"gatehouse/tool"
)

// subscription is one client's subscription to a part of the tree. A goroutine
// sends its updates; it runs only while there are updates.
type subscription struct {
	of      *publicState
	by      client
	uri     string
	sub     *state.Sub
	whole   bool // the caller sees all of it
	text    bool // the subscription is to a text made of the part, which must be read again
	changed func(json.RawMessage)
	pending atomic.Int32 // notifications since the goroutine last read updates; it runs while there are some
}

// client identifies the client of a subscription. Clients of one principal that
// have no session and the same name cannot be distinguished.
type client struct{ owner, session, name string }

func clientOf(who tool.Caller) client { return client{who.Own(), who.Session, who.Client} }

// watch implements module.Watch. It begins at the revision that the client last
// read, so that no change between reading and subscribing is lost.
func (m *publicState) watch(who tool.Caller, uri string, changed func(json.RawMessage)) (stop func(), err error) {
	at, err := pointerOf(uri)
	if err != nil {
		return nil, err
	}
	sight := m.o.visibility(who, at)
	if sight != nil && !m.o.Tree.See(at, sight).Found {
		return nil, errNotFound(uri)
	}
	sub, _, err := m.o.Tree.Follow(at, m.o.Watches.lastRead(who, uri), sight)
	if err != nil {
		return nil, tool.Refuse(tool.CodeUnsupported, "%v", err)
	}
	w := &subscription{of: m, by: clientOf(who), uri: uri, sub: sub, whole: sight == nil, changed: changed}
	if err := m.o.Watches.addWatch(w); err != nil {
		return nil, err
	}
	return func() { m.o.Watches.removeWatch(w) }, nil
}

// watchPrompt implements module.Watch for the text that is made of some parts of
// the tree. Changes of the tools in the text are reported by list_changed.
func (m *publicState) watchPrompt(who tool.Caller, uri string, changed func(json.RawMessage)) (func(), error) {
	var all []*subscription
	stop := func() {
		for _, w := range all {
			m.o.Watches.removeWatch(w)
		}
	}
	for _, at := range m.o.PromptOf {
		sub, _, err := m.o.Tree.Subscribe(at, "")
		if err != nil {
			stop()
			return nil, tool.Refuse(tool.CodeUnsupported, "%v", err)
		}
		w := &subscription{of: m, by: clientOf(who), uri: uri, sub: sub, whole: true, text: true, changed: changed}
		if err := m.o.Watches.addWatch(w); err != nil {
			stop()
			return nil, err
		}
		all = append(all, w)
	}
	return stop, nil
}

// notify starts to send the updates. It is called with the tree locked, so that it
// must not read the tree itself.
func (w *subscription) notify() {
	if w.pending.Add(1) == 1 {
		w.of.running.Go(w.sendLoop)
	}
}

// sendLoop sends updates until there are none.
func (w *subscription) sendLoop() {
	for {
		n := w.pending.Load()
		for u, ok := w.sub.Take(); ok; u, ok = w.sub.Take() {
			w.sendUpdate(u)
		}
		if w.pending.CompareAndSwap(n, 0) {
			return
		}
	}
}

func (w *subscription) sendUpdate(u state.Update) {
	switch {
	case !w.text:
		w.changed(w.meta(u))
	case u.Again || len(u.Patch) > 0: // a change, and not only a new revision
		w.changed(json.RawMessage(`{"` + MetaAgain + `":true}`))
	}
}

// meta returns the _meta of an update.
func (w *subscription) meta(u state.Update) json.RawMessage {
	meta := map[string]json.RawMessage{MetaRevision: quote(u.Revision)}
	patch, err := u.Patch.MarshalJSON()
	if u.Again || err != nil {
		meta[MetaAgain] = json.RawMessage("true")
	} else {
		meta[MetaFrom], meta[MetaPatch] = quote(u.From), patch
	}
	b, _ := json.Marshal(meta) // cannot fail: strings and JSON made here
	return b
}

// Watches are the open subscriptions. The zero value is ready to use. It is safe
// for concurrent use.
type Watches struct {
	// Elsewhere says that clients without a session may have read on another node of a cluster. Set it before the
	// first use.
	Elsewhere bool

	mu        sync.Mutex // acquired before the lock of the tree
	open      int
	bySession map[session]map[*subscription]struct{}
	lastReads map[readKey]readState // the last read of each client and URI
	forgot    bool                  // some reads are no longer remembered
}

// session is the key of the subscriptions that a call in a session brings up to
// date.
type session struct{ owner, id string }

// readKey is the key of a client's last read of one URI.
type readKey struct {
	client
	uri string
}

// readState is what the clients with one readKey have read.
type readState struct {
	last state.Mark
	// several means that they have read more than one state, and that without a
	// session it is not known which client has read which.
	several bool
}

// maxReads is the number of reads that are remembered.
const maxReads = 16384

// readState records what a client has read, and brings its subscriptions to the same
// URI up to date, so that the next patch applies to what was read.
func (x *Watches) readState(who tool.Caller, uri string, read func() state.Mark) {
	by := clientOf(who)
	x.mu.Lock()
	for w := range x.bySession[session{by.owner, by.session}] {
		if w.uri == uri && w.by == by {
			w.sub.Flush(false)
		}
	}
	x.mu.Unlock()
	now := readState{last: read()}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.lastReads == nil {
		x.lastReads = make(map[readKey]readState)
	}
	key := readKey{by, uri}
	was, again := x.lastReads[key]
	for old := range x.lastReads { // any one
		if again || len(x.lastReads) < maxReads {
			break
		}
		delete(x.lastReads, old)
		x.forgot = true
	}
	now.several = again && by.session == "" && (was.several || was.last != now.last)
	x.lastReads[key] = now
}

// lastRead returns what a client last read at a URI, or the zero Mark.
func (x *Watches) lastRead(who tool.Caller, uri string) state.Mark {
	x.mu.Lock()
	defer x.mu.Unlock()
	was, ok := x.lastReads[readKey{clientOf(who), uri}]
	if was.several || !ok && (x.forgot || x.Elsewhere && who.Session == "") {
		return state.Unknown
	}
	return was.last
}

// addWatch adds a subscription, or closes it if the module is closing.
func (x *Watches) addWatch(w *subscription) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if w.of.closed {
		w.sub.Close()
		return tool.Refuse(tool.CodeUnsupported, "the module is closing")
	}
	key := session{w.by.owner, w.by.session}
	if x.bySession == nil {
		x.bySession = make(map[session]map[*subscription]struct{})
	}
	if x.bySession[key] == nil {
		x.bySession[key] = make(map[*subscription]struct{})
	}
	x.bySession[key][w] = struct{}{}
	x.open++
	w.sub.OnReady(w.notify)
	return nil
}

// removeWatch closes a subscription. It may be called twice.
func (x *Watches) removeWatch(w *subscription) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.closeWatch(w)
}

// closeWatch closes a subscription. x.mu is held.
func (x *Watches) closeWatch(w *subscription) {
	key := session{w.by.owner, w.by.session}
	if _, there := x.bySession[key][w]; !there {
		return
	}
	w.sub.Close()
	x.open--
	if delete(x.bySession[key], w); len(x.bySession[key]) == 0 {
		delete(x.bySession, key)
	}
}

// closeAll closes the subscriptions of one instance of the module.
func (x *Watches) closeAll(of *publicState) {
	x.mu.Lock()
	defer x.mu.Unlock()
	of.closed = true
	for _, all := range x.bySession {
		for w := range all {
			if w.of == of {
				x.closeWatch(w)
			}
		}
	}
}

// Sync brings the subscriptions of a session, or of an owner's clients without a
// session, up to date at once: it sends each the changes, or the revision alone.
func (x *Watches) Sync(owner, id string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for w := range x.bySession[session{owner, id}] {
		w.sub.Flush(true)
	}
}

// Flush sends all pending updates. It returns when they are sent or ctx is done.
func (x *Watches) Flush(ctx context.Context) {
	x.mu.Lock()
	for _, all := range x.bySession {
		for w := range all {
			w.sub.Flush(false)
		}
	}
	x.mu.Unlock()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for x.sending() {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// sending reports whether an update is being sent.
func (x *Watches) sending() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, all := range x.bySession {
		for w := range all {
			if w.pending.Load() > 0 {
				return true
			}
		}
	}
	return false
}

// Recheck compares what callers may see now with what they were sent, after the
// permissions have changed.
func (x *Watches) Recheck() {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, all := range x.bySession {
		for w := range all {
			if !w.whole {
				w.sub.Look()
			}
		}
	}
}

// Split splits an owner into principal and context.
func Split(owner string) (principal, scope string) {
	return tool.SplitOwner(owner)
}

// Len returns the number of open subscriptions.
func (x *Watches) Len() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.open
}
