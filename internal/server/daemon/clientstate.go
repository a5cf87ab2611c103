package daemon

import (
	"bytes"
	"context"
	"slices"
	"strconv"
	"sync"
	"time"

	"gatehouse/internal/mcp/rawjson"
)

// clientState is the state of a client's session in the forwarder: messages to send, requests without
// an answer, and the messages that open the session again at a new daemon. It is safe for concurrent
// use.
type clientState struct {
	mu      sync.Mutex
	changed sync.Cond

	queue        []*message          // to be sent, in order
	open         map[string]*message // requests that are sent or queued and not answered, by ID
	sent         uint64              // lines on this connection
	held         bool                // nothing may be sent now
	busy         bool                // a goroutine is sending
	write        func([]byte) (int, error)
	begun        bool // the client has sent a message
	last         bool // the client has closed its input
	clientClosed bool // the client no longer reads

	initialize []byte // the client's initialize request, nil before it was answered
	welcome    []byte // the result of the initialize request
	ready      []byte // notifications/initialized
	level      []byte // logging/setLevel
	subs       []sub

	asksBack bool // the next daemon can report which tools change nothing

	round   int               // the number of daemons before this one
	asks    map[string]string // requests of this daemon to the client, by the ID that the client sees
	swallow map[string]bool   // IDs of requests of the forwarder itself, whose answers the client must not see
}

// sub is a subscription of the session.
type sub struct {
	URI string
	Raw []byte
}

func newClientState() *clientState {
	t := &clientState{open: map[string]*message{}, asks: map[string]string{}, swallow: map[string]bool{}, held: true}
	t.changed.L = &t.mu
	return t
}

// enqueue adds a message of the client to the queue. It waits while the queue is full.
func (t *clientState) enqueue(line []byte) {
	m := parseMessage(line)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.begun = true
	for len(t.queue) >= mostWaiting && !t.clientClosed {
		t.changed.Wait()
	}
	switch {
	case m.method == "notifications/cancelled":
		if t.cancel(line) {
			return
		}
	case m.method == "notifications/initialized":
		t.ready = line
	case m.method == "" && !m.batch && len(m.ids) == 0:
		if !t.reply(m) {
			return
		}
	}
	for _, id := range m.ids {
		t.open[id] = m
	}
	t.queue = append(t.queue, m)
	if len(t.queue) == 1 && !t.held && !t.busy {
		t.sendPending() // the caller sends it, because waking another goroutine costs more than a usual call
		return
	}
	t.changed.Broadcast()
}

// sendPending sends the next message over the present connection. It does not hold the lock while it
// writes.
func (t *clientState) sendPending() error {
	m, write := t.queue[0], t.write
	t.queue = t.queue[1:]
	t.sent++
	m.n, t.busy = t.sent, true
	t.mu.Unlock()
	line := m.encodeLine()
	n, err := write(line)
	t.mu.Lock()
	t.busy = false
	if err != nil {
		t.held = true
		if n < len(line)-1 { // an incomplete line is useless to the peer
			m.n = 0
			t.sent--
			t.queue = append([]*message{m}, t.queue...)
		}
	}
	t.changed.Broadcast()
	return err
}

// cancel records that the client no longer waits for an answer, and reports whether the request had not
// been sent yet.
func (t *clientState) cancel(line []byte) (unsent bool) {
	_, _, params := parts(line)
	if rawjson.Kind(params) != '{' {
		return false
	}
	id, _ := rawjson.Get(params, "requestId")
	m := t.open[string(id)]
	if m == nil {
		return false
	}
	m.cancelled = true
	if m.batch || m.n > 0 {
		return false
	}
	at := slices.Index(t.queue, m)
	if at < 0 {
		return false
	}
	t.queue = slices.Delete(t.queue, at, at+1)
	delete(t.open, string(id))
	return true
}

// reply translates a client's response into one to the daemon that sent the request, and reports
// whether that daemon is still the present one.
func (t *clientState) reply(m *message) bool {
	if rawjson.Kind(m.raw) != '{' || rawjson.Check(m.raw, deepest) != nil {
		return true // the daemon answers it with an error
	}
	id, _, _ := parts(m.raw)
	theirs, asked := t.asks[string(id)]
	if !asked {
		return t.round == 0 // its daemon has ended
	}
	delete(t.asks, string(id))
	if theirs != string(id) {
		m.raw = rawjson.Splice(m.raw, rawjson.Edit{Key: "id", Value: []byte(theirs)})
	}
	return true
}

// over records that the client has closed its input.
func (t *clientState) over() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last = true
	t.changed.Broadcast()
}

// endClient records that the client no longer reads and wakes all waiting goroutines.
func (t *clientState) endClient() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.clientClosed = true
	t.changed.Broadcast()
}

// first waits for the first message of the client, for at most patience.
func (t *clientState) first(ctx context.Context, patience time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	defer context.AfterFunc(ctx, t.wake)()
	t.mu.Lock()
	defer t.mu.Unlock()
	for !t.begun && !t.last && !t.clientClosed && ctx.Err() == nil {
		t.changed.Wait()
	}
}

// done reports whether the client has closed its input and has every answer.
func (t *clientState) done() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.last && !t.wants()
}

// waiting reports whether a daemon is needed.
func (t *clientState) waiting() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.wants()
}

// wants reports whether m needs a daemon to be started. A subscription does not; it waits for one.
func (t *clientState) wants() bool {
	return slices.ContainsFunc(t.queue, func(m *message) bool { return m.method != listen || !m.again }) ||
		slices.ContainsFunc(t.unanswered(), func(m *message) bool { return m.method != listen })
}

// unanswered returns the messages that wait for an answer, in no order.
func (t *clientState) unanswered() (all []*message) {
	for _, m := range t.open {
		if !slices.Contains(all, m) {
			all = append(all, m)
		}
	}
	return all
}

// flow sends messages over a new connection with write.
func (t *clientState) flow(write func([]byte) (int, error)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.held, t.write = false, write
	t.changed.Broadcast()
}

// hold stops sending.
func (t *clientState) hold() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.held = true
	t.changed.Broadcast()
}

// wake wakes every goroutine that waits on cond.
func (t *clientState) wake() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.changed.Broadcast()
}

// pump sends queued messages until ctx is done, sending fails, or the client has closed its input and
// all messages were sent: then it returns true. The caller must call wake when ctx is done.
func (t *clientState) pump(ctx context.Context) (all bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for {
		switch {
		case ctx.Err() != nil || t.clientClosed:
			return false
		case t.held || t.busy:
		case len(t.queue) > 0:
			if t.sendPending() != nil {
				return false
			}
			continue
		case t.last:
			return true
		}
		t.changed.Wait()
	}
}

// heard processes a message of the daemon and returns the message for the client; nil for none.
func (t *clientState) heard(line []byte) []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch rawjson.Kind(line) {
	case '[':
		for el := range rawjson.Elements(line) {
			if rawjson.Kind(el) == '{' {
				t.one(el)
			}
		}
		return line
	case '{':
		return t.one(line)
	}
	return line
}

func (t *clientState) one(line []byte) []byte {
	id, method, params := parts(line)
	switch {
	case method == "" && id != nil:
		return t.answerLocally(line, string(id))
	case method != "" && id != nil:
		return t.trackServerRequest(line, id)
	case method == "notifications/cancelled" && t.round > 0:
		return t.withdraw(line, params)
	case method == "notifications/subscriptions/acknowledged":
		return t.acknowledged(line, params)
	}
	return line
}

// answerLocally processes a response.
func (t *clientState) answerLocally(line []byte, id string) []byte {
	if t.swallow[id] {
		delete(t.swallow, id)
		return nil
	}
	m := t.open[id]
	if m == nil {
		return line
	}
	if m.method == listen && t.held && !m.cancelled {
		return nil // the subscription ends with the daemon, and continues with the next
	}
	delete(t.open, id)
	if m.answered(id); m.batch {
		return line
	}
	if result, ok := rawjson.Get(line, "result"); ok {
		t.recordResult(m, result)
	}
	return line
}

// recordResult keeps the messages that a new daemon must receive.
func (t *clientState) recordResult(m *message, result []byte) {
	switch m.method {
	case "initialize":
		t.initialize, t.welcome = m.raw, bytes.Clone(result)
	case "logging/setLevel":
		if !m.modern {
			t.level = m.raw
		}
	case "resources/subscribe", "resources/unsubscribe":
		t.subs = slices.DeleteFunc(t.subs, func(s sub) bool { return s.URI == m.uri })
		if m.method == "resources/subscribe" {
			t.subs = append(t.subs, sub{m.uri, m.raw})
		}
	}
}

// trackServerRequest records a request of the daemon and returns it with an ID for the client. All
// daemons use the same IDs, so requests of later ones get IDs of their own.
func (t *clientState) trackServerRequest(line, id []byte) []byte {
	ours := string(id)
	if t.round > 0 {
		text, ok := rawjson.String(id)
		if !ok {
			text = string(id)
		}
		ours = string(rawjson.AppendString(nil, "r"+strconv.Itoa(t.round)+"-"+text))
		line = rawjson.Splice(line, rawjson.Edit{Key: "id", Value: []byte(ours)})
	}
	t.asks[ours] = string(id)
	return line
}

// withdraw translates a daemon's cancellation of a request to the ID that the client knows.
func (t *clientState) withdraw(line, params []byte) []byte {
	if rawjson.Kind(params) != '{' {
		return line
	}
	id, _ := rawjson.Get(params, "requestId")
	for ours, theirs := range t.asks {
		if theirs == string(id) {
			params = rawjson.Splice(params, rawjson.Edit{Key: "requestId", Value: []byte(ours)})
			return rawjson.Splice(line, rawjson.Edit{Key: "params", Value: params})
		}
	}
	return line
}

// acknowledged passes only the first acknowledgement of a subscription to the client.
func (t *clientState) acknowledged(line, params []byte) []byte {
	if rawjson.Kind(params) != '{' {
		return line
	}
	meta, _ := rawjson.Get(params, "_meta")
	if rawjson.Kind(meta) != '{' {
		return line
	}
	id, _ := rawjson.Get(meta, "io.modelcontextprotocol/subscriptionId")
	if m := t.open[string(id)]; m != nil && m.again {
		m.again = false
		return nil
	}
	return line
}

// connectionEnded processes the messages that were sent over a connection that has ended: messages that
// were not received, or can be served twice, are sent again; the rest is answered. After a crash, calls
// of tools that may change nothing wait for decide. It returns messages for the client.
func (t *clientState) connectionEnded(end ending) (say [][]byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.held = true
	for t.busy { // the connection is closed, so this does not take long
		t.changed.Wait()
	}
	var again []*message
	sent := slices.DeleteFunc(t.unanswered(), func(m *message) bool { return m.n == 0 || m.doubt })
	slices.SortFunc(sent, func(a, b *message) int { return int(int64(a.n) - int64(b.n)) })
	for _, m := range sent {
		switch untaken := end.known && m.n > end.lines; {
		case m.cancelled:
			t.removeMessage(m)
		case untaken, len(m.calls) == 0:
			m.n, m.again = 0, !untaken
			again = append(again, m)
		case !end.known && !end.announced && t.asksBack && m.tool() != "":
			m.n, m.doubt = 0, true
		default:
			say = append(say, m.interrupted())
			t.removeMessage(m)
		}
	}
	t.queue = append(again, t.queue...)
	for ours := range t.asks {
		say = append(
			say,
			[]byte(
				`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":`+ours+
					`,"reason":"the host that asked has ended"}}`,
			),
		)
	}
	clear(t.asks)
	clear(t.swallow)
	t.round++
	t.sent = 0
	return say
}

// doubtful returns the calls that wait for decide.
func (t *clientState) doubtful() (all []*message) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, m := range t.unanswered() {
		if m.doubt {
			all = append(all, m)
		}
	}
	return all
}

// decide sends the doubtful calls of tools that change nothing again, and returns the answers to the
// others.
func (t *clientState) decide(calls []*message, reads map[string]bool) (say [][]byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var again []*message
	for _, m := range calls {
		m.doubt = false
		switch {
		case m.cancelled:
			t.removeMessage(m)
		case reads[m.tool()]:
			m.again = true
			again = append(again, m)
		default:
			say = append(say, m.interrupted())
			t.removeMessage(m)
		}
	}
	t.queue = append(again, t.queue...)
	return say
}

func (t *clientState) removeMessage(m *message) {
	for _, id := range m.ids {
		delete(t.open, id)
	}
}

// refuseClient returns error responses to all waiting requests.
func (t *clientState) refuseClient(why string) (say [][]byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, m := range t.unanswered() {
		line := m.refused(why)
		if m.doubt {
			line = m.interrupted()
		}
		if line != nil && !m.cancelled {
			say = append(say, line)
		}
		t.removeMessage(m)
	}
	t.queue = nil
	return say
}

// session returns the messages that open the client's session at a new daemon: first alone, and then
// the others, whose answers are swallowed. id is the ID of first; nil if there is no session.
func (t *clientState) session() (id, first []byte, others [][]byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.initialize == nil {
		return nil, nil, nil
	}
	id, _, _ = parts(t.initialize)
	others = [][]byte{}
	if t.ready != nil && !t.queued(t.ready) {
		others = append(others, t.ready)
	}
	for _, line := range append([][]byte{t.level}, raws(t.subs)...) {
		if line == nil {
			continue
		}
		id, _, _ := parts(line)
		t.swallow[string(id)] = true
		others = append(others, line)
	}
	t.sent = 1 + uint64(len(others))
	return id, t.initialize, others
}

func (t *clientState) queued(line []byte) bool {
	return slices.ContainsFunc(t.queue, func(m *message) bool { return &m.raw[0] == &line[0] })
}

func raws(subs []sub) (all [][]byte) {
	for _, s := range subs {
		all = append(all, s.Raw)
	}
	return all
}

// sameSession reports whether the session can continue after a new daemon's result of initialize, and
// returns notifications for the client about lists that may have changed.
func (t *clientState) sameSession(welcome []byte) (changes [][]byte, same bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	was, _ := rawjson.Get(t.welcome, "protocolVersion")
	now, _ := rawjson.Get(welcome, "protocolVersion")
	if !bytes.Equal(was, now) {
		return nil, false
	}
	can, _ := rawjson.Get(t.welcome, "capabilities")
	if t.ready == nil || rawjson.Kind(can) != '{' {
		return nil, true
	}
	for _, list := range []string{"tools", "prompts", "resources"} {
		one, _ := rawjson.Get(can, list)
		if rawjson.Kind(one) != '{' {
			continue
		}
		if listChanged, _ := rawjson.Get(one, "listChanged"); string(listChanged) == "true" {
			changes = append(changes, []byte(`{"jsonrpc":"2.0","method":"notifications/`+list+`/list_changed"}`))
		}
	}
	return changes, true
}

// kept is the state of a conversation that one process hands to the next. Its fields are a format that
// other versions read.
type kept struct {
	Initialize string `json:"Hello"` // all of these are JSON; "" if there is none
	Welcome    string
	Ready      string
	Level      string
	Subs       []sub
	Round      int
	Queue      []string
	Again      []string // IDs of messages that were sent before
	Lost       []string // IDs of calls that may have run
	Last       bool
	Rest       []byte // of the input: an incomplete line
}

func (t *clientState) snapshot(rest []byte) kept {
	t.mu.Lock()
	defer t.mu.Unlock()
	k := kept{
		Initialize: string(t.initialize), Welcome: string(t.welcome), Ready: string(t.ready), Level: string(t.level),
		Subs: t.subs, Round: t.round, Last: t.last, Rest: rest,
	}
	for _, m := range t.unanswered() {
		if m.doubt { // the next process cannot decide it
			k.Lost = append(k.Lost, string(m.raw))
		}
	}
	for _, m := range t.queue {
		k.Queue = append(k.Queue, string(m.raw))
		if m.again {
			k.Again = append(k.Again, m.ids...)
		}
	}
	return k
}

// restore continues with the state that another process has handed over.
func (t *clientState) restore(k kept) {
	t.subs, t.round, t.last, t.begun = k.Subs, k.Round, k.Last, true
	for into, text := range map[*[]byte]string{&t.initialize: k.Initialize, &t.welcome: k.Welcome, &t.ready: k.Ready,
		&t.level: k.Level} {
		if text != "" {
			*into = []byte(text)
		}
	}
	for _, raw := range k.Lost {
		m := parseMessage([]byte(raw))
		m.doubt = true
		for _, id := range m.ids {
			t.open[id] = m
		}
	}
	for _, raw := range k.Queue {
		m := parseMessage([]byte(raw))
		m.again = slices.ContainsFunc(m.ids, func(id string) bool { return slices.Contains(k.Again, id) })
		for _, id := range m.ids {
			t.open[id] = m
		}
		t.queue = append(t.queue, m)
		if m.method == "notifications/initialized" {
			t.ready = m.raw
		}
	}
}
