// Package openapi makes an MCP server of an OpenAPI 3.0 or 3.1 document: each operation is a tool with typed arguments.
//
// The document is not trusted: its size and the number of its operations are limited, references to other documents are
// refused, and a document that makes the parser panic is an error. Arguments are checked against the schemas of an
// operation before anything is sent. Requests go to the server of the document, or the one that the user names, and
// redirects to another origin are refused.
package openapi

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/base32"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"gatehouse/internal/access/displaytext"
	"gatehouse/internal/access/secret"
	"gatehouse/internal/mcp/schema"
)

// Limits of a document and of what is sent and received.
const (
	MaxDocument    = 16 << 20 // bytes of a document
	maxOperations  = 5000
	maxSchemaDepth = 64
	maxDescription = 2000             // bytes of what a tool says of its operation
	maxToolSchema  = 256 << 10        // bytes of the schema of one tool
	defaultBody    = 1 << 20          // bytes of a response
	requestTimeout = 60 * time.Second // of one request
	longestName    = 64               // characters of a tool's or an argument's name
)

// Options say how the API of a document is used.
type Options struct {
	// At is the address that the document was read from, to which its servers may be relative; "" for a file.
	At string
	// Server is used instead of the servers of the document; "" uses the first of these.
	Server string
	// Variables are values for the variables of the server.
	Variables map[string]string
	// Only are the operations that become tools: tag:NAME, method:NAME or operation:ID. None means all.
	Only []string
	// Credentials are the values for the security schemes, by their names: the key, the token, or user:password.
	Credentials map[string]secret.Text
	// MaxBody is the size in bytes of the largest response that is passed on; 0 means 1 MiB.
	MaxBody int64
	// Client sends the requests; nil means one that refuses redirects to another origin.
	Client *http.Client
}

// API is a document whose operations can be called. It is safe for concurrent use.
type API struct {
	Title   string
	Version string
	Tools   []*Tool  // sorted by name
	Left    []string // operations that are no tools, each with the reason

	base   *url.URL
	o      Options
	client *http.Client
	byName map[string]*Tool
}

// Tool is one operation.
type Tool struct {
	Name        string
	Description string
	Input       json.RawMessage // its JSON Schema
	ReadOnly    bool            // GET or HEAD
	Idempotent  bool
	Destructive bool // DELETE

	method, path string
	params       []param
	body         *body
	check        *schema.Schema
	security     [][]scheme // alternatives, each with all that it needs
}

// param is one argument that goes into the address or the headers.
type param struct {
	argument, name, in string
	required           bool
	style              string
	explode            bool
}

// body is the argument body.
type body struct {
	media    string
	required bool
}

// scheme is a security scheme of the document.
type scheme struct{ name, kind, http, in, at string }

// Parse reads a document in JSON or YAML.
func Parse(text []byte, o Options) (api *API, err error) {
	defer func() {
		if r := recover(); r != nil {
			api, err = nil, fmt.Errorf("the document cannot be parsed: %.200v", r)
		}
	}()
	if len(text) > MaxDocument {
		return nil, fmt.Errorf("the document has %d bytes; at most %d are read", len(text), MaxDocument)
	}
	doc, err := readDocument(text)
	switch {
	case err != nil:
		return nil, fmt.Errorf("the document cannot be parsed: %.500w", err)
	case !strings.HasPrefix(doc.version(), "3."):
		return nil, fmt.Errorf("openapi %.50q: expected 3.0 or 3.1", doc.version())
	case len(doc.Paths) == 0:
		return nil, errors.New("the document has no paths")
	}
	for _, one := range o.Only {
		kind, what, ok := strings.Cut(one, ":")
		if !ok || what == "" || !slices.Contains([]string{"tag", "method", "operation"}, kind) {
			return nil, fmt.Errorf("only %.100q: expected tag:NAME, method:NAME or operation:ID", one)
		}
	}
	api = &API{o: o, byName: map[string]*Tool{}, client: o.Client}
	if api.client == nil {
		api.client = newClient()
	}
	api.Title, api.Version = asText(doc.Info.Title), asText(doc.Info.Version)
	if api.base, err = o.server(doc.Servers); err != nil {
		return nil, err
	}
	return api, api.addOperations(doc)
}

// newClient returns the client for requests.
func newClient() *http.Client {
	return &http.Client{
		Timeout: requestTimeout,
		CheckRedirect: func(req *http.Request, via []*http.Request) error {
			if len(via) > 3 || req.URL.Host != via[0].URL.Host || req.URL.Scheme != via[0].URL.Scheme {
				return errors.New("the server redirects to " + req.URL.Host + ", another origin")
			}
			return nil
		},
	}
}

var variable = regexp.MustCompile(`\{([^{}]+)\}`)

// server returns the address of the API.
func (o *Options) server(all []serverAddress) (*url.URL, error) {
	at := o.Server
	if at == "" && len(all) > 0 {
		s := all[0]
		at = variable.ReplaceAllStringFunc(s.URL, func(v string) string {
			name := v[1 : len(v)-1]
			if value, ok := o.Variables[name]; ok {
				return value
			}
			if d, ok := s.Variables[name]; ok {
				return d.Default
			}
			return v
		})
		for name, value := range o.Variables {
			if d, ok := s.Variables[name]; !ok || len(d.Enum) > 0 && !slices.Contains(d.Enum, value) {
				return nil, fmt.Errorf("variable %.100q: the server has none with the value %.100q", name, value)
			}
		}
	}
	u, err := url.Parse(cmp.Or(at, "/"))
	if err == nil && !u.IsAbs() && o.At != "" {
		var from *url.URL
		if from, err = url.Parse(o.At); err == nil {
			u = from.ResolveReference(u)
		}
	}
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || u.User != nil {
		return nil, fmt.Errorf(
			"the server of the document is %.200q; give its address with server=https://HOST/PATH",
			at,
		)
	}
	u.RawQuery, u.Fragment, u.Path = "", "", strings.TrimSuffix(u.Path, "/")
	u.RawPath = ""
	return u, nil
}

// addOperations makes the tools.
func (a *API) addOperations(doc *document) error {
	names := map[string]int{}
	for _, path := range slices.Sorted(maps.Keys(doc.Paths)) {
		item, err := resolve(doc, doc.Paths[path])
		if err != nil {
			return fmt.Errorf("the path %.200s: %w", path, err)
		}
		ops := item.operations()
		for _, method := range slices.Sorted(maps.Keys(ops)) {
			op := ops[method]
			if !a.o.wants(method, op) {
				continue
			}
			if len(a.Tools)+len(a.Left) >= maxOperations {
				return fmt.Errorf("the document has more than %d operations; choose some with only=tag:NAME",
					maxOperations)
			}
			t, err := makeTool(doc, path, method, &item, op)
			if err != nil {
				a.Left = append(a.Left, fmt.Sprintf("%s %.200s: %v", method, path, err))
				continue
			}
			names[t.Name]++
			a.Tools = append(a.Tools, t)
		}
	}
	if len(a.Tools) == 0 {
		return errors.New("no operation of the document becomes a tool")
	}
	for _, t := range a.Tools {
		if names[t.Name] > 1 { // which of them had the name first may change
			t.Name = withHash(t.Name, t.method+" "+t.path)
		}
		a.byName[t.Name] = t
	}
	slices.SortFunc(a.Tools, func(x, y *Tool) int { return cmp.Compare(x.Name, y.Name) })
	return nil
}

// wants reports whether an operation becomes a tool.
func (o *Options) wants(method string, op *operation) bool {
	return len(o.Only) == 0 || slices.ContainsFunc(o.Only, func(one string) bool {
		kind, what, _ := strings.Cut(one, ":")
		switch kind {
		case "tag":
			return slices.Contains(op.Tags, what)
		case "method":
			return strings.EqualFold(method, what)
		}
		return op.ID == what
	})
}

// plain returns a name of letters, digits and _ alone, of at most longestName characters. A name that is cut ends in a
// hash of the whole.
func plain(name string) string {
	out := strings.Trim(strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' {
			return r
		}
		return '_'
	}, name), "_")
	for strings.Contains(out, "__") {
		out = strings.ReplaceAll(out, "__", "_")
	}
	if len(out) > longestName || out == "" {
		return withHash(out, name)
	}
	return out
}

// withHash returns a name that ends in a hash of whole.
func withHash(name, whole string) string {
	sum := sha256.Sum256([]byte(whole))
	hash := strings.ToLower(base32.StdEncoding.EncodeToString(sum[:5]))
	name = strings.TrimRight(name[:min(len(name), longestName-len(hash)-1)], "_")
	return strings.TrimLeft(name+"_"+hash, "_")
}

// makeTool makes the tool of one operation.
func makeTool(
	doc *document, path, method string, item *pathItem, op *operation,
) (*Tool, error) {
	t := &Tool{
		Name: plain(cmp.Or(op.ID, strings.ToLower(method)+"_"+path)), method: method, path: path,
		ReadOnly: method == http.MethodGet || method == http.MethodHead,
		// RFC 9110, section 9.2.2
		Idempotent:  method != http.MethodPost && method != http.MethodPatch,
		Destructive: method == http.MethodDelete,
	}
	said := displaytext.Line(strings.TrimSpace(cmp.Or(op.Summary, "") + " " + strings.TrimSpace(op.Description)))
	t.Description = displaytext.Cut(strings.TrimSpace(said+" ("+method+" "+path+")"), maxDescription, "...")
	in := newInput(doc)
	if err := t.addParams(in, item.Parameters, op.Parameters); err != nil {
		return nil, err
	}
	if err := t.addBody(in, op.Body); err != nil {
		return nil, err
	}
	if t.ReadOnly {
		in.addMember("next", map[string]any{
			"type": "string",
			"description": "The address of the next page, as an earlier result has it in next; " +
				"other arguments are then ignored.",
		}, false)
	}
	text, err := in.encode()
	if err != nil {
		return nil, err
	}
	t.Input = text
	if t.check, err = schema.Compile(text); err != nil {
		return nil, fmt.Errorf("its schema: %w", err)
	}
	security := doc.Security
	if op.Security != nil {
		security = *op.Security
	}
	t.security, err = schemes(doc, security)
	return t, err
}

// addParams adds the parameters of a path and of its operation, which override those.
func (t *Tool) addParams(in *input, lists ...[]parameter) error {
	all := map[string]parameter{}
	for _, list := range lists {
		for _, p := range list {
			p, err := resolve(in.doc, p)
			if err != nil {
				return err
			}
			if p.Name == "" || !slices.Contains([]string{"path", "query", "header", "cookie"}, p.In) {
				return fmt.Errorf("the parameter %.100q is in %.100q", p.Name, p.In)
			}
			all[p.In+" "+p.Name] = p
		}
	}
	for _, key := range slices.Sorted(maps.Keys(all)) {
		p := all[key]
		if p.In == "header" &&
			slices.Contains([]string{"accept", "content-type", "authorization"}, strings.ToLower(p.Name)) {
			continue // the specification has them ignored
		}
		one := param{name: p.Name, in: p.In, required: p.Required || p.In == "path", style: p.Style}
		one.argument = plain(p.Name)
		if in.hasMember(one.argument) || one.argument == "body" || one.argument == "next" {
			one.argument = plain(p.Name + "_in_" + p.In)
		}
		if in.hasMember(one.argument) {
			one.argument = withHash(one.argument, key)
		}
		if one.style == "" {
			one.style = map[string]string{"query": "form", "cookie": "form"}[p.In]
		}
		one.explode = one.style == "form"
		if p.Explode != nil {
			one.explode = *p.Explode
		}
		s, err := in.convertRoot(p.Schema)
		for _, media := range slices.Sorted(maps.Keys(p.Content)) {
			if s, err = in.convertRoot(p.Content[media].Schema); err == nil {
				one.style = "content"
			}
		}
		if err != nil {
			return fmt.Errorf("parameter %.100s: %w", p.Name, err)
		}
		addDescription(s, p.Description)
		t.params = append(t.params, one)
		in.addMember(one.argument, s, one.required)
	}
	for _, v := range variable.FindAllStringSubmatch(t.path, -1) {
		if !slices.ContainsFunc(t.params, func(p param) bool { return p.in == "path" && p.name == v[1] }) {
			return fmt.Errorf("the path has {%.100s}, which is no parameter", v[1])
		}
	}
	return nil
}

// addDescription adds a description to a schema that has none.
func addDescription(s map[string]any, text string) {
	if text = strings.TrimSpace(text); text != "" && s["description"] == nil && s["$ref"] == nil {
		s["description"] = displaytext.Cut(displaytext.Line(text), maxDescription/2, "...")
	}
}

// addBody adds the argument body. Of several media types the first of those that can be made of JSON is used.
func (t *Tool) addBody(in *input, given *requestBody) error {
	if given == nil {
		return nil
	}
	b, err := resolve(in.doc, *given)
	if err != nil || len(b.Content) == 0 {
		return err
	}
	content := b.Content
	chosen := ""
	for _, media := range slices.Sorted(maps.Keys(content)) {
		if rank(media) < rank(chosen) {
			chosen = media
		}
	}
	if chosen == "" {
		return fmt.Errorf("its body is %.200s, which cannot be made of arguments",
			strings.Join(slices.Sorted(maps.Keys(content)), ", "))
	}
	s := map[string]any{"type": "string"}
	if kind := rank(chosen); kind <= rankMultipart {
		if s, err = in.convertRoot(content[chosen].Schema); err != nil {
			return fmt.Errorf("body: %w", err)
		}
	} else if kind == rankBytes {
		s["description"] = "The content, in base64."
	}
	addDescription(s, b.Description)
	t.body = &body{chosen, b.Required}
	in.addMember("body", s, b.Required)
	return nil
}

// Ranks of media types: the lowest is used.
const (
	rankJSON = iota
	rankForm
	rankMultipart
	rankText
	rankBytes
	rankNone
)

func rank(media string) int {
	kind, _, _ := strings.Cut(strings.ToLower(media), ";")
	switch kind = strings.TrimSpace(kind); {
	case kind == "application/json" || strings.HasSuffix(kind, "+json") || kind == "*/*":
		return rankJSON
	case kind == "application/x-www-form-urlencoded":
		return rankForm
	case kind == "multipart/form-data":
		return rankMultipart
	case strings.HasPrefix(kind, "text/") || kind == "application/xml":
		return rankText
	case kind == "application/octet-stream":
		return rankBytes
	}
	return rankNone
}

// schemes returns the alternatives of security requirements.
func schemes(doc *document, all []requirement) (out [][]scheme, err error) {
	for _, one := range all {
		alternative := []scheme{}
		for _, name := range slices.Sorted(maps.Keys(one)) {
			s, ok := doc.Components.Security[name]
			if !ok {
				return nil, fmt.Errorf("the security scheme %.100q is missing", name)
			}
			if s, err = resolve(doc, s); err != nil {
				return nil, err
			}
			alternative = append(alternative, scheme{name, s.Type, strings.ToLower(s.Scheme), s.In, s.Name})
		}
		out = append(out, alternative)
	}
	return out, nil
}

// Credential is the name of the variable that holds the credential of a security scheme.
func Credential(scheme string) string { return strings.ToUpper(plain(scheme)) }

// Check returns an error if arguments are not those of the tool.
func (t *Tool) Check(args json.RawMessage) error {
	if len(bytes.TrimSpace(args)) == 0 {
		args = json.RawMessage(`{}`)
	}
	return t.check.Check(args)
}
