package client

import (
	"context"
	"encoding/json"
	"strconv"
)

// wire carries requests to a server, one at a time.
type wire interface {
	// exchange sends a request and returns its response. Every other message
	// that arrives before it goes to aside, whose reply is sent back.
	exchange(ctx context.Context, r request, aside func(message) []byte) (message, error)
	// notify sends a message that is not answered.
	notify(ctx context.Context, version string, msg []byte) error
	// alive reports whether more can be asked after this error.
	alive(error) bool
	// headerless reports whether credentials must go into the messages.
	headerless() bool
	closeWire() error
}

// request is one request as it goes out.
type request struct {
	id      int64
	method  string
	name    string // of the tool that is called
	version string
	body    []byte
	headers map[string]string // beyond the usual ones
}

// message is one message of a server.
type message struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
	Result json.RawMessage `json:"result"`
	Error  *RPCError       `json:"error"`
}

// answers reports whether the message is the response to a request. An error
// without an id answers whatever was asked: the server could not read it.
func (m message) answers(id int64) bool {
	if m.Method != "" {
		return false
	}
	return string(m.ID) == strconv.FormatInt(id, 10) || (m.Error != nil && (m.ID == nil || string(m.ID) == "null"))
}
