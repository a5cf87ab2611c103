// Package tool is the vocabulary of a tool: what it is called, what it takes
// and gives, and what one call of it hands to its handler.
//
// An author writes a Go function with typed arguments and a typed result and
// gives it a definition:
//
//	tool.New(tool.Def{
//		Name:        "greet",
//		Description: "Greets a person by name.",
//		Effects:     tool.Reads,
//	}, func(ctx context.Context, c *tool.Call, in struct {
//		Name string `json:"name" doc:"whom to greet" min:"1"`
//	}) (struct {
//		Greeting string `json:"greeting"`
//	}, error) { ... })
//
// Everything else follows from that one definition: the JSON Schemas that are
// advertised and enforced, the command-line flags, the documentation. Nothing
// here knows protocol revisions, sessions or transports, and a handler is the
// same for all of them. The package imports only the standard library.
package tool

import (
	"context"
	"encoding/json"
	"reflect"
	"time"
)

// Effects says what a tool may do to the world. It becomes the annotations
// clients see, the level of its audit line and the input of permission rules.
// The zero value claims nothing and is treated as the worst: it may write,
// destroy and reach the open world.
type Effects uint8

const (
	Reads      Effects = 1 << iota // looks only; alone it is the "read-only" hint
	Writes                         // adds or changes, and can be undone or repeated
	Destroys                       // removes or overwrites what was there
	OpenWorld                      // reaches beyond this host
	Idempotent                     // a second identical call changes nothing more
)

// ReadOnly reports whether the effects promise that nothing is changed.
func (e Effects) ReadOnly() bool { return e&Reads != 0 && e&(Writes|Destroys) == 0 }

// TaskMode says how a tool relates to calls that outlive their request.
type TaskMode uint8

const (
	// answered directly when quick, promoted to a job when slow and the client can follow it
	TaskAuto     TaskMode = iota
	TaskNever             // always answered directly
	TaskAlways            // a job whenever the client can follow one
	TaskRequired          // only as a job; a client that cannot follow one is refused
)

// Icon is one picture of a tool, resource or prompt.
type Icon struct {
	Src   string   `json:"src"`
	MIME  string   `json:"mimeType,omitempty"`
	Sizes []string `json:"sizes,omitempty"`
	Theme string   `json:"theme,omitempty"` // light or dark
}

// Def is the one definition of a tool. Only Name and Description are needed.
type Def struct {
	Name        string // letters, digits and _; unique in its module
	Title       string // for people; "" means none
	Description string // two sentences at most: a model reads it on every turn
	Help        string // everything else, as Markdown, served as a help resource
	Icons       []Icon

	Effects Effects
	Task    TaskMode
	Timeout time.Duration // of work, not of waiting for people; 0 means the host's default (60 s)
	// bytes of text in a result before it is cut and spooled; 0 means the host's default, -1 never
	Budget int
	Linked string // the output member that is left out of a result over its budget; see LinkedOut
	// Staged means that everything that the tool changes goes through Call.Roots, or is done by programs that run in
	// the view of the call. Such a call can be staged, see package stage.
	Staged bool
	// Unstaged says why calls cannot be staged, if Staged is not set; "" means that their effects are not limited to
	// folders.
	Unstaged string
	// Programs means that programs which the tool starts change folders. Such a call can be staged only on a machine
	// that can give a program the view.
	Programs bool
	Handle   string // the argument that holds a handle; the call is routed to the node named in it
	// Hosts means that the handler makes calls for its caller that count as the caller's own. It waits for its turn
	// as every call does, and then holds no slot of any limit while it runs; its module limits how many run.
	Hosts bool
	// Restartable means that a task which is a call of the tool, or the job that the handler starts, runs again from
	// the top on another node of a cluster if its node dies: what it does is the same on each node and however often it
	// is done, or JobOf tells the handler that it has to look. See Stay.
	Restartable  bool
	Sync         bool     // after success the caller's resource subscriptions are brought up to date at once
	NeedsSession bool     // the handler uses Caller.Session; it must still work when that is empty
	Aliases      []string // exact names of an original this tool also answers to, where a view asks for them
	Meta         json.RawMessage

	// In and Out are set by New. A tool without Go types gives its JSON
	// Schemas instead; an empty Input means an object without members.
	In, Out       reflect.Type
	Input, Output json.RawMessage

	// Raw is a listing entry relayed from elsewhere, passed on verbatim but
	// for its name. With Raw set, Input and Output are read from it.
	Raw json.RawMessage
}

// LinkedOut is embedded in the output of a tool with Def.Linked. If a result is
// over its budget, the host leaves that member out, which must be optional, fills
// these in and links to all of the result. No value is cut.
type LinkedOut struct {
	URI   string `json:"uri,omitempty" doc:"instead of what is too large for one answer: where all of the result can be read"`
	Bytes int    `json:"bytes,omitempty" doc:"with uri: the size of all of it"`
}

// Stage sets Staged in tools.
func Stage(tools []Tool) {
	for i := range tools {
		tools[i].Staged = true
	}
}

// StagePrograms sets Staged and Programs in tools.
func StagePrograms(tools []Tool) {
	Stage(tools)
	for i := range tools {
		tools[i].Programs = true
	}
}

// A Handler does the work of one call with exactly what the call hands it.
//
// It may be run again from the top for the same call (see Peer.Ask), on
// another goroutine or another node. The error is one of
//
//   - a *Refusal: the model reads it as a tool error,
//   - a *WireError: the client gets it as a JSON-RPC error,
//   - ErrAsked, passed on from Peer.Ask,
//   - anything else: a tool error with the text of the error.
type Handler func(ctx context.Context, c *Call) (Result, error)

// A Tool is a definition with its handler.
type Tool struct {
	Def
	Run Handler
}

// New makes a tool from a typed function. In is a struct; its fields' tags
// (json, doc, default, min, max, enum, pattern) are the schema, see
// package schema; names says what an argument names of the host, see NamesPath;
// a string tagged text:"product" is what the tool is called for, see Typed. Out may be Result, for
// a handler that builds its own; then no output schema is advertised.
//
// The arguments have been checked against the schema, and defaults filled in,
// before f runs.
func New[In, Out any](d Def, f func(context.Context, *Call, In) (Out, error)) Tool {
	arguments := d.setTypes(reflect.TypeFor[In](), reflect.TypeFor[Out]())
	return Tool{d, func(ctx context.Context, c *Call) (Result, error) {
		in := new(In)
		if err := arguments.decode(c.Args, in); err != nil {
			return Result{}, err
		}
		out, err := f(ctx, c, *in)
		return resultOf(out, err)
	}}
}

// setTypes sets what a tool takes and returns, and returns what decodes its arguments. It and resultOf are
// no part of New because the program has a copy of New for each tool.
func (d *Def) setTypes(in, out reflect.Type) *decoder {
	d.In = in
	if out != reflect.TypeFor[Result]() {
		d.Out = out
	}
	arguments := newDecoder(in)
	return &arguments
}

func resultOf(out any, err error) (Result, error) {
	if err != nil {
		return Result{}, err
	}
	if r, ok := out.(Result); ok {
		return r, nil
	}
	return Typed(out), nil
}
