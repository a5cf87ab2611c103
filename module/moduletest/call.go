package moduletest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"gatehouse/tool"
)

// maxRounds is how often a call may ask.
const maxRounds = 10

// A Call is one call over all its rounds, with a client behind it that does
// what the test says. Change what is in it before it is run.
type Call struct {
	tool.Call
	Peer *Peer
}

// NewCall makes a call with arguments: names and values in turn, or one
// argument that stands for all of them, as JSON text or as anything that
// encodes to an object. The caller is "anonymous", has no session and can do
// everything; the folder it may touch is an empty one.
//
//	c := moduletest.NewCall(t, "path", "notes.txt", "limit", 10)
//	c := moduletest.NewCall(t, `{"path":"notes.txt"}`)
func NewCall(t testing.TB, args ...any) *Call {
	t.Helper()
	raw, err := encodeArgs(args)
	if err != nil {
		t.Fatalf("NewCall: %v", err)
	}
	c := &Call{Peer: &Peer{Answers: map[string]json.RawMessage{}}}
	c.Call = tool.Call{
		ID: "call_test", Method: "tools/call", Args: raw, Params: raw,
		Caller: tool.Caller{
			Principal: "anonymous",
			Context:   "default",
			Owner:     "anonymous/default",
			Client:    "moduletest",
			Can:       ^tool.OnlyOperator,
		},
		Roots: Folder(t), Peer: c.Peer,
	}
	c.Peer.call = &c.Call
	return c
}

func encodeArgs(args []any) (json.RawMessage, error) {
	var all any
	switch {
	case len(args) == 1:
		all = args[0]
		if text, ok := all.(string); ok {
			all = json.RawMessage(text)
		}
	case len(args)%2 == 0:
		m := map[string]any{}
		for i := 0; i < len(args); i += 2 {
			name, ok := args[i].(string)
			if !ok {
				return nil, fmt.Errorf("argument %d is the name of an argument and must be a string", i+1)
			}
			m[name] = args[i+1]
		}
		all = m
	default:
		return nil, errors.New("arguments are names and values in turn")
	}
	raw, err := json.Marshal(all)
	if err == nil && !isObject(raw) {
		err = fmt.Errorf("arguments must be an object, got %s", raw)
	}
	return raw, err
}

// Tool calls a tool the way a host would: with the defaults of its Go type
// filled in, and again from the top for as long as it asks what the peer can
// answer. What it does not do is hold arguments and results to their schemas.
func (c *Call) Tool(ctx context.Context, t tool.Tool) (tool.Result, error) {
	c.Name = t.Name
	args, err := withDefaults(t.In, c.Args)
	if err != nil {
		return tool.Result{}, err
	}
	c.Args = args
	return c.Run(ctx, t.Run)
}

// Run runs a handler over all its rounds. Between two rounds everything that
// is kept goes through JSON, as it does on its way to a client and back. A
// question that Peer.Answers does not answer is an error.
func (c *Call) Run(ctx context.Context, h tool.Handler) (tool.Result, error) {
	for range maxRounds + 1 {
		c.Peer.begin()
		res, err := h(ctx, &c.Call)
		asked := c.Peer.end()
		switch {
		case len(asked) == 0 && res.Input != nil && err == nil:
			asked = res.Input.Questions // a relay's own
		case len(asked) == 0 && errors.Is(err, tool.ErrAsked):
			return tool.Result{}, errors.New("the handler returned ErrAsked without having asked")
		case len(asked) == 0:
			return res, err
		}
		if res.Input != nil {
			c.State = res.Input.State
		}
		if err := c.Peer.answer(asked); err != nil {
			return tool.Result{}, err
		}
	}
	return tool.Result{}, fmt.Errorf("the handler asked more than %d times", maxRounds)
}

// withDefaults adds the defaults of absent members, at the top only.
func withDefaults(in reflect.Type, args json.RawMessage) (json.RawMessage, error) {
	if in == nil || in.Kind() != reflect.Struct {
		return args, nil
	}
	var m map[string]json.RawMessage
	if err := json.Unmarshal(args, &m); err != nil {
		return nil, fmt.Errorf("arguments: %w", err)
	}
	for _, f := range reflect.VisibleFields(in) {
		def, ok := f.Tag.Lookup("default")
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "" {
			name = f.Name
		}
		if _, given := m[name]; !ok || given {
			continue
		}
		raw := []byte(def)
		if f.Type.Kind() == reflect.String {
			raw, _ = json.Marshal(def)
		}
		m[name] = raw
	}
	return json.Marshal(m)
}

// folder is one folder, which os.Root confines.
type folder struct{ root *os.Root }

func (f folder) List() []tool.Root { return []tool.Root{{Name: "test", Path: f.root.Name()}} }

func (f folder) Resolve(path string) (*os.Root, string, error) {
	name := filepath.Clean(path)
	if filepath.IsAbs(path) {
		rel, err := filepath.Rel(f.root.Name(), path)
		if err != nil {
			rel = ".."
		}
		name = rel
	}
	if !filepath.IsLocal(name) {
		return nil, "", tool.Refuse(tool.CodeOutsideRoot, "%s is outside the folders of this call", path)
	}
	return f.root, name, nil
}
