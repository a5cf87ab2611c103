package moduletest

import (
	"context"
	"slices"
	"sync"

	"gatehouse/module"
	"gatehouse/tool"
)

// Board is what the Changing probe stands on: the names of the tools that it
// offers besides its own. It outlives the module, as a workshop does. The
// zero value is empty.
type Board struct {
	mu    sync.Mutex
	names map[string][]string // by principal; "" is everyone
}

// add puts a name on a principal's board, once.
func (b *Board) add(principal, name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.names == nil {
		b.names = map[string][]string{}
	}
	if !slices.Contains(b.names[principal], name) {
		b.names[principal] = append(b.names[principal], name)
	}
}

// of gives the names a principal sees, everyone's first.
func (b *Board) of(principal string) []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	names := slices.Clone(b.names[""])
	for _, n := range b.names[principal] {
		if !slices.Contains(names, n) {
			names = append(names, n)
		}
	}
	return names
}

// Changing makes the third probe: what it offers is personal, and its tools
// change it.
func Changing(b *Board) module.New {
	return func(_ context.Context, d module.Deps) (module.Module, error) {
		return &changing{board: b, deps: d}, nil
	}
}

type changing struct {
	board *Board
	deps  module.Deps
}

func (m *changing) Close(context.Context) error { return nil }

func (m *changing) Offer(_ context.Context, to module.Audience) (*module.Offer, error) {
	o := &module.Offer{Personal: true, Tools: []tool.Tool{
		tool.New(tool.Def{
			Name: "changing_add", Effects: tool.Writes | tool.Idempotent,
			Description: "Offers one more tool, to the caller or to everyone.",
		}, m.add),
		tool.New(tool.Def{
			Name: "changing_touch", Effects: tool.Reads,
			Description: "Says that the offer has changed when it has not.",
		}, m.touch),
	}}
	for _, name := range m.board.of(to.Principal) {
		o.Tools = append(o.Tools, tool.New(tool.Def{
			Name: "extra_" + name, Effects: tool.Reads,
			Description: "Was added while the host ran.",
		}, func(_ context.Context, c *tool.Call, _ struct{}) (extraOut, error) {
			return extraOut{Name: name, For: c.Caller.Principal}, nil
		}))
	}
	return o, nil
}

type extraOut struct {
	Name string `json:"name"`
	For  string `json:"for"`
}

type addIn struct {
	Name     string `json:"name" doc:"the tool is called extra_ and this" pattern:"^[a-z]+$"`
	Everyone bool   `json:"everyone,omitempty" doc:"offer it to everyone"`
}

func (m *changing) add(_ context.Context, c *tool.Call, in addIn) (struct{}, error) {
	if in.Name == "" {
		return struct{}{}, tool.Refuse(tool.CodeInvalidArguments, "name: the tool needs one")
	}
	principal := c.Caller.Principal
	if in.Everyone {
		principal = ""
	}
	m.board.add(principal, in.Name)
	m.deps.Changed(module.Audience{Principal: principal}) // in whichever context
	m.deps.Publish("offer.changed", in)
	return struct{}{}, nil
}

func (m *changing) touch(_ context.Context, c *tool.Call, _ struct{}) (struct{}, error) {
	m.deps.Changed(module.Audience{Principal: c.Caller.Principal, Context: c.Caller.Context})
	return struct{}{}, nil
}
