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

// watching is one watch: one client's subscription to the tree. A goroutine
// passes on what it tells, while there is something to tell.
type watching struct {
	of      *shown
	by      client
	uri     string
	sub     *state.Sub
	whole   bool // the caller sees all of it
	text    bool // a text is made of it, which is to be read again
	changed func(json.RawMessage)
	pokes   atomic.Int32 // since the goroutine last looked; it lives while there are some
}

// client is whose watch it is, as far as that is known. Clients of one
// principal that have no session and go by one name cannot be told apart.
type client struct{ owner, session, name string }

func clientOf(who tool.Caller) client { return client{who.Owner, who.Session, who.Client} }

// watch implements module.Watch. It begins with what the client last read, so
// that nothing between reading and subscribing is lost.
func (m *shown) watch(who tool.Caller, uri string, changed func(json.RawMessage)) (stop func(), err error) {
	at, err := pointerOf(uri)
	if err != nil {
		return nil, err
	}
	sight := m.o.sight(who, at)
	if sight != nil && !m.o.Tree.See(at, sight).Found {
		return nil, absent(uri)
	}
	sub, _, err := m.o.Tree.Follow(at, m.o.Watches.lastRead(who, uri), sight)
	if err != nil {
		return nil, tool.Refuse("unsupported", "%v", err)
	}
	w := &watching{of: m, by: clientOf(who), uri: uri, sub: sub, whole: sight == nil, changed: changed}
	if err := m.o.Watches.begin(w); err != nil {
		return nil, err
	}
	return func() { m.o.Watches.stop(w) }, nil
}

// watchPrompt implements module.Watch for the text that is made of some parts
// of the tree. Its tools are told of as those of any list.
func (m *shown) watchPrompt(who tool.Caller, uri string, changed func(json.RawMessage)) (func(), error) {
	var all []*watching
	stop := func() {
		for _, w := range all {
			m.o.Watches.stop(w)
		}
	}
	for _, at := range m.o.PromptOf {
		sub, _, err := m.o.Tree.Subscribe(at, "")
		if err != nil {
			stop()
			return nil, tool.Refuse("unsupported", "%v", err)
		}
		w := &watching{of: m, by: clientOf(who), uri: uri, sub: sub, whole: true, text: true, changed: changed}
		if err := m.o.Watches.begin(w); err != nil {
			stop()
			return nil, err
		}
		all = append(all, w)
	}
	return stop, nil
}

// poke has the updates passed on. It is called with the tree locked.
func (w *watching) poke() {
	if w.pokes.Add(1) == 1 {
		w.of.running.Go(w.run)
	}
}

// run passes on updates until there are none.
func (w *watching) run() {
	for {
		n := w.pokes.Load()
		for u, ok := w.sub.Take(); ok; u, ok = w.sub.Take() {
			w.tell(u)
		}
		if w.pokes.CompareAndSwap(n, 0) {
			return
		}
	}
}

func (w *watching) tell(u state.Update) {
	switch {
	case !w.text:
		w.changed(w.meta(u))
	case u.Again || len(u.Patch) > 0: // and not merely up to date
		w.changed(json.RawMessage(`{"` + MetaAgain + `":true}`))
	}
}

// meta is what an update says of itself.
func (w *watching) meta(u state.Update) json.RawMessage {
	meta := map[string]json.RawMessage{MetaRevision: quote(u.Revision)}
	patch, err := u.Patch.MarshalJSON()
	if u.Again || err != nil {
		meta[MetaAgain] = json.RawMessage("true")
	} else {
		meta[MetaFrom], meta[MetaPatch] = quote(u.From), patch
	}
	b, _ := json.Marshal(meta) // of texts and of JSON that was written here
	return b
}

// Watches are those that are open. The zero value is ready; safe for
// concurrent use.
type Watches struct {
	mu     sync.Mutex // taken before the tree is locked
	open   int
	by     map[session]map[*watching]struct{}
	seen   map[reading]shownTo // what was read last
	forgot bool                // some readings are not remembered any more
}

// session are the watches that a call of one session brings up to date.
type session struct{ owner, id string }

// reading is one client's reading of one address.
type reading struct {
	client
	uri string
}

// shownTo is what those who go by one name were shown.
type shownTo struct {
	last state.Mark
	// several says that they were shown more than one state, and that there
	// is no session to say by which of them which one was read.
	several bool
}

// mostSeen are how many readings are remembered.
const mostSeen = 16384

// read notes what a client has read. Its watches of the same address are
// brought up to date, so that the next patch leads from what was read.
func (x *Watches) read(who tool.Caller, uri string, read func() state.Mark) {
	by := clientOf(who)
	x.mu.Lock()
	for w := range x.by[session{by.owner, by.session}] {
		if w.uri == uri && w.by == by {
			w.sub.Flush(false)
		}
	}
	x.mu.Unlock()
	now := shownTo{last: read()}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.seen == nil {
		x.seen = make(map[reading]shownTo)
	}
	key := reading{by, uri}
	was, again := x.seen[key]
	for old := range x.seen { // any one
		if again || len(x.seen) < mostSeen {
			break
		}
		delete(x.seen, old)
		x.forgot = true
	}
	now.several = again && by.session == "" && (was.several || was.last != now.last)
	x.seen[key] = now
}

// lastRead is what a client was shown when it last read an address; zero for
// one that has not.
func (x *Watches) lastRead(who tool.Caller, uri string) state.Mark {
	x.mu.Lock()
	defer x.mu.Unlock()
	was, ok := x.seen[reading{clientOf(who), uri}]
	if was.several || !ok && x.forgot {
		return state.Unknown
	}
	return was.last
}

// begin opens a watch, or closes its subscription where none can be opened.
func (x *Watches) begin(w *watching) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if w.of.closed {
		w.sub.Close()
		return tool.Refuse("unsupported", "the module is closing")
	}
	key := session{w.by.owner, w.by.session}
	if x.by == nil {
		x.by = make(map[session]map[*watching]struct{})
	}
	if x.by[key] == nil {
		x.by[key] = make(map[*watching]struct{})
	}
	x.by[key][w] = struct{}{}
	x.open++
	w.sub.OnReady(w.poke)
	return nil
}

// stop closes a watch; safe to call twice.
func (x *Watches) stop(w *watching) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.close(w)
}

// close closes a watch. x.mu is held.
func (x *Watches) close(w *watching) {
	key := session{w.by.owner, w.by.session}
	if _, there := x.by[key][w]; !there {
		return
	}
	w.sub.Close()
	x.open--
	if delete(x.by[key], w); len(x.by[key]) == 0 {
		delete(x.by, key)
	}
}

// end closes the watches of one generation.
func (x *Watches) end(of *shown) {
	x.mu.Lock()
	defer x.mu.Unlock()
	of.closed = true
	for _, all := range x.by {
		for w := range all {
			if w.of == of {
				x.close(w)
			}
		}
	}
}

// Sync brings the watches of a session, or of an owner's clients that have
// none, up to date at once: each is told what has changed, or the revision
// alone.
func (x *Watches) Sync(owner, id string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for w := range x.by[session{owner, id}] {
		w.sub.Flush(true)
	}
}

// Flush passes on what has changed, to all watches. It returns when that has
// been done or ctx is done.
func (x *Watches) Flush(ctx context.Context) {
	x.mu.Lock()
	for _, all := range x.by {
		for w := range all {
			w.sub.Flush(false)
		}
	}
	x.mu.Unlock()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for x.telling() {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// telling reports whether something is being passed on.
func (x *Watches) telling() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, all := range x.by {
		for w := range all {
			if w.pokes.Load() > 0 {
				return true
			}
		}
	}
	return false
}

// Look has what callers see compared with what they were told, because what
// they may see is another now.
func (x *Watches) Look() {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, all := range x.by {
		for w := range all {
			if !w.whole {
				w.sub.Look()
			}
		}
	}
}

// Split takes an owner apart into principal and context.
func Split(owner string) (principal, scope string) {
	return tool.SplitOwner(owner)
}

// Len is how many watches are open.
func (x *Watches) Len() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.open
}
