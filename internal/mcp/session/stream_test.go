package session

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
)

// reader is a connection that records its messages.
type reader struct {
	mu     sync.Mutex
	got    []string
	closed int
	fail   error
	stuck  chan struct{} // a write blocks until it is closed
}

func (r *reader) WriteEvent(id string, msg []byte) error {
	if r.stuck != nil {
		<-r.stuck
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fail != nil {
		return r.fail
	}
	r.got = append(r.got, id+"="+string(msg))
	return nil
}

func (r *reader) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed++
}

func (r *reader) saw() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.got, " ")
}

func bubble(t *testing.T, name string, f func(t *testing.T, s *Session)) {
	t.Run(name, func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { f(t, New(Facts{})) })
	})
}

func send(st *Stream, msgs ...string) {
	for _, m := range msgs {
		st.Send([]byte(m))
	}
}

func want(t *testing.T, r *reader, want string) {
	t.Helper()
	synctest.Wait()
	if got := r.saw(); got != want {
		t.Errorf("the connection got %q, want %q", got, want)
	}
}

func TestStream(t *testing.T) {
	bubble(t, "what waits is written when a connection comes", func(t *testing.T, s *Session) {
		send(s.Queue(), "a", "b")
		var r reader
		s.Queue().Attach(&r, 0, false, false)
		want(t, &r, "0-1=a 0-2=b")
		s.Notify([]byte("c"))
		want(t, &r, "0-1=a 0-2=b 0-3=c")
	})
	bubble(t, "one connection at a time, unless it takes over", func(t *testing.T, s *Session) {
		var first, second reader
		q := s.Queue()
		q.Attach(&first, 0, false, false)
		if err := q.Attach(&second, 0, false, false); !errors.Is(err, ErrTaken) {
			t.Fatalf("a second connection got %v, want ErrTaken", err)
		}
		send(q, "a")
		synctest.Wait()
		if err := q.Attach(&second, 1, true, true); err != nil {
			t.Fatal(err)
		}
		send(q, "b")
		want(t, &first, "0-1=a")
		want(t, &second, "0-2=b")
		if first.closed != 1 {
			t.Errorf("the first connection was closed %d times, want 1", first.closed)
		}
	})
	bubble(t, "a connection that broke is resumed where it stood", func(t *testing.T, s *Session) {
		st := s.Open()
		prime := st.Prime()
		var r reader
		st.Attach(&r, 0, false, true)
		send(st, "a", "b")
		synctest.Wait()
		st.Detach(&r)
		st.Last([]byte("end"))

		found, after, ok := s.FindStream(EventID(1, 1))
		if !ok || found != st {
			t.Fatal("the stream of a known event was not found")
		}
		var again, whole reader
		found.Attach(&again, after, true, true)
		want(t, &again, "1-2=b 1-3=end")
		if again.closed != 1 {
			t.Error("the stream was not ended after its last message")
		}
		_, after, _ = s.FindStream(prime)
		found.Attach(&whole, after, true, true)
		want(t, &whole, "1-1=a 1-2=b 1-3=end")
	})
	bubble(t, "a failing connection leaves the message for the next", func(t *testing.T, s *Session) {
		q := s.Queue()
		broken := reader{fail: errors.New("reset by peer")}
		q.Attach(&broken, 0, false, false)
		send(q, "a")
		synctest.Wait()
		var r reader
		if err := q.Attach(&r, 0, false, false); err != nil {
			t.Fatalf("a broken connection still holds the stream: %v", err)
		}
		want(t, &r, "0-1=a")
		if broken.closed != 1 {
			t.Errorf("the broken connection was closed %d times, want 1", broken.closed)
		}
	})
	bubble(t, "prime stands before what was not yet written", func(t *testing.T, s *Session) {
		q := s.Queue()
		var r reader
		q.Attach(&r, 0, false, false)
		send(q, "a", "b")
		synctest.Wait()
		q.Detach(&r)
		send(q, "c")
		if got := q.Prime(); got != "0-2" {
			t.Errorf("Prime is %s, want 0-2", got)
		}
	})
	bubble(t, "the session's end ends its streams", func(t *testing.T, s *Session) {
		var q, a reader
		s.Queue().Attach(&q, 0, false, false)
		st := s.Open()
		st.Attach(&a, 0, false, true)
		s.End(ErrClosed)
		synctest.Wait()
		if q.closed != 1 || a.closed != 1 {
			t.Errorf("closed %d and %d times, want 1 and 1", q.closed, a.closed)
		}
		if st.Send([]byte("late")) || s.Open().Send([]byte("later")) {
			t.Error("a stream of an ended session takes messages")
		}
	})
}

// A connection may attach at the moment at which another closes. In any order, the new one is served.
func TestAttachWhileTheOldOneIsClosed(t *testing.T) {
	for _, how := range []string{"failed", "finished"} {
		bubble(t, how, func(t *testing.T, s *Session) {
			st := s.Open()
			var next reader
			old := &leaver{then: func() { st.Attach(&next, 0, true, true) }}
			if how == "failed" {
				old.fail = errors.New("reset by peer")
			}
			send(st, "a")
			if how == "finished" {
				st.Last([]byte("end"))
			}
			st.Attach(old, 0, false, true)
			synctest.Wait()
			if how == "failed" {
				st.Last([]byte("end"))
			}
			want(t, &next, "1-1=a 1-2=end")
		})
	}
}

// leaver calls a function while it is being closed.
type leaver struct {
	reader
	then func()
}

func (l *leaver) Close() { l.then() }

func TestOverflow(t *testing.T) {
	look := func() [][]byte { return [][]byte{[]byte("look")} }
	bubble(t, "too many messages become one that says look again", func(t *testing.T, s *Session) {
		s.OnLoss(func(*Session) [][]byte { return look() })
		for i := range queueLimit + 10 {
			s.Notify(fmt.Append(nil, i))
		}
		var r reader
		s.Queue().Attach(&r, 0, false, false)
		synctest.Wait()
		got := r.saw()
		if strings.Contains(got, "=0 ") || !strings.Contains(got, "=look") || !strings.Contains(got, "=265") {
			t.Errorf("got %q, want the newest and the word to look again", got)
		}
	})
	bubble(t, "too many bytes count as well", func(t *testing.T, s *Session) {
		s.OnLoss(func(*Session) [][]byte { return look() })
		big := bytes.Repeat([]byte("x"), queueBytes/2+1)
		for range 5 {
			s.Notify(big)
		}
		if n := s.Queue().bytes; n > queueBytes {
			t.Errorf("%d bytes wait, want at most %d", n, queueBytes)
		}
	})
	bubble(t, "while a write is stuck", func(t *testing.T, s *Session) {
		s.OnLoss(func(*Session) [][]byte { return look() })
		r := reader{stuck: make(chan struct{})}
		s.Queue().Attach(&r, 0, false, false)
		for i := range 2*queueLimit + 10 {
			s.Notify(fmt.Append(nil, i))
			if i == 0 {
				synctest.Wait() // the first is being written
			}
		}
		close(r.stuck)
		synctest.Wait()
		if got := r.saw(); !strings.HasPrefix(got, "0-1=0 ") || !strings.Contains(got, "=look") {
			t.Errorf("got %.40q..., want the first and then the word to look again", got)
		}
	})
	bubble(t, "resuming from before what is kept says look again", func(t *testing.T, s *Session) {
		s.OnLoss(func(*Session) [][]byte { return look() })
		var r, again reader
		q := s.Queue()
		q.Attach(&r, 0, false, false)
		for i := range replayLimit + 50 {
			send(q, fmt.Sprint(i))
			synctest.Wait()
		}
		q.Attach(&again, 3, true, true)
		synctest.Wait()
		if got := again.saw(); !strings.HasPrefix(got, "0-1f=50") || !strings.HasSuffix(got, "=look") {
			t.Errorf("got %.30q...%q, want what is kept and then the word to look again", got, got[len(got)-12:])
		}
	})
	bubble(t, "an answer without a reader refuses more, but never its end", func(t *testing.T, s *Session) {
		st := s.Open()
		n := 0
		for st.Send([]byte("progress")) {
			if n++; n > 10*queueLimit {
				t.Fatal("an answer without a reader grows without bound")
			}
		}
		st.Last([]byte("end"))
		var r reader
		st.Attach(&r, 0, true, true)
		synctest.Wait()
		if got := r.saw(); !strings.HasSuffix(got, "=end") {
			t.Errorf("got ...%q, want the end", got[max(0, len(got)-20):])
		}
	})
}

func TestFinishedAnswersAreForgotten(t *testing.T) {
	s := New(Facts{})
	open := s.Open()
	for range 3 * keptAnswers {
		s.Open().Close()
	}
	if n := len(s.extra.streams); n > keptAnswers+1 {
		t.Errorf("%d answers are kept, want at most %d", n, keptAnswers)
	}
	if _, _, ok := s.FindStream(open.Prime()); !ok {
		t.Error("an answer that is still open was forgotten")
	}
	for range 5 {
		s.Open().Last(make([]byte, keptBytes/2))
	}
	s.Open()
	kept := 0
	for _, st := range s.extra.streams {
		kept += st.bytes
	}
	if kept > keptBytes {
		t.Errorf("finished answers keep %d bytes, want at most %d", kept, keptBytes)
	}
}

func FuzzEventID(f *testing.F) {
	f.Add("0-0")
	f.Add("1z-3w5e11264sgsf")
	f.Add("-")
	f.Add("１-1")
	f.Fuzz(func(t *testing.T, id string) {
		stream, seq, ok := ParseEventID(id)
		if !ok {
			return
		}
		a, b, again := ParseEventID(EventID(stream, seq))
		if !again || a != stream || b != seq {
			t.Errorf("%q is %d, %d, and written again %d, %d", id, stream, seq, a, b)
		}
		s := New(Facts{})
		if st, after, ok := s.FindStream(id); ok { // numbers of any size are handled
			send(st, "a")
			st.Attach(&reader{}, after, true, true)
		}
	})
}
