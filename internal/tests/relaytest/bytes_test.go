package relaytest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"gatehouse/internal/mcp/client"
	"gatehouse/internal/mcp/rawjson"
	"gatehouse/internal/packages"
	"gatehouse/internal/tests/hosttest"
)

// echo is a server of one era whose results and errors are those that a test names: what the request has as
// params.arguments is its result, byte for byte.
type echo struct {
	*httptest.Server
	modern bool
	got    atomic.Pointer[[]byte]      // params.arguments of the last call, as they came
	header atomic.Pointer[http.Header] // of the last call
	tools  string
}

func serveEcho(t testing.TB, modern bool, tools string) *echo {
	e := &echo{modern: modern, tools: tools}
	e.Server = httptest.NewServer(e)
	t.Cleanup(e.Close)
	return e
}

// ServeHTTP implements http.Handler.
func (e *echo) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil || r.Method != http.MethodPost {
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	id, _ := rawjson.Get(body, "id")
	if id == nil {
		w.WriteHeader(http.StatusAccepted)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	method, _ := rawjson.String(hosttest.Get(body, "method"))
	fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,%s}`, id, e.answer(method, r.Header, body))
}

func (e *echo) answer(method string, h http.Header, body []byte) string {
	const about = `"capabilities":{"tools":{}},"serverInfo":{"name":"echo","version":"1"}`
	switch {
	case method == "server/discover" && e.modern:
		return `"result":{"resultType":"complete","supportedVersions":["2026-07-28"],` + about + `}`
	case method == "initialize" && !e.modern:
		return `"result":{"protocolVersion":"2025-11-25",` + about + `}`
	case method == "tools/list":
		return `"result":{"tools":` + e.tools + `}`
	case method == "tools/call":
		args := bytes.Clone(hosttest.Get(body, "params", "arguments"))
		h = h.Clone()
		e.got.Store(&args)
		e.header.Store(&h)
		if failure := hosttest.Get(args, "fails"); failure != nil {
			return `"error":` + string(failure)
		}
		return `"result":` + string(args)
	}
	return `"error":{"code":-32601,"message":"Method not found"}`
}

const echoTools = `[{"name":"echo","inputSchema":{"type":"object","properties":{"limit":{"type":"integer","default":5}}}}]`

// pairing is a client of one era before a relay before a server of one era.
type pairing struct {
	name   string
	modern bool // the client
	echo   *echo
	conn   *client.Conn
}

func pairings(t testing.TB, tools string) (all []pairing) {
	for server, modern := range map[string]bool{"modern": true, "legacy": false} {
		for era, revision := range eras {
			e := serveEcho(t, modern, tools)
			c := serveAlone(t, t.TempDir(), packages.Record{Source: packages.Source{Kind: packages.URL,
				From: e.URL + "/mcp"}})
			if err := c.Connect(t.Context(), revision); err != nil || c.Revision() != revision {
				t.Fatalf("%s: %v", c.Revision(), err)
			}
			all = append(all, pairing{server + " server, " + era + " client", era == "modern", e, c})
		}
	}
	return all
}

// check sends a result through the relay, and compares the bytes of both directions with docs/relay.md.
func (p pairing) check(t *testing.T, result []byte) {
	t.Helper()
	params := rawjson.Splice([]byte(`{"name":"echo"}`), rawjson.Edit{Key: "arguments", Value: result})
	got, err := p.conn.Do(t.Context(), client.Request{Method: "tools/call", Name: "echo", Params: params})
	if err != nil {
		t.Fatalf("%s: %s: %v", p.name, result, err)
	}
	want := rawjson.Compact(nil, result)
	if sent := p.echo.got.Load(); !bytes.Equal(*sent, want) {
		t.Errorf("%s: the server got\n%s, want\n%s", p.name, *sent, want)
	}
	if _, there := rawjson.Get(want, "resultType"); p.modern && !there {
		want = rawjson.Splice(want, rawjson.Edit{Key: "resultType", Value: []byte(`"complete"`)})
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s: the client got\n%s, want\n%s", p.name, got, want)
	}
}

// oddResults are results with what relays lose.
var oddResults = []string{
	`{"content":[]}`,
	`{"z":1,"content":[{"type":"text","text":"a","unknown":{"b":[1,2]},"annotations":{"priority":1.0}}],"a":2}`,
	`{"content":[{"type":"text","text":"\u00e9\/\ud83d\ude00\u0000"}],"_meta":{"io.modelcontextprotocol/x":1,"gatehouse/y":2}}`,
	`{"content":[],"structuredContent":{"n":12345678901234567890,"f":1.0,"e":1E+400,"neg":-0}}`,
	`{"content":[],"structuredContent":[1,"two",null]}`,
	`{"content":[],"structuredContent":null,"isError":false}`,
	`{"content":[{"type":"future","data":{"":""}}],"ttlMs":5,"cacheScope":"private","resultType":"complete"}`,
	`{"content":[{"type":"resource_link","uri":"x://y","name":"n","icons":[{"src":"data:,"}]}]}`,
	`{"content":[{"type":"resource","resource":{"uri":"ui://app/1","mimeType":"text/html;profile=mcp-app","text":"<p>"}}]}`,
	`{}`,
	` { "content" : [ ] , "spaces" : { "in" : [ 1 , 2 ] } } `,
}

// A result, and the arguments of a call, pass byte for byte in all pairings of eras, but for what docs/relay.md lists.
func TestResultsPassByteForByte(t *testing.T) {
	for _, p := range pairings(t, echoTools) {
		for _, result := range oddResults {
			p.check(t, []byte(result))
		}
		raw, err := p.conn.Do(t.Context(), client.Request{Method: "tools/list"})
		if err != nil || !strings.HasPrefix(string(raw), `{"tools":`+echoTools) {
			t.Errorf("%s: list %s, %v", p.name, raw, err)
		}
	}
}

// An error of the server keeps its code, its message and its data.
func TestErrorsPass(t *testing.T) {
	for _, p := range pairings(t, echoTools) {
		for _, failure := range []string{
			`{"code":-32602,"message":"caf\u00e9","data":{"big":12345678901234567890,"z":1,"a":2}}`,
			`{"code":7,"message":""}`,
			`{"code":-32603,"message":"x","data":null}`,
		} {
			params := json.RawMessage(`{"name":"echo","arguments":{"fails":` + failure + `}}`)
			_, err := p.conn.Do(t.Context(), client.Request{Method: "tools/call", Name: "echo", Params: params})
			var want client.RPCError
			if json.Unmarshal([]byte(failure), &want) != nil {
				t.Fatal(failure)
			}
			got, ok := err.(*client.RPCError)
			if !ok || got.Code != want.Code || got.Message != want.Message ||
				!bytes.Equal(got.Data, hosttest.Get([]byte(failure), "data")) {
				t.Errorf("%s: got %v %s, want %s", p.name, err, got.Data, failure)
			}
		}
	}
}

// A tool whose schema is of draft-4 or of no known dialect is offered as it is, and the server checks the arguments.
func TestToolsOfOtherDialects(t *testing.T) {
	const tools = `[{"name":"old","inputSchema":{"type":"object","properties":{"n":{"type":"number","minimum":0,"exclusiveMinimum":true}}}},` +
		`{"name":"other","inputSchema":{"$schema":"http://json-schema.org/draft-04/schema#","type":"object","required":["x"]}}]`
	for _, p := range pairings(t, tools) {
		raw, err := p.conn.Do(t.Context(), client.Request{Method: "tools/list"})
		if err != nil || !strings.HasPrefix(string(raw), `{"tools":`+tools) {
			t.Errorf("%s: list %s, %v", p.name, raw, err)
		}
		for _, name := range []string{"old", "other"} {
			params := json.RawMessage(`{"name":"` + name + `","arguments":{"n":-1}}`)
			if raw, err := p.conn.Do(t.Context(),
				client.Request{Method: "tools/call", Name: name, Params: params}); err != nil ||
				!strings.HasPrefix(string(raw), `{"n":-1`) {
				t.Errorf("%s: %s answered %s, %v", p.name, name, raw, err)
			}
		}
	}
}

// Arguments that the server's schema repeats in headers are repeated there, for servers of the modern revision.
func TestParamHeadersAreMade(t *testing.T) {
	const tools = `[{"name":"echo","inputSchema":{"type":"object","properties":{"region":{"type":"string","x-mcp-header":"Region"},"n":{"type":"integer"}}}}]`
	for _, p := range pairings(t, tools) {
		params := json.RawMessage(`{"name":"echo","arguments":{"region":"caf\u00e9","n":1}}`)
		if _, err := p.conn.Do(t.Context(),
			client.Request{Method: "tools/call", Name: "echo", Params: params}); err != nil {
			t.Fatal(err)
		}
		h := *p.echo.header.Load()
		got := h.Get("Mcp-Param-Region") + " " + h.Get("Mcp-Name") + " " + h.Get("Mcp-Method")
		if want := map[bool]string{true: "=?base64?Y2Fmw6k=?= echo tools/call",
			false: "  "}[p.echo.modern]; got != want {
			t.Errorf("%s: headers %q, want %q", p.name, got, want)
		}
	}
}

// FuzzRelay sends results through the relay in all pairings of eras.
func FuzzRelay(f *testing.F) {
	for _, result := range oddResults {
		f.Add([]byte(result))
	}
	all := pairings(f, echoTools)
	f.Fuzz(func(t *testing.T, result []byte) {
		if rawjson.Check(result, 100) != nil || rawjson.Kind(bytes.TrimSpace(result)) != '{' || len(result) > 1<<16 {
			return
		}
		if kind, ok := rawjson.Get(result, "resultType"); ok && !rawjson.Equal(kind, "complete") {
			return // a question, or a task
		}
		if _, ok := rawjson.Get(result, "fails"); ok {
			return
		}
		for _, p := range all {
			p.check(t, bytes.TrimSpace(result))
		}
	})
}
