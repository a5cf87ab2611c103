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
	names map[module.Audience][]string
}

// add puts a name on the board of an audience, once.
func (b *Board) add(a module.Audience, name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.names == nil {
		b.names = map[module.Audience][]string{}
	}
	if !slices.Contains(b.names[a], name) {
		b.names[a] = append(b.names[a], name)
	}
}

// of gives the names an audience sees, everyone's first.
func (b *Board) of(a module.Audience) []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	names := slices.Clone(b.names[module.Audience{}])
	for _, n := range b.names[a] {
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
	for _, name := range m.board.of(to) {
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
		return struct{}{}, tool.Refuse("invalid_arguments", "name: the tool needs one")
	}
	a := audience(c)
	if in.Everyone {
		a = module.Audience{}
	}
	m.board.add(a, in.Name)
	m.deps.Changed(a)
	m.deps.Publish("offer.changed", in)
	return struct{}{}, nil
}

func (m *changing) touch(_ context.Context, c *tool.Call, _ struct{}) (struct{}, error) {
	m.deps.Changed(audience(c))
	return struct{}{}, nil
}

func audience(c *tool.Call) module.Audience {
	return module.Audience{Principal: c.Caller.Principal, Context: c.Caller.Context}
}
