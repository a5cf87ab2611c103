package views

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"hash/fnv"
	"slices"
	"strings"

	"gatehouse/internal/mcp/mcpversion"
	"gatehouse/internal/mcp/rawjson"
	"gatehouse/tool"
)

// ErrCursor is the error for a cursor that this host has not issued.
var ErrCursor = errors.New("malformed cursor")

type pageKey struct {
	kind Kind
	rev  mcpversion.Revision
	from int

	short bool
}

// members are the names of the lists in their results.
var members = [kinds]string{"tools", "prompts", "resources", "resourceTemplates"}

// Page returns the encoded result object of a list request. It is created once and shared; no caller may change
// it. cursor is "" for the first page.
//
// A cursor names the last entry of its page, so that a list that changes between two pages neither repeats nor
// skips entries that remain. client is the name of the client, which matters for views with ListAuto.
func (v *View) Page(k Kind, r mcpversion.Revision, client, cursor string) ([]byte, error) {
	short := k == Tools && v.isShort(client)
	list := v.listed(k, short)
	from, err := v.pageStart(k, list, cursor)
	if err != nil {
		return nil, err
	}
	pk := pageKey{k, r, from, short}
	v.mu.Lock()
	defer v.mu.Unlock()
	if p, ok := v.pages[pk]; ok {
		return p, nil
	}
	p := v.encodePage(k, list, r, from)
	if len(v.pages) >= 64 {
		clear(v.pages)
	}
	v.pages[pk] = p
	return p, nil
}

func (v *View) pageStart(k Kind, list []*Entry, cursor string) (int, error) {
	if cursor == "" {
		return 0, nil
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(cursor)
	last, ok := strings.CutPrefix(string(b), members[k]+" ")
	if err != nil || !ok {
		return 0, ErrCursor
	}
	if v.unsorted {
		// An entry that has gone begins the list again: what is left is then not skipped.
		return 1 + slices.IndexFunc(list, func(e *Entry) bool { return e.Listed == last }), nil
	}
	i, found := slices.BinarySearchFunc(list, last, func(e *Entry, name string) int {
		return strings.Compare(e.Listed, name)
	})
	if found {
		i++
	}
	return i, nil
}

func (v *View) encodePage(k Kind, list []*Entry, r mcpversion.Revision, from int) []byte {
	to := min(from+v.page, len(list))
	var b bytes.Buffer
	b.WriteString(`{"` + members[k] + `":[`)
	for i, e := range list[from:to] {
		if i > 0 {
			b.WriteByte(',')
		}
		b.Write(e.listing(k, r))
	}
	b.WriteByte(']')
	if to < len(list) {
		last := members[k] + " " + list[to-1].Listed
		b.WriteString(`,"nextCursor":"` + base64.RawURLEncoding.EncodeToString([]byte(last)) + `"`)
	}
	b.WriteString(v.tail(r, v.Shared() && (k != Tools || v.search == nil || v.search.always)))
	b.WriteByte('}')
	return b.Bytes()
}

// Stamp returns a fingerprint of a list as the newest revision sees it: a list with the same stamp has not
// changed.
func (v *View) Stamp(k Kind) uint64 { return v.stamps[k] }

func (v *View) stamp(k Kind) uint64 {
	h := fnv.New64a()
	for _, e := range v.lists[k] {
		h.Write(e.listing(k, mcpversion.Latest))
	}
	if k == Tools && v.search != nil {
		for _, e := range v.search.short { // which of them a client is listed
			h.Write([]byte(e.Listed + "\n"))
		}
	}
	return h.Sum64()
}

// Digest returns a fingerprint of an entry: its module, its names and what the newest revision lists of it.
func (e *Entry) Digest() [sha256.Size]byte {
	k := Templates
	switch {
	case e.Tool != nil:
		k = Tools
	case e.Prompt != nil:
		k = Prompts
	case e.Resource == nil:
		return sha256.Sum256([]byte(e.Module + "/" + e.Name))
	case e.template == nil:
		k = Resources
	}
	return sha256.Sum256(e.listing(k, mcpversion.Latest))
}

func (e *Entry) listing(k Kind, r mcpversion.Revision) []byte {
	switch k {
	case Tools:
		return e.toolListing(r)
	case Prompts:
		return e.promptListing(r)
	default:
		return e.resourceListing(k, r)
	}
}

// relisted replaces the name in a relayed entry by the view's if it differs, and the description if the view has one.
func (e *Entry) relisted(raw json.RawMessage, member string) []byte {
	var edits []rawjson.Edit
	if own, ok := rawjson.Get(raw, member); !ok || !rawjson.Equal(own, e.Listed) {
		edits = append(edits, rawjson.Edit{Key: member, Value: rawjson.AppendString(nil, e.Listed)})
	}
	if e.describe != "" && (e.Tool == nil || e.stageNote() == "") {
		edits = append(edits, rawjson.Edit{Key: "description", Value: rawjson.AppendString(nil, e.describe)})
	}
	return rawjson.Compact(nil, rawjson.Splice(raw, edits...))
}

// reshaped returns a relayed tool with the schemas that its shape has changed.
func (e *Entry) reshaped(raw json.RawMessage) json.RawMessage {
	if e.shape == nil {
		return raw
	}
	edits := []rawjson.Edit{{Key: "inputSchema", Value: e.input}}
	if e.Cuts() {
		edits = append(edits, rawjson.Edit{Key: "outputSchema", Value: e.output})
	}
	return rawjson.Splice(raw, edits...)
}

// described returns the view's description, if it has one, or else the entry's own.
func (e *Entry) described(own string) string {
	if e.describe != "" {
		return e.describe
	}
	return own
}

// stagedNote follows the description of a tool whose calls are staged.
const stagedNote = " Its calls are staged: what they change waits for a person's review."

// askedNote follows the description of a tool whose calls would be staged if the host could do so.
const askedNote = " Its calls cannot be staged by this host: each waits for a person's approval."

type toolListing struct {
	Name        string          `json:"name"`
	Title       string          `json:"title,omitempty"`
	Description string          `json:"description,omitempty"`
	Icons       []tool.Icon     `json:"icons,omitempty"`
	Input       json.RawMessage `json:"inputSchema"`
	Output      json.RawMessage `json:"outputSchema,omitempty"`
	Annotations json.RawMessage `json:"annotations,omitempty"`
	Execution   json.RawMessage `json:"execution,omitempty"`
	Meta        json.RawMessage `json:"_meta,omitempty"`
}

// stageNote returns what follows the description because of how calls are decided.
func (e *Entry) stageNote() string {
	switch {
	case e.Gate.Stages():
		return stagedNote
	case e.Gate.Unstaged():
		return askedNote
	}
	return ""
}

// noted returns a relayed tool whose description has the note.
func (e *Entry) noted(raw json.RawMessage) json.RawMessage {
	note := e.stageNote()
	if note == "" {
		return raw
	}
	own, _ := rawjson.Get(raw, "description")
	text, _ := rawjson.String(own)
	text = strings.TrimSpace(e.described(text) + note)
	return rawjson.Splice(raw, rawjson.Edit{Key: "description", Value: rawjson.AppendString(nil, text)})
}

func (e *Entry) toolListing(r mcpversion.Revision) []byte {
	d := &e.Tool.Def
	if d.Raw != nil {
		return e.relisted(e.noted(e.reshaped(d.Raw)), "name")
	}
	l := toolListing{Name: e.Listed, Description: e.described(d.Description) + e.stageNote(), Input: e.input}
	if r.Has(mcpversion.ToolAnnotations) {
		l.Annotations = annotations(d.Effects)
	}
	if r.Has(mcpversion.Titles) {
		l.Title, l.Meta = d.Title, d.Meta
	}
	if r.Has(mcpversion.Structured) && e.output != nil &&
		(r.Has(mcpversion.StructuredAny) || isObjectSchema(e.output)) {
		l.Output = e.output
	}
	if r.Has(mcpversion.Icons) {
		l.Icons = d.Icons
	}
	if r.Has(mcpversion.CoreTasks) {
		l.Execution = execution(d.Task)
	}
	return marshal(l)
}

// annotations encodes what the effects declare. What they do not declare stays at the protocol's defaults, which
// assume the worst.
func annotations(e tool.Effects) json.RawMessage {
	if e == 0 {
		return nil
	}
	var a struct {
		ReadOnly    *bool `json:"readOnlyHint,omitempty"`
		Destructive *bool `json:"destructiveHint,omitempty"`
		Idempotent  *bool `json:"idempotentHint,omitempty"`
		OpenWorld   *bool `json:"openWorldHint,omitempty"`
	}
	if e.ReadOnly() {
		a.ReadOnly = new(true)
	} else {
		a.Destructive = new(e&tool.Destroys != 0)
		if e&tool.Idempotent != 0 {
			a.Idempotent = new(true)
		}
	}
	if e&tool.OpenWorld == 0 {
		a.OpenWorld = new(false)
	}
	return marshal(a)
}

func execution(m tool.TaskMode) json.RawMessage {
	switch m {
	case tool.TaskRequired:
		return json.RawMessage(`{"taskSupport":"required"}`)
	case tool.TaskNever:
		return nil // the default is forbidden
	default:
		return json.RawMessage(`{"taskSupport":"optional"}`)
	}
}

func isObjectSchema(s json.RawMessage) bool {
	t, ok := rawjson.Get(s, "type")
	return ok && rawjson.Equal(t, "object")
}

func (e *Entry) promptListing(r mcpversion.Revision) []byte {
	p := e.Prompt
	if p.Raw != nil {
		return e.relisted(p.Raw, "name")
	}
	type argument struct {
		Name        string `json:"name"`
		Title       string `json:"title,omitempty"`
		Description string `json:"description,omitempty"`
		Required    bool   `json:"required,omitempty"`
	}
	l := struct {
		Name        string      `json:"name"`
		Title       string      `json:"title,omitempty"`
		Description string      `json:"description,omitempty"`
		Arguments   []argument  `json:"arguments,omitempty"`
		Icons       []tool.Icon `json:"icons,omitempty"`
	}{Name: e.Listed, Description: e.described(p.Description)}
	if r.Has(mcpversion.Titles) {
		l.Title = p.Title
	}
	if r.Has(mcpversion.Icons) {
		l.Icons = p.Icons
	}
	for _, a := range p.Args {
		arg := argument{Name: a.Name, Description: a.Description, Required: a.Required}
		if r.Has(mcpversion.Titles) {
			arg.Title = a.Title
		}
		l.Arguments = append(l.Arguments, arg)
	}
	return marshal(l)
}

func (e *Entry) resourceListing(k Kind, r mcpversion.Revision) []byte {
	res := e.Resource
	l := struct {
		URI         string            `json:"uri,omitempty"`
		Template    string            `json:"uriTemplate,omitempty"`
		Name        string            `json:"name"`
		Title       string            `json:"title,omitempty"`
		Description string            `json:"description,omitempty"`
		MIME        string            `json:"mimeType,omitempty"`
		Size        int64             `json:"size,omitempty"`
		Icons       []tool.Icon       `json:"icons,omitempty"`
		Annotations *tool.Annotations `json:"annotations,omitempty"`
	}{Name: res.Name, Description: res.Description, MIME: res.MIME, Annotations: res.Annotations}
	if l.Name == "" {
		l.Name = e.Listed
	}
	member := "uri"
	if k == Templates {
		member, l.Template = "uriTemplate", e.Listed
	} else {
		l.URI, l.Size = e.Listed, res.Size
	}
	if res.Raw != nil {
		return e.relisted(res.Raw, member)
	}
	if r.Has(mcpversion.Titles) {
		l.Title = res.Title
	}
	if r.Has(mcpversion.Icons) {
		l.Icons = res.Icons
	}
	return marshal(l)
}

// marshal encodes a listing without escaping what is legal in JSON. The values are structs of this package, so it
// can only fail for a schema that is not JSON, which compile has refused.
func marshal(v any) []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		panic("contexts: listing: " + err.Error())
	}
	return bytes.TrimRight(b.Bytes(), "\n")
}
