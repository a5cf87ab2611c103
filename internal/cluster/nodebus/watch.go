package nodebus

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"gatehouse/tool"
)

// OpenWatch asks a service of another node to watch what a request names, and returns the stream of its changes once it
// does. The error is a *tool.Refusal if the node refuses.
func OpenWatch(ctx context.Context, c http.RoundTripper, node, path string, request any) (io.ReadCloser, error) {
	raw, err := encode(request)
	if err != nil {
		return nil, err
	}
	q, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+node+".node"+path, bytes.NewReader(raw))
	if err != nil {
		return nil, err
	}
	answer, err := c.RoundTrip(q)
	if err != nil {
		return nil, err
	}
	if answer.StatusCode == http.StatusOK {
		return answer.Body, nil
	}
	defer answer.Body.Close()
	var r tool.Refusal
	if err := json.NewDecoder(io.LimitReader(answer.Body, 64<<10)).Decode(&r); err == nil && r.Code != "" {
		return nil, &r
	}
	return nil, fmt.Errorf("node %s does not watch it: %s", node, answer.Status)
}

// ReadWatch reports the changes of a stream until it ends.
func ReadWatch(lines io.ReadCloser, changed func(json.RawMessage)) {
	defer lines.Close()
	for d := json.NewDecoder(lines); ; {
		var meta json.RawMessage
		if d.Decode(&meta) != nil {
			return
		}
		if string(meta) == "null" {
			meta = nil
		}
		changed(meta)
	}
}

// watchesWaiting is how many changes of one watch wait to be sent to a node; of more, one is.
const watchesWaiting = 16

// ServeWatch answers a request of OpenWatch: it sends the changes that watch reports until ctx is done.
func ServeWatch(
	ctx context.Context, w http.ResponseWriter, watch func(changed func(json.RawMessage)) (stop func(), err error),
) {
	changes := make(chan json.RawMessage, watchesWaiting)
	stop, err := watch(func(meta json.RawMessage) {
		select {
		case changes <- meta:
		default: // the client reads again after those that wait
		}
	})
	if err != nil {
		refusal, ok := errors.AsType[*tool.Refusal](err)
		if !ok {
			refusal = &tool.Refusal{Code: tool.CodeUnavailable, Message: err.Error()}
		}
		w.WriteHeader(http.StatusConflict)
		json.NewEncoder(w).Encode(refusal)
		return
	}
	defer stop()
	w.WriteHeader(http.StatusOK)
	control := http.NewResponseController(w)
	for {
		if control.Flush() != nil {
			return
		}
		select {
		case meta := <-changes:
			if meta == nil {
				meta = json.RawMessage("null")
			}
			if _, err := w.Write(append(bytes.Clone(meta), '\n')); err != nil {
				return
			}
		case <-ctx.Done():
			return
		}
	}
}
