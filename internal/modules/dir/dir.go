// Package dir is the module that lists, makes and measures directories inside
// the roots of a call.
//
// A cursor is the name of the last entry on a page. A directory of a million
// entries therefore costs one page of memory, and each page begins where the
// previous one ended, even if entries were added or removed in between.
package dir

import (
	"context"

	"gatehouse/module"
	"gatehouse/tool"
)

// dirs is the module. It holds no state.
type dirs struct{ offer module.Offer }

// New returns the module. It has no configuration.
func New(_ context.Context, _ module.Deps) (module.Module, error) {
	m := &dirs{}
	m.offer.Tools = []tool.Tool{m.listTool(), m.createTool(), m.sizeTool()}
	tool.Stage(m.offer.Tools)
	return m, nil
}

// Offer implements module.Module.
func (m *dirs) Offer(context.Context, module.Audience) (*module.Offer, error) { return &m.offer, nil }

// Close implements module.Module.
func (m *dirs) Close(context.Context) error { return nil }
