// Package lang says which language a file is written in and which languages
// there are.
package lang

import (
	"context"

	"gatehouse/module"
	"gatehouse/tool"
)

// langs is the module. It holds no state.
type langs struct{ offer module.Offer }

// New makes the module. It takes no configuration.
func New(_ context.Context, _ module.Deps) (module.Module, error) {
	m := &langs{}
	m.offer.Tools = []tool.Tool{m.detectTool(), m.listTool()}
	return m, nil
}

// Offer implements module.Module.
func (m *langs) Offer(context.Context, module.Audience) (*module.Offer, error) { return &m.offer, nil }

// Close implements module.Module.
func (m *langs) Close(context.Context) error { return nil }
