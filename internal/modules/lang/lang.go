// Package lang is the module that detects the language of a file and lists the known
// languages.
package lang

import (
	"context"

	"gatehouse/module"
	"gatehouse/tool"
)

// langs is the module. It holds no state.
type langs struct{ offer module.Offer }

// New returns the module. It has no configuration.
func New(_ context.Context, _ module.Deps) (module.Module, error) {
	m := &langs{}
	m.offer.Tools = []tool.Tool{m.detectTool(), m.listTool()}
	return m, nil
}

// Offer implements module.Module.
func (m *langs) Offer(context.Context, module.Audience) (*module.Offer, error) { return &m.offer, nil }

// Close implements module.Module.
func (m *langs) Close(context.Context) error { return nil }
