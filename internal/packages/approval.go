package packages

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"gatehouse/internal/files/atomicfile"
	"gatehouse/internal/mcp/client"
	"gatehouse/internal/packages/pins"
	"gatehouse/tool"
)

// A package offers only tools and prompts that an administrator has approved as they are. An
// installation approves what its server lists then. What the server changes or adds later is left
// out, alone, until an administrator approves it; the record has the hashes of what is approved.

// Change is a tool or prompt of a package that is not offered, because no administrator has approved
// it as it is.
type Change struct {
	Kind  string    `json:"kind" doc:"tool or prompt"`
	Name  string    `json:"name" doc:"its name on this host"`
	Own   string    `json:"own,omitempty" doc:"the server's name for it, if another"`
	State string    `json:"state" doc:"new; changed since it was approved; or refused by a person" enum:"new,changed,refused"`
	Hash  string    `json:"hash" doc:"of its definition as it is listed"`
	Was   string    `json:"was,omitempty" doc:"hash of the definition that was approved"`
	By    string    `json:"by,omitempty" doc:"who approved the earlier definition, or refused this one"`
	At    time.Time `json:"at,omitzero"`
	Diff  []string  `json:"diff,omitempty" doc:"lines of the difference, from the approved definition to the listed one"`

	own   string
	entry json.RawMessage
}

// pinState says whether an entry of the server's list is approved; p.mu is held.
func (p *managedPackage) pinState(kind, own, hash string) string {
	if p.manager.opts.Alone != nil || p.rec.Pins == nil {
		return pins.Approved
	}
	return p.rec.Pins.State(kind, own, hash)
}

// isApproved reports whether a tool may be offered; p.mu is held.
func (p *managedPackage) isApproved(t *Offered) bool {
	return p.pinState(pins.Tool, t.Own, t.hash) == pins.Approved
}

// approvedOffer returns what is offered besides tools, without prompts that are not approved; p.mu is
// held, and p.offer is not nil.
func (p *managedPackage) approvedOffer() *Offer {
	bad := func(of OfferedPrompt) bool { return p.pinState(pins.Prompt, of.Own, of.hash) != pins.Approved }
	if !slices.ContainsFunc(p.offer.Prompts, bad) {
		return p.offer
	}
	o := *p.offer
	o.Prompts = slices.DeleteFunc(slices.Clone(o.Prompts), bad)
	return &o
}

// unapproved returns what is not offered for want of an approval, without differences, sorted; p.mu
// is held.
func (p *managedPackage) unapproved() (all []Change) {
	add := func(kind, name, own, hash string, entry json.RawMessage) {
		c := Change{Kind: kind, Name: name, State: p.pinState(kind, own, hash), Hash: hash, own: own, entry: entry}
		if c.State == pins.Approved {
			return
		}
		if own != name {
			c.Own = shorten(own, 200)
		}
		if was, ok := p.rec.Pins.Find(kind, own); ok {
			c.Was, c.By, c.At = was.Hash, was.By, was.At
		}
		if pin, ok := p.rec.Pins.Refusal(kind, own, hash); ok {
			c.By, c.At = pin.By, pin.At
		}
		all = append(all, c)
	}
	for i := range p.tools {
		t := &p.tools[i]
		add(pins.Tool, t.Name, t.Own, t.hash, t.entry)
	}
	if p.offer != nil {
		for i := range p.offer.Prompts {
			o := &p.offer.Prompts[i]
			add(pins.Prompt, o.Name, o.Own, o.hash, o.entry)
		}
	}
	slices.SortFunc(all, func(a, b Change) int { return cmp.Or(compare(b.Kind, a.Kind), compare(a.Name, b.Name)) })
	return all
}

// checkApproved refuses a request for a tool or prompt that is not approved as the server lists it
// now. A list of this host may be older than that of the server.
func (p *managedPackage) checkApproved(r *client.Request) error {
	kind := pins.Tool
	switch r.Method {
	case "tools/call":
	case "prompts/get":
		kind = pins.Prompt
	default:
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.rec.Pins == nil {
		return nil
	}
	state := pins.New
	if _, known := p.rec.Pins.Find(kind, r.Name); known {
		state = pins.Approved // unless it is listed in another way
	}
	if kind == pins.Tool {
		if i := slices.IndexFunc(p.tools, func(t Offered) bool { return t.Own == r.Name }); i >= 0 {
			state = p.pinState(kind, r.Name, p.tools[i].hash)
		}
	} else if p.offer != nil {
		i := slices.IndexFunc(p.offer.Prompts, func(o OfferedPrompt) bool { return o.Own == r.Name })
		if i >= 0 {
			state = p.pinState(kind, r.Name, p.offer.Prompts[i].hash)
		}
	}
	if state == pins.Approved || p.manager.opts.Alone != nil {
		return nil
	}
	return &tool.Refusal{
		Code: tool.CodeDenied,
		Message: fmt.Sprintf("the %s %s of package %s is %s, so it is not offered; nothing was run",
			kind, shorten(r.Name, 100), p.id, stateWords[state]),
		Next: fmt.Sprintf("An administrator can see it with gatehouse package changes %s, and approve it.", p.id),
	}
}

var stateWords = map[string]string{
	pins.New:     "new and not approved",
	pins.Changed: "another than was approved",
	pins.Refused: "refused by an administrator",
}

// listedEntries returns the tools and prompts of a list, the first of each name.
func listedEntries(l *listing) (all []pins.Entry) {
	for _, of := range []struct {
		kind    string
		entries []json.RawMessage
	}{{pins.Tool, l.Tools}, {pins.Prompt, l.Prompts}} {
		seen := map[string]bool{}
		for _, e := range of.entries {
			own, ok := stringMember(e, "name")
			if ok && own != "" && len(own) <= longestOwn && !seen[own] {
				seen[own] = true
				all = append(all, pins.Entry{Kind: of.kind, Own: own, Hash: pins.Hash(e)})
			}
		}
	}
	return all
}

// Who approved something if no person did.
const (
	byEarlierVersion = "installed before approvals were kept"
	byNewTools       = "new_tools: allow"
	byLockFile       = "lock file"
)

// pinInstalled sets what is approved by an installation, and what Rollback brings back. The first
// installation approves all that the server lists, one by a lock file what that has, and an update
// only what is as it was approved.
func (p *managedPackage) pinInstalled(r *Record, plan *Plan, l *listing, digest string) {
	p.mu.Lock()
	was := p.rec
	p.mu.Unlock()
	now := r.Pins.Clone()
	if plan.Expect != nil {
		now = plan.Expect.Clone()
	}
	first := now == nil
	if first {
		now = &pins.Pins{}
	}
	listed := listedEntries(l)
	at := time.Now().UTC().Truncate(time.Second)
	for _, e := range listed {
		switch {
		case plan.Expect != nil: // the lock file says it all
		case first:
			now.Approve(e.Kind, e.Own, pins.Pin{Hash: e.Hash, By: r.By, At: at})
		case r.NewTools == AllowNew && now.State(e.Kind, e.Own, e.Hash) == pins.New:
			now.Approve(e.Kind, e.Own, pins.Pin{Hash: e.Hash, By: byNewTools, At: at})
		}
	}
	now.Version, now.Digest = r.version(), digest
	r.Pins = now
	same := digest != "" && was.Pins != nil && was.Pins.Digest == digest
	if was.State != Installing && was.Program != "" && !same {
		r.Previous = previousOf(&was)
	}
	p.keepDefinitions(r.Pins, l)
}

// pinUnasked approves what needs no administrator in a list that the server sent on its own: all of it if
// nothing was pinned yet, and new entries if the record allows them.
func (p *managedPackage) pinUnasked() {
	p.mu.Lock()
	needed := p.rec.Pins == nil || p.rec.NewTools == AllowNew && slices.ContainsFunc(p.unapproved(),
		func(c Change) bool { return c.State == pins.New })
	alone := p.manager.opts.Alone != nil
	p.mu.Unlock()
	if !needed || alone {
		return
	}
	done, err := p.claim("approving tools")
	if err != nil {
		return // the operation that runs pins them, or the next list does
	}
	defer done()
	if err := p.adoptPins(); err != nil {
		p.manager.log.Warn("what a package offers cannot be pinned", "package", p.id, "err", err)
	}
}

// adoptPins pins what is listed if nothing was pinned yet, and new entries if the record allows them.
func (p *managedPackage) adoptPins() error {
	p.mu.Lock()
	r := p.rec
	l := p.approvableListing()
	p.mu.Unlock()
	first := r.Pins == nil
	if r.State != Installed || first && len(l) == 0 {
		return nil
	}
	if !first && r.NewTools != AllowNew {
		return nil
	}
	now, by := r.Pins.Clone(), byNewTools
	if first {
		now, by = &pins.Pins{Version: r.version()}, byEarlierVersion
	}
	changed := first
	at := time.Now().UTC().Truncate(time.Second)
	for _, c := range l {
		if first || now.State(c.Kind, c.own, c.Hash) == pins.New {
			now.Approve(c.Kind, c.own, pins.Pin{Hash: c.Hash, By: by, At: at})
			changed = true
		}
	}
	if !changed {
		return nil
	}
	r.Pins = now
	if err := p.saveRecord(r); err != nil {
		return err
	}
	p.storeDefinitions(now, l)
	return nil
}

// approvableListing returns the tools and prompts that could be offered; p.mu is held.
func (p *managedPackage) approvableListing() (all []Change) {
	for i := range p.tools {
		t := &p.tools[i]
		all = append(all, Change{Kind: pins.Tool, Name: t.Name, Hash: t.hash, own: t.Own, entry: t.entry})
	}
	if p.offer != nil {
		for i := range p.offer.Prompts {
			o := &p.offer.Prompts[i]
			all = append(all, Change{Kind: pins.Prompt, Name: o.Name, Hash: o.hash, own: o.Own, entry: o.entry})
		}
	}
	return all
}

// definitionsFile holds the approved definitions by their hashes, so that a difference can be shown.
// What is approved is in the record: an entry of the file whose hash is another does not count.
const definitionsFile = "approved.json"

// keepDefinitions stores the definitions of a list that are approved.
func (p *managedPackage) keepDefinitions(now *pins.Pins, l *listing) {
	var all []Change
	for _, e := range l.Tools {
		own, _ := stringMember(e, "name")
		all = append(all, Change{Kind: pins.Tool, Hash: pins.Hash(e), own: own, entry: e})
	}
	for _, e := range l.Prompts {
		own, _ := stringMember(e, "name")
		all = append(all, Change{Kind: pins.Prompt, Hash: pins.Hash(e), own: own, entry: e})
	}
	p.storeDefinitions(now, all)
}

func (p *managedPackage) storeDefinitions(now *pins.Pins, l []Change) {
	old, kept := p.definitionsByName(), map[string]json.RawMessage{}
	for _, of := range []map[string]pins.Pin{now.Tools, now.Prompts} {
		for _, pin := range of {
			if e, ok := old[pin.Hash]; ok {
				kept[pin.Hash] = e
			}
		}
	}
	for _, c := range l {
		if now.State(c.Kind, c.own, c.Hash) == pins.Approved {
			kept[c.Hash] = c.entry
		}
	}
	b, err := json.Marshal(kept)
	if err == nil {
		err = atomicfile.Write(filepath.Join(p.folder(), definitionsFile), b)
	}
	if err != nil {
		p.manager.log.Warn("approved definitions cannot be stored, so that changes are shown without them",
			"package", p.id, "err", err)
	}
}

// definitionsByName returns the approved definitions by their hashes.
func (p *managedPackage) definitionsByName() map[string]json.RawMessage {
	b, err := atomicfile.Read(filepath.Join(p.folder(), definitionsFile), 5*maxListing)
	all := map[string]json.RawMessage{}
	if err != nil || json.Unmarshal(b, &all) != nil {
		return nil
	}
	for hash, e := range all {
		if pins.Hash(e) != hash {
			delete(all, hash)
		}
	}
	return all
}

// Changes returns the tools and prompts of a package that are not offered because no administrator has
// approved them as they are, each with its difference, and a name for exactly these definitions, which
// Decide takes.
func (h *Manager) Changes(id string) (all []Change, seen string, err error) {
	p, err := h.findPackage(id)
	if err != nil {
		return nil, "", err
	}
	p.mu.Lock()
	all = p.unapproved()
	p.mu.Unlock()
	var known map[string]json.RawMessage
	if len(all) > 0 {
		known = p.definitionsByName()
	}
	for i := range all {
		all[i].Diff = pins.Diff(known[all[i].Was], all[i].entry)
		if all[i].Was != "" && known[all[i].Was] == nil {
			all[i].Diff = append([]string{"  [the approved definition is not kept; its hash was " + all[i].Was + "]"},
				all[i].Diff...)
		}
	}
	return all, seenName(all), nil
}

// seenName names a set of definitions.
func seenName(all []Change) string {
	sum := sha256.New()
	for _, c := range all {
		fmt.Fprintf(sum, "%s %q %s %s\n", c.Kind, c.own, c.Hash, c.State)
	}
	return hex.EncodeToString(sum.Sum(nil))[:16]
}

// Decide approves or refuses tools and prompts of a package as they are listed; no names mean all that
// Changes returns, except those that were refused before. They are named as on this host or as the server
// names them. seen is what Changes named: nothing is decided if the definitions are others now. "" decides
// on whatever is listed. It returns what was decided on.
func (h *Manager) Decide(id string, names []string, approve bool, seen, by string) (all []Change, err error) {
	leave, err := h.addWork()
	if err != nil {
		return nil, err
	}
	defer leave()
	p, err := h.findPackage(id)
	if err != nil {
		return nil, err
	}
	done, err := p.claim("approving tools")
	if err != nil {
		return nil, err
	}
	defer done()
	p.mu.Lock()
	r, open, listed := p.rec, p.unapproved(), listedNow(p)
	p.mu.Unlock()
	if r.State != Installed {
		return nil, tool.Refuse(tool.CodeUnavailable, "package %s is not completely installed", p.id)
	}
	if seen != "" && seen != seenName(open) {
		return nil, &tool.Refusal{
			Code:    tool.CodeStale,
			Message: fmt.Sprintf("the tools of package %s have changed since they were shown; nothing was decided", id),
			Next:    "Look at them again: gatehouse package changes " + id + ", or the tool package_changes.",
		}
	}
	if all, err = chooseChanges(id, open, names); err != nil {
		return nil, err
	}
	now := r.Pins.Clone()
	if now == nil {
		now = &pins.Pins{}
	}
	now.Prune(listed)
	at := time.Now().UTC().Truncate(time.Second)
	for _, c := range all {
		pin := pins.Pin{Hash: c.Hash, By: by, At: at}
		if approve {
			now.Approve(c.Kind, c.own, pin)
		} else {
			now.Refuse(c.Kind, c.own, pin)
		}
	}
	r.Pins = now
	if err := p.saveRecord(r); err != nil {
		return nil, err
	}
	if approve {
		p.storeDefinitions(now, all)
	}
	h.invalidateTools()
	return all, nil
}

// listedNow returns what the server lists; p.mu is held.
func listedNow(p *managedPackage) (all []pins.Entry) {
	for _, c := range p.approvableListing() {
		all = append(all, pins.Entry{Kind: c.Kind, Own: c.own, Hash: c.Hash})
	}
	return all
}

// chooseChanges returns the changes with these names; all that are open if there are no names.
func chooseChanges(id string, open []Change, names []string) (all []Change, err error) {
	if len(names) == 0 {
		for _, c := range open {
			if c.State != pins.Refused {
				all = append(all, c)
			}
		}
	}
	for _, name := range names {
		n := len(all)
		for _, c := range open {
			if c.Name == name || c.own == name {
				all = append(all, c)
			}
		}
		if len(all) == n {
			var has []string
			for _, c := range open {
				has = append(has, c.Name)
			}
			return nil, &tool.Refusal{
				Code:    tool.CodeNotFound,
				Message: fmt.Sprintf("package %s has no tool %q that waits for an approval", id, shorten(name, 100)),
				Next:    "These wait: " + shorten(cmp.Or(strings.Join(has, ", "), "none"), 2000) + ".",
			}
		}
	}
	if len(all) == 0 {
		return nil, tool.Refuse(tool.CodeUnchanged, "package %s has nothing that waits for an approval", id)
	}
	return all, nil
}
