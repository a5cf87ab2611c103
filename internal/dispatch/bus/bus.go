// Package bus carries requests to modules and events to their followers.
//
// In this process a request is a function call without a queue, copy or encoding. A bus between processes encodes
// the same plain data.
package bus

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"log/slog"
	"time"

	"gatehouse/tool"
)

// Request is one call as it crosses the bus: plain data only.
type Request struct {
	Call     string                     `json:"call"` // the id of the call, the same in every round, so that duplicates can be detected
	Module   string                     `json:"module"`
	Node     string                     `json:"node,omitempty"` // "" means any
	Method   string                     `json:"method"`
	Name     string                     `json:"name"`
	Entry    string                     `json:"entry,omitempty"` // the offered entry if that is not Name, such as the template of a URI
	Caller   *tool.Caller               `json:"caller"`          // read-only
	Args     json.RawMessage            `json:"args,omitempty"`
	Params   json.RawMessage            `json:"params,omitempty"`
	Recorded map[string]json.RawMessage `json:"recorded,omitempty"` // answers and Once results of earlier rounds
	State    []byte                     `json:"state,omitempty"`
	Left     time.Duration              `json:"left,omitempty"` // until the deadline; 0 means none
	Depth    int                        `json:"depth,omitempty"`
	Unpaged  bool                       `json:"unpaged,omitempty"`  // see tool.Call
	Forward  map[string]string          `json:"forward,omitempty"`  // see tool.Call
	Logs     string                     `json:"logs,omitempty"`     // see tool.Call
	Task     string                     `json:"task,omitempty"`     // see tool.Call
	Stages   bool                       `json:"stages,omitempty"`   // what it changes is staged in Task
	Copy     bool                       `json:"copy,omitempty"`     // each node runs it, so that none sends it on
	Approved bool                       `json:"approved,omitempty"` // a user or an operator has approved the call
}

// Notes receives what a running call reports besides its result. Its methods do not block for long, may be called
// concurrently, and do nothing once Do has returned.
type Notes interface {
	Progress(done, total float64, note string)
	Log(level slog.Level, params json.RawMessage) // params of a log message; it may have no level
	Output(chunk []byte)                          // the callee reuses the chunk
	Detach()
	Keep(recorded map[string]json.RawMessage) bool // see tool.Keep
}

// Handler serves the requests of one module.
type Handler func(context.Context, *Request, Notes) (Outcome, error)

// Outcome is the handler's result, and the values to pass to the next round if Result.Input asks for one.
type Outcome struct {
	Result   tool.Result                `json:"result"`
	Recorded map[string]json.RawMessage `json:"recorded,omitempty"` // only with Result.Input
}

// NodeOutcome is the outcome of a request on one node of a cluster, or the reason why it has none.
type NodeOutcome struct {
	Node    string
	Outcome Outcome
	Err     error
}

// Bus carries requests and events. Safe for concurrent use.
type Bus interface {
	// Do runs a request and waits for its outcome. Errors that crossed the bus are *tool.Refusal and
	// *tool.WireError; ErrAbsent and ErrLost are the bus's own; any other error is the handler's, as text.
	Do(ctx context.Context, r *Request, n Notes) (Outcome, error)
	// Serve accepts requests for a module until stop is called, which waits for those that run. A second Serve of
	// the same name replaces the first for new requests.
	Serve(module string, h Handler) (stop func(context.Context) error, err error)
	// Publish sends an event to its followers. It never blocks. An event with a Node is one of another node.
	Publish(f Event)
	// Follow yields the events of this node whose subject matches pattern, from now on. "*" matches one dotted part,
	// a final ">" all remaining parts. Up to keep events wait for a slow reader; the oldest are dropped and counted.
	Follow(ctx context.Context, pattern string, keep int) iter.Seq[Event]
	// FollowAll is Follow for the events of all nodes of a cluster. Those of other nodes arrive at most once, those of
	// each node in order, and without those of calls.
	FollowAll(ctx context.Context, pattern string, keep int) iter.Seq[Event]
}

var (
	// ErrAbsent means that no module served the request and nothing ran, so that it is safe to retry.
	ErrAbsent = errors.New("no module serves it, not run")
	// ErrLost means that no answer came and the request may have run.
	ErrLost = errors.New("no answer, may have run")
)
