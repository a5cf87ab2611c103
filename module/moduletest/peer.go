package moduletest

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"sync"

	"gatehouse/tool"
)

// keepPrinted is how much of a call's output a Peer keeps.
const keepPrinted = 1 << 20

// Peer is the client behind a Call. It remembers what it was told and answers
// what it can. As with a real one, what an earlier round has told is not told
// again, and nothing is heard after the handler has returned. Read it when the
// call has returned.
type Peer struct {
	// Answers are the raw results for questions, by key; see Accept.
	Answers map[string]json.RawMessage

	Progressed []Progress
	Logged     []Logged
	Printed    []byte // the first MiB of the output
	PrintedAll int64  // bytes of output in all
	Asked      [][]tool.Question

	call *tool.Call

	mu       sync.Mutex
	running  bool
	recorded map[string]json.RawMessage
	unseen   map[string]bool // of recorded: while there are any, the round repeats an earlier one
	open     []tool.Question
}

// Progress is one sign of progress.
type Progress struct {
	Done, Total float64
	Note        string
}

// Logged is one log message; its data is JSON.
type Logged struct {
	Level slog.Level
	Data  string
}

// Accept is the answer of a person who fills in a form.
func Accept(content any) json.RawMessage {
	b, err := json.Marshal(map[string]any{"action": "accept", "content": content})
	if err != nil {
		panic("moduletest: the content of an answer: " + err.Error()) // the test's own value
	}
	return b
}

// Decline is the answer of a person who does not want to.
func Decline() json.RawMessage { return json.RawMessage(`{"action":"decline"}`) }

// begin starts a round.
func (p *Peer) begin() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.running, p.open, p.unseen = true, nil, map[string]bool{}
	for k := range p.recorded {
		p.unseen[k] = true
	}
}

// end ends a round and gives the questions it left open.
func (p *Peer) end() []tool.Question {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.running = false
	return p.open
}

// answer records answers to the questions of a round.
func (p *Peer) answer(qs []tool.Question) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.Asked = append(p.Asked, qs)
	p.recorded = maps.Clone(p.recorded)
	if p.recorded == nil {
		p.recorded = map[string]json.RawMessage{}
	}
	for _, q := range qs {
		a, ok := p.Answers[q.Key]
		if !ok {
			return fmt.Errorf(
				"the handler asks %q (%s), and the test's peer has no answer: %s",
				q.Key,
				q.Method,
				q.Params,
			)
		}
		p.recorded[q.Key] = a
	}
	return nil
}

func (p *Peer) quiet() bool { return !p.running || len(p.unseen) > 0 }

// Progress implements tool.Peer.
func (p *Peer) Progress(done, total float64, note string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.quiet() {
		p.Progressed = append(p.Progressed, Progress{done, total, note})
	}
}

// Log implements tool.Peer.
func (p *Peer) Log(level slog.Level, data any) {
	b, err := json.Marshal(data)
	if err != nil {
		b, _ = json.Marshal(err.Error())
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.quiet() {
		p.Logged = append(p.Logged, Logged{level, string(b)})
	}
}

// Output implements tool.Peer.
func (p *Peer) Output() io.Writer { return printer{p} }

type printer struct{ p *Peer }

func (w printer) Write(b []byte) (int, error) {
	w.p.mu.Lock()
	defer w.p.mu.Unlock()
	if !w.p.quiet() {
		w.p.PrintedAll += int64(len(b))
		w.p.Printed = append(w.p.Printed, b[:min(len(b), keepPrinted-len(w.p.Printed))]...)
	}
	return len(b), nil
}

// Ask implements tool.Peer. A question that Caller.Can does not cover is a
// *tool.WireError, as with a real client.
func (p *Peer) Ask(qs ...tool.Question) (map[string]tool.Answer, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.running {
		return nil, errors.New("ask: the call has ended")
	}
	answers := map[string]tool.Answer{}
	for _, q := range qs {
		if need := ability(q); p.call.Caller.Can&need != need {
			return nil, &tool.WireError{Code: -32021, Message: "this needs a client that can answer " + q.Method}
		}
	}
	for _, q := range qs {
		delete(p.unseen, q.Key)
		if a, ok := p.recorded[q.Key]; ok {
			answers[q.Key] = a
		} else {
			p.open = append(p.open, q)
		}
	}
	if len(answers) < len(qs) {
		return nil, tool.ErrAsked
	}
	return answers, nil
}

// ability is what a client needs for a question.
func ability(q tool.Question) tool.Abilities {
	switch q.Method {
	case "elicitation/create":
		return tool.CanElicit
	case "sampling/createMessage":
		return tool.CanSample
	case "roots/list":
		return tool.CanListRoots
	}
	return 0
}

// Recall implements tool.Peer.
func (p *Peer) Recall(key string) (json.RawMessage, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.unseen, "="+key)
	v, ok := p.recorded["="+key]
	return v, ok
}

// Record implements tool.Peer.
func (p *Peer) Record(key string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.recorded == nil {
		p.recorded = map[string]json.RawMessage{}
	}
	size := len(key) + len(b)
	for k, v := range p.recorded {
		size += len(k) + len(v)
	}
	if size > 16<<10 {
		return tool.Refuse(tool.CodeTooLarge, "a call remembers at most 16384 bytes between its rounds")
	}
	p.recorded["="+key] = b
	return nil
}

var _ tool.Peer = (*Peer)(nil)
