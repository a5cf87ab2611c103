package packages

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"gatehouse/internal/access/displaytext"
	"gatehouse/internal/mcp/rawjson"
	"gatehouse/internal/mcp/schema"
	"gatehouse/internal/packages/pins"
	"gatehouse/tool"
)

const (
	mostTools       = 500
	mostPages       = 100
	maxListing      = 8 << 20  // bytes of all tools of a server
	mostEntry       = 64 << 10 // bytes of one of them
	mostDescription = 8 << 10  // bytes of a description; the rest is cut
	longestOwn      = 1 << 10  // bytes of a server's own name
	mostLeft        = 50       // reasons that are kept
)

// Offered is one tool of a package as it is offered.
type Offered struct {
	Package string
	Name    string          // here: the package's and its own, letters, digits and _
	Own     string          // the server's name for it
	Raw     json.RawMessage // the listing entry, without what is not believed
	Text    bool            // its results are sent as text alone
	Task    bool            // the server runs it as a task alone
	Timeout time.Duration   // of a call; 0 means Settings.Answer
	Effects tool.Effects    // what the server says it does, if that is believed; 0 if not
	// Unstaged says why its calls cannot be staged; "" if they can.
	Unstaged string

	hinted json.RawMessage // Raw with the hints about what it does
	entry  json.RawMessage // as the server lists it
	hash   string          // of entry; see package pins
	plain  string          // the name that it would have if no other tool had it too, and of any length
}

// isOff reports whether an administrator has turned off a tool. A tool that got another name because the server now
// has a second one for it stays off.
func (r *Record) isOff(t *Offered) bool {
	return slices.Contains(r.Off, t.Name) || slices.Contains(r.Off, t.plain)
}

// listAll asks a server for a list, page by page.
func (u *upstream) listAll(ctx context.Context, method, member string) (entries []json.RawMessage, err error) {
	params, seen, bytes, more := json.RawMessage(`{}`), map[string]bool{}, 0, 0
	for range mostPages {
		raw, err := u.query(ctx, method, params)
		if err != nil {
			return nil, err
		}
		page, ok := rawjson.Get(raw, member)
		if !ok || rawjson.Kind(page) != '[' {
			return nil, fmt.Errorf("%s: the answer has no %s", method, member)
		}
		for e := range rawjson.Elements(page) {
			if bytes += len(e); bytes > maxListing {
				return nil, fmt.Errorf("%s: the %s have more than %d bytes", method, member, maxListing)
			}
			if len(entries) < mostTools {
				entries = append(entries, e)
			} else {
				more++
			}
		}
		next, _ := rawjson.Get(raw, "nextCursor")
		cursor, ok := rawjson.String(next)
		if !ok || cursor == "" {
			if more > 0 {
				u.journal.writeLine(
					fmt.Sprintf("[host] %s: %d %s are left out: at most %d are offered", method, more, member,
						mostTools),
				)
			}
			return entries, nil
		}
		if seen[cursor] || len(cursor) > 4<<10 {
			return nil, fmt.Errorf("%s: its pages go round in circles", method)
		}
		seen[cursor] = true
		params = append(rawjson.AppendString([]byte(`{"cursor":`), cursor), '}')
	}
	return nil, fmt.Errorf("%s: there are more than %d pages", method, mostPages)
}

// makeTools makes of a server's list what can be offered. What cannot is left out,
// with the reason.
func makeTools(n naming, entries []json.RawMessage) (tools []Offered, left []string) {
	taken := map[string]bool{}
	var names []wanted
	leave := func(name, why string) {
		if len(left) < mostLeft {
			left = append(left, fmt.Sprintf("%s: %s", shorten(name, 100), why))
		}
	}
	for _, e := range entries {
		raw, _ := rawjson.Get(e, "name")
		own, ok := rawjson.String(raw)
		if !ok || own == "" || len(own) > longestOwn {
			leave("a tool", "it has no name")
			continue
		}
		task := false
		if ex, ok := rawjson.Get(e, "execution"); ok && rawjson.Kind(ex) == '{' {
			need, _ := rawjson.Get(ex, "taskSupport")
			task = rawjson.Equal(need, "required")
		}
		if taken[own] {
			leave(own, "it is listed twice")
			continue
		}
		entry, hinted, err := n.listed(e)
		if err != nil {
			leave(own, err.Error())
			continue
		}
		taken[own] = true
		names = append(names, wanted{id: n.id, own: own, name: n.nameHere(own)})
		tools = append(tools, Offered{Package: n.id, Own: own, Raw: entry, Task: task, hinted: hinted, entry: e,
			hash: pins.Hash(e)})
	}
	views := !n.own && slices.ContainsFunc(entries, hasView)
	for i, name := range n.unique(names) {
		tools[i].Name, tools[i].plain = name, names[i].name
		if !n.own {
			tools[i].Raw = n.origin(tools[i].Raw, tools[i].Own, views)
			tools[i].hinted = n.origin(tools[i].hinted, tools[i].Own, views)
		}
	}
	return tools, left
}

// listed returns a listing entry as it is offered, without and with the hints of the server. That
// of a package that is run alone is the server's own.
func (n naming) listed(e json.RawMessage) (entry, hinted json.RawMessage, err error) {
	if !n.own {
		entry, hinted, err = sanitize(e)
		return n.appHere(entry), n.appHere(hinted), err
	}
	if in, ok := rawjson.Get(e, "inputSchema"); !ok || rawjson.Kind(in) != '{' {
		return nil, nil, errors.New("it has no inputSchema")
	}
	return e, e, nil
}

// hasView reports whether a tool of a listing has a user interface (MCP Apps).
func hasView(e json.RawMessage) bool {
	meta, _ := rawjson.Get(e, "_meta")
	if rawjson.Kind(meta) != '{' {
		return false
	}
	_, ui := rawjson.Get(meta, "ui")
	_, earlier := rawjson.Get(meta, "ui/resourceUri")
	return ui || earlier
}

// originMeta is the member of _meta that names a tool's package and what its server calls it. Tools of packages with
// user interfaces have it, because such an interface calls tools by its server's names.
const originMeta = "gatehouse/origin"

// origin sets originMeta of an entry if there are views, and otherwise takes out what the server has put there.
func (n naming) origin(e json.RawMessage, own string, views bool) json.RawMessage {
	meta, ok := rawjson.Get(e, "_meta")
	if !ok || rawjson.Kind(meta) != '{' {
		meta = json.RawMessage(`{}`)
	}
	_, there := rawjson.Get(meta, originMeta)
	if !views && !there {
		return e
	}
	edit := rawjson.Edit{Key: originMeta}
	if views {
		edit.Value = fmt.Appendf(nil, `{"package":%s,"name":%s}`, quote(n.id), quote(own))
	}
	return rawjson.Splice(e, rawjson.Edit{Key: "_meta", Value: rawjson.Splice(meta, edit)})
}

// appHere replaces the address of a tool's user interface (MCP Apps) by that of the resource on
// this host.
func (n naming) appHere(e json.RawMessage) json.RawMessage {
	meta, ok := rawjson.Get(e, "_meta")
	if !ok || rawjson.Kind(meta) != '{' {
		return e
	}
	address := func(o json.RawMessage, member string) json.RawMessage {
		own, ok := stringMember(o, member)
		if !ok || !strings.HasPrefix(own, "ui://") || len(own) > mostURI {
			return o
		}
		return rawjson.Splice(o, rawjson.Edit{Key: member, Value: quote(n.address() + own)})
	}
	changed := address(meta, "ui/resourceUri") // of earlier versions of the extension
	if ui, ok := rawjson.Get(changed, "ui"); ok && rawjson.Kind(ui) == '{' {
		changed = rawjson.Splice(changed, rawjson.Edit{Key: "ui", Value: address(ui, "resourceUri")})
	}
	return rawjson.Splice(e, rawjson.Edit{Key: "_meta", Value: changed})
}

// sanitize takes out of a listing entry what a client could act on although
// it is not trusted: the hints about what a tool does, and whether it can
// be a task. What is left is the server's, byte for byte. hinted is the entry with the hints.
func sanitize(e json.RawMessage) (entry, hinted json.RawMessage, err error) {
	in, ok := rawjson.Get(e, "inputSchema")
	if !ok || rawjson.Kind(in) != '{' {
		return nil, nil, errors.New("it has no inputSchema")
	}
	compiled, err := schema.Compile(in)
	if err == nil {
		_, err = compiled.Headers()
	}
	if _, other := errors.AsType[*schema.DialectError](err); err != nil && !other { // its server checks what it means
		return nil, nil, fmt.Errorf("its inputSchema: %s", shorten(err.Error(), 300))
	}
	var edits []rawjson.Edit
	if out, ok := rawjson.Get(e, "outputSchema"); ok {
		_, err := schema.Compile(out)
		if _, other := errors.AsType[*schema.DialectError](err); err != nil && !other || rawjson.Kind(out) != '{' {
			edits = append(edits, rawjson.Edit{Key: "outputSchema"})
		}
	}
	e = displaytext.Described(e)
	if d, ok := rawjson.Get(e, "description"); ok {
		text, isText := rawjson.String(d)
		switch {
		case !isText:
			edits = append(edits, rawjson.Edit{Key: "description"})
		case len(text) > mostDescription:
			cut := displaytext.Cut(text, mostDescription, " [cut]")
			edits = append(edits, rawjson.Edit{Key: "description", Value: rawjson.AppendString(nil, cut)})
		}
	}
	if t, ok := rawjson.Get(e, "title"); ok {
		if text, isText := rawjson.String(t); !isText || len(text) > maxTitle {
			edits = append(edits, rawjson.Edit{Key: "title"})
		}
	}
	hinted = rawjson.Splice(e, edits...)
	entry = rawjson.Splice(hinted, rawjson.Edit{Key: "annotations"}, rawjson.Edit{Key: "execution"})
	if e = hinted; len(e) > mostEntry {
		return nil, nil, fmt.Errorf("it has %d bytes; at most %d", len(e), mostEntry)
	}
	if len(entry) == len(hinted) {
		hinted = entry
	}
	return entry, hinted, nil
}

// effectsOf returns what the hints of a tool say that it does; 0 if there are none. What they leave out counts as
// the protocol says: it writes, destroys and reaches anywhere.
func effectsOf(entry json.RawMessage) (e tool.Effects) {
	hints, ok := rawjson.Get(entry, "annotations")
	if !ok || rawjson.Kind(hints) != '{' {
		return 0
	}
	is := func(name string, otherwise bool) bool {
		v, ok := rawjson.Get(hints, name)
		if !ok || string(v) != "true" && string(v) != "false" {
			return otherwise
		}
		return string(v) == "true"
	}
	if is("openWorldHint", true) {
		e |= tool.OpenWorld
	}
	if is("readOnlyHint", false) {
		return e | tool.Reads
	}
	e |= tool.Writes
	if is("destructiveHint", true) {
		e |= tool.Destroys
	}
	if is("idempotentHint", false) {
		e |= tool.Idempotent
	}
	return e
}

// mayRepeat reports whether a call that may have run can be sent again: an administrator believes the hints of the
// server, and they say that it changes nothing more.
func (p *managedPackage) mayRepeat(own string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.rec.TrustHints {
		return false
	}
	i := slices.IndexFunc(p.tools, func(t Offered) bool { return t.Own == own })
	if i < 0 {
		return false
	}
	e := effectsOf(p.tools[i].hinted)
	return e != 0 && (e.ReadOnly() || e&tool.Idempotent != 0)
}
