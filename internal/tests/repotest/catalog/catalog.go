// Package catalog reads the offers of modules into plain data, for the tests and generators of repotest.
package catalog

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"gatehouse/internal/mcp/schema"
	"gatehouse/internal/modules/administration"
	"gatehouse/internal/modules/contextadmin"
	"gatehouse/internal/modules/job"
	"gatehouse/internal/modules/resources"
	"gatehouse/internal/modules/sshkeys"
	"gatehouse/internal/modules/standard"
	"gatehouse/internal/modules/toolfinder"
	"gatehouse/module"
	"gatehouse/tool"
)

// Module is a module with what it offers every caller, sorted by name.
type Module struct {
	Name      string
	Tools     []Tool
	Resources []module.Resource // templates included
	Prompts   []module.Prompt
}

// Tool is a definition with its complete schemas.
type Tool struct {
	Def           tool.Def
	Input, Output json.RawMessage // Output is empty when there is none
	Product       string          // the member of the result that clients are sent as text; "" if there is none
}

// Standard returns the modules of the program: the standard modules in their order, and those that the host adds
// because they need parts of the host.
func Standard(ctx context.Context) ([]Module, error) {
	var all []Module
	var administrative []standard.Module
	for _, m := range administration.Modules(administration.Config{}) {
		administrative = append(administrative, standard.Module{Name: m.Name, New: m.New})
	}
	for _, g := range append(append(standard.Modules(standard.Deps{}), administrative...),
		standard.Module{Name: "job", New: job.New(nil, nil)},
		standard.Module{Name: "tool", New: toolfinder.New(nil, nil)},
		standard.Module{Name: "resources", New: resources.New(nil, resources.Help{})},
		standard.Module{Name: "context", New: contextadmin.New(contextadmin.Options{Judge: unasked})},
		standard.Module{Name: "ssh", New: sshkeys.New(sshkeys.Config{})},
	) {
		m, err := Read(ctx, g.Name, g.New)
		if err != nil {
			return nil, err
		}
		all = append(all, m)
	}
	return all, nil
}

// Read creates a module with minimal dependencies, reads its offer to every caller and closes it. A module must be
// able to do this without a configuration.
func Read(ctx context.Context, name string, make module.New) (Module, error) {
	m, err := make(ctx, Deps(name))
	if err != nil {
		return Module{}, fmt.Errorf("make module %s: %w", name, err)
	}
	defer m.Close(ctx)
	offer, err := m.Offer(ctx, module.Audience{})
	if err != nil {
		return Module{}, fmt.Errorf("offer of module %s: %w", name, err)
	}
	read := Module{
		Name:      name,
		Resources: slices.Concat(offer.Resources, offer.Templates),
		Prompts:   slices.Clone(offer.Prompts),
	}
	for _, t := range offer.Tools {
		spelled, err := spell(t.Def)
		if err != nil {
			return Module{}, fmt.Errorf("tool %s: %w", t.Name, err)
		}
		read.Tools = append(read.Tools, spelled)
	}
	slices.SortFunc(read.Tools, func(a, b Tool) int { return cmp.Compare(a.Def.Name, b.Def.Name) })
	slices.SortFunc(read.Resources, func(a, b module.Resource) int { return cmp.Compare(a.URI, b.URI) })
	slices.SortFunc(read.Prompts, func(a, b module.Prompt) int { return cmp.Compare(a.Name, b.Name) })
	return read, nil
}

// spell returns a tool's schemas: its own, or those of its types.
func spell(d tool.Def) (t Tool, err error) {
	t = Tool{Def: d, Input: d.Input, Output: d.Output}
	if len(t.Input) == 0 && d.In != nil {
		if t.Input, err = schema.For(d.In); err != nil {
			return t, fmt.Errorf("input schema: %w", err)
		}
	}
	if len(t.Output) == 0 && d.Out != nil {
		if t.Output, err = schema.ForOutput(d.Out); err != nil {
			return t, fmt.Errorf("output schema: %w", err)
		}
	}
	if d.Out != nil {
		t.Product, _ = schema.Product(d.Out)
	}
	return t, nil
}

// Deps are minimal dependencies of a module: nothing is configured, changes and events are ignored, and other tools
// and jobs are refused.
func Deps(name string) module.Deps {
	alone := tool.Refuse(tool.CodeUnsupported, "module %s is only asked what it offers", name)
	return module.Deps{
		Log:     slog.New(slog.DiscardHandler),
		Config:  func(into any) error { return module.DecodeConfig(nil, into) },
		Changed: func(module.Audience) {},
		NewID:   func(kind string) string { return kind + "-0" },
		Call: func(context.Context, *tool.Call, string, json.RawMessage) (tool.Result, error) {
			return tool.Result{}, alone
		},
		Job:     func(*tool.Call, string, tool.Handler) (string, error) { return "", alone },
		Publish: func(string, any) {},
	}
}

var effects = []struct {
	bit  tool.Effects
	word string
	text string
}{
	{tool.Reads, "reads", "it reads"},
	{tool.Writes, "writes", "it writes"},
	{tool.Destroys, "destroys", "it may remove or overwrite what was there"},
	{tool.OpenWorld, "open world", "it reaches beyond this host"},
	{tool.Idempotent, "idempotent", "doing it twice is like doing it once"},
}

// EffectWords returns a tool's effects as words. A tool without effects claims nothing, which counts as the worst
// case.
func EffectWords(e tool.Effects) []string {
	words := []string{}
	for _, one := range effects {
		if e&one.bit != 0 {
			words = append(words, one.word)
		}
	}
	return words
}

// EffectsText describes a tool's effects in one sentence.
func EffectsText(e tool.Effects) string {
	if e == 0 {
		return "It claims nothing about its effects, so it counts as one that may do anything."
	}
	var said []string
	for _, one := range effects {
		if e&one.bit != 0 {
			said = append(said, one.text)
		}
	}
	text := strings.Join(said, "; ")
	if e.ReadOnly() {
		text = strings.Replace(text, "it reads", "it only reads", 1)
	}
	return strings.ToUpper(text[:1]) + text[1:] + "."
}

// unasked makes the module offer the tool context_check; it is never called.
func unasked(context.Context, contextadmin.Question) (contextadmin.Verdict, error) {
	return contextadmin.Verdict{}, nil
}
