package packages

import (
	"fmt"
	"slices"
	"strings"

	"gatehouse/internal/packages/pins"
	"gatehouse/tool"
)

// Listed is one tool of a package, offered or not.
type Listed struct {
	Offered
	Off   bool
	State string // pins.Approved, New, Changed or Refused; only approved tools are offered
}

// ChooseTools stops offering some tools of a package, or offers them again, and
// returns all of them. Tools are named as on this host or as the server names them.
func (h *Manager) ChooseTools(id string, off, on []string) (all []Listed, err error) {
	leave, err := h.addWork()
	if err != nil {
		return nil, err
	}
	defer leave()
	p, err := h.findPackage(id)
	if err != nil {
		return nil, err
	}
	if len(off)+len(on) > 0 {
		if err := p.chooseTools(off, on); err != nil {
			return nil, err
		}
		h.invalidateTools()
		p.publishState()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, t := range p.tools {
		all = append(all, Listed{t, p.rec.isOff(&t), p.pinState(pins.Tool, t.Own, t.hash)})
	}
	return all, nil
}

func (p *managedPackage) chooseTools(off, on []string) error {
	done, err := p.claim("choosing tools")
	if err != nil {
		return err
	}
	defer done()
	p.mu.Lock()
	r, was, tools := p.rec, p.rec, p.tools
	p.mu.Unlock()
	if r.State != Installed {
		return tool.Refuse(tool.CodeUnavailable, "package %s is not completely installed", p.id)
	}
	r.Off = nil // by the names that the tools have now, and those of tools that the server no longer lists
	for _, name := range was.Off {
		if !slices.ContainsFunc(tools, func(t Offered) bool { return t.plain == name && t.Name != name }) {
			r.Off = append(r.Off, name)
		}
	}
	for _, t := range tools {
		if was.isOff(&t) && !slices.Contains(r.Off, t.Name) {
			r.Off = append(r.Off, t.Name)
		}
	}
	for _, name := range on {
		name, err := toolName(p.id, tools, r.Off, name)
		if err != nil {
			return err
		}
		r.Off = slices.DeleteFunc(r.Off, func(o string) bool { return o == name })
	}
	for _, name := range off {
		name, err := toolName(p.id, tools, nil, name)
		if err != nil {
			return err
		}
		if !slices.Contains(r.Off, name) {
			r.Off = append(r.Off, name)
		}
	}
	slices.Sort(r.Off)
	return p.saveRecord(r)
}

// toolName returns the name on this host of a tool of a package. also are names that
// are accepted although the server does not list them.
func toolName(id string, tools []Offered, also []string, name string) (string, error) {
	var names []string
	for _, t := range tools {
		if t.Name == name || t.Own == name {
			return t.Name, nil
		}
		names = append(names, t.Name)
	}
	if slices.Contains(also, name) {
		return name, nil
	}
	return "", &tool.Refusal{
		Code:    tool.CodeNotFound,
		Message: fmt.Sprintf("package %s has no tool %q", id, shorten(name, 100)),
		Next:    "It has " + shorten(strings.Join(names, ", "), 2000) + ".",
	}
}
