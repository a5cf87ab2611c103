// Package moduletest is the suite each module passes, and what a module's own
// tests need instead of a host: calls with a client behind them, and the
// dependencies a host gives.
//
// A module is held to its contract by one line in a test of its own:
//
//	func TestContract(t *testing.T) {
//		moduletest.Run(t, greet.New, moduletest.Options{})
//	}
//
// A tool is tried with NewCall, which answers the tool's questions as the test
// says and remembers what the tool told. The package also holds five probes,
// modules that between them use everything a module may do; the host's own
// tests run them over every era, connection and bus.
//
// It imports only the standard library and the two public contracts.
package moduletest

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"testing"
	"time"

	"gatehouse/module"
	"gatehouse/tool"
)

// patience is how long the suite waits for something that should be quick; it
// is only ever spent when a module does not keep its contract.
const patience = 10 * time.Second

// Options of Run. The zero value is good.
type Options struct {
	// Config is the module's section of the configuration; nil means that
	// there is none.
	Config json.RawMessage
	// Roots are the folders calls may touch; nil makes an empty one.
	Roots tool.Roots
	// Tools can be called by the module through Deps.Call.
	Tools []tool.Tool
	// Busy gives, by the name of a tool, arguments that keep it at work until
	// it is cancelled. The suite cancels such a call and waits for its end.
	Busy map[string]json.RawMessage
	// Check holds each tool to more than the suite can know, for instance to
	// a compiler of JSON Schema; nil checks nothing more.
	Check func(tool.Tool) error
}

// Run holds a module to the contract of package module. It must not run in
// parallel with other tests of the package, because it looks for goroutines
// that the module has left behind.
func Run(t *testing.T, make module.New, o Options) {
	t.Run("offers are steady", func(t *testing.T) { o.start(t, make).offersAreSteady(t) })
	t.Run("definitions are sound", func(t *testing.T) { o.start(t, make).definitionsAreSound(t) })
	t.Run("every tool bears no arguments", func(t *testing.T) { o.start(t, make).bearsNoArguments(t) })
	t.Run("every tool ends when cancelled", func(t *testing.T) { o.start(t, make).endsWhenCancelled(t) })
	t.Run("two generations live", func(t *testing.T) { twoGenerations(t, make, o) })
	t.Run("nothing is left after close", func(t *testing.T) { nothingIsLeft(t, make, o) })
}

// instance is one generation of the module with the host it was given.
type instance struct {
	o      Options
	host   *Host
	module module.Module
	close  func() error
}

// start makes a generation and closes it with the test.
func (o Options) start(t testing.TB, make module.New) *instance {
	t.Helper()
	h := NewHost(t)
	h.Config = o.Config
	h.Tools = o.Tools
	if o.Roots == nil {
		o.Roots = Folder(t)
	}
	m, err := make(t.Context(), h.Deps())
	if err != nil {
		t.Fatalf("the module is not made: %v", err)
	}
	if m == nil {
		t.Fatal("the module is nil without an error")
	}
	g := &instance{o: o, host: h, module: m}
	g.close = sync.OnceValue(func() error {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		return m.Close(ctx)
	})
	t.Cleanup(func() {
		if err := g.close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return g
}

// audiences are for whom the suite asks: everyone, and two that no module has
// heard of.
var audiences = [...]module.Audience{
	{}, {Principal: "ada", Context: "default"}, {Principal: "bob", Context: "default"},
}

// offer asks for an offer and fails the test without one.
func (g *instance) offer(t testing.TB, to module.Audience) *module.Offer {
	t.Helper()
	o, err := g.module.Offer(t.Context(), to)
	if err == nil && o == nil {
		err = fmt.Errorf("neither an offer nor an error")
	}
	if err != nil {
		t.Fatalf("offer for %+v: %v", to, err)
	}
	return o
}

// Fixed makes a module that always offers the same and owns nothing.
func Fixed(o *module.Offer) module.New {
	return func(context.Context, module.Deps) (module.Module, error) { return fixed{o}, nil }
}

type fixed struct{ offer *module.Offer }

func (f fixed) Offer(context.Context, module.Audience) (*module.Offer, error) { return f.offer, nil }
func (fixed) Close(context.Context) error                                     { return nil }

// Tool finds a tool in what a module offers to everyone, and fails the test
// when it is not there.
func Tool(t testing.TB, m module.Module, name string) tool.Tool {
	t.Helper()
	o, err := m.Offer(t.Context(), module.Audience{})
	if err != nil {
		t.Fatalf("offer: %v", err)
	}
	for _, x := range o.Tools {
		if x.Name == name {
			return x
		}
	}
	t.Fatalf("the module offers no tool %s", name)
	return tool.Tool{}
}
