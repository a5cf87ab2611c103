package packages

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"gatehouse/internal/access/displaytext"
	"gatehouse/internal/mcp/client"
	"gatehouse/internal/mcp/rawjson"
	"gatehouse/internal/packages/pins"
	"gatehouse/tool"
)

const (
	// uriScheme begins the addresses of the resources of packages on this host:
	// package://ID/ and the server's own URI. Without it two servers, or a server
	// and this host, could claim one address.
	uriScheme = "package://"

	mostURI = 4 << 10 // bytes
)

// listing is what a server offers, as it lists it.
type listing struct {
	Tools     []json.RawMessage `json:"tools"`
	Resources []json.RawMessage `json:"resources,omitempty"`
	Templates []json.RawMessage `json:"resourceTemplates,omitempty"`
	Prompts   []json.RawMessage `json:"prompts,omitempty"`
	Reads     bool              `json:"reads,omitempty"` // it has resources, which it may not list
}

// OfferedResource is a resource of a package, or a template of resources, as it is
// offered.
type OfferedResource struct {
	Package string
	URI     string // here: the package's address and the server's URI or template
	Raw     json.RawMessage
}

// naming says how what a package offers is called on this host.
type naming struct {
	id  string
	own bool // by the server's own names and URIs, because the package is run alone
}

func (h *Manager) naming(id string) naming { return naming{id, h.opts.Alone != nil} }

// Address returns what the addresses of a package's resources on this host begin with.
func (h *Manager) Address(id string) string { return h.naming(id).address() }

// address is what the addresses of the package's resources begin with.
func (n naming) address() string {
	if n.own {
		return ""
	}
	return uriScheme + n.id + "/"
}

// OfferedPrompt is a prompt of a package as it is offered.
type OfferedPrompt struct {
	Package string
	Name    string // here
	Own     string // the server's name for it
	Raw     json.RawMessage

	entry json.RawMessage // as the server lists it
	hash  string          // of entry; see package pins
}

// Offer is what a package offers besides tools. It must not be changed.
type Offer struct {
	Package              string
	Reads                bool // the server has resources, listed or not
	Resources, Templates []OfferedResource
	Prompts              []OfferedPrompt
}

// listUpstream asks a server for everything that it offers.
func (u *upstream) listUpstream(ctx context.Context) (l listing, err error) {
	l.Reads = u.offers("resources")
	for _, of := range []struct {
		capability, method, member string
		into                       *[]json.RawMessage
		optional                   bool // a server may not have the method
	}{
		{"tools", "tools/list", "tools", &l.Tools, false},
		{"resources", "resources/list", "resources", &l.Resources, true},
		{"resources", "resources/templates/list", "resourceTemplates", &l.Templates, true},
		{"prompts", "prompts/list", "prompts", &l.Prompts, true},
	} {
		if !u.offers(of.capability) {
			continue
		}
		*of.into, err = u.listAll(ctx, of.method, of.member)
		if err != nil && !of.optional {
			return l, err
		}
		if err != nil {
			if u.conn.Err() != nil || ctx.Err() != nil {
				return l, err
			}
			*of.into = nil
			u.journal.writeLine("[host] " + err.Error())
		}
	}
	return l, nil
}

// setListing stores what a server offers; see setTools.
func (p *managedPackage) setListing(l listing, agreed bool) {
	offer, left := makeOffer(p.manager.naming(p.id), &l)
	p.mu.Lock()
	same := sameOffer(p.offer, offer)
	p.offer = offer
	p.mu.Unlock()
	p.setTools(l, left, agreed, same)
}

// makeOffer makes of a server's lists what can be offered. What cannot is left out, with
// the reason.
func makeOffer(n naming, l *listing) (o *Offer, left []string) {
	o = &Offer{Package: n.id, Reads: l.Reads || len(l.Resources)+len(l.Templates) > 0}
	seen := map[string]bool{}
	leave := func(what, why string) {
		if len(left) < mostLeft {
			left = append(left, fmt.Sprintf("%s: %s", shorten(what, 100), why))
		}
	}
	for _, kind := range []struct {
		member  string
		entries []json.RawMessage
		into    *[]OfferedResource
	}{{"uri", l.Resources, &o.Resources}, {"uriTemplate", l.Templates, &o.Templates}} {
		for _, e := range kind.entries {
			own, ok := stringMember(e, kind.member)
			switch {
			case !ok || own == "" || len(own) > mostURI:
				leave("a resource", "it has no "+kind.member+" that can be used")
				continue
			case len(e) > mostEntry:
				leave(own, fmt.Sprintf("it has %d bytes; at most %d", len(e), mostEntry))
				continue
			case seen[own]:
				leave(own, "it is listed twice")
				continue
			}
			seen[own] = true
			here, raw := own, e
			if !n.own {
				here = n.address() + own
				raw = rawjson.Splice(displaytext.Described(e), rawjson.Edit{Key: kind.member, Value: quote(here)})
			}
			*kind.into = append(*kind.into, OfferedResource{Package: n.id, URI: here, Raw: raw})
		}
	}
	taken := map[string]bool{}
	var names []wanted
	for _, e := range l.Prompts {
		own, ok := stringMember(e, "name")
		switch {
		case !ok || own == "" || len(own) > longestOwn:
			leave("a prompt", "it has no name")
			continue
		case len(e) > mostEntry:
			leave(own, fmt.Sprintf("it has %d bytes; at most %d", len(e), mostEntry))
			continue
		case taken[own]:
			leave(own, "it is listed twice")
			continue
		}
		taken[own] = true
		names = append(names, wanted{id: n.id, own: own, name: n.nameHere(own)})
		raw := e
		if !n.own {
			raw = displaytext.Described(e)
		}
		o.Prompts = append(o.Prompts, OfferedPrompt{Package: n.id, Own: own, Raw: raw, entry: e, hash: pins.Hash(e)})
	}
	for i, name := range n.unique(names) {
		o.Prompts[i].Name = name
	}
	return o, left
}

// nameHere is the name of a tool or prompt on this host before it is made unique.
func (n naming) nameHere(own string) string {
	if n.own {
		return own
	}
	return nameHere(n.id, own)
}

// unique returns the names on this host, in their order.
func (n naming) unique(names []wanted) []string {
	if !n.own {
		return uniqueNames(names)
	}
	all := make([]string, len(names))
	for i := range names {
		all[i] = names[i].own
	}
	return all
}

func stringMember(e json.RawMessage, member string) (string, bool) {
	v, ok := rawjson.Get(e, member)
	if !ok {
		return "", false
	}
	return rawjson.String(v)
}

func sameOffer(a, b *Offer) bool {
	if a == nil || b == nil || a.Reads != b.Reads || len(a.Prompts) != len(b.Prompts) {
		return a == b
	}
	for i := range a.Prompts {
		if a.Prompts[i].Name != b.Prompts[i].Name || string(a.Prompts[i].Raw) != string(b.Prompts[i].Raw) {
			return false
		}
	}
	same := func(x, y []OfferedResource) bool {
		if len(x) != len(y) {
			return false
		}
		for i := range x {
			if string(x[i].Raw) != string(y[i].Raw) {
				return false
			}
		}
		return true
	}
	return same(a.Resources, b.Resources) && same(a.Templates, b.Templates)
}

// Offers returns what all packages offer besides tools.
func (h *Manager) Offers() (all []*Offer) {
	for _, p := range h.sortedPackages() {
		p.mu.Lock()
		if !p.removed && p.rec.State != Installing && p.offer != nil {
			all = append(all, p.approvedOffer())
		}
		p.mu.Unlock()
	}
	return all
}

// Read relays a read of a resource. uri is the address on this host.
func (h *Manager) Read(
	ctx context.Context, id, uri string, meta json.RawMessage, from *Peer,
) (json.RawMessage, error) {
	own, ok := strings.CutPrefix(uri, h.Address(id))
	if !ok {
		return nil, tool.Refuse(tool.CodeNotFound, "resource %s is not one of package %s", uri, id)
	}
	raw, err := h.relay(ctx, id, client.Request{
		Method: "resources/read", Name: own, Params: withMeta(appendMember([]byte{'{'}, "uri", quote(own)), meta),
	}, from)
	if err != nil {
		return nil, err
	}
	return h.naming(id).rewriteURIs(raw, "contents", naming.uriHere), nil
}

// Prompt relays a request for a prompt.
func (h *Manager) Prompt(
	ctx context.Context, id, own string, args, meta json.RawMessage, from *Peer,
) (json.RawMessage, error) {
	params := appendMember([]byte{'{'}, "name", quote(own))
	if len(args) > 0 {
		params = appendMember(params, "arguments", args)
	}
	raw, err := h.relay(ctx, id, client.Request{Method: "prompts/get", Name: own, Params: withMeta(params, meta)}, from)
	if err != nil {
		return nil, err
	}
	return h.naming(id).rewriteURIs(raw, "messages", func(n naming, m json.RawMessage) json.RawMessage {
		block, ok := rawjson.Get(m, "content")
		if !ok || rawjson.Kind(block) != '{' {
			return m
		}
		return rawjson.Splice(m, rawjson.Edit{Key: "content", Value: n.blockHere(block)})
	}), nil
}

// Complete relays the completion of an argument of a prompt or a template. ref is the
// server's own reference; argument and known are the members of the request.
func (h *Manager) Complete(
	ctx context.Context, id string, ref, argument, known json.RawMessage, from *Peer,
) (json.RawMessage, error) {
	params := appendMember([]byte{'{'}, "ref", ref)
	params = appendMember(params, "argument", argument)
	if len(known) > 0 {
		params = appendMember(params, "context", known)
	}
	return h.relay(ctx, id, client.Request{Method: "completion/complete", Params: append(params, '}')}, from)
}

// relay sends a request that may be repeated to a server, and starts it if it does not run.
func (h *Manager) relay(ctx context.Context, id string, r client.Request, from *Peer) (json.RawMessage, error) {
	p, err := h.findPackage(id)
	if err != nil {
		return nil, err
	}
	return p.relay(ctx, r, from, true)
}

// withMeta ends an object of params, with what of the caller's _meta is passed on.
func withMeta(params []byte, meta json.RawMessage) json.RawMessage {
	if kept := withoutReserved(meta); kept != nil {
		params = appendMember(params, "_meta", kept)
	}
	return append(params, '}')
}

// rewriteURIs maps the elements of one array of a result. A result without
// that array, or of a package that is run alone, stays byte for byte.
func (n naming) rewriteURIs(
	raw json.RawMessage, member string, f func(naming, json.RawMessage) json.RawMessage,
) json.RawMessage {
	list, ok := rawjson.Get(raw, member)
	if n.own || !ok || rawjson.Kind(list) != '[' {
		return raw
	}
	out, changed := []byte{'['}, false
	for e := range rawjson.Elements(list) {
		mapped := e
		if rawjson.Kind(e) == '{' {
			mapped = f(n, e)
		}
		changed = changed || len(mapped) != len(e) // an address here is longer
		if len(out) > 1 {
			out = append(out, ',')
		}
		out = append(out, mapped...)
	}
	if !changed {
		return raw
	}
	return rawjson.Splice(raw, rawjson.Edit{Key: member, Value: append(out, ']')})
}

// uriHere replaces the URI of an object by its address on this host.
func (n naming) uriHere(o json.RawMessage) json.RawMessage {
	own, ok := stringMember(o, "uri")
	if !ok || len(own) > mostURI {
		return o
	}
	return rawjson.Splice(o, rawjson.Edit{Key: "uri", Value: quote(n.address() + own)})
}

// blockHere replaces the URI in a content block that links to a resource or holds
// one.
func (n naming) blockHere(block json.RawMessage) json.RawMessage {
	kind, _ := rawjson.Get(block, "type")
	switch {
	case rawjson.Equal(kind, "resource_link"):
		return n.uriHere(block)
	case rawjson.Equal(kind, "resource"):
		if r, ok := rawjson.Get(block, "resource"); ok && rawjson.Kind(r) == '{' {
			return rawjson.Splice(block, rawjson.Edit{Key: "resource", Value: n.uriHere(r)})
		}
	}
	return block
}
