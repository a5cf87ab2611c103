package public

import (
	"context"
	"encoding/json"
	"strings"
	"sync"

	"gatehouse/internal/state"
	"gatehouse/tool"
)

// watching is one watch: a subscription to the tree, and the goroutine that
// passes on what it tells.
type watching struct {
	of      *shown
	who     tool.Caller
	uri     string
	sub     *state.Sub
	shared  bool // what is told may be told to everybody who has this view
	text    bool // a text is made of it, which is to be read again
	changed func(json.RawMessage)
}

// watch implements module.Watch. One watch serves all who have the same view,
// whoever opened it: where they do not see the same, they are told that
// something is different, and each reads what is theirs.
//
// It begins with what the caller last read, so that nothing between reading
// and subscribing is lost.
func (m *shown) watch(who tool.Caller, uri string, changed func(json.RawMessage)) (stop func(), err error) {
	at, err := pointerOf(uri)
	if err != nil {
		return nil, err
	}
	if _, seen := m.cut(who, at, nil, true); !seen {
		return nil, absent(uri)
	}
	sub, _, err := m.o.Tree.Subscribe(at, m.o.Watches.lastRead(who, uri))
	if err != nil {
		return nil, tool.Refuse("unsupported", "%v", err)
	}
	w := &watching{of: m, who: who, uri: uri, sub: sub, shared: m.shared(who, at), changed: changed}
	if !m.o.Watches.begin(w) {
		sub.Close()
		return nil, tool.Refuse("unsupported", "the module is closing")
	}
	return func() {
		sub.Close()
		m.o.Watches.forget(w)
	}, nil
}

// watchPrompt implements module.Watch for the text that is made of some parts
// of the tree. Its tools are told of as those of any list.
func (m *shown) watchPrompt(who tool.Caller, uri string, changed func(json.RawMessage)) (func(), error) {
	var all []*watching
	stop := func() {
		for _, w := range all {
			w.sub.Close()
			m.o.Watches.forget(w)
		}
	}
	for _, at := range m.o.PromptOf {
		sub, _, err := m.o.Tree.Subscribe(at, "")
		if err != nil {
			stop()
			return nil, tool.Refuse("unsupported", "%v", err)
		}
		w := &watching{of: m, who: who, uri: uri, sub: sub, text: true, changed: changed}
		if !m.o.Watches.begin(w) {
			sub.Close()
			stop()
			return nil, tool.Refuse("unsupported", "the module is closing")
		}
		all = append(all, w)
	}
	return stop, nil
}

// run tells of updates until the subscription is closed.
func (w *watching) run() {
	for {
		u, err := w.sub.Next(context.Background())
		if err != nil {
			return
		}
		switch {
		case !w.text:
			w.changed(w.meta(u))
		case u.Again || len(u.Patch) > 0: // and not merely up to date
			w.changed(json.RawMessage(`{"` + MetaAgain + `":true}`))
		}
	}
}

// meta is what an update says of itself.
func (w *watching) meta(u state.Update) json.RawMessage {
	meta := map[string]json.RawMessage{MetaRevision: quote(u.Revision)}
	patch, err := u.Patch.MarshalJSON()
	if u.Again || err != nil || !w.shared && len(u.Patch) > 0 {
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
	mu   sync.Mutex
	all  map[*watching]struct{}
	seen map[reading]state.Revision // what was read last
}

// reading is one client's reading of one address.
type reading struct{ owner, session, client, uri string }

// mostSeen are how many readings are remembered.
const mostSeen = 4096

func readingOf(who tool.Caller, uri string) reading {
	return reading{who.Owner, who.Session, who.Client, uri}
}

// read notes what a client has read. Who watches the same is brought up to
// date before, so that the next patch leads from what was read: to whoever
// joins such a watch right after reading, too.
func (x *Watches) read(who tool.Caller, uri string, read func() state.Revision) {
	x.mu.Lock()
	defer x.mu.Unlock()
	_, scope := Split(who.Owner)
	for w := range x.all {
		if _, same := Split(w.who.Owner); w.uri == uri && same == scope {
			w.sub.Flush(false)
		}
	}
	if x.seen == nil {
		x.seen = make(map[reading]state.Revision)
	}
	for old := range x.seen { // any one
		if len(x.seen) < mostSeen {
			break
		}
		delete(x.seen, old)
	}
	x.seen[readingOf(who, uri)] = read()
}

// lastRead is the revision at which a client has read an address; "" when that
// is not known.
func (x *Watches) lastRead(who tool.Caller, uri string) state.Revision {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.seen[readingOf(who, uri)]
}

func (x *Watches) begin(w *watching) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if w.of.closed {
		return false
	}
	if x.all == nil {
		x.all = make(map[*watching]struct{})
	}
	x.all[w] = struct{}{}
	w.of.running.Go(w.run)
	return true
}

func (x *Watches) forget(w *watching) {
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.all, w)
}

// end ends the watches of one generation.
func (x *Watches) end(of *shown) {
	x.mu.Lock()
	defer x.mu.Unlock()
	of.closed = true
	for w := range x.all {
		if w.of == of {
			w.sub.Close()
			delete(x.all, w)
		}
	}
}

// Sync brings an owner's watches up to date at once: each is told what has
// changed, or the revision alone. Others of the same context, with whom they
// may share a watch, are told what has changed.
func (x *Watches) Sync(owner string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	_, scope := Split(owner)
	for w := range x.all {
		if w.who.Owner == owner {
			w.sub.Flush(true)
		} else if _, same := Split(w.who.Owner); same == scope {
			w.sub.Flush(false)
		}
	}
}

// Split takes an owner apart into principal and context.
func Split(owner string) (principal, scope string) {
	i := strings.LastIndexByte(owner, '/')
	return owner[:max(i, 0)], owner[i+1:]
}

// Len is how many watches are open.
func (x *Watches) Len() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return len(x.all)
}
