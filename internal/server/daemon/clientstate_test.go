package daemon

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"gatehouse/internal/mcp/rawjson"
)

// send passes lines of the client and sends all of them.
func send(t *testing.T, k *clientState, lines ...string) {
	t.Helper()
	for _, l := range lines {
		k.enqueue([]byte(l))
	}
	drain(k)
}

// drain returns what is sent over a new connection.
func drain(k *clientState) (lines []string) {
	k.flow(func(b []byte) (int, error) {
		lines = append(lines, strings.TrimSuffix(string(b), "\n"))
		return len(b), nil
	})
	for k.mu.Lock(); len(k.queue) > 0; {
		k.sendPending()
	}
	k.mu.Unlock()
	return lines
}

func texts(lines [][]byte) (all []string) {
	for _, l := range lines {
		all = append(all, string(l))
	}
	return all
}

const (
	hello1   = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}`
	welcome1 = `{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-06-18","capabilities":{"tools":{"listChanged":true},"prompts":{},"resources":{"listChanged":true}}}}`
	ready1   = `{"jsonrpc":"2.0","method":"notifications/initialized"}`
)

func call(id string) string {
	return `{"jsonrpc":"2.0","id":` + id + `,"method":"tools/call","params":{"name":"x"}}`
}

// Messages that the daemon had not received go to the next one, in order; of those that it had
// received, only those that change nothing.
func TestOnlyWhatWasNotTakenIsSentAgain(t *testing.T) {
	list := `{"jsonrpc":"2.0","id":"l","method":"tools/list"}`
	for _, c := range []struct {
		what        string
		end         ending
		again       []string
		interrupted []string // IDs
	}{
		{"everything was taken", ending{known: true, lines: 4}, []string{list}, []string{"2", "3", `"four"`}},
		{"the last was not", ending{known: true, lines: 3}, []string{list, call(`"four"`)}, []string{"2", "3"}},
		{"nothing was", ending{known: true, lines: 0}, []string{call("2"), list, call("3"), call(`"four"`)}, nil},
		{"unknown", ending{}, []string{list}, []string{"2", "3", `"four"`}},
	} {
		k := newClientState()
		send(t, k, call("2"), list, call("3"), call(`"four"`))
		k.hold()
		k.enqueue([]byte(call("5"))) // arrived later, was never sent
		var ids []string
		for _, line := range k.connectionEnded(c.end) {
			id, _ := rawjson.Get(line, "id")
			ids = append(ids, string(id))
			if !strings.Contains(string(line), `"isError":true`) || !strings.Contains(string(line), "it may have run") {
				t.Errorf("%s: the client receives %s", c.what, line)
			}
		}
		if !slices.Equal(ids, c.interrupted) {
			t.Errorf("%s: interrupted are %v, want %v", c.what, ids, c.interrupted)
		}
		if got, want := drain(k), append(c.again, call("5")); !slices.Equal(got, want) {
			t.Errorf("%s: sent again are %v, want %v", c.what, got, want)
		}
	}
}

// A request with an answer is finished.
func TestAnsweredRequestsAreNotSentAgain(t *testing.T) {
	k := newClientState()
	send(t, k, call("2"), call("3"))
	answer := `{"jsonrpc":"2.0","id":2,"result":{}}`
	if got := k.heard([]byte(answer)); string(got) != answer {
		t.Errorf("the client sees %s", got)
	}
	if k.done() {
		t.Error("one answer is still owed")
	}
	k.heard([]byte(`{"jsonrpc":"2.0","id":3,"error":{"code":-1,"message":"no"}}`))
	k.over()
	if say := k.connectionEnded(ending{}); len(say) > 0 || !k.done() {
		t.Errorf("the client receives %s", say)
	}
}

func TestCancelledRequestsAreOverWithTheDaemon(t *testing.T) {
	k := newClientState()
	send(t, k, call("2"))
	k.hold()
	k.enqueue([]byte(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2}}`))
	if got := drain(k); len(got) != 1 {
		t.Errorf("the daemon receives %v", got)
	}
	if say := k.connectionEnded(ending{}); len(say) > 0 {
		t.Errorf("the client receives %s", say)
	}
	// A request that was never sent needs no cancellation.
	k.enqueue([]byte(call("3")))
	k.enqueue([]byte(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":3}}`))
	if got := drain(k); len(got) > 0 {
		t.Errorf("the next daemon receives %v", got)
	}
}

// The session is opened at a new daemon with the lines that the client opened it with; the client only
// sees notifications that lists may have changed.
func TestSessionIsOpenedAgainUnseen(t *testing.T) {
	k := newClientState()
	sub := func(id, uri string) string {
		return `{"jsonrpc":"2.0","id":` + id + `,"method":"resources/subscribe","params":{"uri":"` + uri + `"}}`
	}
	level := `{"jsonrpc":"2.0","id":4,"method":"logging/setLevel","params":{"level":"debug"}}`
	lines := []string{
		hello1,
		ready1,
		level,
		sub("5", "a:1"),
		sub("6", "a:2"),
		strings.Replace(sub("7", "a:1"), "subscribe", "unsubscribe", 1),
		sub("8", "a:3"),
	}
	send(t, k, lines...)
	k.heard([]byte(welcome1))
	for _, id := range []string{"4", "5", "6", "7"} {
		k.heard([]byte(`{"jsonrpc":"2.0","id":` + id + `,"result":{}}`))
	}
	k.heard([]byte(`{"jsonrpc":"2.0","id":8,"error":{"code":-32602,"message":"no such thing"}}`))
	k.connectionEnded(ending{known: true, lines: 7})
	id, first, others := k.session()
	if string(id) != "1" || string(first) != hello1 || !slices.Equal(texts(others), []string{ready1, level, lines[4]}) {
		t.Errorf("the new daemon receives %s, %s", first, others)
	}
	result, _ := rawjson.Get([]byte(welcome1), "result")
	changes, same := k.sameSession(result)
	if !same || len(changes) != 2 || !strings.Contains(string(changes[0]), "tools/list_changed") ||
		!strings.Contains(string(changes[1]), "resources/list_changed") {
		t.Errorf("the client receives %s, %v", changes, same)
	}
	for _, id := range []string{"4", "6"} {
		if got := k.heard([]byte(`{"jsonrpc":"2.0","id":` + id + `,"result":{}}`)); got != nil {
			t.Errorf("the client sees %s, which it did not ask for", got)
		}
	}
	if _, same := k.sameSession([]byte(`{"protocolVersion":"2025-11-25"}`)); same {
		t.Error("another revision was taken for the same session")
	}
}

// All daemons use the same request IDs. An answer to a daemon that has ended does not become the answer
// to another.
func TestRequestsOfTwoDaemonsAreNotMixed(t *testing.T) {
	k := newClientState()
	ask := `{"jsonrpc":"2.0","id":"gh-1","method":"roots/list"}`
	reply := func(id string) string { return `{"jsonrpc":"2.0","id":` + id + `,"result":{"roots":[]}}` }
	if got := k.heard([]byte(ask)); string(got) != ask {
		t.Errorf("the client is asked %s", got)
	}
	cancelled := texts(k.connectionEnded(ending{}))
	if len(cancelled) != 1 || !strings.Contains(cancelled[0], `"requestId":"gh-1"`) ||
		!strings.Contains(cancelled[0], "notifications/cancelled") {
		t.Errorf("the client receives %v", cancelled)
	}
	got := k.heard([]byte(ask))
	if want := strings.Replace(ask, "gh-1", "r1-gh-1", 1); string(got) != want {
		t.Errorf("the client is asked %s, want %s", got, want)
	}
	withdrawn := k.heard([]byte(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"gh-1"}}`))
	if !strings.Contains(string(withdrawn), `"requestId":"r1-gh-1"`) {
		t.Errorf("the client receives %s", withdrawn)
	}
	k.enqueue([]byte(reply(`"gh-1"`)))    // for the first
	k.enqueue([]byte(reply(`"r1-gh-1"`))) // for the second
	k.enqueue([]byte(reply(`"r1-gh-1"`))) // twice
	if got := drain(k); !slices.Equal(got, []string{reply(`"gh-1"`)}) {
		t.Errorf("the second daemon receives %v", got)
	}
}

// A subscription without a session ends with the daemon and continues with the next, and the client
// notices neither.
func TestListeningGoesOn(t *testing.T) {
	k := newClientState()
	listening := `{"jsonrpc":"2.0","id":"s","method":"subscriptions/listen","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}}`
	ack := `{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":"s"}}}`
	send(t, k, listening)
	if got := k.heard([]byte(ack)); got == nil {
		t.Error("the first acknowledgement is not seen")
	}
	k.hold() // the daemon announces that it is stopping
	if got := k.heard([]byte(`{"jsonrpc":"2.0","id":"s","result":{}}`)); got != nil {
		t.Errorf("the client sees %s", got)
	}
	if say := k.connectionEnded(ending{known: true, lines: 1}); len(say) > 0 || k.waiting() {
		t.Errorf("the client receives %s, and a daemon is started: %v", say, k.waiting())
	}
	if got := drain(k); !slices.Equal(got, []string{listening}) {
		t.Errorf("the next daemon receives %v", got)
	}
	if got := k.heard([]byte(ack)); got != nil {
		t.Errorf("the client sees %s a second time", got)
	}
	if got := k.heard([]byte(`{"jsonrpc":"2.0","id":"s","result":{}}`)); got == nil {
		t.Error("its real end is not seen")
	}
}

func TestBatchIsAnsweredWhole(t *testing.T) {
	k := newClientState()
	send(t, k, `[`+call("1")+`,{"jsonrpc":"2.0","id":2,"method":"ping"},{"jsonrpc":"2.0","method":"notifications/x"}]`)
	say := k.connectionEnded(ending{})
	var all []struct {
		ID    int
		Error struct{ Message string }
	}
	if len(say) != 1 || json.Unmarshal(say[0], &all) != nil || len(all) != 2 || all[0].ID != 1 || all[1].ID != 2 ||
		!strings.Contains(all[0].Error.Message, "may have run") {
		t.Errorf("the client receives %s", say)
	}
	if k.waiting() {
		t.Error("something still waits")
	}
}

// The context of the command line applies to every message that opens a session or has none, whatever
// the client sends.
func TestContextIsAddedWhereItCounts(t *testing.T) {
	for in, want := range map[string]string{
		hello1: `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"_meta":{"gatehouse/context":"a\"b"}}}`,
		`{"id":2,"method":"x","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","gatehouse/context":"mine"},"a":1}}`: `{"id":2,"method":"x","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","gatehouse/context":"a\"b"},"a":1}}`,
		call("3"):      call("3"),
		ready1:         ready1,
		"no message":   "no message",
		`{"result":1}`: `{"result":1}`,
	} {
		if got := string(inContext([]byte(in), `a"b`)); got != want {
			t.Errorf("%s\nbecomes %s\nwant    %s", in, got, want)
		}
	}
	if got := string(inContext([]byte(hello1), "")); got != hello1 {
		t.Errorf("without a context: %s", got)
	}
}

// The state that one process hands over is continued by the next.
func TestConversationGoesToAnotherProcess(t *testing.T) {
	k := newClientState()
	send(t, k, hello1, ready1, call("2"), `{"jsonrpc":"2.0","id":"<&>","method":"tools/list"}`)
	k.heard([]byte(welcome1))
	k.connectionEnded(ending{known: true, lines: 2})
	k.enqueue([]byte("no message <"))
	state, err := json.Marshal(k.snapshot([]byte("half a l\xff")))
	if err != nil {
		t.Fatal(err)
	}
	var there kept
	if err := json.Unmarshal(state, &there); err != nil {
		t.Fatal(err)
	}
	if string(there.Rest) != "half a l\xff" {
		t.Errorf("the rest is %q", there.Rest)
	}
	n := newClientState()
	n.restore(there)
	_, first, others := n.session()
	_, first2, others2 := k.session()
	if string(first) != string(first2) || !slices.Equal(texts(others), texts(others2)) || n.round != k.round {
		t.Errorf("the session becomes %s %s, want %s %s", first, others, first2, others2)
	}
	if got, want := drain(n), drain(k); !slices.Equal(got, want) || len(got) != 3 {
		t.Errorf("what waits becomes %v, want %v", got, want)
	}
	if len(n.open) != 2 {
		t.Errorf("%d answers are owed, want 2", len(n.open))
	}
}

// Whatever both sides send, every request is answered exactly once, by a daemon or by the forwarder.
func FuzzTalk(f *testing.F) {
	f.Add([]byte(hello1+"\n"+ready1+"\n"+call("2")), []byte(welcome1), uint64(2), true)
	f.Add([]byte("["+call("1")+"]\n{\n"), []byte("[{\"id\":1,\"result\":{}}]"), uint64(0), false)
	f.Fuzz(func(t *testing.T, client, daemon []byte, received uint64, known bool) {
		k := newClientState()
		for line := range strings.SplitSeq(string(client), "\n") {
			if line != "" && len(k.queue) < mostWaiting {
				k.enqueue([]byte(line))
			}
		}
		drain(k)
		for line := range strings.SplitSeq(string(daemon), "\n") {
			if rawjson.Check([]byte(line), deepest) == nil {
				k.heard([]byte(line))
			}
		}
		owed := len(k.open)
		for _, line := range k.connectionEnded(ending{known: known, lines: received}) {
			if err := rawjson.Check(line, deepest); err != nil {
				t.Fatalf("the client receives %s: %v", line, err)
			}
		}
		if len(k.open) > owed {
			t.Fatalf("%d answers were owed, %d now", owed, len(k.open))
		}
		state, err := json.Marshal(k.snapshot(nil))
		if err != nil {
			t.Fatal(err)
		}
		var there kept
		if err := json.Unmarshal(state, &there); err != nil {
			t.Fatal(err)
		}
		newClientState().restore(there)
		for _, line := range k.refuseClient("no") {
			if err := rawjson.Check(line, deepest); err != nil {
				t.Fatalf("the client receives %s: %v", line, err)
			}
		}
		if len(k.open) > 0 {
			t.Fatal(fmt.Sprint(len(k.open), " answers are owed for ever"))
		}
	})
}
