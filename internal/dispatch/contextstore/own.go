package contextstore

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/yosida95/uritemplate/v3"

	"gatehouse/internal/access/permit"
	"gatehouse/internal/mcp/schema"
)

// These are the limits of a tool that a context defines.
const (
	DefaultTimeout   = 30 * time.Second
	maxTimeout       = 10 * time.Minute
	DefaultMaxOutput = 1 << 20 // bytes
	maxMaxOutput     = 16 << 20
)

var ownName = lazy(`^[A-Za-z0-9_]{1,64}$`)

// EnvPrefix is the prefix of placeholders that stand for variables of the context, which only headers may contain.
const EnvPrefix = "env."

func isAbs(path string) bool {
	return filepath.IsAbs(path) || path == "~" || strings.HasPrefix(path, "~/")
}

func (c *check) own(r *Record) {
	if len(r.OwnTools) > maxOwn || len(r.OwnPrompts) > maxOwn || len(r.OwnResources) > maxOwn {
		c.bad("own_tools", "there are %d, %d own_prompts and %d own_resources; at most %d of each",
			len(r.OwnTools), len(r.OwnPrompts), len(r.OwnResources), maxOwn)
		return
	}
	seen := map[string]bool{}
	for i := range r.OwnTools {
		t := &r.OwnTools[i]
		c.checkName("own_tools", t.Name, seen)
		c.tool(t, r)
	}
	seen = map[string]bool{}
	for i := range r.OwnPrompts {
		p := &r.OwnPrompts[i]
		c.checkName("own_prompts", p.Name, seen)
		c.prompt(p)
	}
	seen, uris := map[string]bool{}, map[string]bool{}
	for i := range r.OwnResources {
		res := &r.OwnResources[i]
		c.checkName("own_resources", res.Name, seen)
		if uris[res.URI] {
			c.bad("own_resources", "two resources have the URI %q", res.URI)
		}
		uris[res.URI] = true
		c.resource(res, r)
	}
}

func (c *check) checkName(where, name string, seen map[string]bool) {
	if !ownName().MatchString(name) {
		c.bad(where, "%q: expected a name of 1 to 64 letters, digits and _", name)
	}
	if seen[name] {
		c.bad(where, "two are called %q", name)
	}
	seen[name] = true
}

func (c *check) tool(t *Tool, r *Record) {
	where := "own_tools: " + t.Name
	if t.Description == "" {
		c.bad(where, "description is empty; describe in a sentence what the tool does")
	}
	c.checkText(where+": description", t.Description, 4<<10)
	c.checkText(where+": help", t.Help, maxTemplate)
	if _, err := permit.ParseEffects(t.Effects); err != nil {
		c.bad(where, "%w", err)
	}
	c.bounds(where, t.Timeout, t.MaxOutput)
	args, err := t.Arguments()
	if err != nil {
		c.bad(where, "input: %w", err)
		return
	}
	if t.Output != nil {
		if _, err := schema.Compile(t.Output); err != nil {
			c.bad(where, "output: %w", err)
		}
	}
	switch {
	case (t.Command == nil) == (t.HTTP == nil):
		c.bad(where, "expected either command or http")
	case t.Command != nil:
		c.command(where+": command", t.Command, args)
	default:
		c.http(where+": http", t.HTTP, args, r)
	}
}

func (c *check) bounds(where, timeout string, output int) {
	if timeout != "" {
		if _, err := span(timeout, 100*time.Millisecond, maxTimeout); err != nil {
			c.bad(where, "timeout: %w", err)
		}
	}
	if output < 0 || output > maxMaxOutput {
		c.bad(where, "max_output is %d: expected at most %d bytes", output, maxMaxOutput)
	}
}

// Arguments returns the names that the input schema declares.
func (t *Tool) Arguments() ([]string, error) {
	if t.Input == nil {
		return nil, nil
	}
	var s struct {
		Type       any                        `json:"type"`
		Properties map[string]json.RawMessage `json:"properties"`
	}
	if err := json.Unmarshal(t.Input, &s); err != nil {
		return nil, errors.New("expected the JSON Schema of an object")
	}
	if s.Type != "object" {
		return nil, errors.New(`expected a schema with "type":"object"`)
	}
	if _, err := schema.Compile(t.Input); err != nil {
		return nil, err
	}
	return slices.Sorted(maps.Keys(s.Properties)), nil
}

// template checks a template that may contain these names, and those with EnvPrefix if env has them.
func (c *check) template(where, text string, names []string, env map[string]bool) Template {
	c.checkText(where, text, maxTemplate)
	t, err := ParseTemplate(text)
	if err != nil {
		c.bad(where, "%w", err)
		return t
	}
	for _, n := range t.Names() {
		v, isEnv := strings.CutPrefix(n, EnvPrefix)
		switch {
		case isEnv && env == nil:
			c.bad(where, "{{%s}}: variables can only be put into headers; programs get them in their environment", n)
		case isEnv && !env[v]:
			c.bad(where, "{{%s}}: the context has no variable %s", n, v)
		case !isEnv && !slices.Contains(names, n):
			c.bad(where, "{{%s}}: there is no such argument; expected one of %s", n, orNone(names))
		}
	}
	return t
}

func orNone(names []string) string {
	if len(names) == 0 {
		return "none, because none is declared"
	}
	return strings.Join(names, ", ")
}

func (c *check) command(where string, cmd *Command, args []string) {
	c.checkText(where+": path", cmd.Path, 4<<10)
	if cmd.Path == "" || strings.Contains(cmd.Path, "{{") {
		c.bad(where, "path: expected the program itself; it cannot come from an argument")
	}
	if strings.Contains(cmd.Dir, "{{") {
		c.bad(where, "dir: it cannot come from an argument")
	}
	c.checkText(where+": dir", cmd.Dir, 4<<10)
	if len(cmd.Args) > maxList {
		c.bad(where, "args: there are %d; at most %d", len(cmd.Args), maxList)
	}
	for i, a := range cmd.Args {
		c.template(fmt.Sprintf("%s: args[%d]", where, i), a, args, nil)
	}
	c.template(where+": stdin", cmd.Stdin, args, nil)
}

var methods = []string{"", "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"}

func (c *check) http(where string, h *HTTP, args []string, r *Record) {
	if !slices.Contains(methods, h.Method) {
		c.bad(where, "method %q: expected GET, HEAD, POST, PUT, PATCH or DELETE", h.Method)
	}
	c.template(where+": url", h.URL, args, nil)
	if err := fixedHost(h.URL); err != nil {
		c.bad(where, "url: %w", err)
	}
	env := map[string]bool{}
	for n := range r.Env {
		env[n] = true
	}
	for _, name := range slices.Sorted(maps.Keys(h.Headers)) {
		if !headerName().MatchString(name) || slices.Contains(hopHeaders, http.CanonicalHeaderKey(name)) {
			c.bad(where, "headers: %q cannot be set", name)
		}
		c.template(where+": headers: "+name, h.Headers[name], args, env)
	}
	if h.Body == nil {
		return
	}
	if h.Method == "GET" || h.Method == "HEAD" {
		c.bad(where, "body: %s has none", h.Method)
	}
	var v any
	if err := json.Unmarshal(h.Body, &v); err != nil {
		c.bad(where, "body: expected JSON: %v", err)
		return
	}
	c.body(where+": body", v, args)
}

var (
	headerName = lazy("^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}$")
	hopHeaders = []string{"Host", "Content-Length", "Connection", "Transfer-Encoding", "Trailer", "Upgrade", "Te"}
)

func (c *check) body(where string, v any, args []string) {
	switch v := v.(type) {
	case string:
		c.template(where, v, args, nil)
	case []any:
		for _, e := range v {
			c.body(where, e, args)
		}
	case map[string]any:
		for k, e := range v {
			c.body(where+"."+k, e, args)
		}
	}
}

// fixedHost checks that no argument determines where a request is sent.
func fixedHost(text string) error {
	scheme, rest, ok := strings.Cut(text, "://")
	if !ok || scheme != "http" && scheme != "https" {
		return errors.New("expected an address that begins with http:// or https://")
	}
	host, _, _ := strings.Cut(rest, "/")
	if strings.ContainsAny(host, "{}?#@") || host == "" {
		return errors.New("expected a fixed host, then a /; arguments can be put in after that")
	}
	if _, err := url.Parse(scheme + "://" + host + "/"); err != nil {
		return fmt.Errorf("%q is not a host", host)
	}
	return nil
}

func (c *check) prompt(p *Prompt) {
	where := "own_prompts: " + p.Name
	c.checkText(where+": description", p.Description, 4<<10)
	var names []string
	for _, a := range p.Arguments {
		if !placeholder().MatchString(a.Name) || strings.HasPrefix(a.Name, EnvPrefix) {
			c.bad(where, "argument %q: expected a name of letters, digits, _, - and .", a.Name)
		}
		if slices.Contains(names, a.Name) {
			c.bad(where, "two arguments are called %q", a.Name)
		}
		names = append(names, a.Name)
		c.checkList(where+": values of "+a.Name, a.Values)
	}
	if (p.Template == "") == (len(p.Messages) == 0) {
		c.bad(where, "expected either template or messages")
	}
	c.template(where+": template", p.Template, names, nil)
	if len(p.Messages) > 100 {
		c.bad(where, "there are %d messages; at most 100", len(p.Messages))
	}
	for i, m := range p.Messages {
		at := fmt.Sprintf("%s: messages[%d]", where, i)
		if m.Role != "user" && m.Role != "assistant" {
			c.bad(at, "role %q: expected user or assistant", m.Role)
		}
		c.template(at, m.Text, names, nil)
	}
}

// ownURI is the form of URIs of a context's own resources. The scheme is fixed, so that no template matches the
// URIs of every other resource.
var ownURI = lazy(`^[A-Za-z][A-Za-z0-9+.-]{0,63}:[^\s]+$`)

// maxURI is the longest URI, in bytes: longer ones are not matched against templates when they are read.
const maxURI = 2 << 10

// Template parses the URI as an RFC 6570 template; it returns nil if the URI has no variables.
func (r *Resource) Template() (*uritemplate.Template, error) {
	t, err := uritemplate.New(r.URI)
	if err != nil || len(t.Varnames()) == 0 {
		return nil, err
	}
	return t, nil
}

func (c *check) resource(res *Resource, r *Record) {
	where := "own_resources: " + res.Name
	c.checkText(where+": uri", res.URI, maxURI)
	scheme, _, _ := strings.Cut(res.URI, ":")
	switch {
	case !ownURI().MatchString(res.URI):
		c.bad(where, "uri %q: expected a scheme, a colon and more, such as team://notes/{topic}", res.URI)
	case strings.EqualFold(scheme, "gatehouse") || strings.EqualFold(scheme, "file"):
		c.bad(
			where,
			"uri %q: the host's own resources have the scheme %s; use another",
			res.URI,
			strings.ToLower(scheme),
		)
	}
	c.checkText(where+": title", res.Title, 4<<10)
	c.checkText(where+": description", res.Description, 4<<10)
	if res.MIME != "" {
		if _, _, err := mime.ParseMediaType(res.MIME); err != nil || !strings.Contains(res.MIME, "/") {
			c.bad(where, "mime_type %q: expected a type such as text/markdown", res.MIME)
		}
	}
	c.bounds(where, res.Timeout, res.MaxOutput)
	t, err := res.Template()
	if err != nil {
		c.bad(where, "uri %q: %v", res.URI, err)
		return
	}
	var names []string
	if t != nil {
		names = t.Varnames()
	}
	c.variables(where, res.Variables, names)
	c.content(where, res, names, r)
}

func (c *check) variables(where string, list []Variable, names []string) {
	var seen []string
	for _, v := range list {
		if !slices.Contains(names, v.Name) {
			c.bad(where, "variables: the uri has no variable %q; expected one of %s", v.Name, orNone(names))
		}
		if slices.Contains(seen, v.Name) {
			c.bad(where, "variables: two are called %q", v.Name)
		}
		seen = append(seen, v.Name)
		c.checkList(where+": values of "+v.Name, v.Values)
	}
}

// content checks the source of a resource's content.
func (c *check) content(where string, res *Resource, names []string, r *Record) {
	given := 0
	for _, is := range []bool{res.Text != nil, res.File != "", res.Command != nil, res.HTTP != nil} {
		if is {
			given++
		}
	}
	if given != 1 {
		c.bad(where, "expected one of text, file, command and http; there are %d", given)
		return
	}
	switch {
	case res.Text != nil:
		c.template(where+": text", *res.Text, names, nil)
	case res.File != "":
		c.template(where+": file", res.File, names, nil)
		parts := strings.FieldsFunc(res.File, func(c rune) bool { return c == '/' || c == '\\' })
		if slices.Contains(parts, "..") {
			c.bad(where, "file %q: expected a path without ..", res.File)
		}
		if strings.HasPrefix(res.File, "{{") {
			c.bad(where, "file %q: a path cannot begin with a variable; write ./ before it", res.File)
		}
	case res.Command != nil:
		c.command(where+": command", res.Command, names)
	default:
		if m := res.HTTP.Method; m != "" && m != "GET" {
			c.bad(where, "http: method %q: a resource is read with GET", m)
		}
		if res.HTTP.Body != nil {
			c.bad(where, "http: body: GET has none")
		}
		get := *res.HTTP
		get.Method, get.Body = "GET", nil
		c.http(where+": http", &get, names, r)
	}
}

// Decode reads a record strictly: an unknown member is an error.
func Decode(raw []byte, into *Record) error { return decodeStrict(raw, into) }

func decodeStrict(raw []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return &Invalid{fmt.Errorf("%s", strings.TrimPrefix(err.Error(), "json: "))}
	}
	if d.More() {
		return &Invalid{errors.New("there is text after the record")}
	}
	return nil
}
