// Package module is the contract of a plug-in: a module offers tools, resources and
// prompts, and reports when its offer has changed.
//
// A module never imports another module: it calls other tools through Deps.Call,
// with the view, gate and limits of the call that it serves. The test suite in
// moduletest checks this contract.
package module

import (
	"context"
	"encoding/json"
	"log/slog"
	"time"

	"gatehouse/tool"
)

// A Module owns what its tools share: a browser, a pool, an index.
type Module interface {
	// Offer returns what the module offers an audience. It is cheap, may be called
	// often and concurrently, and returns an immutable value: after a change the
	// module makes a new one and calls Deps.Changed. While a server that it relays
	// is unavailable, it returns the last good offer.
	Offer(ctx context.Context, to Audience) (*Offer, error)
	// Close is called once, after the last call of this generation has
	// returned. Two generations of a module may be alive at the same time.
	Close(ctx context.Context) error
}

// An Owned module keeps things that belong to callers and outlive their calls.
type Owned interface {
	// EndOwned ends, and forgets, everything for which match holds: match is
	// given the owner (tool.Caller.Owner) and when the thing was made, zero
	// where the module does not know. It returns when they have ended, or ctx
	// is done, with a line for each: its kind, its id, and what it was, such
	// as "process process_1: sleep". It may be called at any time before Close.
	EndOwned(ctx context.Context, match func(owner string, made time.Time) bool) []string
}

// A Transferable module can give what belongs to one caller to another.
type Transferable interface {
	Owned
	// HandOver gives each thing for which heir names an owner to that owner.
	// heir is given what match of EndOwned is, and "" means that the thing
	// stays. What acts with the rights of its owner, or would exceed a limit
	// of the new owner's memory, stays too. It returns a line for each thing,
	// as EndOwned does, and may be called at any time before Close.
	HandOver(ctx context.Context, heir Heir) []string
}

// Heir names the owner that a thing goes to; "" leaves it where it is.
type Heir func(owner string, made time.Time) string

// New makes a module. What a module depends on besides Deps is an argument of
// the function that returns the New.
type New func(ctx context.Context, d Deps) (Module, error)

// Audience names the callers that an offer is for. The zero value means all.
type Audience struct{ Principal, Context string }

// Offer is what a module offers one audience.
type Offer struct {
	Personal   bool   // false: this one Offer serves every audience
	Version    string // of the module; "" means the host's
	Tools      []tool.Tool
	Resources  []Resource
	Templates  []Resource // URI holds an RFC 6570 template
	Prompts    []Prompt
	Methods    map[string]tool.Handler    // extension methods, by name
	Extensions map[string]json.RawMessage // what is advertised of them
}

// Resource is something that can be read, or a template of such things.
type Resource struct {
	URI         string
	Name        string
	Title       string
	Description string
	MIME        string // "" means text/plain
	Size        int64  // 0 means unknown
	Icons       []tool.Icon
	Annotations *tool.Annotations
	Raw         json.RawMessage // a relayed listing entry, verbatim
	Timeout     time.Duration   // of a read; 0 means the host's

	Read     tool.Handler // Call.Name is the URI that is read
	Complete tool.Handler // of a template's variables; nil for none
	Watch    Watch        // nil if changes are not reported
	// MayWatch runs as a call before a watch is opened, and may refuse it. nil means
	// that a caller who may read the resource may watch it.
	MayWatch tool.Handler
	// Unlisted keeps a template out of the list of templates: its resources can be read.
	Unlisted bool
	// Each gives each subscriber its own watch, because subscribers get different
	// updates.
	Each bool
	// AllNodes says that each node of a cluster has its own of what the URI names, as of a file: then a watch is one of
	// those of all nodes.
	AllNodes bool
}

// Prompt is a text that a user can request by name.
type Prompt struct {
	Name        string
	Title       string
	Description string
	Args        []PromptArg
	Icons       []tool.Icon
	Raw         json.RawMessage // a relayed listing entry, verbatim

	Get      tool.Handler // Call.Args is an object of strings
	Complete tool.Handler // of an argument; nil for none
}

// PromptArg is one argument of a prompt; its value is always a string.
type PromptArg struct {
	Name, Title, Description string
	Required                 bool
}

// Completing is the Call.Args of a completion: the name of the argument, its value so
// far, and the other arguments that are already known.
type Completing struct {
	Argument string            `json:"argument"`
	Value    string            `json:"value"`
	Known    map[string]string `json:"known,omitempty"`
}

// Watch calls changed for each change of a resource until stop is called. changed
// never blocks and may be called from any goroutine; meta, which may be nil, is an
// object whose members are sent in the _meta of the update. Unless Each is set, one
// watch serves all subscribers of one view.
type Watch func(c tool.Caller, uri string, changed func(meta json.RawMessage)) (stop func(), err error)

// InnerCall is one call of a program. If its result has Input, the call is continued by passing the same value
// again, with Answers.
type InnerCall struct {
	Name string
	Args json.RawMessage
	// Asks lets the tool ask questions, and rules ask for an approval. Otherwise such a call is refused.
	Asks bool
	// Origin says where the call comes from, such as the line and the text of the program, to those who have to
	// approve it. It is shown whole.
	Origin string
	// Waits is called when the call waits for an operator; what it returns is called when it waits no longer. nil
	// means that a call which needs an operator is refused.
	Waits func() (done func())

	Answers map[string]tool.Answer // to the questions of the result before

	// These are the host's, and are kept unchanged between the rounds of a call.
	ID       string
	Recorded map[string]json.RawMessage
	State    []byte
}

// Deps is what the host gives a module.
type Deps struct {
	Log *slog.Logger
	// Config decodes the configuration that the program gave for this module
	// (gatehouse.WithModuleConfig) into the value that into points to. Members
	// that the value does not have, a value of another type, and an into that
	// is no pointer are errors. Without a configuration the value stays as it
	// is. Modules of the binary do not use it: what they depend on is an
	// argument of the function that returns their New.
	Config func(into any) error
	// Changed reports that the offer for an audience is stale. It never blocks, and
	// bursts are coalesced.
	Changed func(Audience)
	// NewID returns an unguessable handle that names this node.
	NewID func(kind string) string
	// Call runs another tool of the parent's view, through the same gate,
	// limits and ledger, one level deeper.
	Call func(ctx context.Context, parent *tool.Call, name string, args json.RawMessage) (tool.Result, error)
	// Inner is Call for the calls of a program that a caller has given: they are paced, recorded and limited as the
	// caller's own, their results are not shortened, and they may ask questions if the call says so.
	Inner func(ctx context.Context, parent *tool.Call, call *InnerCall) (tool.Result, error)
	// Job starts a run that outlives the parent's request and session.
	Job func(parent *tool.Call, title string, run tool.Handler) (id string, err error)
	// Publish publishes an event, named in the past tense. It does not wait for the
	// subscribers.
	Publish func(subject string, fact any)
	// Node is the name of this node of a cluster; "" without one.
	Node string
	// Elsewhere runs the running call c on all other nodes of the cluster, each for a
	// short time at most. It returns nothing without a cluster, and in a call that it has
	// itself sent here. See Gather.
	Elsewhere func(ctx context.Context, c *tool.Call) []NodeResult
	// OneCall reports that the host ends with the first call, so that a module need
	// not keep anything for later ones.
	OneCall bool
}
