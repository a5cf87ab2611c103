package session

import (
	"bytes"
	"testing"

	"gatehouse/tool"
)

// collector is a connection that reads a stream.
type collector struct{ got chan []byte }

func (r collector) WriteEvent(_ string, msg []byte) error { r.got <- msg; return nil }
func (r collector) Close()                                {}

// However many sessions a principal has, what is kept for their clients is within its
// share of the bytes, and another's answers are kept.
//
//redteam:attack No principal takes the host from the others: clients of many sessions go before they read large answers
func TestKeptAnswersAreDivided(t *testing.T) {
	const kib = 1 << 10
	table := NewTable(Options{Kept: 1600 * kib})
	session := func(principal string) *Session {
		t.Helper()
		s, err := table.Open(Facts{Caller: tool.Caller{Principal: principal}})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	large := bytes.Repeat([]byte("x"), 100*kib)
	var all []*Session
	kept := 0
	for range 50 {
		s := session("ann")
		all = append(all, s)
		st := s.Open()
		st.Last(bytes.Clone(large))
		s.Queue().Send(bytes.Clone(large))
		kept += st.bytes + s.Queue().bytes
	}
	used, _ := table.kept.Usage()
	if used != int64(kept) || used > 800*kib || used < 700*kib {
		t.Errorf("%d bytes are kept and %d are counted, of about 800 KiB", kept, used)
	}
	s := session("bob")
	st := s.Open()
	st.Last(bytes.Clone(large))
	r := collector{make(chan []byte, 1)}
	if err := st.Attach(r, 0, true, true); err != nil {
		t.Fatal(err)
	}
	if got := <-r.got; len(got) != len(large) {
		t.Errorf("another's answer has %d bytes", len(got))
	}
	// A client that reads gets its answers, also if they cannot be kept.
	st = all[49].Open()
	r = collector{make(chan []byte, 1)}
	if err := st.Attach(r, 0, false, true); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		if !st.Send(bytes.Clone(large)) || len(<-r.got) != len(large) {
			t.Fatal("an answer that is read is lost")
		}
	}
	for _, s := range append(all, s) {
		table.End(s, ErrClosed)
	}
	if used, _ := table.kept.Usage(); used != 0 {
		t.Errorf("%d bytes are counted after all sessions have ended", used)
	}
}
