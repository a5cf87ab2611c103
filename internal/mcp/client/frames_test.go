package client

import (
	"context"
	"errors"
	"strings"
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

// A server that sends more than it is asked for is read at a rate, with answers in between, until its connection ends.
func TestAFloodIsReadAtARate(t *testing.T) {
	for what, text := range map[string]string{
		"notifications": `{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`,
		"requests":      `{"jsonrpc":"2.0","id":"p","method":"ping"}`,
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
