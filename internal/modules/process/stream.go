package process

import (
	"context"
	"encoding/json"

	"gatehouse/tool"
)

// streamBytes is the size of one message of a stream.
const streamBytes = 32 << 10

// Stream keeps a stream for a caller and returns the path of the WebSocket that carries it, once. serve sends it:
// bytes, or with text a JSON text about them.
type Stream func(c tool.Caller, serve func(ctx context.Context, send func(text bool, message []byte) error) error) (
	path string, err error)

// streamEvent is a text in a stream: bytes that are no longer kept, or how the process ended.
type streamEvent struct {
	Lost int64 `json:"lost,omitempty"`
	condition
}

// send sends the output from a position on, as it is, until the process has ended.
func (r *record) send(ctx context.Context, at int64, send func(text bool, message []byte) error) error {
	tell := func(e streamEvent) error {
		b, err := json.Marshal(e)
		if err != nil {
			return err
		}
		return send(true, b)
	}
	for {
		_, over := r.ended() // before the output is read, so that none can follow
		r.log.mu.Lock()
		next := r.log.changed()
		p := r.log.readSince(at, []int{stdout, stderr}, streamBytes, false)
		r.log.mu.Unlock()
		at = p.end
		if p.lost > 0 {
			if err := tell(streamEvent{Lost: p.lost, condition: r.condition()}); err != nil {
				return err
			}
		}
		if len(p.text) > 0 {
			if err := send(false, p.text); err != nil {
				return err
			}
			continue
		}
		if over {
			return tell(streamEvent{condition: r.condition()})
		}
		select {
		case <-next:
		case <-r.child.Done():
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
