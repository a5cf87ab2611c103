package packages

import (
	"context"
	"reflect"

	"gatehouse/tool"
)

// Regrant is a change of what a package may use.
type Regrant struct {
	Add, Remove Grants
	// Confinement is Sandboxed or Trusted; "" leaves it, except that a package that was installed before there was a
	// choice becomes Sandboxed when grants change.
	Confinement string
}

// Change returns the record of a package after a change, without making it.
func (h *Manager) Change(id string, g Regrant) (was, now Record, err error) {
	p, err := h.findPackage(id)
	if err != nil {
		return was, now, err
	}
	p.mu.Lock()
	was = p.rec
	p.mu.Unlock()
	now = was
	if was.Source.IsRemote() {
		return was, now, tool.Refuse(tool.CodeUnsupported, "package %s runs elsewhere, so nothing can be granted to it",
			id)
	}
	if was.Declared {
		return was, now, &tool.Refusal{
			Code:    tool.CodeUnsupported,
			Message: "package " + id + " is declared in the settings",
			Next:    "Change its trust and grants there.",
		}
	}
	more, err := g.Add.Resolve()
	if err != nil {
		return was, now, err
	}
	switch {
	case g.Confinement == Trusted:
		now.Grants = Grants{}
		now.Confinement = Trusted
	case g.Confinement != "" || !more.IsZero() || !g.Remove.IsZero():
		now.Confinement = Sandboxed
	}
	if now.Grants, err = now.Grants.without(g.Remove); err != nil {
		return was, now, err
	}
	now.Grants = now.Grants.with(more)
	return was, now, now.checkRecord()
}

// Grant changes what a package may use. Its instances are stopped, so that what they do next is within it.
func (h *Manager) Grant(ctx context.Context, id string, g Regrant) (i Info, err error) {
	leave, err := h.addWork()
	if err != nil {
		return i, err
	}
	defer leave()
	return h.changePackage(id, Updating, func(p *managedPackage, _ Record) error {
		was, now, err := h.Change(id, g)
		if err == nil {
			err = p.saveRecord(now)
		}
		if err == nil && !sameConfinement(was, now) {
			err = p.stopServers()
			p.resetFailures()
			h.invalidateTools() // which say whether their calls are staged
		}
		return err
	})
}

// sameConfinement reports whether two records allow the same.
func sameConfinement(a, b Record) bool {
	return a.Confinement == b.Confinement && reflect.DeepEqual(a.Grants, b.Grants)
}
