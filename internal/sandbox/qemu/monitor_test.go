//go:build linux && amd64

package qemu

import (
	"bufio"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"
)

const (
	greeting = `{"QMP": {"version": {}, "capabilities": ["oob"]}}` + "\n"
	done     = `{"return": {}}` + "\n"
)

// monitored is the host's end of a line whose other end is played: after the
// greeting, an answer for each order.
func monitored(t *testing.T, answers ...string) (*monitor, error) {
	t.Helper()
	ours, theirs, err := socketPair()
	if err != nil {
		t.Fatal(err)
	}
	played := make(chan struct{})
	go func() {
		defer close(played)
		defer theirs.Close()
		in := bufio.NewReader(theirs)
		for _, a := range append([]string{greeting}, answers...) {
			if a == "" {
				return // it ends
			}
			if _, err := io.WriteString(theirs, a); err != nil {
				return
			}
			if _, err := in.ReadString('\n'); err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() { <-played })
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	m, err := newMonitor(ctx, ours)
	if err == nil {
		t.Cleanup(m.closeMonitor)
	}
	return m, err
}

func TestOrdersAreAnsweredOneByOne(t *testing.T) {
	m, err := monitored(t, done, `{"event": "STOP"}`+"\n"+done,
		`{"error": {"class": "GenericError", "desc": "not now"}}`+"\n", "")
	if err != nil {
		t.Fatal(err)
	}
	if err := m.command(t.Context(), "stop", nil); err != nil {
		t.Error(err)
	}
	if _, err := m.awaitEvent(t.Context(), "STOP", ""); err != nil {
		t.Error(err)
	}
	why, ok := errors.AsType[*commandError](m.command(t.Context(), "cont", nil))
	if !ok || why.Desc != "not now" {
		t.Errorf("%v", why)
	}
}

func TestWhatIsNoMessageBreaksTheLine(t *testing.T) {
	for name, said := range map[string]string{
		"no JSON": "hello\n", "another kind": `{"x": 1}` + "\n", "without a command": done + done + done, "the end": "",
		"of more than": strings.Repeat("x", 2*longestMessage),
	} {
		m, err := monitored(t, said)
		if err == nil {
			err = m.command(t.Context(), "stop", nil)
		}
		if err == nil && name != "without a command" {
			t.Errorf("%s: it was taken", name)
		}
	}
}

func TestAnOrderThatIsGivenUpBreaksTheLine(t *testing.T) {
	m, err := monitored(t, done, "")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := m.awaitEvent(ctx, "MIGRATION", "completed"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	if err := m.command(ctx, "stop", nil); err == nil {
		t.Error("an order was taken from nobody")
	}
}

func TestWhatIsWrittenAndGivenUpIsCalledOff(t *testing.T) {
	state, err := memoryFile("state", 0)
	if err != nil {
		t.Fatal(err)
	}
	defer state.Close()
	for name, answer := range map[string]struct {
		said  string
		works bool
	}{
		"which QEMU does":     {`{"event": "MIGRATION", "data": {"status": "cancelled"}}` + "\n" + done, true},
		"which QEMU does not": {`{"error": {"class": "GenericError", "desc": "not now"}}` + "\n", false},
	} {
		t.Run(name, func(t *testing.T) {
			writes := done + `{"event": "MIGRATION", "data": {"status": "active"}}` + "\n"
			m, err := monitored(t, done, done, done, writes, answer.said, done)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			go func() {
				defer cancel()
				m.awaitEvent(t.Context(), "MIGRATION", "active")
				m.commanding.Lock() // after the order was answered
				defer m.commanding.Unlock()
			}()
			if err := m.migrate(ctx, "migrate", state); !errors.Is(err, context.Canceled) {
				t.Errorf("%v", err)
			}
			if err := m.command(t.Context(), "cont", nil); (err == nil) != answer.works {
				t.Errorf("afterwards: %v", err)
			}
		})
	}
}

func FuzzParseMessage(f *testing.F) {
	for _, s := range []string{greeting, done, `{"event": "MIGRATION", "data": {"status": "completed"}}`,
		`{"error": {"class": "a", "desc": "b"}}`, `{"return": null}`, `[]`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		m, err := parseMessage(line)
		if err == nil && m.Greeting == nil && m.Return == nil && m.Error == nil && m.Event == "" {
			t.Errorf("%q is nothing and was taken", line)
		}
	})
}
