package openapi

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/klauspost/compress/zstd"
	"go.yaml.in/yaml/v3"

	"gatehouse/internal/access/secret"
)

// documents are published documents; testdata/README.md says where from.
func documents(t *testing.T) map[string][]byte {
	t.Helper()
	all := map[string][]byte{}
	for _, name := range []string{"petstore-expanded.json", "uspto.json", "tictactoe.json", "api.github.com.json.zst"} {
		f, err := os.Open(filepath.Join("testdata", name))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		var r io.Reader = f
		if strings.HasSuffix(name, ".zst") {
			d, err := zstd.NewReader(f)
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			r = d
		}
		if all[name], err = io.ReadAll(io.LimitReader(r, MaxDocument)); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// served is a server that is generated from a document: it answers each operation with what it got, and refuses what no
// operation has.
type served struct {
	*httptest.Server
	routes []route

	mu    sync.Mutex
	count int
	last  *http.Request
	body  string
}

type route struct {
	method, path string
	match        *regexp.Regexp
	params       openapi3.Parameters
	secure       bool
}

func serve(t *testing.T, text []byte) *served {
	t.Helper()
	doc, err := openapi3.NewLoader().LoadFromData(text)
	if err != nil {
		t.Fatal(err)
	}
	s := &served{}
	for path, item := range doc.Paths.Map() {
		for method, op := range item.Operations() {
			form := "^/base" + regexp.MustCompile(`\\\{[^{}]+\\\}`).
				ReplaceAllString(regexp.QuoteMeta(path), `([^/]+)`) +
				"$"
			secure := len(doc.Security) > 0
			if op.Security != nil {
				secure = len(*op.Security) > 0
			}
			s.routes = append(s.routes, route{method, path, regexp.MustCompile(form),
				slices.Concat(item.Parameters, op.Parameters), secure})
		}
	}
	// The most specific path comes first.
	slices.SortFunc(s.routes, func(a, b route) int {
		return len(variable.ReplaceAllString(b.path, "")) - len(variable.ReplaceAllString(a.path, ""))
	})
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	return s
}

func (s *served) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	s.mu.Lock()
	s.count++
	s.last, s.body = r, string(body)
	s.mu.Unlock()
	for _, one := range s.routes {
		if one.method != r.Method || !one.match.MatchString(r.URL.EscapedPath()) {
			continue
		}
		for _, p := range one.params {
			if p.Value.In == "query" && p.Value.Required && !r.URL.Query().Has(p.Value.Name) {
				http.Error(w, "the query has no "+p.Value.Name, http.StatusBadRequest)
				return
			}
		}
		if one.secure && r.Header.Get("Authorization") == "" && r.Header.Get("X-Api-Key") == "" &&
			r.Header.Get("api-key") == "" {
			http.Error(w, "no credential", http.StatusUnauthorized)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"operation":%q,"bytes":%d}`, one.method+" "+one.path, len(body))
		return
	}
	http.NotFound(w, r)
}

func (s *served) requests() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.count
}

// every credential of the documents.
func everyCredential(t *testing.T, text []byte) map[string]secret.Text {
	doc, err := openapi3.NewLoader().LoadFromData(text)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]secret.Text{}
	if doc.Components != nil {
		for name := range doc.Components.SecuritySchemes {
			out[Credential(name)] = secret.New("user:a-credential")
		}
	}
	return out
}

func parse(t *testing.T, text []byte, o Options) *API {
	t.Helper()
	api, err := Parse(text, o)
	if err != nil {
		t.Fatal(err)
	}
	return api
}

// sample returns a value that fits a schema.
func sample(s map[string]any, defs map[string]any, depth int) any {
	if ref, ok := s["$ref"].(string); ok {
		next, _ := defs[strings.TrimPrefix(ref, "#/$defs/")].(map[string]any)
		return sample(next, defs, depth+1)
	}
	if all, ok := s["enum"].([]any); ok && len(all) > 0 {
		return all[0]
	}
	if v, ok := s["const"]; ok {
		return v
	}
	for _, key := range []string{"oneOf", "anyOf"} {
		if all, ok := s[key].([]any); ok && len(all) > 0 && s["properties"] == nil && s["type"] == nil {
			return sample(all[0].(map[string]any), defs, depth+1)
		}
	}
	if all, ok := s["allOf"].([]any); ok {
		out := map[string]any{}
		for _, one := range all {
			v := sample(one.(map[string]any), defs, depth+1)
			m, object := v.(map[string]any)
			if !object {
				return v
			}
			maps.Copy(out, m)
		}
		return out
	}
	kind, _ := s["type"].(string)
	if all, ok := s["type"].([]any); ok && len(all) > 0 {
		kind, _ = all[0].(string)
	}
	number := func(key string) float64 { n, _ := s[key].(float64); return n }
	switch {
	case kind == "string":
		if p, ok := s["pattern"].(string); ok {
			for _, v := range []string{"sha256:" + strings.Repeat("a", 64), "https://a.example", "ssh-rsa AAAA", "abc",
				"ABC", "123", "a@b.example", strings.Repeat("a", 40), "2020-01-01T00:00:00Z", "#aabbcc",
				"abc/def", "refs/heads/a", "1.2.3", ""} {
				if ok, _ := regexp.MatchString(p, v); ok && len(v) >= int(number("minLength")) {
					return v
				}
			}
		}
		return strings.Repeat("x", max(3, int(number("minLength"))))
	case kind == "integer" || kind == "number":
		return max(1, number("minimum"))
	case kind == "boolean":
		return true
	case kind == "array":
		item, _ := s["items"].(map[string]any)
		out := []any{}
		for range max(1, int(number("minItems"))) {
			out = append(out, sample(item, defs, depth+1))
		}
		return out
	case kind == "object" || s["properties"] != nil:
		out := map[string]any{}
		members, _ := s["properties"].(map[string]any)
		required, _ := s["required"].([]any)
		for _, name := range required {
			if m, ok := members[name.(string)].(map[string]any); ok && depth < 20 {
				out[name.(string)] = sample(m, defs, depth+1)
			} else {
				out[name.(string)] = "x"
			}
		}
		// Some objects require one of several sets of members.
		for _, key := range []string{"anyOf", "oneOf"} {
			if all, ok := s[key].([]any); ok && len(all) > 0 {
				one, _ := all[0].(map[string]any)
				if one["properties"] != nil {
					more, _ := sample(one, defs, depth+1).(map[string]any)
					maps.Copy(out, more)
				}
				need, _ := one["required"].([]any)
				for _, name := range need {
					if m, ok := members[name.(string)].(map[string]any); ok {
						out[name.(string)] = sample(m, defs, depth+1)
					}
				}
			}
		}
		if n := int(number("minProperties")); n > len(out) {
			for _, name := range slices.Sorted(maps.Keys(members)) {
				if len(out) < n {
					out[name], _ = sample(members[name].(map[string]any), defs, depth+1), true
				}
			}
		}
		return out
	}
	return "x"
}

// sampleArguments returns arguments that fit a tool: those that are required.
func sampleArguments(t *testing.T, one *Tool) map[string]any {
	t.Helper()
	var s map[string]any
	if err := json.Unmarshal(one.Input, &s); err != nil {
		t.Fatal(err)
	}
	defs, _ := s["$defs"].(map[string]any)
	delete(s["properties"].(map[string]any), "next")
	args, _ := sample(s, defs, 0).(map[string]any)
	return args
}

const small = `{"openapi":"3.0.3","info":{"title":"T","version":"1"},"servers":[{"url":"SERVER"}],
"components":{"securitySchemes":{"key":{"type":"apiKey","in":"query","name":"k"},"login":{"type":"http","scheme":"basic"}}},
"paths":{
 "/q/{id}":{"get":{"operationId":"q","tags":["a"],"security":[{"key":[]}],"parameters":[
  {"name":"id","in":"path","required":true,"schema":{"type":"string"}},
  {"name":"id","in":"query","schema":{"type":"integer","minimum":1,"exclusiveMinimum":true}},
  {"name":"list","in":"query","explode":false,"schema":{"type":"array","items":{"type":"string"}}},
  {"name":"many","in":"query","schema":{"type":"array","items":{"type":"string"}}},
  {"name":"deep","in":"query","style":"deepObject","schema":{"type":"object"}},
  {"name":"X-Head","in":"header","schema":{"type":"string","nullable":true}},
  {"name":"c","in":"cookie","schema":{"type":"string"}}],"responses":{"200":{"description":"x"}}}},
 "/form":{"post":{"operationId":"form","tags":["b"],"security":[{"login":[]}],"requestBody":{"required":true,"content":
  {"application/x-www-form-urlencoded":{"schema":{"type":"object","properties":{"a":{"type":"string"}}}}}},"responses":{"200":{"description":"x"}}}},
 "/big":{"get":{"operationId":"big","security":[],"responses":{"200":{"description":"x"}}}},
 "/away":{"get":{"operationId":"away","security":[],"responses":{"200":{"description":"x"}}}}
}}`

// Arguments go where the document says, credentials too, pages of other hosts are refused, and so are large responses.
func TestRequestsAreMadeAsTheDocumentSays(t *testing.T) {
	var got *http.Request
	var body string
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		got, body = r, string(b)
		switch r.URL.Path {
		case "/v1/big":
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprintf(w, "%q", strings.Repeat("x", 5000))
		case "/v1/away":
			http.Redirect(w, r, "http://127.0.0.2:1/", http.StatusFound)
		default:
			w.Header().Add("Link", `<https://evil.example/x>; rel="next", </v1/q/1?page=2>; rel="next"`)
			w.Header().Set("Content-Type", "application/json")
			io.WriteString(w, `{"n":12345678901234567890}`)
		}
	}))
	defer srv.Close()
	text := []byte(strings.Replace(small, "SERVER", srv.URL+"/v1", 1))
	api := parse(t, text, Options{MaxBody: 4000, Credentials: map[string]secret.Text{
		"KEY": secret.New("a&b"), "LOGIN": secret.New("ann:pass"),
	}})
	r, err := api.Call(t.Context(), "q", json.RawMessage(
		`{"id":"a/b?c","id_in_query":2,"list":["x","y"],"many":["1","2"],"deep":{"z":"1"},"X_Head":"h","c":"v w"}`))
	want := url.Values{"id": {"2"}, "list": {"x,y"}, "many": {"1", "2"}, "deep[z]": {"1"}, "k": {"a&b"}}
	if err != nil || got.URL.EscapedPath() != "/v1/q/a%2Fb%3Fc" || got.URL.Query().Encode() != want.Encode() ||
		got.Header.Get("X-Head") != "h" || got.Header.Get("Cookie") != "c=v+w" {
		t.Errorf("%v: %s %v", err, got.URL, got.Header)
	}
	if string(r.Body) != `{"n":12345678901234567890}` || r.Next != srv.URL+"/v1/q/1?page=2" {
		t.Errorf("got %s, next %q", r.Body, r.Next)
	}
	if _, err := api.Call(t.Context(), "q", json.RawMessage(`{"id":"1","next":"`+r.Next+`"}`)); err != nil ||
		got.URL.Query().Get("page") != "2" {
		t.Errorf("the next page: %v %s", err, got.URL)
	}
	for name, args := range map[string]string{
		"q":    `{"id":"1","next":"https://evil.example/v1/q"}`,
		"big":  `{}`,
		"away": `{}`,
	} {
		if _, err := api.Call(t.Context(), name, json.RawMessage(args)); err == nil {
			t.Errorf("%s %s is accepted", name, args)
		}
	}
	for _, bad := range []string{`{"id":".."}`, `{"id":""}`, `{"id":"1","id_in_query":1}`,
		`{"id":"1","X_Head":"a\r\nb: c"}`} {
		if _, err := api.Call(t.Context(), "q", json.RawMessage(bad)); err == nil {
			t.Errorf("%s is accepted", bad)
		}
	}
	if _, err := api.Call(t.Context(), "form", json.RawMessage(`{"body":{"a":"1&2"}}`)); err != nil ||
		body != "a=1%262" {
		t.Errorf("%v: the form %q", err, body)
	}
	if user, pass, _ := got.BasicAuth(); user != "ann" || pass != "pass" {
		t.Errorf("basic authentication by %s %s", user, pass)
	}
	without := parse(t, text, Options{})
	if _, err := without.Call(t.Context(), "q", json.RawMessage(`{"id":"1"}`)); err == nil ||
		!strings.Contains(err.Error(), "KEY") {
		t.Errorf("without a credential: %v", err)
	}
	for only, want := range map[string]int{"tag:a": 1, "method:get": 3, "operation:form": 1} {
		if n := len(parse(t, text, Options{Only: []string{only}}).Tools); n != want {
			t.Errorf("only %s: %d tools", only, n)
		}
	}
}

// A document that is no document, is hostile, or refers to others, is refused.
func TestHostileDocuments(t *testing.T) {
	var aliases strings.Builder
	aliases.WriteString("openapi: 3.0.0\nx-0: &0 [a, a, a, a, a, a, a, a]\n")
	for i := range 20 {
		aliases.WriteString(fmt.Sprintf("x-%d: &%d [%s]\n", i+1, i+1, strings.Join(slices.Repeat([]string{fmt.Sprint("*", i)}, 8), ", ")))
	}
	var indented strings.Builder
	indented.WriteString("openapi: 3.0.0\n")
	for i := range 2000 {
		indented.WriteString(strings.Repeat(" ", i) + "a:\n")
	}
	deep := strings.Repeat(`{"type":"array","items":`, 100) + `{}` + strings.Repeat(`}`, 100)
	op := func(schema string) string {
		return `{"openapi":"3.0.0","info":{"title":"T","version":"1"},"servers":[{"url":"https://a.example"}],` +
			`"components":{"schemas":{"A":{"additionalProperties":{"$ref":"#/components/schemas/A"}}}},"paths":{"/a":{"post":` +
			`{"requestBody":{"content":{"application/json":{"schema":` + schema + `}}},"responses":{}}}}}`
	}
	for name, text := range map[string]string{
		"nothing": "", "no document": "[1]", "swagger 2": `{"swagger":"2.0","paths":{}}`,
		"no paths":              `{"openapi":"3.0.0","info":{"title":"T","version":"1"},"paths":{}}`,
		"a file":                op(`{"$ref":"/etc/passwd"}`),
		"an address":            op(`{"$ref":"http://127.0.0.1:1/x"}`),
		"deep":                  op(deep),
		"no server":             strings.Replace(op(`{}`), "https://a.example", "/x", 1),
		"a password":            strings.Replace(op(`{}`), "https://a", "https://u:p@a", 1),
		"a scheme":              strings.Replace(op(`{}`), "https://a.example", "file:///etc", 1),
		"long":                  strings.Repeat(" ", MaxDocument+1),
		"a path that is itself": strings.Replace(op(`{}`), `"/a":{`, `"/a":{"$ref":"#/paths/~1a",`, 1),
		"a parameter elsewhere": strings.Replace(op(`{}`), `"/a":{`, `"/a":{"parameters":[{"$ref":"#/nothing/0"}],`, 1),
		"many aliases":          aliases.String(),
		"brackets":              "openapi: 3.0.0\npaths: " + strings.Repeat("[", 1<<20),
		"indentation":           indented.String(),
		"an alias of itself":    "openapi: 3.0.0\npaths: &a {/a: *a}",
		"two keys":              "openapi: 3.0.0\npaths: {[a]: b}",
	} {
		if api, err := Parse([]byte(text), Options{}); err == nil {
			t.Errorf("%s: it has %d tools", name, len(api.Tools))
		}
	}
	if api, err := Parse([]byte(op(`{"$ref":"#/components/schemas/A"}`)), Options{}); err != nil {
		t.Errorf("a schema that refers to itself: %v", err)
	} else if err := api.Tools[0].Check(json.RawMessage(`{"body":{"a":{"b":{}}}}`)); err != nil {
		t.Error(err)
	}
}

// A document in YAML has the tools of the same document in JSON.
func TestYAML(t *testing.T) {
	for _, name := range []string{"petstore-expanded.json", "uspto.json", "tictactoe.json"} {
		text := documents(t)[name]
		var v any
		if err := json.Unmarshal(text, &v); err != nil {
			t.Fatal(err)
		}
		inYAML, err := yaml.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		o := Options{Server: "https://a.example"}
		a, b := parse(t, text, o), parse(t, inYAML, o)
		for i, one := range a.Tools {
			if other := b.Tools[i]; !bytes.Equal(one.Input, other.Input) || one.Description != other.Description {
				t.Errorf("%s:\n%s\nand in YAML\n%s", one.Name, one.Input, other.Input)
			}
		}
	}
}

// What YAML has beside JSON means what its specification says, and references lead to what they name.
func TestReferencesAndYAMLsOwn(t *testing.T) {
	api := parse(t, []byte(`
openapi: 3.1.0
info: {title: Dates, version: 1.0}
servers: [{url: "https://{place}.example", variables: {place: {default: a}}}]
x-common: &common
  name: since
  in: query
components:
  parameters:
    since: {<<: *common, schema: {type: string, default: 2020-01-02}}
    again: {$ref: '#/components/parameters/since'}
  requestBodies:
    one: {required: true, content: {application/json: {schema: {$ref: '#/x-schemas/a~1b'}}}}
  schemas:
    A.B: {type: string}
    A_B: {type: integer, maximum: 9223372036854775807, minimum: 0x10}
x-schemas:
  a/b: {type: object, properties: {s: {$ref: '#/components/schemas/A.B'}, n: {$ref: '#/components/schemas/A_B'}}}
paths:
  /a: {$ref: '#/x-paths/a'}
x-paths:
  a:
    parameters: [{$ref: '#/components/parameters/again'}]
    post: {operationId: post, requestBody: {$ref: '#/components/requestBodies/one'}, responses: {200: {description: x}}}
`), Options{})
	if api.Title != "Dates" || api.Version != "1.0" || api.base.String() != "https://a.example" {
		t.Errorf("%q %q %s", api.Title, api.Version, api.base)
	}
	one := api.byName["post"]
	for _, part := range []string{`"default":"2020-01-02"`, `"maximum":9223372036854775807`, `"minimum":16`} {
		if !strings.Contains(string(one.Input), part) {
			t.Errorf("%s lacks %s", one.Input, part)
		}
	}
	for args, good := range map[string]bool{
		`{"body":{"s":"x","n":17}}`: true, `{"body":{"s":17}}`: false, `{"body":{"n":"x"}}`: false, `{}`: false,
	} {
		if err := one.Check(json.RawMessage(args)); (err == nil) != good {
			t.Errorf("%s: %v", args, err)
		}
	}
}

// The tools are served as an MCP server.
func TestServe(t *testing.T) {
	text := documents(t)["petstore-expanded.json"]
	s := serve(t, text)
	api := parse(t, text, Options{Server: s.URL + "/base", Client: s.Client()})
	near, far := net.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- api.Serve(t.Context(), far) }()
	lines := bufio.NewScanner(near)
	for request, want := range map[string]string{
		`{"jsonrpc":"2.0","id":1,"method":"initialize"}`:                                                               `"protocolVersion":"2025-11-25"`,
		`{"jsonrpc":"2.0","id":2,"method":"tools/list"}`:                                                               `"name":"find_pet_by_id"`,
		`{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"find_pet_by_id","arguments":{"id":7}}}`:       `"status":200`,
		`{"jsonrpc":"2.0","id":4,"method":"tools/call","params":{"name":"find_pet_by_id","arguments":{"id":"seven"}}}`: `invalid_arguments`,
		`{"jsonrpc":"2.0","id":5,"method":"nothing"}`:                                                                  `-32601`,
	} {
		near.SetDeadline(time.Now().Add(time.Minute))
		io.WriteString(near, request+"\n")
		if !lines.Scan() || !strings.Contains(lines.Text(), want) {
			t.Errorf("%s: %s", request, lines.Text())
		}
	}
	near.Close()
	<-ended
}
