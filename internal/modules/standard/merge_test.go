package standard

import (
	"context"
	"errors"
	"slices"
	"testing"

	"gatehouse/module"
	"gatehouse/tool"
)

// piece is a part of a module.
type piece struct {
	name   string
	closed *[]string
	err    error
}

func (p piece) Offer(context.Context, module.Audience) (*module.Offer, error) {
	return &module.Offer{
		Personal: p.name == "b", Tools: []tool.Tool{{Def: tool.Def{Name: p.name}}},
		Methods: map[string]tool.Handler{p.name: nil},
	}, p.err
}

func (p piece) Close(context.Context) error {
	*p.closed = append(*p.closed, p.name)
	return nil
}

func pieceOf(name string, closed *[]string, makes, offers error) module.New {
	return func(context.Context, module.Deps) (module.Module, error) {
		return piece{name, closed, offers}, makes
	}
}

func TestPartsStandSideBySide(t *testing.T) {
	var closed []string
	m, err := merge(pieceOf("a", &closed, nil, nil), pieceOf("b", &closed, nil, nil))(t.Context(), module.Deps{})
	if err != nil {
		t.Fatal(err)
	}
	o, err := m.Offer(t.Context(), module.Audience{})
	if err != nil || len(o.Tools) != 2 || o.Tools[0].Name != "a" || !o.Personal || len(o.Methods) != 2 {
		t.Errorf("offers %+v, %v", o, err)
	}
	if err := m.Close(t.Context()); err != nil || !slices.Equal(closed, []string{"b", "a"}) {
		t.Errorf("closed %v, %v", closed, err)
	}
}

func TestAPartThatFailsLeavesNothingOpen(t *testing.T) {
	var closed []string
	no := errors.New("no luck")
	if m, err := merge(pieceOf("a", &closed, nil, nil), pieceOf("b", &closed, no, nil))(t.Context(),
		module.Deps{}); m != nil ||
		!errors.Is(err, no) ||
		!slices.Equal(closed, []string{"a"}) {
		t.Errorf("%v, %v, closed %v", m, err, closed)
	}
	m, err := merge(pieceOf("a", &closed, nil, nil), pieceOf("b", &closed, nil, no))(t.Context(), module.Deps{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Offer(t.Context(), module.Audience{}); !errors.Is(err, no) {
		t.Errorf("got %v", err)
	}
}
