package process

import (
	"context"
	"encoding/json"
	"time"

	"gatehouse/internal/access/displaytext"
	"gatehouse/internal/dispatch/hub"
)

const (
	roundBytes  = 32 << 10              // bytes of output in one round of messages
	roundChunks = 32                    // messages in one round
	roundPause  = 20 * time.Millisecond // between two rounds, which limits the rate of messages to a client
)

// publisher sends the output and the status of a process to its channel.
type publisher struct {
	r       *record
	feed    *hub.Feed
	at      int64 // position in the log up to which the output was published
	partial [2][]byte
}

// outputEvent is the data of a process_output message.
type outputEvent struct {
	Stream string `json:"stream"`
	Text   string `json:"text"`
	Next   int64  `json:"next"`           // since of process_output, to read on after this text
	Lost   int64  `json:"lost,omitempty"` // bytes before this text that were dropped
}

// statusEvent is the data of a process_status message.
type statusEvent struct {
	condition
	Command  string        `json:"command"`
	PID      int           `json:"pid"`
	Duration time.Duration `json:"duration,omitempty"` // ns; of an ended process
	Seconds  float64       `json:"durationSeconds,omitempty"`
}

// broadcast publishes the output and the status of a process until it ends. It
// does not block the process: output that arrives faster than it can be
// published is reported as lost.
func (r *record) broadcast(ctx context.Context, feed *hub.Feed) {
	n := publisher{r: r, feed: feed}
	n.publishStatus()
	for {
		r.log.mu.Lock()
		next := r.log.changed()
		r.log.mu.Unlock()
		_, over := r.ended() // before the output is read, so that none can follow
		more := n.publishOutput(over)
		if over && !more {
			n.publishStatus()
			return
		}
		if !more {
			select {
			case <-next:
			case <-r.child.Done():
			case <-ctx.Done():
				return
			}
		}
		select {
		case <-time.After(roundPause):
		case <-ctx.Done():
			return
		}
	}
}

// publishOutput publishes one round of output and reports whether there is more.
func (n *publisher) publishOutput(over bool) (more bool) {
	l := n.r.log
	heard := n.feed.HasListeners()
	l.mu.Lock()
	if !heard {
		n.at, n.partial = l.total, [2][]byte{}
		l.mu.Unlock()
		return false
	}
	turns, end, lost := l.chunks(n.at, roundBytes, roundChunks)
	more = end < l.total
	l.mu.Unlock()
	n.at = end
	for _, t := range turns {
		n.publishChunk(t, lost, over && !more)
		lost = 0
	}
	return more
}

// publishChunk publishes a chunk. An incomplete character at its end is held back
// until the rest arrives.
func (n *publisher) publishChunk(t chunk, lost int64, last bool) {
	text := append(n.partial[t.stream], t.text...)
	held := 0
	if !last {
		held = len(text) - displaytext.Whole(text)
	}
	n.partial[t.stream] = append([]byte(nil), text[len(text)-held:]...)
	if text = text[:len(text)-held]; len(text) == 0 && lost == 0 {
		return
	}
	name := "stdout"
	if t.stream == stderr {
		name = "stderr"
	}
	n.publish("process_output", outputEvent{name, visible(text), t.end - int64(held), lost}, n.feed.Send)
}

func (n *publisher) publishStatus() {
	s := statusEvent{condition: n.r.condition(), Command: n.r.command, PID: n.r.child.Pid()}
	if ended, over := n.r.ended(); over {
		s.Duration, s.Seconds = ended.Took, ended.Took.Seconds()
	}
	n.publish("process_status", s, n.feed.State)
}

func (n *publisher) publish(kind string, data any, how func(hub.Message)) {
	b, err := json.Marshal(data)
	if err != nil {
		return // cannot happen: data has strings and numbers only
	}
	how(hub.Message{Type: kind, ProcessID: n.r.id, Data: b})
}
