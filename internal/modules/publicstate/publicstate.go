// Package publicstate is the host's own module that shows the state tree: as
// resources that can be read, completed and subscribed to, each caller seeing
// their own part, and as a text that tells a model where it is.
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

// Addresses of what the module serves.
const (
	PublicURI      = "gatehouse:///public"
	PublicTemplate = "gatehouse:///public/{+pointer}"
	PromptURI      = "gatehouse:///mcp/system-prompt"
)

// Members of _meta, of what is read and of updates.
const (
	MetaRevision = "gatehouse/revision" // of what was read, or after the update
	MetaFrom     = "gatehouse/from"     // the revision the update leads from
	MetaPatch    = "gatehouse/patch"    // JSON Patch relative to the resource
	MetaAgain    = "gatehouse/again"    // true: there is no patch, read again
)

// readMost is how many bytes of the tree are read at once.
const readMost = 8 << 20

// Options of the module. Tree, Everything and Watches are needed.
type Options struct {
	Tree *state.Tree
	// Everything reports whether a caller sees the whole public tree.
	Everything func(who tool.Caller) bool
	// Own are the mounts of which the others see some members only.
	Own     []Own
	Watches *Watches // those that are open, of all generations of the module
	// Listed are the parts that have an entry of their own in the list of
	// resources. The others are found by the template.
	Listed []Listed
	// Prompt is the text that tells a model where it is; nil means none.
	Prompt func(ctx context.Context, who tool.Caller) string
	// PromptOf are the parts of the tree that the text is made of: when one
	// changes, whoever follows the text is told to read it again.
	PromptOf []state.Pointer
}

// Listed is a part of the tree that is listed.
type Listed struct{ Name, Title, Description string }

// Own is a mount whose value is an object with members that are not for
// everybody.
type Own struct {
	At state.Pointer
	// Sees gives what says whether a caller sees a member.
	Sees func(who tool.Caller) func(key string, member any) bool
	// Part, if it is set, decides instead of Sees, and gives as much of a
	// member as the caller sees. It does not change the member itself, because
	// that is shared.
	Part func(who tool.Caller) func(key string, member any) (part any, sees bool)
}

// shown is one generation of the module.
type shown struct {
	o       Options
	offer   *module.Offer
	closed  bool // guarded by Watches.mu
	running sync.WaitGroup
}

// New returns what makes the module.
func New(o Options) module.New {
	return func(context.Context, module.Deps) (module.Module, error) {
		m := &shown{o: o}
		m.offer = m.offers()
		return m, nil
	}
}

func (m *shown) offers() *module.Offer {
	public := module.Resource{
		URI: PublicURI, Name: "public", Title: "State of this host", MIME: "application/json",
		Description: "What this host is and does at the moment, as JSON, as far as you may see it. Can be subscribed to.",
		Read:        m.read, Watch: m.watch, Each: true,
	}
	part := public
	part.URI, part.Name, part.Title = PublicTemplate, "public part", "Part of the state of this host"
	part.Description = "The value at a JSON Pointer below public. Can be subscribed to."
	part.Complete = m.complete
	offer := &module.Offer{Resources: []module.Resource{public}, Templates: []module.Resource{part}}
	for _, one := range m.o.Listed {
		r := public
		r.URI, r.Name = PublicURI+encoded(state.Pointer{one.Name}.String()), one.Name
		r.Title, r.Description = one.Title, one.Description+" Can be subscribed to."
		offer.Resources = append(offer.Resources, r)
	}
	if m.o.Prompt != nil {
		offer.Resources = append(offer.Resources, module.Resource{
			URI: PromptURI, Name: "system-prompt", Title: "Where you are", MIME: "text/plain",
			Description: "What this host is, what it offers you and what to ask people before.",
			Read:        m.readPrompt, Watch: m.watchPrompt, Each: true,
		})
	}
	return offer
}

// Offer implements module.Module.
func (m *shown) Offer(context.Context, module.Audience) (*module.Offer, error) { return m.offer, nil }

// Close ends all watches.
func (m *shown) Close(ctx context.Context) error {
	m.o.Watches.end(m)
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

// read gives a part of the tree with its revision.
func (m *shown) read(_ context.Context, c *tool.Call) (tool.Result, error) {
	at, err := pointerOf(c.Name)
	if err != nil {
		return tool.Result{}, err
	}
	var v state.View
	m.o.Watches.read(c.Caller, c.Name, func() state.Mark {
		v = m.o.See(c.Caller, at)
		return v.Mark()
	})
	if !v.Found {
		return tool.Result{}, absent(c.Name)
	}
	text, err := pretty(v)
	if err != nil {
		return tool.Result{}, err
	}
	if len(text) > readMost {
		return tool.Result{}, &tool.Refusal{
			Code: "too_large", Message: fmt.Sprintf("%s has more than %d bytes", c.Name, readMost),
			Next: "Read a part of it: append /name to the address.",
		}
	}
	return tool.Result{
		Content: []tool.Content{tool.TextResource(c.Name, "application/json", text)},
		Meta:    map[string]json.RawMessage{MetaRevision: quote(v.Revision)},
	}, nil
}

func absent(uri string) *tool.Refusal {
	return &tool.Refusal{Code: "not_found", Message: fmt.Sprintf("there is nothing at %.300q", uri), Next: "Read " + PublicURI + " to see what there is."}
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

// quote writes a revision, in which nothing needs escaping.
func quote(r state.Revision) json.RawMessage { return json.RawMessage(`"` + r + `"`) }

func (m *shown) readPrompt(ctx context.Context, c *tool.Call) (tool.Result, error) {
	return tool.Result{Content: []tool.Content{tool.TextResource(c.Name, "text/plain", m.o.Prompt(ctx, c.Caller))}}, nil
}
