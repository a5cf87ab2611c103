package session

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"gatehouse/tool"
)

func anonymous() Facts { return Facts{Caller: tool.Caller{Principal: "anonymous"}} }

// sweeping runs f with a table that ends idle sessions.
func sweeping(t *testing.T, o Options, f func(t *testing.T, table *Table)) {
	synctest.Test(t, func(t *testing.T) {
		table := NewTable(o)
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- table.Run(ctx) }()
		f(t, table)
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if n := table.Len(); n != 0 {
			t.Errorf("%d sessions outlive their table", n)
		}
	})
}

func TestIdsAreRandomUUIDs(t *testing.T) {
	v4 := regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)
	seen := map[string]bool{}
	for range 1000 {
		id := newID()
		if !v4.MatchString(id) || seen[id] {
			t.Fatalf("%q is not a fresh version 4 UUID", id)
		}
		seen[id] = true
	}
}

//redteam:attack What is not yours is not there: a session is used by another principal
func TestASessionBelongsToItsPrincipal(t *testing.T) {
	table := NewTable(Options{})
	s, err := table.Open(anonymous())
	if err != nil {
		t.Fatal(err)
	}
	if got, ok := table.Get(s.ID, "anonymous"); !ok || got != s {
		t.Error("its own principal does not find the session")
	}
	if _, ok := table.Get(s.ID, "mallory"); ok {
		t.Error("another principal finds the session")
	}
	if _, ok := table.Get("no-such-id", "anonymous"); ok {
		t.Error("an unknown id finds a session")
	}
	if s.Facts().Session != s.ID {
		t.Error("the facts do not name the session")
	}
}

// A client that only ever posts is active: activity of any kind counts, and no stream needs to be
// opened.
func TestIdle(t *testing.T) {
	sweeping(t, Options{}, func(t *testing.T, table *Table) {
		posts, _ := table.Open(anonymous())
		streams, _ := table.Open(anonymous())
		idle, _ := table.Open(anonymous())
		release := streams.KeepAlive()
		for range 5 {
			time.Sleep(20 * time.Minute)
			if _, ok := table.Get(posts.ID, "anonymous"); !ok {
				t.Fatal("a session that is used was swept")
			}
		}
		if idle.Ended() != true {
			t.Error("an idle session is still there after 100 minutes")
		}
		if streams.Ended() {
			t.Error("a session with an open stream was swept")
		}
		release()
		time.Sleep(29 * time.Minute)
		if streams.Ended() {
			t.Error("the end of a stream is a sign of life, but the session was swept")
		}
		time.Sleep(2 * time.Minute)
		if !streams.Ended() {
			t.Error("a session is still there half an hour after its stream ended")
		}
	})
}

func TestEnd(t *testing.T) {
	var causes []error
	sweeping(
		t,
		Options{Ended: func(_ *Session, cause error) { causes = append(causes, cause) }},
		func(t *testing.T, table *Table) {
			s, _ := table.Open(anonymous())
			var told []string
			tell := func(what string) func() { return func() { told = append(told, what) } }
			s.BeginRequest("1", func(cause error) { told = append(told, fmt.Sprint("cancelled: ", cause)) })
			s.Subscribe("file:///a", tell("unsubscribed"))
			s.Expect(func(r Reply) { told = append(told, fmt.Sprint("answered: ", r.Result == nil && r.Error == nil)) })
			s.OnEnd(tell("stopped"))
			if !table.End(s, ErrClosed) || table.End(s, ErrClosed) {
				t.Error("a session ends once")
			}
			want := []string{"cancelled: " + ErrClosed.Error(), "unsubscribed", "answered: true", "stopped"}
			if !slices.Equal(told, want) {
				t.Errorf("the end reported %q, want %q", told, want)
			}
			s.OnEnd(tell("late"))
			if told[len(told)-1] != "late" {
				t.Error("a function registered after the end was not called")
			}
			if begins(s, "2", nil) || s.Subscribe("file:///b", nil) {
				t.Error("an ended session takes on more")
			}
			if _, ok := s.Expect(nil); ok {
				t.Error("an ended session asks")
			}
			left, _ := table.Open(anonymous())
			_ = left // ended by the table when it stops
		},
	)
	if !slices.Equal(causes, []error{ErrClosed, ErrStop}) {
		t.Errorf("sessions ended with %v, want the client's end and the host's", causes)
	}
}

func TestFull(t *testing.T) {
	table := NewTable(Options{Max: 1})
	s, err := table.Open(anonymous())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := table.Open(anonymous()); err == nil {
		t.Error("one session too many was opened")
	}
	table.End(s, ErrClosed)
	if _, err := table.Open(anonymous()); err != nil {
		t.Errorf("there is space again, but: %v", err)
	}
}

func begins(s *Session, id string, cancel func(error)) bool {
	_, ok := s.BeginRequest(id, cancel)
	return ok
}

func TestFlights(t *testing.T) {
	drop := func(error) {}
	s := New(anonymous())
	var cause error
	if !begins(s, `"a"`, func(err error) { cause = err }) {
		t.Fatal("a first request was refused")
	}
	if begins(s, `"a"`, drop) {
		t.Error("an id in flight was taken twice")
	}
	if !begins(s, `1`, drop) || !begins(s, `"1"`, drop) {
		t.Error("a number and a string are different ids")
	}
	gone := errors.New("stopped")
	if !s.Cancel(`"a"`, gone) || cause != gone {
		t.Errorf("cancelled with %v, want %v", cause, gone)
	}
	s.FinishRequest(`"a"`)
	if s.Cancel(`"a"`, gone) {
		t.Error("a finished request was cancelled")
	}
}

func TestQuestions(t *testing.T) {
	s := New(anonymous())
	var got []string
	id, _ := s.Expect(func(r Reply) { got = append(got, string(r.Result)) })
	other, _ := s.Expect(func(Reply) { got = append(got, "late") })
	s.ForgetExpected(other)
	if s.Respond(other, Reply{}) || !s.Respond(id, Reply{Result: []byte("{}")}) || s.Respond(id, Reply{}) {
		t.Error("a response is taken once, and only when it is expected")
	}
	if !slices.Equal(got, []string{"{}"}) {
		t.Errorf("got %q, want the one response", got)
	}
}

func TestOneHandshake(t *testing.T) {
	s := New(Facts{})
	if !s.Initialize(anonymous()) || s.Initialize(Facts{}) {
		t.Error("a session has one handshake")
	}
	if s.Facts().Principal != "anonymous" {
		t.Error("a second handshake changed the facts")
	}
}

func TestSubscriptions(t *testing.T) {
	s := New(Facts{})
	stopped := 0
	stop := func() { stopped++ }
	s.Subscribe("file:///a", stop)
	s.Subscribe("file:///a", stop)
	if stopped != 1 || !slices.Equal(subscribed(s), []string{"file:///a"}) {
		t.Errorf("%d stopped, %v left, want the earlier one replaced", stopped, subscribed(s))
	}
	if !s.Unsubscribe("file:///a") || s.Unsubscribe("file:///a") || stopped != 2 {
		t.Error("a subscription ends once")
	}
}

func subscribed(s *Session) []string {
	active, _ := s.Subscriptions()
	return active
}

func TestSubscriptionsThatAreSuspended(t *testing.T) {
	s := New(Facts{})
	stopped := 0
	stop := func() { stopped++ }
	s.Subscribe("a", stop)
	s.Suspend("a")
	s.Suspend("a")
	s.Suspend("none")
	if active, suspended := s.Subscriptions(); stopped != 1 || len(active) != 0 || len(suspended) != 1 {
		t.Fatalf("stopped %d times; active %v, suspended %v", stopped, active, suspended)
	}
	if s.Resume("none", stop) || !s.Resume("a", stop) || s.Resume("a", stop) {
		t.Error("only what is suspended is resumed, and once")
	}
	s.Suspend("a")
	if !s.Unsubscribe("a") || s.Unsubscribe("a") || s.Resume("a", stop) {
		t.Error("what was unsubscribed while it was suspended comes back")
	}
	s.Subscribe("b", stop)
	s.Suspend("b")
	s.End(ErrClosed)
	if s.Resume("b", stop) || stopped != 3 {
		t.Errorf("after the end: stopped %d times", stopped)
	}
}
