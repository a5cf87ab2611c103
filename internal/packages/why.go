package packages

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"gatehouse/internal/packages/pins"
	"gatehouse/tool"
)

// Why says where a package comes from, who agreed to it and what it may, or why one of its tools is
// offered or not.
type Why struct {
	ID        string    `json:"id"`
	Source    string    `json:"source"`
	Version   string    `json:"version,omitempty"`
	Digest    string    `json:"digest,omitempty" doc:"of its program, as it was approved"`
	Installed time.Time `json:"installed,omitzero"`
	By        string    `json:"by,omitempty" doc:"who installed it; settings, or lock file"`
	Declared  string    `json:"declared_by,omitempty" doc:"the settings that declare it"`
	Previous  string    `json:"previous,omitempty" doc:"version that a rollback brings back"`
	May       []string  `json:"may" doc:"what its server may do"`
	Tools     []WhyTool `json:"tools" doc:"its tools and prompts, or the one that was asked for"`
}

// WhyTool says why a tool or prompt is offered or not.
type WhyTool struct {
	Kind   string    `json:"kind"`
	Name   string    `json:"name"`
	Own    string    `json:"own,omitempty" doc:"the server's name for it, if another"`
	State  string    `json:"state" doc:"offered, off, new, changed, refused or left out"`
	Reason string    `json:"reason"`
	Hash   string    `json:"hash,omitempty"`
	By     string    `json:"by,omitempty" doc:"who approved or refused it"`
	At     time.Time `json:"at,omitzero"`
}

// Why explains a package; with item, one of its tools or prompts, by its name on this host or the server's.
func (h *Manager) Why(id, item string) (w Why, err error) {
	p, err := h.findPackage(id)
	if err != nil {
		return w, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	r := &p.rec
	w = Why{
		ID: r.ID, Source: r.Source.String(), Version: r.version(), Installed: r.Installed, By: r.By,
		Declared: r.DeclaredBy, May: p.mayDo(), Tools: []WhyTool{},
	}
	if r.Declared && w.Declared == "" {
		w.Declared = "settings"
	}
	if r.Pins != nil {
		w.Digest = r.Pins.Digest
	}
	if r.Previous != nil {
		w.Previous = cmp.Or(r.Previous.Version, r.Previous.Source.String())
	}
	for _, c := range p.approvableListing() {
		if item == "" || item == c.Name || item == c.own {
			w.Tools = append(w.Tools, p.whyTool(c))
		}
	}
	if item != "" && len(w.Tools) == 0 {
		return w, p.whyMissing(item)
	}
	return w, nil
}

// whyTool explains a tool or prompt that the server lists; p.mu is held.
func (p *managedPackage) whyTool(c Change) WhyTool {
	r := &p.rec
	w := WhyTool{Kind: c.Kind, Name: c.Name, State: p.pinState(c.Kind, c.own, c.Hash), Hash: c.Hash}
	if c.own != c.Name {
		w.Own = shorten(c.own, 200)
	}
	pin, _ := r.Pins.Find(c.Kind, c.own)
	refused, _ := r.Pins.Refusal(c.Kind, c.own, c.Hash)
	turnedOff := c.Kind == pins.Tool && slices.ContainsFunc(p.tools,
		func(t Offered) bool { return t.Own == c.own && r.isOff(&t) })
	switch {
	case w.State == pins.Approved && turnedOff:
		w.State, w.Reason = "off", "an administrator has turned it off with package_tools"
	case w.State == pins.Approved:
		w.State, w.By, w.At = "offered", pin.By, pin.At
		w.Reason = "it is as it was approved; a context lists it if its modules, patterns and rules let it"
	case w.State == pins.Changed:
		w.By, w.At = pin.By, pin.At
		w.Reason = "its server describes it in another way than was approved: package_changes shows how"
	case w.State == pins.Refused:
		w.By, w.At = refused.By, refused.At
		w.Reason = "this definition was refused"
	default:
		w.Reason = "it was not listed when the package was approved, and new_tools is " + cmp.Or(r.NewTools, AskNew)
	}
	if r.Stopped && w.State == "offered" {
		w.Reason += "; calls are refused because the package is stopped"
	}
	return w
}

// whyMissing says why a server's tool of that name is not there; p.mu is held.
func (p *managedPackage) whyMissing(item string) error {
	for _, left := range p.hidden {
		if name, why, ok := strings.Cut(left, ": "); ok && (name == item || nameHere(p.id, name) == item) {
			return &tool.Refusal{
				Code: tool.CodeNotFound, Message: fmt.Sprintf("package %s offers no %s: %s", p.id, name, why),
				Next: "Its server has to list it in another way.",
			}
		}
	}
	if pin, ok := p.rec.Pins.Find(pins.Tool, item); ok {
		return &tool.Refusal{
			Code: tool.CodeNotFound,
			Message: fmt.Sprintf("package %s: its server does not list %q any more; it was approved by %s", p.id,
				shorten(item, 100), pin.By),
			Next: "It is offered again as soon as the server lists it as it was approved.",
		}
	}
	_, err := toolName(p.id, p.tools, nil, item)
	return err
}

// mayDo says in plain words what the server of a package may do; p.mu is held.
func (p *managedPackage) mayDo() (may []string) {
	r := &p.rec
	if r.Source.IsRemote() {
		may = append(may, "receive the arguments of its calls, and the headers of its record, at "+r.Source.String())
	} else {
		may = append(may, p.runsAs()...)
	}
	if r.TrustHints {
		may = append(may, "say what its tools do: its hints are believed")
	}
	if len(r.PassHeaders) > 0 {
		may = append(may, "receive these headers of clients: "+strings.Join(r.PassHeaders, ", "))
	}
	if r.NewTools == AllowNew {
		may = append(may, "add tools without an approval")
	}
	return may
}

// runsAs says with which permissions its program runs; p.mu is held.
func (p *managedPackage) runsAs() []string {
	r := &p.rec
	if !p.confines(r) {
		return []string{
			"run as the user of this host, without a sandbox: read and write what that user can, " +
				"except the host's own files",
			"reach the network",
		}
	}
	may := []string{"run in a sandbox, with its own folders and the programs of the machine"}
	for what, list := range map[string][]string{
		"use the folders ": r.Grants.Folders, "reach ": r.Grants.Hosts, "use the sockets ": r.Grants.Sockets,
		"use the devices ": r.Grants.Devices,
	} {
		if len(list) > 0 {
			may = append(may, what+strings.Join(list, ", "))
		}
	}
	slices.Sort(may[1:])
	return may
}
