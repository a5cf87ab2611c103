package packages

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"gatehouse/internal/mcp/client"
)

// A legacy server may offer some tools only to a client that declares that it can be
// asked. The shared instance declares nothing, so such tools are listed by an instance
// that declares everything, answers no question, and is stopped again.

// listsAsked reports whether a server is listed as by a client that can be asked.
func (r *Record) listsAsked() bool {
	return r.Instances != SharedInstances && r.Server.Protocol != modernRevision
}

// askedOptions describe this host as a client that declares everything and answers
// nothing.
func (p *managedPackage) askedOptions() client.ConnOptions {
	o := p.shared.connOptions()
	o.Capabilities = capabilities(asksFor, false)
	o.Answer = func(context.Context, string, json.RawMessage) (json.RawMessage, *client.RPCError) {
		return nil, &client.RPCError{Code: -32000, Message: "this client only lists what the server offers"}
	}
	return o
}

// updateListing stores what the shared instance lists, with the tools that are offered only
// to clients that can be asked. If tools are missing of which that is not known, another
// instance lists them in the background. A server that is run alone was not listed when it was
// installed, so the first list waits for that instance.
func (p *managedPackage) updateListing(l listing) {
	p.mu.Lock()
	r, known := p.rec, p.conditional
	first := p.manager.opts.Alone != nil && !p.listedAsked
	var missing []string
	for _, t := range p.tools {
		if !listsTool(l.Tools, t.Own) {
			missing = append(missing, t.Own)
		}
	}
	p.mu.Unlock()
	unknown := slices.ContainsFunc(missing, func(own string) bool { return !listsTool(known, own) })
	switch {
	case r.listsAsked() && first:
		p.listConditional(p.manager.ctx, &r, l)
	case !r.listsAsked() || len(missing) == 0:
		p.setListing(l, false)
	case !unknown:
		p.setListing(withConditional(l, known), false)
	default:
		p.manager.goWork(func(ctx context.Context) { p.listConditional(ctx, &r, l) })
	}
}

// listConditional lists a server as a client that can be asked, and stores the result
// together with what the shared instance listed.
func (p *managedPackage) listConditional(ctx context.Context, r *Record, l listing) {
	p.mu.Lock()
	p.listedAsked = true
	p.mu.Unlock()
	u, all, err := p.launchServer(ctx, r, p.askedOptions(), true)
	if err != nil {
		p.journal.writeLine(fmt.Sprintf("[host] tools for clients that can be asked cannot be listed: %v", err))
		p.setListing(l, false)
		return
	}
	u.stopProcess(stopGrace)
	extra := slices.DeleteFunc(all.Tools, func(e json.RawMessage) bool {
		own, ok := stringMember(e, "name")
		return !ok || listsTool(l.Tools, own)
	})
	p.mu.Lock()
	p.conditional = extra
	p.mu.Unlock()
	p.setListing(withConditional(l, extra), false)
	p.publishState()
}

func withConditional(l listing, extra []json.RawMessage) listing {
	l.Tools = append(slices.Clone(l.Tools), extra...)
	return l
}

// listsTool reports whether a list has a tool of that name.
func listsTool(entries []json.RawMessage, own string) bool {
	return slices.ContainsFunc(entries, func(e json.RawMessage) bool {
		name, ok := stringMember(e, "name")
		return ok && name == own
	})
}
