// Package nodebus carries calls to the node of a cluster that their handle names.
//
// A handle that a node makes ends with "_" and the node's id. A call whose handle names another node runs there, over
// HTTP on a stream between the nodes: the request is JSON, the answer is one JSON value per line, of which the last is
// the outcome. Permissions, approvals and limits are those of the node that received the call, and so is its line in
// the ledger. Everything else runs on the local bus.
package nodebus

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"gatehouse/internal/cluster"
	"gatehouse/internal/dispatch/bus"
	"gatehouse/tool"
)

// Service is the name of the streams over which calls are sent.
const Service = "calls"

// headerFormat has the format of a call; see cluster.Format.
const headerFormat = "Gatehouse-Format"

// Bus is a local bus that sends the calls that belong to other nodes there.
type Bus struct {
	bus.Bus
	Self string // this node
	// Node reports whether an id is that of a node, and whether it is heard.
	Node func(id string) (known, alive bool)
	// Peers returns the ids of the other members, in order.
	Peers func() []string
	// Resolve returns the node of a call that has no handle, such as of a browser by its name; "" means this one. nil
	// means that all such calls run on this node.
	Resolve func(ctx context.Context, r *bus.Request) (string, error)
	// Lost reports whether a call whose node is not heard can be answered here, because what it names is known to be
	// lost; nil means never.
	Lost func(ctx context.Context, r *bus.Request) bool
	// Transport reaches the handler of a node; the host of the URL is the node's id and ".node".
	Transport http.RoundTripper
	// Streams carries calls quicker than Transport, while it has a stream to their node; nil carries none.
	Streams *Streams
	// Place returns the node on which a request without a handle has to run; "" means this one. nil places nothing.
	Place func(ctx context.Context, r *bus.Request) (node string, err error)
	// Staged refuses a request of a staged task, which is not placed, if it may not run on this node.
	Staged func(r *bus.Request) error
}

// Followed forwards to the local bus.
func (b *Bus) Followed(subject string) bool {
	f, ok := b.Bus.(interface{ Followed(string) bool })
	return !ok || f.Followed(subject)
}

// Do runs the request on the node that its handle or its state names.
func (b *Bus) Do(ctx context.Context, r *bus.Request, n bus.Notes) (bus.Outcome, error) {
	parked, rest, open := cutNode(r.State)
	if open {
		again := *r
		again.State, again.Node = rest, parked
		r = &again
	}
	node := b.nodeOf(r)
	if node == "" && !open && r.Task == "" && b.Place != nil {
		if out, here, err := b.doPlaced(ctx, r, n); !here {
			return out, err
		}
	}
	if node == "" && r.Task != "" && b.Staged != nil {
		if err := b.Staged(r); err != nil {
			return bus.Outcome{}, err
		}
	}
	if node == "" && r.Node == "" && b.Resolve != nil {
		at, err := b.Resolve(ctx, r)
		if err != nil {
			return bus.Outcome{}, err
		}
		there := *r
		there.Node = at
		node = b.nodeOf(&there)
	}
	if node == "" {
		out, err := b.Bus.Do(ctx, r, n)
		return parkedAt(b.Self, out), err
	}
	if r.Task != "" {
		return bus.Outcome{}, tool.Refuse(tool.CodeUnsupported,
			"what the call names is on another node, and what a staged task changes is on this one")
	}
	if _, alive := b.Node(node); !alive {
		if b.Lost != nil && b.Lost(ctx, r) {
			return b.Bus.Do(ctx, r, n)
		}
		return bus.Outcome{}, &tool.Refusal{
			Code:    tool.CodeGone,
			Message: "what the call names is on node " + node + ", which is not heard; nothing was run",
			Next:    "If the node has died it is lost: start it again.",
		}
	}
	out, err := b.send(ctx, node, r, "", n)
	if errors.Is(err, bus.ErrLost) && b.Lost != nil && b.Lost(ctx, r) { // the node died while it answered
		return b.Bus.Do(ctx, r, n)
	}
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return parkedAt(node, out), err
}

const (
	placeAgain = 50 * time.Millisecond // before a request is placed again that its node did not get
	placeTime  = 20 * time.Second      // in which it is: longer than a node that died counts as alive
)

// doPlaced runs a request on the node on which it is placed. If that has not got it, because it has just died, the
// request is placed again. here is true if this node runs it.
func (b *Bus) doPlaced(ctx context.Context, r *bus.Request, n bus.Notes) (out bus.Outcome, here bool, err error) {
	for end := time.Now().Add(placeTime); ; {
		node, err := b.Place(ctx, r)
		if err != nil || node == "" {
			return out, err == nil, err
		}
		connection := "" // tells the callers of one principal apart there
		if r.Caller != nil {
			connection = cmp.Or(r.Caller.Session, r.Caller.Connection)
		}
		out, err = b.send(ctx, node, r, connection, n)
		if ctx.Err() != nil && err != nil {
			return out, false, context.Cause(ctx)
		}
		if !errors.Is(err, bus.ErrAbsent) || time.Now().After(end) {
			return parkedAt(node, out), false, err
		}
		select {
		case <-time.After(placeAgain):
		case <-ctx.Done():
			return out, false, context.Cause(ctx)
		}
	}
}

// stateMark begins the state of a call that is open on a node; the node's id and a zero byte follow.
const stateMark = "\x00node "

// parkedAt adds the node to the state of a call whose next round must reach it.
func parkedAt(node string, out bus.Outcome) bus.Outcome {
	if in := out.Result.Input; in != nil && in.Here {
		marked := *in
		marked.State = append([]byte(stateMark+node+"\x00"), in.State...)
		out.Result.Input = &marked
	}
	return out
}

// cutNode returns the node and the rest of a state that parkedAt has marked.
func cutNode(state []byte) (node string, rest []byte, ok bool) {
	after, ok := bytes.CutPrefix(state, []byte(stateMark))
	if !ok {
		return "", state, false
	}
	id, rest, ok := bytes.Cut(after, []byte{0})
	return string(id), rest, ok
}

// nodeOf returns the node that a call names, if that is another one: in its handle, or in the URI of an output.
func (b *Bus) nodeOf(r *bus.Request) string {
	node := r.Node
	if r.Method == "resources/read" {
		_, rest, _ := strings.Cut(r.Name, ":///spool/")
		handle, _, _ := strings.Cut(rest, "?")
		_, node, _ = strings.Cut(handle, "_")
	}
	if node == b.Self || !cluster.ValidID(node) {
		return ""
	}
	if known, _ := b.Node(node); !known {
		return ""
	}
	return node
}

// copyTime is how long another node has to answer a request that each node runs.
const copyTime = 2 * time.Second

// Elsewhere runs a request on all other nodes of the cluster, and returns their results in the order of their names. A
// node that does not serve the module has none.
func (b *Bus) Elsewhere(ctx context.Context, r *bus.Request) []bus.NodeOutcome {
	ctx, cancel := context.WithTimeoutCause(ctx, copyTime, fmt.Errorf("no answer within %v", copyTime))
	defer cancel()
	peers := b.Peers()
	all := make([]bus.NodeOutcome, len(peers))
	absent := make([]bool, len(peers))
	var asking sync.WaitGroup
	for i, id := range peers {
		asking.Go(func() {
			all[i].Node = id
			if _, alive := b.Node(id); !alive {
				all[i].Err = cluster.ErrNotRun
				return
			}
			there := *r
			there.Node, there.Copy, there.Left = id, true, copyTime
			out, err := b.send(ctx, id, &there, "", nil)
			all[i].Outcome, all[i].Err = out, err
			absent[i] = errors.Is(err, bus.ErrAbsent) && !errors.Is(err, cluster.ErrNotRun)
		})
	}
	asking.Wait()
	var answers []bus.NodeOutcome
	for i := range all {
		if !absent[i] {
			answers = append(answers, all[i])
		}
	}
	return answers
}

// line is one line of an answer: a note, or the end of the call.
type line struct {
	Progress *progress       `json:"progress,omitempty"`
	Level    slog.Level      `json:"level,omitempty"`
	Log      json.RawMessage `json:"log,omitempty"`
	Output   []byte          `json:"output,omitempty"`
	Detach   bool            `json:"detach,omitempty"`
	End      *end            `json:"end,omitempty"`
}

type progress struct {
	Done  float64 `json:"done"`
	Total float64 `json:"total,omitempty"`
	Note  string  `json:"note,omitempty"`
}

// end is an outcome or an error: one of the kinds that have a meaning to the caller, or text.
type end struct {
	Outcome bus.Outcome `json:"outcome"`
	// Structured is that of the result, as JSON, because as a Go value it would lose the precision of large numbers.
	Structured json.RawMessage `json:"structured,omitempty"`
	Refusal    *tool.Refusal   `json:"refusal,omitempty"`
	Wire       *tool.WireError `json:"wire,omitempty"`
	Absent     bool            `json:"absent,omitempty"`
	Lost       bool            `json:"lost,omitempty"`
	Error      string          `json:"error,omitempty"`
}

// send runs a request on another node, as one of a connection; "" names none.
func (b *Bus) send(
	ctx context.Context, node string, r *bus.Request, connection string, n bus.Notes,
) (bus.Outcome, error) {
	there := *r
	there.Caller = callerOf(r.Caller, connection)
	if b.Streams != nil && there.Caller != nil {
		if out, err := b.Streams.do(ctx, node, &there, n); err != errNoStream {
			return out, err
		}
	}
	raw, err := encode(&there)
	if err != nil {
		return bus.Outcome{}, err
	}
	q, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+node+".node/call", bytes.NewReader(raw))
	if err != nil {
		return bus.Outcome{}, err
	}
	q.Header.Set(headerFormat, strconv.Itoa(cluster.Format))
	answer, err := b.Transport.RoundTrip(q)
	if errors.Is(err, cluster.ErrNotRun) {
		return bus.Outcome{}, fmt.Errorf("node %s: %w: %w", node, bus.ErrAbsent, err)
	}
	if err != nil {
		return bus.Outcome{}, fmt.Errorf("node %s: %w: %w", node, bus.ErrLost, err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return bus.Outcome{}, fmt.Errorf("node %s: %w: it answered %s", node, bus.ErrAbsent, answer.Status)
	}
	for lines := json.NewDecoder(answer.Body); ; {
		var l line
		if err := lines.Decode(&l); err != nil {
			return bus.Outcome{}, fmt.Errorf("node %s: %w: %w", node, bus.ErrLost, err)
		}
		if l.End != nil {
			return l.End.result()
		}
		if n != nil {
			l.report(n)
		}
	}
}

func (l *line) report(n bus.Notes) {
	switch {
	case l.Progress != nil:
		n.Progress(l.Progress.Done, l.Progress.Total, l.Progress.Note)
	case l.Log != nil:
		n.Log(l.Level, l.Log)
	case l.Output != nil:
		n.Output(l.Output)
	case l.Detach:
		n.Detach()
	}
}

func (e *end) result() (bus.Outcome, error) {
	switch {
	case e.Refusal != nil:
		return bus.Outcome{}, e.Refusal
	case e.Wire != nil:
		return bus.Outcome{}, e.Wire
	case e.Absent:
		return bus.Outcome{}, fmt.Errorf("%s: %w", e.Error, bus.ErrAbsent)
	case e.Lost:
		return bus.Outcome{}, fmt.Errorf("%s: %w", e.Error, bus.ErrLost)
	case e.Error != "":
		return bus.Outcome{}, errors.New(e.Error)
	}
	if e.Structured != nil {
		e.Outcome.Result.Structured = e.Structured
	}
	return e.Outcome, nil
}

func endOf(out bus.Outcome, err error) *end {
	if err != nil {
		e := &end{Absent: errors.Is(err, bus.ErrAbsent), Lost: errors.Is(err, bus.ErrLost), Error: err.Error()}
		e.Refusal, _ = errors.AsType[*tool.Refusal](err)
		e.Wire, _ = errors.AsType[*tool.WireError](err)
		return e
	}
	e := &end{Outcome: out}
	if v := out.Result.Structured; v != nil {
		if e.Structured, err = encode(v); err != nil {
			return &end{Error: err.Error()}
		}
		e.Outcome.Result.Structured = nil
	}
	return e
}

// encode is json.Marshal without escapes for HTML, which would change raw JSON.
func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}

// Handler runs the calls of other nodes on the local bus. Only nodes may reach it, because it trusts the caller that
// they name.
func Handler(local bus.Bus) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		var r bus.Request
		if format, err := strconv.Atoi(q.Header.Get(headerFormat)); err == nil && format > cluster.Format {
			http.Error(w, cluster.CheckFormat("the call", format).Error(), http.StatusNotImplemented)
			return
		}
		raw, err := io.ReadAll(q.Body)
		if err == nil {
			err = json.Unmarshal(raw, &r)
		}
		if err != nil || r.Caller == nil {
			http.Error(w, "expected a call with its caller", http.StatusBadRequest)
			return
		}
		ctx := q.Context()
		if r.Left > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, r.Left)
			defer cancel()
		}
		a := &answer{w: w}
		out, err := local.Do(ctx, &r, a)
		a.write(line{End: endOf(out, err)})
	})
}

// answer implements bus.Notes: it writes each as a line.
type answer struct {
	mu sync.Mutex
	w  http.ResponseWriter
}

func (a *answer) write(l line) {
	raw, err := encode(l)
	if err != nil {
		if l.End == nil {
			return // a number that JSON does not know
		}
		raw, _ = encode(line{End: &end{Error: err.Error()}})
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.w.Write(append(raw, '\n'))
	if l.End == nil {
		http.NewResponseController(a.w).Flush()
	}
}

func (a *answer) Progress(done, total float64, note string) {
	a.write(line{Progress: &progress{done, total, note}})
}

func (a *answer) Log(level slog.Level, params json.RawMessage) {
	a.write(line{Level: level, Log: params})
}
func (a *answer) Output(chunk []byte) { a.write(line{Output: chunk}) }
func (a *answer) Detach()             { a.write(line{Detach: true}) }

// Keep reports false: what the call's node keeps cannot be run again by this one.
func (a *answer) Keep(map[string]json.RawMessage) bool { return false }
