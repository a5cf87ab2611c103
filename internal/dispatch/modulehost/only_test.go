package modulehost_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"slices"
	"testing"

	"gatehouse/internal/dispatch/bus"
	"gatehouse/internal/dispatch/modulehost"
	"gatehouse/module"
	"gatehouse/tool"
)

// teller is a module with one tool that returns the folder it may access.
type teller struct{}

func newTeller(context.Context, module.Deps) (module.Module, error) { return teller{}, nil }

func (teller) Close(context.Context) error { return nil }

func (teller) Offer(context.Context, module.Audience) (*module.Offer, error) {
	return &module.Offer{Tools: []tool.Tool{tool.New(tool.Def{Name: "where", Description: "Says where."},
		func(_ context.Context, c *tool.Call, _ struct{}) (tool.Result, error) {
			return tool.Result{Content: []tool.Content{tool.Text(c.Roots.List()[0].Path)}}, nil
		})}}, nil
}

// place is a root that has only a name.
type place string

func (p place) List() []tool.Root                      { return []tool.Root{{Name: "x", Path: string(p)}} }
func (place) Resolve(string) (*os.Root, string, error) { return nil, "", errors.New("not here") }
func ask(b bus.Bus, in, name string) (tool.Result, error) {
	out, err := b.Do(context.Background(), &bus.Request{
		Module: name, Method: "tools/call", Name: "where", Caller: &tool.Caller{Context: in}, Args: []byte("{}"),
	}, nil)
	return out.Result, err
}

func offered(h *modulehost.Host, in string) (names []string) {
	for _, o := range h.Offers(context.Background(), module.Audience{Context: in}) {
		names = append(names, o.Module)
	}
	return names
}

func TestAModuleForOneContextIsNowhereElse(t *testing.T) {
	b := bus.New()
	h := modulehost.NewHost(
		modulehost.Options{
			Bus:   b,
			Log:   slog.New(slog.DiscardHandler),
			Roots: place("all"),
			RootsOf: func(c tool.Caller) tool.Roots {
				if c.Context == "dev" {
					return place("dev")
				}
				return nil
			},
		},
	)
	if err := errors.Join(h.Add(t.Context(), "every", newTeller),
		h.AddFor(t.Context(), "dev", "own", newTeller)); err != nil {
		t.Fatal(err)
	}
	for in, want := range map[string][]string{"": {"every"}, "dev": {"every", "own"}, "de": {"every"}} {
		if got := offered(h, in); !slices.Equal(got, want) {
			t.Errorf("context %q is offered %v, want %v", in, got, want)
		}
	}
	if _, err := ask(b, "other", "own"); err == nil {
		t.Error("the module served a caller in another context")
	}
	for in, want := range map[string]string{"dev": "dev", "other": "all"} {
		res, err := ask(b, in, "every")
		if err != nil || res.Content[0].Text != want {
			t.Errorf("in %s the folder is %v, %v; want %s", in, res.Content, err, want)
		}
	}
	told := 0
	h.OnChange(func(module.Audience) { told++ })
	end := h.Remove("own")
	if told != 1 {
		t.Errorf("told %d times, want once", told)
	}
	if got := offered(h, "dev"); !slices.Equal(got, []string{"every"}) {
		t.Errorf("after the removal: %v", got)
	}
	if err := h.AddFor(t.Context(), "dev", "own", newTeller); err != nil {
		t.Fatal(err)
	}
	if err := end(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := ask(b, "dev", "own"); err != nil {
		t.Errorf("the end of the old one removed the new one: %v", err)
	}
	if err := h.Remove("own")(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := ask(b, "dev", "own"); !errors.Is(err, bus.ErrAbsent) {
		t.Errorf("got %v, want that no module serves it", err)
	}
	if err := h.Remove("own")(t.Context()); err != nil {
		t.Error(err)
	}
}
