package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// Lines of any kind do no harm, in pieces of any size.
func FuzzLines(f *testing.F) {
	f.Add([]byte("{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\nxx\n"), 3, 20)
	f.Add([]byte(`{"result":{"a":"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"},"id":7}`+"\n"), 5, 10)
	f.Fuzz(func(t *testing.T, text []byte, step, limit int) {
		step, limit = max(step&0xff, 1), max(limit&0x3ff, 1)
		var lines int
		fr := &frames{limit: limit, line: func(b []byte) {
			lines++
			if len(b) > limit {
				t.Errorf("a line of %d bytes", len(b))
			}
		}, long: func(head, tail []byte, n int64) {
			lines++
			if len(head) > edgeBytes || len(tail) > edgeBytes || n <= int64(limit) {
				t.Errorf("%d and %d bytes of %d", len(head), len(tail), n)
			}
			answerID(head, tail)
		}}
		for rest := text; len(rest) > 0; {
			n := min(step, len(rest))
			fr.Write(rest[:n])
			rest = rest[n:]
		}
		if want := strings.Count(string(text), "\n"); lines != want {
			t.Errorf("%d lines of %d", lines, want)
		}
	})
}

// A line arrives as it was sent, in whichever pieces, and of one that is too long both ends.
func TestLinesOfManyParts(t *testing.T) {
	for _, size := range []int{1, edgeBytes, largestPart - 1, largestPart, largestPart + 1, 5*largestPart + 7} {
		for _, step := range []int{1000, largestPart, 3 * largestPart} {
			var text []byte
			for n := range size {
				text = append(text, 'a'+byte(n*n%23))
			}
			got, ends := "", ""
			f := &frames{limit: 5 * largestPart, line: func(b []byte) { got += string(b) },
				long: func(head, tail []byte, n int64) { ends += fmt.Sprintf("%s %s %d", head, tail, n) }}
			for rest := append(bytes.Clone(text), "\nnext\n"...); len(rest) > 0; {
				n := min(step, len(rest))
				f.Write(rest[:n])
				rest = rest[n:]
			}
			want, wantEnds := string(text)+"next", ""
			if size > f.limit {
				want = "next"
				wantEnds = fmt.Sprintf("%s %s %d", text[:edgeBytes], text[size-edgeBytes:], size)
			}
			if got != want || ends != wantEnds {
				t.Errorf("a line of %d bytes in pieces of %d arrives as %d and %q", size, step, len(got), ends)
			}
		}
	}
}

// A server that sends more than it is asked for is read at a rate, with answers in between, until its connection ends.
func TestAFloodIsReadAtARate(t *testing.T) {
	for what, text := range map[string]string{
		"notifications": `{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`,
		"pings":         `{"jsonrpc":"2.0","id":"p","method":"ping"}`,
		"answers":       `{"jsonrpc":"2.0","id":4711,"result":{}}`,
		"a batch":       `[{"jsonrpc":"2.0","id":4711,"result":{}}]`,
		"no messages":   `lorem ipsum`,
		"empty lines":   ``,
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := NewLines(func(_ context.Context, b []byte) (int, error) { return len(b), nil }, ConnOptions{})
				began := time.Now()
				for range unaskedBurst + unaskedRate {
					l.Write([]byte(text + "\n"))
				}
				if took := time.Since(began).Round(time.Millisecond); took != time.Second {
					t.Errorf("it took %v to read them, want a second", took)
				}
				l.Fail(errors.New("it has gone"))
				for range unaskedRate {
					l.Write([]byte(text + "\n"))
				}
				if took := time.Since(began).Round(time.Millisecond); took != time.Second {
					t.Errorf("after %v they are still read at a rate", took)
				}
			})
		})
	}
}

// A server that asks more than it may is read at the rate of requests, and every request is answered.
func TestQuestionsAreReadAtARate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var replies atomic.Int64
		l := NewLines(func(_ context.Context, b []byte) (int, error) {
			replies.Add(int64(bytes.Count(b, []byte("\n"))))
			return len(b), nil
		}, ConnOptions{})
		began := time.Now()
		for range requestBurst + requestRate {
			l.Write([]byte(`{"jsonrpc":"2.0","id":"q","method":"elicitation/create","params":{}}` + "\n"))
			synctest.Wait() // so that the queue of replies, of which those that do not fit are dropped, is never full
		}
		if took := time.Since(began).Round(time.Millisecond); took != time.Second {
			t.Errorf("it took %v to read them, want a second", took)
		}
		l.Fail(errors.New("it has gone"))
		if n := replies.Load(); n != requestBurst+requestRate {
			t.Errorf("%d were answered", n)
		}
	})
}

// What is queued without waiting for an answer is written at once, in its order, and a request alone.
func TestRepliesAreWrittenTogether(t *testing.T) {
	w := &lineCarrier{out: make(chan *outgoing, outboxSize)}
	for i, text := range []string{"a\n", "b\n", "request\n", "c\n", strings.Repeat("d", repliesSize) + "\n", "e\n"} {
		o := &outgoing{text: []byte(text)}
		if i == 2 {
			o.id = 1
		}
		w.out <- o
	}
	var got []string
	for next := (*outgoing)(nil); next != nil || len(w.out) > 0; {
		o := next
		if o == nil {
			o = <-w.out
		}
		var text []byte
		text, next = w.gather(o)
		got = append(got, strings.NewReplacer(strings.Repeat("d", repliesSize), "D", "\n", ",").Replace(string(text)))
	}
	if want := []string{"a,b,", "request,", "c,D,", "e,"}; !slices.Equal(got, want) {
		t.Errorf("written are %q, want %q", got, want)
	}
}
