package protocol_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gatehouse/internal/mcp/protocol"
	"gatehouse/internal/mcp/rawjson"
	"gatehouse/internal/tests/hosttest"
)

// seeds returns the frames that clients send in the transcripts.
func seeds(f *testing.F) (frames [][]byte) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		for line := range bytes.Lines(b) {
			if frame, ok := bytes.CutPrefix(line, []byte("-> ")); ok {
				frames = append(frames, bytes.TrimSpace(frame))
			}
		}
	}
	return frames
}

// FuzzParse checks that nothing panics, that an accepted message contains what was sent, and that a
// refused one can be answered.
func FuzzParse(f *testing.F) {
	for _, s := range seeds(f) {
		f.Add(s)
	}
	f.Add([]byte(`[{"jsonrpc":"2.0","id":-0,"method":"\u00e9","params":{"_meta":{}}},1,[]]`))
	f.Fuzz(func(t *testing.T, frame []byte) {
		kept := bytes.Clone(frame)
		msgs, faults, batch := protocol.Parse(frame)
		if !bytes.Equal(kept, frame) {
			t.Fatal("the frame was changed")
		}
		if !batch && len(msgs)+len(faults) != 1 {
			t.Fatalf("%d messages and %d faults", len(msgs), len(faults))
		}
		for _, fault := range faults {
			if err := rawjson.Check(protocol.Respond(fault), 0); err != nil {
				t.Fatalf("no answer: %v", err)
			}
		}
		for _, m := range msgs {
			again, faults, _ := protocol.Parse(encode(&m))
			if len(faults) > 0 || len(again) != 1 {
				t.Fatalf("%s is refused: %v", encode(&m), faults)
			}
			if !bytes.Equal(encode(&again[0]), encode(&m)) {
				t.Fatalf("%s became %s", encode(&m), encode(&again[0]))
			}
			if m.IsRequest() && m.IsResponse() {
				t.Fatal("a request and a response")
			}
		}
	})
}

// encode encodes a message.
func encode(m *protocol.Message) []byte {
	b := []byte(`{"jsonrpc":"2.0"`)
	member := func(name string, raw []byte) {
		if raw != nil {
			b = append(append(b, `,"`+name+`":`...), raw...)
		}
	}
	member("id", m.ID)
	if m.Method != "" {
		member("method", rawjson.AppendString(nil, m.Method))
	}
	member("params", m.Params)
	member("result", m.Result)
	member("error", m.Error)
	return append(b, '}')
}

// FuzzEnvelope checks that any modern request ends once.
func FuzzEnvelope(f *testing.F) {
	for _, s := range seeds(f) {
		f.Add(s, "tools/call", "t_echo")
	}
	h := newTestHost(f, hosttest.Options{Timeout: 50 * time.Millisecond})
	f.Fuzz(func(t *testing.T, frame []byte, method, name string) {
		msgs, _, _ := protocol.Parse(frame)
		for i := range msgs {
			if m := &msgs[i]; m.Method == "subscriptions/listen" || strings.Contains(string(frame), "t_stubborn") {
				continue // these must be ended by the test
			}
			ended := make(chan struct{})
			k := &ending{keeper: keeper{t: t}, ended: ended}
			var head protocol.Header
			if method != "" {
				head = headers{"MCP-Protocol-Version": {modernRev}, "Mcp-Method": {method}, "Mcp-Name": {name}}.get
			}
			h.Engine.Modern(t.Context(), anybody, &msgs[i], head, k)
			<-ended
			if msgs[i].IsRequest() && k.dropped {
				t.Fatal("a request was dropped that was not cancelled")
			}
		}
	})
}

// ending records the end of a request.
type ending struct {
	keeper
	ended chan struct{}
}

func (e *ending) Answer(status int, msg []byte) { e.keeper.Answer(status, msg); close(e.ended) }
func (e *ending) Drop()                         { e.keeper.Drop(); close(e.ended) }

// FuzzPipe sends arbitrary lines: every message of the server is JSON on one line, only requested IDs
// are answered, and the pipe ends.
func FuzzPipe(f *testing.F) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		var talk []byte
		for line := range bytes.Lines(b) {
			if frame, ok := bytes.CutPrefix(line, []byte("-> ")); ok {
				talk = append(talk, frame...)
			}
		}
		f.Add(talk)
	}
	h := newTestHost(f, hosttest.Options{Timeout: 20 * time.Millisecond, AskFor: 20 * time.Millisecond, InFlight: 8})
	f.Fuzz(func(t *testing.T, talk []byte) {
		if bytes.Contains(talk, []byte("t_stubborn")) {
			return // a call waits for the client
		}
		pipe := h.Engine.Pipe(anybody, func(m []byte) error {
			if err := rawjson.Check(m, 0); err != nil || bytes.ContainsAny(m, "\r\n") {
				t.Errorf("no message: %v: %s", err, m)
			}
			return nil
		})
		for line := range bytes.Lines(talk) {
			pipe.Receive(bytes.TrimSpace(line))
		}
		pipe.Drain(t.Context())
		pipe.Close(nil)
		<-pipe.Done()
	})
}

// FuzzCursor checks that any cursor gives a page or a clear error.
func FuzzCursor(f *testing.F) {
	h := newTestHost(f, hosttest.Options{Page: 2})
	p := h.dial(f)
	p.hello("2025-11-25", "")
	for _, list := range []string{"tools/list", "resources/list"} {
		f.Add(p.ask(list, "").get("nextCursor"))
	}
	f.Add("dG9vbHMgeno")
	f.Fuzz(func(t *testing.T, cursor string) {
		p := h.dial(t)
		p.hello("2025-11-25", "")
		raw := string(rawjson.AppendString(nil, cursor))
		for _, list := range []string{"tools/list", "prompts/list", "resources/list", "resources/templates/list",
			"tasks/list"} {
			got := p.ask(list, `"cursor":`+raw)
			if got.Error != nil && got.code() != -32602 {
				t.Errorf("%s: %s", list, got.raw)
			}
		}
	})
}
