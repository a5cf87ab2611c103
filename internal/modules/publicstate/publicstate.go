// Package publicstate is the module that shows the state tree as resources, which
// can be read, completed and subscribed to. Each caller sees the part that it
// may see. A further resource is a text that describes the host to a model.
package publicstate

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"sync"

	"gatehouse/internal/state"
	"gatehouse/module"
	"gatehouse/tool"
)

// URIs of the resources.
const (
	PublicURI      = "gatehouse:///public"
	PublicTemplate = "gatehouse:///public/{+pointer}"
	PromptURI      = "gatehouse:///mcp/system-prompt"
)

// Members of _meta in results of reads and in updates.
const (
	MetaRevision = "gatehouse/revision" // the revision that was read, or after the update
	MetaFrom     = "gatehouse/from"     // the revision before the update
	MetaPatch    = "gatehouse/patch"    // JSON Patch relative to the resource
	MetaAgain    = "gatehouse/again"    // true means that there is no patch: read again
)

// maxRead is the number of bytes of the tree in one read.
const maxRead = 8 << 20

// Options of the module. Tree, Everything and Watches are needed.
type Options struct {
	Tree *state.Tree
	// SeesAll reports whether a caller sees the whole public tree.
	SeesAll func(who tool.Caller) bool
	// Restricted are the mounts of which other callers see some members only.
	Restricted []RestrictedMount
	Watches    *Watches // the open watches of all instances of the module
	// Listed are the parts with an entry of their own in the list of resources.
	// The others are available through the template.
	Listed []Listed
	// Prompt returns the text that describes the host to a model; nil means none.
	Prompt func(ctx context.Context, who tool.Caller) string
	// PromptOf are the parts of the tree from which the text is made: if one
	// changes, subscribers of the text are told to read it again.
	PromptOf []state.Pointer
}

// Listed is an entry in the list of resources.
type Listed struct{ Name, Title, Description string }

// RestrictedMount is a mount whose value is an object with members that only some
// callers may see.
type RestrictedMount struct {
	At state.Pointer
	// Sees returns a function that reports whether a caller sees a member.
	Sees func(who tool.Caller) func(key string, member any) bool
	// Part, if set, is used instead of Sees. Its function returns the part of a
	// member that the caller sees. It must not change the member, which is shared.
	Part func(who tool.Caller) func(key string, member any) (part any, sees bool)
}

// publicState is one instance of the module.
type publicState struct {
	o       Options
	offer   *module.Offer
	closed  bool // guarded by Watches.mu
	running sync.WaitGroup
}

// New returns what makes the module with options.
func New(o Options) module.New {
	return func(context.Context, module.Deps) (module.Module, error) {
		m := &publicState{o: o}
		m.offer = m.newOffer()
		return m, nil
	}
}

func (m *publicState) newOffer() *module.Offer {
	public := module.Resource{
		URI: PublicURI, Name: "public", Title: "State of this host", MIME: "application/json",
		Description: "The state of this host as JSON, as far as you may see it. Supports subscriptions.",
		Read:        m.readResource, Watch: m.watch, Each: true,
	}
	part := public
	part.URI, part.Name, part.Title = PublicTemplate, "public part", "Part of the state of this host"
	part.Description = "The value at a JSON Pointer below public. Supports subscriptions."
	part.Complete = m.complete
	offer := &module.Offer{Resources: []module.Resource{public}, Templates: []module.Resource{part}}
	for _, one := range m.o.Listed {
		r := public
		r.URI, r.Name = PublicURI+encodeURI(state.Pointer{one.Name}.String()), one.Name
		r.Title, r.Description = one.Title, one.Description+" Supports subscriptions."
		offer.Resources = append(offer.Resources, r)
	}
	if m.o.Prompt != nil {
		offer.Resources = append(offer.Resources, module.Resource{
			URI: PromptURI, Name: "system-prompt", Title: "Where you are", MIME: "text/plain",
			Description: "What this host is, what it offers you, and what needs the agreement of a person.",
			Read:        m.readPrompt, Watch: m.watchPrompt, Each: true,
		})
	}
	return offer
}

// Offer implements module.Module.
func (m *publicState) Offer(context.Context, module.Audience) (*module.Offer, error) {
	return m.offer, nil
}

// Close ends all watches.
func (m *publicState) Close(ctx context.Context) error {
	m.o.Watches.closeAll(m)
	ended := make(chan struct{})
	go func() {
		m.running.Wait()
		close(ended)
	}()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("watches of the state tree did not end: %w", context.Cause(ctx))
	}
}

// readResource returns a part of the tree with its revision.
func (m *publicState) readResource(_ context.Context, c *tool.Call) (tool.Result, error) {
	at, err := pointerOf(c.Name)
	if err != nil {
		return tool.Result{}, err
	}
	var v state.View
	m.o.Watches.readState(c.Caller, c.Name, func() state.Mark {
		v = m.o.See(c.Caller, at)
		return v.Mark()
	})
	if !v.Found {
		return tool.Result{}, errNotFound(c.Name)
	}
	text, err := pretty(v)
	if err != nil {
		return tool.Result{}, err
	}
	if len(text) > maxRead {
		return tool.Result{}, &tool.Refusal{
			Code: tool.CodeTooLarge, Message: fmt.Sprintf("%s has more than %d bytes", c.Name, maxRead),
			Next: "Read a part of it: append /name to the URI.",
		}
	}
	return tool.Result{
		Content: []tool.Content{tool.TextResource(c.Name, "application/json", text)},
		Meta:    map[string]json.RawMessage{MetaRevision: quote(v.Revision)},
	}, nil
}

func errNotFound(uri string) *tool.Refusal {
	return &tool.Refusal{
		Code:    tool.CodeNotFound,
		Message: fmt.Sprintf("the state tree has no value at %.300q", uri),
		Next:    "Read " + PublicURI + " to find its parts.",
	}
}

func pretty(v state.View) (string, error) {
	b, err := v.JSON()
	if err != nil {
		return "", err
	}
	var out bytes.Buffer
	if err := json.Indent(&out, b, "", "  "); err != nil {
		return "", err
	}
	return out.String(), nil
}

// quote returns a revision as a JSON string. A revision has no characters that
// need escaping.
func quote(r state.Revision) json.RawMessage { return json.RawMessage(`"` + r + `"`) }

func (m *publicState) readPrompt(ctx context.Context, c *tool.Call) (tool.Result, error) {
	return tool.Result{Content: []tool.Content{tool.TextResource(c.Name, "text/plain", m.o.Prompt(ctx, c.Caller))}}, nil
}
