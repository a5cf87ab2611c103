package catalog

import (
	"context"
	"encoding/json"
	"reflect"
	"testing"

	"gatehouse/module"
	"gatehouse/tool"
)

type offering struct {
	offer  *module.Offer
	closed bool
}

func (o *offering) Offer(context.Context, module.Audience) (*module.Offer, error) {
	return o.offer, nil
}

func (o *offering) Close(context.Context) error {
	o.closed = true
	return nil
}

func TestReadSortsAndSpells(t *testing.T) {
	o := &offering{offer: &module.Offer{Tools: []tool.Tool{
		{Def: tool.Def{Name: "b", Input: json.RawMessage(`{"type":"object"}`)}},
		{Def: tool.Def{Name: "a"}},
	}}}
	make := func(context.Context, module.Deps) (module.Module, error) { return o, nil }
	m, err := Read(t.Context(), "letters", make)
	if err != nil {
		t.Fatal(err)
	}
	if len(m.Tools) != 2 || m.Tools[0].Def.Name != "a" || string(m.Tools[1].Input) != `{"type":"object"}` {
		t.Errorf("got %+v, want a before b, and b with its own schema", m.Tools)
	}
	if !o.closed {
		t.Error("the module was left open")
	}
	o.offer = &module.Offer{
		Tools: []tool.Tool{{Def: tool.Def{Name: "c", In: reflect.TypeFor[struct{ Wait func() }]()}}},
	}
	if _, err := Read(t.Context(), "letters", make); err == nil {
		t.Error("a type without a schema went unnoticed")
	}
}

func TestEffectsAreSaid(t *testing.T) {
	for e, want := range map[tool.Effects]string{
		0:                             "It claims nothing about its effects, so it counts as one that may do anything.",
		tool.Reads:                    "It only reads.",
		tool.Reads | tool.Writes:      "It reads; it writes.",
		tool.Writes | tool.Idempotent: "It writes; doing it twice is like doing it once.",
	} {
		if got := EffectsText(e); got != want {
			t.Errorf("effects %d: got %q, want %q", e, got, want)
		}
	}
}
