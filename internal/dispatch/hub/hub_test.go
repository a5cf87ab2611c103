package hub

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"gatehouse/internal/access/limit"
	"gatehouse/tool"
)

const patience = 45 * time.Second // of a test that would otherwise wait forever

// testHub is a hub behind a server; the path names the caller.
type testHub struct {
	t    testing.TB
	hub  *Hub
	url  string
	done chan struct{} // closed when Run has returned
	stop func()
}

func open(t testing.TB, o Options) *testHub {
	t.Helper()
	h := &testHub{t: t, hub: New(o), done: make(chan struct{})}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.hub.Serve(w, r, callerOf(r))
	}))
	h.url = "ws" + strings.TrimPrefix(server.URL, "http")
	ctx, cancel := context.WithCancel(context.Background())
	h.stop = func() { cancel(); <-h.done }
	go func() { defer close(h.done); h.hub.Run(ctx) }()
	t.Cleanup(func() { h.stop(); server.Close() })
	return h
}

func callerOf(r *http.Request) Caller {
	name := strings.Trim(r.URL.Path, "/")
	c := Caller{Caller: tool.Caller{Principal: name, Owner: name + "/default"}}
	if in := r.Header.Get("Until"); in != "" {
		d, _ := time.ParseDuration(in)
		c.Until = time.Now().Add(d)
	}
	return c
}

// ear is a client.
type ear struct {
	t    testing.TB
	conn *websocket.Conn
}

func (h *testHub) as(name string) *ear {
	h.t.Helper()
	e, err := h.dial(name)
	if err != nil {
		h.t.Fatal(err)
	}
	return e
}

func (h *testHub) dial(name string) (*ear, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, _, err := websocket.Dial(ctx, h.url+"/"+name, nil)
	if err != nil {
		return nil, err
	}
	conn.SetReadLimit(-1)
	h.t.Cleanup(func() { conn.CloseNow() })
	return &ear{h.t, conn}, nil
}

func (e *ear) say(text string) {
	e.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := e.conn.Write(ctx, websocket.MessageText, []byte(text)); err != nil {
		e.t.Fatal(err)
	}
}

func (e *ear) hear() Message {
	e.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var m Message
	_, b, err := e.conn.Read(ctx)
	if err == nil {
		err = json.Unmarshal(b, &m)
	}
	if err != nil {
		e.t.Fatal(err)
	}
	if m.Timestamp.IsZero() {
		e.t.Errorf("%s has no timestamp", b)
	}
	return m
}

// ends reads until the connection ends, and returns its close error.
func (e *ear) ends() websocket.CloseError {
	e.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for {
		if _, _, err := e.conn.Read(ctx); err != nil {
			return closing(e.t, err)
		}
	}
}

func closing(t testing.TB, err error) (c websocket.CloseError) {
	t.Helper()
	for e := err; e != nil; {
		if c, ok := e.(websocket.CloseError); ok {
			return c
		}
		u, ok := e.(interface{ Unwrap() error })
		if !ok {
			break
		}
		e = u.Unwrap()
	}
	t.Fatalf("the connection ended without a close code: %v", err)
	return c
}

// joins subscribes and waits for the confirmation.
func (e *ear) joins(channel string) *ear {
	e.t.Helper()
	e.say(fmt.Sprintf(`{"type":"subscribe","data":%q}`, channel))
	if m := e.hear(); m.Type != "subscribe" || m.Channel != channel {
		e.t.Fatalf("got %+v, want to have joined %s", m, channel)
	}
	return e
}

// refused sends a message and expects an error with this code.
func (e *ear) refused(text, code string) string {
	e.t.Helper()
	e.say(text)
	m := e.hear()
	var p struct{ Code, Message string }
	if json.Unmarshal(m.Data, &p); m.Type != "error" || p.Code != code || p.Message == "" {
		e.t.Fatalf("%s: got %s %s, want the error %s", text, m.Type, m.Data, code)
	}
	return p.Message
}

// quiet checks that no message arrived before the answer to a ping.
func (e *ear) quiet() {
	e.t.Helper()
	e.say(`{"type":"ping"}`)
	if m := e.hear(); m.Type != "pong" {
		e.t.Errorf("heard %s on %s: %s", m.Type, m.Channel, m.Data)
	}
}

func said(text string) Message {
	return Message{Type: "event", Data: json.RawMessage(fmt.Sprintf("%q", text))}
}

// text returns the data of a message as a string.
func (m Message) text() (s string) { json.Unmarshal(m.Data, &s); return s }

func TestWhatIsSaidOnAChannelIsHeardThere(t *testing.T) {
	h := open(t, Options{})
	one, two := h.as("ann").joins("chat:1"), h.as("ann").joins("chat:2")
	if n, err := h.hub.Send("ann/default", "chat:1", said("hello")); n != 1 || err != nil {
		t.Errorf("got %d, %v; want one listener", n, err)
	}
	if m := one.hear(); m.Type != "event" || m.Channel != "chat:1" || m.text() != "hello" {
		t.Errorf("got %+v", m)
	}
	two.quiet()
	two.joins("chat:1").joins("chat:1") // joining twice is joining once
	h.hub.Send("ann/default", "chat:1", said("again"))
	one.hear()
	if m := two.hear(); m.text() != "again" {
		t.Errorf("got %+v", m)
	}
	two.quiet()
	two.say(`{"type":"unsubscribe","channel":"chat:1"}`)
	if m := two.hear(); m.Type != "unsubscribe" || m.Channel != "chat:1" {
		t.Errorf("got %+v", m)
	}
	h.hub.Send("ann/default", "chat:1", said("last"))
	one.hear()
	two.quiet()
	if n, err := h.hub.Send("ann/default", "chat:9", said("nobody")); n != 0 || err != nil {
		t.Errorf("got %d, %v; want no listener", n, err)
	}
}

// A channel with a feed sends its state to clients that subscribe late, and an unsubscribe message when it is
// closed.
func TestAFedChannelTellsHowThingsAre(t *testing.T) {
	h := open(t, Options{})
	f := h.hub.Open("ann/default", "process:p1")
	f.State(said("running"))
	early := h.as("ann").joins("process:p1")
	if m := early.hear(); m.text() != "running" {
		t.Errorf("got %+v", m)
	}
	if !f.HasListeners() {
		t.Error("a client listens, but the feed does not report it")
	}
	f.Send(said("line"))
	f.State(said("over"))
	for _, want := range []string{"line", "over"} {
		if m := early.hear(); m.text() != want {
			t.Errorf("got %q, want %q", m.text(), want)
		}
	}
	late := h.as("ann").joins("process:p1")
	if m := late.hear(); m.text() != "over" {
		t.Errorf("got %+v", m)
	}
	f.Close()
	f.Close()
	f.Send(said("after the end"))
	if m := late.hear(); m.Type != "unsubscribe" || m.Channel != "process:p1" {
		t.Errorf("got %+v", m)
	}
	late.quiet()
	late.refused(`{"type":"subscribe","data":"process:p1"}`, "not_found")
	if len(h.hub.channels) != 0 {
		t.Errorf("%d channels are left", len(h.hub.channels))
	}
}

// A channel of another owner is answered as if it did not exist, and messages to one owner do not reach another.
//
//redteam:attack WebSockets come in by the same checks: a channel of another principal is named
func TestOwnersDoNotHearEachOther(t *testing.T) {
	h := open(t, Options{})
	h.hub.Open("ann/default", "process:p1")
	bob := h.as("bob")
	foreign := bob.refused(`{"type":"subscribe","data":"process:p1"}`, "not_found")
	absent := bob.refused(`{"type":"subscribe","data":"process:p2"}`, "not_found")
	if strings.ReplaceAll(foreign, "p1", "p2") != absent {
		t.Errorf("what is not his is told from what is not there: %q, %q", foreign, absent)
	}
	bob.joins("chat:1").joins("event:*")
	for _, c := range []string{"chat:1", "event:*"} {
		if n, _ := h.hub.Send("ann/default", c, said("secret")); n != 0 {
			t.Errorf("%s: %d of another owner heard it", c, n)
		}
	}
	bob.quiet()
}

func TestWhatIsRefused(t *testing.T) {
	h := open(t, Options{Channels: 2, May: func(_ context.Context, c tool.Caller, kind string) error {
		if kind == IDE {
			return tool.Refuse("denied", "%s may not", c.Principal)
		}
		return nil
	}})
	e := h.as("ann").joins("chat:1").joins("chat:2")
	for text, code := range map[string]string{
		`{"type":"subscribe","data":"chat:3"}`:                                "too_many",
		`{"type":"subscribe","data":"ide:x"}`:                                 "denied",
		`{"type":"subscribe","data":"chat:"}`:                                 "invalid_arguments",
		`{"type":"subscribe","data":"attic:1"}`:                               "invalid_arguments",
		`{"type":"subscribe","data":"chat:a b"}`:                              "invalid_arguments",
		`{"type":"subscribe","data":"chat:` + strings.Repeat("x", 300) + `"}`: "invalid_arguments",
		`{"type":"subscribe"}`:                                                "invalid_arguments",
		`{"type":"event","channel":"chat:1","data":"from a client"}`:          "unsupported",
		`{"type":"process_output","channel":"process:p1","data":"forged"}`:    "unsupported",
		`[]`:    "invalid_arguments",
		`hello`: "invalid_arguments",
		"{\"type\":\"ping\"}\n{\"type\":\"ping\"}": "invalid_arguments",
		`{"type":7}`: "invalid_arguments",
	} {
		e.refused(text, code)
	}
	e.quiet()
}

func TestAMessageThatIsTooLongEndsItsClient(t *testing.T) {
	h := open(t, Options{Message: 1000})
	e := h.as("ann")
	e.say(`{"type":"ping","data":"` + strings.Repeat("x", 900) + `"}`)
	if m := e.hear(); m.Type != "pong" {
		t.Errorf("got %+v", m)
	}
	e.say(`{"type":"ping","data":"` + strings.Repeat("x", 100_000) + `"}`)
	if c := e.ends(); c.Code != websocket.StatusMessageTooBig || c.Reason != "a message has at most 1000 bytes" {
		t.Errorf("got %v", c)
	}
}

func TestBytesThatAreNoTextEndTheirClient(t *testing.T) {
	h := open(t, Options{})
	e := h.as("ann")
	if err := e.conn.Write(t.Context(), websocket.MessageBinary, []byte{1}); err != nil {
		t.Fatal(err)
	}
	if c := e.ends(); c.Code != websocket.StatusUnsupportedData {
		t.Errorf("got %v", c)
	}
}

func TestThereIsRoomForSoMany(t *testing.T) {
	shares := limit.NewShares(limit.Resource{Name: "clients", Total: 4})
	h := open(t, Options{Clients: 3, Claim: func(c tool.Caller) (func(), error) {
		held, err := shares.Acquire(&c, 1)
		return held.Release, err
	}})
	first := h.as("ann")
	h.as("ann").quiet()
	first.quiet() // both are connected
	if _, err := h.dial("ann"); err == nil || !strings.Contains(err.Error(), "503") {
		t.Errorf("a third client of one owner: %v", err)
	}
	h.as("bob")
	if _, err := h.dial("cid"); err == nil || !strings.Contains(err.Error(), "503") {
		t.Errorf("a fourth client: %v", err)
	}
	if n := len(h.hub.Clients("ann/default")); n != 2 {
		t.Errorf("%d clients of ann's, want 2", n)
	}
	first.conn.Close(websocket.StatusNormalClosure, "")
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		if _, err := h.dial("ann"); err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the place of a client that has gone is not free again")
		}
	}
}

func TestClientsAreTold(t *testing.T) {
	h := open(t, Options{})
	ann, bob := h.as("ann").joins("chat:1"), h.as("bob")
	if all := h.hub.Clients("ann/default"); len(all) != 1 || !slices.Equal(all[0].Channels, []string{"chat:1"}) ||
		all[0].ID == "" {
		t.Errorf("got %+v", all)
	}
	h.hub.Drop(func(c tool.Caller) bool { return c.Principal == "ann" }, "revoked")
	if c := ann.ends(); c.Code != websocket.StatusPolicyViolation || c.Reason != "revoked" {
		t.Errorf("got %v", c)
	}
	bob.quiet()
	go h.stop()
	if c := bob.ends(); c.Code != websocket.StatusGoingAway {
		t.Errorf("got %v", c)
	}
	<-h.done
	if n := len(h.hub.channels) + len(h.hub.clients) + h.hub.all; n != 0 {
		t.Errorf("something is left: %d", n)
	}
	if _, err := h.dial("cid"); err == nil || !strings.Contains(err.Error(), "503") {
		t.Errorf("a hub that has closed took a client in: %v", err)
	}
}

func TestOnlyWebSocketsAreServed(t *testing.T) {
	h := open(t, Options{})
	r, err := http.Get("http" + strings.TrimPrefix(h.url, "ws") + "/ann")
	if err != nil {
		t.Fatal(err)
	}
	r.Body.Close()
	if r.StatusCode != http.StatusUpgradeRequired {
		t.Errorf("got %s, want 426", r.Status)
	}
	if h.hub.all != 0 {
		t.Error("it keeps a place")
	}
}
