package protocol

import (
	"encoding/json"
	"errors"
	"unique"

	"gatehouse/internal/access/displaytext"
	"gatehouse/internal/dispatch/views"
	"gatehouse/internal/mcp/mcpversion"
	"gatehouse/internal/mcp/rawjson"
	"gatehouse/internal/mcp/session"
	"gatehouse/tool"
)

// serverInfo is the encoded description of the server for one revision.
type serverInfo struct {
	capabilities string
	info         string
}

// Names of the members of the modern envelope.
const (
	envelope    = "io.modelcontextprotocol/"
	metaVersion = envelope + "protocolVersion"
	metaCaps    = envelope + "clientCapabilities"
	metaClient  = envelope + "clientInfo"
	metaLevel   = envelope + "logLevel"
	metaServer  = envelope + "serverInfo"
	metaSub     = envelope + "subscriptionId"
	metaTask    = envelope + "related-task"
	tasksExt    = envelope + "tasks"
	metaToken   = "gatehouse/token"   // the token, on transports without headers
	metaResults = "gatehouse/results" // "structured" adds the whole structured output to the result of one call
	metaContext = "gatehouse/context" // the context, on transports without headers
	// milliseconds a client may cache a list; subscribers are notified of changes at once
	listTTL       = "60000"
	capsCommon    = `"tools":{"listChanged":true},"prompts":{"listChanged":true},"resources":{"listChanged":true,"subscribe":true}`
	capsLogging   = `,"logging":{}`
	capsComplete  = `,"completions":{}`
	capsCoreTasks = `,"tasks":{"list":{},"cancel":{},"requests":{"tools":{"call":{}}}}`
	capsTasksExt  = `,"extensions":{"` + tasksExt + `":{}}`
)

// about is what the server says of itself, encoded. It does not change.
type about struct {
	servers [mcpversion.Latest + 1]serverInfo // by revision
	tails   map[bool]string                   // by shared: the members that end a modern list
}

// Description is what another server, for which this host stands in, says of itself.
type Description struct {
	Info json.RawMessage // its implementation object; nil means that of this host
	// Capabilities is its capabilities object: this host declares no others than it. nil means
	// those of this host.
	Capabilities json.RawMessage
}

// Describe replaces what the server says of itself from now on. Lists that were encoded
// before, and the answers of open sessions, keep what they say.
func (e *Engine) Describe(d Description) {
	a := &about{tails: map[bool]string{}}
	for r := first; r <= latest; r++ {
		a.servers[r] = serverInfo{capabilities: capabilities(r), info: e.infoJSON(r)}
		if d.Info != nil {
			a.servers[r].info = string(rawjson.Compact(nil, d.Info))
		}
		if d.Capabilities != nil {
			a.servers[r].capabilities = string(narrowed(json.RawMessage(a.servers[r].capabilities), d.Capabilities))
		}
	}
	for shared, scope := range map[bool]string{true: "public", false: "private"} {
		a.tails[shared] = `,"ttlMs":` + listTTL + `,"cacheScope":"` + scope + `"` + a.envelope("complete")
	}
	e.about.Store(a)
}

// switches are the members of a capability that are on or off.
var switches = []string{"listChanged", "subscribe"}

// narrowed returns of this host's capabilities those that another server has, and the
// extensions that it declares. The two designs of tasks count as one.
func narrowed(ours, theirs json.RawMessage) json.RawMessage {
	theirExtensions, _ := rawjson.Get(theirs, "extensions")
	_, older := rawjson.Get(theirs, "tasks")
	_, newer := rawjson.Get(theirExtensions, tasksExt)
	var edits []rawjson.Edit
	for key, value := range rawjson.Object(ours) {
		name := string(key)
		other, has := rawjson.Get(theirs, name)
		switch {
		case name == "extensions":
			continue
		case name == "tasks" && (older || newer):
			continue
		case !has:
			edits = append(edits, rawjson.Edit{Key: name})
			continue
		}
		for _, member := range switches {
			if on, _ := rawjson.Get(other, member); string(on) != "true" {
				value = rawjson.Splice(value, rawjson.Edit{Key: member})
			}
		}
		edits = append(edits, rawjson.Edit{Key: name, Value: value})
	}
	extensions := rawjson.Edit{Key: "extensions"}
	mine, _ := rawjson.Get(ours, "extensions")
	tasks := rawjson.Edit{Key: tasksExt}
	if older || newer {
		tasks.Value, _ = rawjson.Get(mine, tasksExt)
	}
	if all := rawjson.Splice(theirExtensions, tasks); rawjson.Kind(all) == '{' && len(all) > 2 {
		extensions.Value = all
	}
	return rawjson.Splice(ours, append(edits, extensions)...)
}

func capabilities(r mcpversion.Revision) string {
	c := "{" + capsCommon + capsLogging
	if r.Has(mcpversion.CompletionsFlag) {
		c += capsComplete
	}
	if r.Has(mcpversion.CoreTasks) {
		c += capsCoreTasks
	}
	if r.Modern() {
		c += capsTasksExt
	}
	return c + "}"
}

func (e *Engine) infoJSON(r mcpversion.Revision) string {
	i := e.opts.Info
	v := struct {
		Name        string      `json:"name"`
		Title       string      `json:"title,omitempty"`
		Version     string      `json:"version"`
		Description string      `json:"description,omitempty"`
		Website     string      `json:"websiteUrl,omitempty"`
		Icons       []tool.Icon `json:"icons,omitempty"`
	}{Name: i.Name, Version: i.Version}
	if r.Has(mcpversion.Titles) {
		v.Title = i.Title
	}
	if r.Has(mcpversion.Icons) {
		v.Description, v.Website, v.Icons = i.Description, i.Website, i.Icons
	}
	b, err := json.Marshal(v)
	if err != nil {
		panic("protocol: info: " + err.Error()) // strings only
	}
	return string(b)
}

// envelope returns the members that end a modern result, with a leading comma.
func (e *Engine) envelope(kind string) string { return e.about.Load().envelope(kind) }

func (a *about) envelope(kind string) string {
	return `,"resultType":"` + kind + `","_meta":{"` + metaServer + `":` + a.servers[latest].info + `}`
}

// ListTail returns the members that end a list result; see views.Tail.
func (e *Engine) ListTail(r mcpversion.Revision, shared bool) string {
	if !r.Modern() {
		return ""
	}
	return e.about.Load().tails[shared]
}

// empty returns a result without members of its own.
func (r *request) empty() []byte {
	if !r.rev.Modern() {
		return []byte("{}")
	}
	return []byte("{" + r.e.envelope("complete")[1:] + "}")
}

// initialize answers the legacy handshake. If the client requests an unknown revision,
// or one without a handshake, the newest revision with a handshake is used.
func (e *Engine) initialize(who Caller, m *Message) (*session.Session, []byte, *Fault) {
	f, fault := e.readInitialize(who, m)
	if fault != nil {
		return nil, nil, fault
	}
	if e.sessions == nil {
		return nil, e.initializeResult(&f, m.ID), nil
	}
	s, err := e.sessions.Open(f)
	if err != nil {
		return nil, nil, &Fault{Status: 503, Code: CodeInternal, Message: err.Error(), ID: m.ID}
	}
	s.Initialize(f)
	e.sessionOpened(s)
	return s, e.initializeResult(&f, m.ID), nil
}

// readInitialize reads the params of initialize into facts.
func (e *Engine) readInitialize(who Caller, m *Message) (session.Facts, *Fault) {
	if m.ID == nil {
		return session.Facts{}, invalid(nil, "initialize needs an id")
	}
	f := session.Facts{Caller: who.Caller, Revision: mcpversion.LatestLegacy, Until: who.Until}
	if v, ok := rawjson.Get(m.Params, "protocolVersion"); ok {
		name, isString := rawjson.String(v)
		if !isString {
			bad := badParam("protocolVersion", "a string such as "+mcpversion.LatestLegacy.String())
			bad.ID = m.ID
			return f, bad
		}
		if r, known := mcpversion.Parse(name); known && !r.Modern() {
			f.Revision = r
		}
	}
	if caps, ok := rawjson.Get(m.Params, "capabilities"); ok {
		f.Can = abilities(caps, f.Revision)
	}
	if c, ok := rawjson.Get(m.Params, "clientInfo"); ok {
		f.Client = clientName(c)
	}
	if fault := e.assignContext(&f, &who, m.has.of().context); fault != nil {
		fault.ID = m.ID
		return f, fault
	}
	f.Owner, f.Client = unique.Make(f.Owner).
		Value(),
		unique.Make(f.Client).
			Value()
	// one text each for thousands of sessions
	return f, nil
}

// assignContext sets the caller's context, cut and owner. The first of these decides
// the context: the credential's binding, the transport (a path or a header), the
// message's _meta, the host's default. A context that the binding does not allow is not
// found.
func (e *Engine) assignContext(f *session.Facts, who *Caller, wanted []byte) *Fault {
	if who.Work != nil {
		f.Folders, f.Named = who.Work()
	}
	bound := who.Bound
	f.Pinned = bound != "" || f.Context != ""
	if f.Context == "" {
		f.Context, _ = rawjson.String(wanted)
	}
	if bound != "" {
		if f.Context != "" && f.Context != bound {
			return notFound(views.ErrNotFound)
		}
		f.Context = bound
	}
	if f.Context == "" {
		f.Context = e.opts.Views.Default()
	}
	f.Owner = e.opts.Views.Owner(&f.Caller)
	f.Cut = e.opts.Views.Cut(f.Caller)
	if _, err := e.opts.Views.View(e.base, &f.Caller, f.Cut); err != nil {
		return notFound(err)
	}
	return nil
}

// notFound returns the error for a context that does not exist for the caller.
func notFound(err error) *Fault {
	status := 404
	if errors.Is(err, views.ErrForbidden) {
		status = 403
	}
	return &Fault{Status: status, Outside: true, Code: CodeInvalidParams, Message: err.Error()}
}

// authenticate returns the identity of a message on a transport without headers: that
// of its token, or that of the connection if it has no token.
func (e *Engine) authenticate(who Caller, m *Message) (Caller, *Fault) {
	v := m.has.of().token
	if v == nil {
		if who.Principal == "" {
			return who, &Fault{Status: 401, Code: CodeInvalidRequest, ID: m.ID,
				Message: `credentials are needed: put a token into params._meta["` + metaToken + `"]` + who.Advice}
		}
		return who, nil
	}
	token, _ := rawjson.String(v)
	if who.Prove == nil || token == "" {
		return who, badToken(m.ID)
	}
	proven, err := who.Prove(e.base, token)
	if err != nil {
		return who, badToken(m.ID)
	}
	if proven.Context == "" {
		proven.Context = who.Context
	}
	proven.Work = who.Work
	return proven, nil
}

func badToken(id []byte) *Fault {
	return &Fault{Status: 401, Code: CodeInvalidRequest, ID: id, Message: "the token is not valid here"}
}

func (e *Engine) initializeResult(f *session.Facts, id []byte) []byte {
	h := e.about.Load().servers[f.Revision]
	out := `{"protocolVersion":"` + f.Revision.String() + `","capabilities":` + h.capabilities + `,"serverInfo":` +
		h.info
	if v, err := e.opts.Views.View(e.base, &f.Caller, f.Cut); err == nil {
		out += e.instructions(v)
	}
	return appendResult(nil, id, []byte(out+"}"))
}

// instructions returns the member that tells a client how to use a view.
func (e *Engine) instructions(v *views.View) string {
	if e.opts.Instructions == nil {
		return ""
	}
	text := e.opts.Instructions(v)
	if text == "" {
		return ""
	}
	return `,"instructions":` + string(rawjson.AppendString(nil, text))
}

// discover answers server/discover, the modern counterpart of initialize. It stores
// nothing.
func (r *request) discover() {
	if !r.loadView() {
		return
	}
	e := r.e
	names, _ := json.Marshal(mcpversion.Names())
	out := `{"supportedVersions":` + string(
		names,
	) + `,"capabilities":` + string(
		r.extended(e.about.Load().servers[r.rev].capabilities),
	)
	out += e.instructions(r.view)
	r.sendResult([]byte(out + e.about.Load().tails[true] + "}"))
}

// extended adds the extensions of the view's modules to the capabilities.
func (r *request) extended(capabilities string) []byte {
	caps := []byte(capabilities)
	all, _ := rawjson.Get(caps, "extensions")
	for name, ext := range r.view.Extensions() {
		if _, ours := rawjson.Get(all, name); !ours {
			all = rawjson.Splice(all, rawjson.Edit{Key: name, Value: ext})
		}
	}
	if len(all) == 0 {
		return caps
	}
	return rawjson.Splice(caps, rawjson.Edit{Key: "extensions", Value: all})
}

// Stateless makes a session for one legacy request on a host without
// sessions. version is the MCP-Protocol-Version header; "" stands for
// 2025-03-26.
func (e *Engine) Stateless(who Caller, version string) (*session.Session, *Fault) {
	f := session.Facts{Caller: who.Caller, Revision: mcpversion.V20250326, Until: who.Until}
	if version != "" {
		r, ok := mcpversion.Parse(version)
		if !ok || r.Modern() {
			return nil, &Fault{
				Status:  400,
				Code:    CodeInvalidRequest,
				Message: "MCP-Protocol-Version: unknown revision " + version,
			}
		}
		f.Revision = r
	}
	if fault := e.assignContext(&f, &who, nil); fault != nil {
		return nil, fault
	}
	s := session.New(f) // without capabilities, because there was no handshake
	s.Initialize(f)
	return s, nil
}

// abilities reads a capabilities object.
func abilities(caps []byte, r mcpversion.Revision) (can tool.Abilities) {
	if rawjson.Kind(caps) != '{' {
		return 0
	}
	for k, v := range rawjson.Object(caps) {
		if rawjson.Kind(v) != '{' {
			continue
		}
		switch string(k) {
		case "elicitation":
			can |= elicitation(v, r)
		case "sampling":
			can |= tool.CanSample
			if _, ok := rawjson.Get(v, "tools"); ok && r.Has(mcpversion.SamplingTools) {
				can |= tool.CanSampleTools
			}
		case "roots":
			can |= tool.CanListRoots
		case "extensions":
			if _, ok := rawjson.Get(v, tasksExt); ok && r.Modern() {
				can |= tool.CanTasks
			}
		}
	}
	return can
}

// elicitation reads the elicitation capability. An empty object means forms, as it did
// before the modes existed.
func elicitation(v []byte, r mcpversion.Revision) (can tool.Abilities) {
	if !r.Has(mcpversion.Elicitation) {
		return 0
	}
	_, form := rawjson.Get(v, "form")
	_, url := rawjson.Get(v, "url")
	if form || !url {
		can |= tool.CanElicit
	}
	if url && r.Has(mcpversion.ElicitationURL) {
		can |= tool.CanElicitURL
	}
	return can
}

// clientName returns "name/version" of an implementation object.
func clientName(info []byte) string {
	if rawjson.Kind(info) != '{' {
		return ""
	}
	get := func(k string) string {
		v, _ := rawjson.Get(info, k)
		s, _ := rawjson.String(v)
		return displaytext.Cut(s, 100, "")
	}
	name, version := get("name"), get("version")
	if version == "" {
		return name
	}
	return name + "/" + version
}
