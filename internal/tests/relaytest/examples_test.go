package relaytest

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"gatehouse/internal/mcp/client"
	"gatehouse/internal/mcp/rawjson"
	"gatehouse/internal/packages"
	"gatehouse/internal/tests/hosttest"
)

// readExamples reads the example messages of revision 2026-07-28 by their type and name, without white space. They are
// those of github.com/modelcontextprotocol/modelcontextprotocol, schema/2026-07-28/examples, at b0f60ba5; the archive
// has their licence.
func readExamples(t *testing.T) map[string][]byte {
	t.Helper()
	f, err := os.Open("testdata/examples-2026-07-28.tar.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][]byte{}
	for files := tar.NewReader(z); ; {
		h, err := files.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		b, err2 := io.ReadAll(io.LimitReader(files, 1<<20))
		if err != nil || err2 != nil {
			t.Fatal(err, err2)
		}
		name, ok := strings.CutPrefix(h.Name, "examples/")
		if name, ok2 := strings.CutSuffix(name, ".json"); ok && ok2 {
			if err := rawjson.Check(b, 0); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			all[name] = rawjson.Compact(nil, b)
		}
	}
	if len(all) != 129 {
		t.Fatalf("there are %d examples, want 129", len(all))
	}
	return all
}

// scripted is a server of one era that answers a method with what a test says, and keeps what it was sent.
type scripted struct {
	*httptest.Server
	modern bool
	lists  map[string]string // the results of lists, by method

	mu       sync.Mutex
	answers  map[string]string // "result":... or "error":..., by method
	notes    []string          // notifications before the answer to tools/call, in which TOKEN is its progress token
	received map[string][]byte // the params of the last request, by method
}

const scriptedAbout = `"capabilities":{"tools":{},"resources":{},"prompts":{},"completions":{},"logging":{}},` +
	`"serverInfo":{"name":"scripted","version":"1"}`

func serveScripted(t *testing.T, modern bool, lists map[string]string) *scripted {
	t.Helper()
	s := &scripted{modern: modern, lists: lists, received: map[string][]byte{}}
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	return s
}

func (s *scripted) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil || r.Method != http.MethodPost {
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	id, _ := rawjson.Get(body, "id")
	method, _ := rawjson.String(hosttest.Get(body, "method"))
	if id == nil {
		w.WriteHeader(http.StatusAccepted)
		return
	}
	s.mu.Lock()
	s.received[method] = bytes.Clone(hosttest.Get(body, "params"))
	answer, notes := s.answers[method], s.notes
	s.mu.Unlock()
	switch {
	case method == "server/discover" && s.modern:
		answer = `"result":{"resultType":"complete","supportedVersions":["2026-07-28"],` + scriptedAbout + `}`
	case method == "initialize" && !s.modern:
		answer = `"result":{"protocolVersion":"2025-11-25",` + scriptedAbout + `}`
	case method == "logging/setLevel":
		answer = `"result":{}`
	case s.lists[method] != "":
		answer = `"result":` + s.lists[method]
	case answer == "":
		answer = `"error":{"code":-32601,"message":"Method not found"}`
	}
	if method != "tools/call" || len(notes) == 0 {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,%s}`, id, answer)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	token := string(hosttest.Get(body, "params", "_meta", "progressToken"))
	for _, n := range notes {
		fmt.Fprintf(w, "data: %s\n\n", strings.ReplaceAll(n, "TOKEN", token))
	}
	fmt.Fprintf(w, "data: {\"jsonrpc\":\"2.0\",\"id\":%s,%s}\n\n", id, answer)
}

// script sets what the server answers.
func (s *scripted) script(answers map[string]string, notes ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answers, s.notes = answers, notes
}

func (s *scripted) last(method string) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.received[method]
}

// exampleRelay is a client of one era before a relay before a scripted server of one era.
type exampleRelay struct {
	modern bool // the client
	server *scripted
	conn   *client.Conn

	mu      sync.Mutex
	asked   [][]byte // method and params of questions
	answers map[string]string
	noted   [][]byte // method and params of notifications
}

const everyAbility = `{"elicitation":{"form":{},"url":{}},"sampling":{"tools":{},"context":{}},"roots":{}}`

// relayTo starts a relay of a scripted server for a client of a revision.
func relayTo(t *testing.T, s *scripted, revision string) *exampleRelay {
	t.Helper()
	r := &exampleRelay{modern: revision == eras["modern"], server: s}
	r.conn = serveAloneTo(t, t.TempDir(), packages.Record{
		Source: packages.Source{Kind: packages.URL, From: s.URL + "/mcp"},
	}, client.ConnOptions{
		Capabilities: json.RawMessage(everyAbility),
		Answer: func(_ context.Context, method string, params json.RawMessage) (json.RawMessage, *client.RPCError) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.asked = append(r.asked, append([]byte(method+" "), params...))
			return json.RawMessage(r.answers[method]), nil
		},
		Notified: func(method string, params json.RawMessage) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.noted = append(r.noted, append([]byte(method+" "), params...))
		},
	})
	if err := r.conn.Connect(t.Context(), revision); err != nil || r.conn.Revision() != revision {
		t.Fatalf("revision %s, %v", r.conn.Revision(), err)
	}
	return r
}

func (r *exampleRelay) do(t *testing.T, method, params string) (json.RawMessage, error) {
	t.Helper()
	return r.conn.Do(t.Context(), client.Request{Method: method, Params: json.RawMessage(params)})
}

// requests are requests that examples of results answer.
var requests = map[string]string{
	"tools/call":          `{"name":"get_weather","arguments":{}}`,
	"resources/read":      `{"uri":"file:///x"}`,
	"prompts/get":         `{"name":"code_review"}`,
	"completion/complete": `{"ref":{"type":"ref/prompt","name":"code_review"},"argument":{"name":"a","value":""}}`,
}

// result checks that a result of the server reaches the client byte for byte.
func (r *exampleRelay) result(t *testing.T, method string, result []byte) {
	t.Helper()
	r.server.script(map[string]string{method: `"result":` + string(result)})
	got, err := r.do(t, method, requests[method])
	want := result
	if r.modern {
		add := func(member, value string) {
			if _, there := rawjson.Get(want, member); !there {
				want = rawjson.Splice(want, rawjson.Edit{Key: member, Value: []byte(value)})
			}
		}
		add("resultType", `"complete"`)
		if method == "resources/read" {
			add("ttlMs", `0`)
			add("cacheScope", `"private"`)
		}
	}
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("the client got\n%s (%v), want\n%s", got, err, want)
	}
}

// request checks that the params of a client's request reach the server, except for its _meta, which is between the
// client and its host.
func (r *exampleRelay) request(t *testing.T, method string, params []byte) {
	t.Helper()
	r.server.script(
		map[string]string{method: `"result":{"content":[],"contents":[],"messages":[],"completion":{"values":[]}}`},
	)
	_, err := r.do(t, method, string(params))
	got := rawjson.Splice(r.server.last(method), rawjson.Edit{Key: "_meta"})
	want := rawjson.Splice(params, rawjson.Edit{Key: "_meta"})
	for name, value := range rawjson.Object(want) {
		if v, _ := rawjson.Get(got, string(name)); !bytes.Equal(v, value) {
			t.Errorf("the server got\n%s (%v), want\n%s", got, err, want)
		}
	}
	if err != nil || len(got) != len(want) {
		t.Errorf("the server got\n%s (%v), want\n%s", got, err, want)
	}
}

// codeMissingCapability refuses what the client has not declared. Older revisions have no such code, so that their
// clients get the failure of a tool.
const codeMissingCapability = -32021

// failure checks that an error of the server reaches the client.
func (r *exampleRelay) failure(t *testing.T, failure []byte) {
	t.Helper()
	r.server.script(map[string]string{"tools/call": `"error":` + string(failure)})
	raw, err := r.do(t, "tools/call", requests["tools/call"])
	var want client.RPCError
	if err := json.Unmarshal(failure, &want); err != nil {
		t.Fatal(err)
	}
	data := hosttest.Get(failure, "data")
	if want.Code == codeMissingCapability && !r.modern {
		if text, _ := rawjson.String(hosttest.Get(raw, "content", 0, "text")); !strings.Contains(text, want.Message) {
			t.Errorf("the client got %s %v, want the refusal %s", raw, err, want.Message)
		}
		return
	}
	if want.Code <= -32020 && want.Code >= -32099 && !r.modern {
		want.Code, data = -32600, nil // older revisions have no such codes
	}
	got, ok := errors.AsType[*client.RPCError](err)
	if !ok || got.Code != want.Code || got.Message != want.Message || !bytes.Equal(got.Data, data) {
		t.Errorf("the client got %s %v, want %s", raw, err, failure)
	}
}

// note checks that a notification of the server reaches the client before the result of its call.
func (r *exampleRelay) note(t *testing.T, method string, params []byte) {
	t.Helper()
	r.mu.Lock()
	r.noted = nil
	r.mu.Unlock()
	r.server.script(map[string]string{"tools/call": `"result":{"content":[]}`},
		fmt.Sprintf(`{"jsonrpc":"2.0","method":%q,"params":%s}`, method, params))
	call := requests["tools/call"]
	if r.modern {
		call = call[:len(call)-1] + `,"_meta":{"io.modelcontextprotocol/logLevel":"debug"}}`
	}
	_, err := r.do(t, "tools/call", call)
	r.mu.Lock()
	defer r.mu.Unlock()
	want := append([]byte(method+" "), params...)
	if err != nil || len(r.noted) != 1 || !bytes.Equal(r.noted[0], want) {
		t.Errorf("the client got %q (%v), want %s", r.noted, err, want)
	}
}

// questions checks that what a modern server asks, by key, reaches the client, that the server gets its answers, and
// its own state.
func (r *exampleRelay) questions(t *testing.T, asked, state []byte, answers map[string]string) {
	t.Helper()
	result := []byte(`{"resultType":"input_required"}`)
	if asked != nil {
		result = rawjson.Splice(result, rawjson.Edit{Key: "inputRequests", Value: asked})
	}
	if state != nil {
		result = rawjson.Splice(result, rawjson.Edit{Key: "requestState", Value: state})
	}
	r.server.script(map[string]string{"tools/call": `"result":` + string(result)})
	r.mu.Lock()
	r.asked, r.answers = nil, answers
	r.mu.Unlock()
	if !r.modern {
		r.askedInTurn(t, asked, state, answers)
		return
	}
	got, err := r.do(t, "tools/call", requests["tools/call"])
	if err != nil || !rawjson.Equal(hosttest.Get(got, "resultType"), "input_required") {
		t.Fatalf("the client got %s, %v", got, err)
	}
	given := []byte(`{}`)
	for key, want := range rawjson.Object(asked) {
		if q := hosttest.Get(got, "inputRequests", string(key)); !bytes.Equal(q, want) {
			t.Errorf("the client was asked\n%s, want\n%s", q, want)
		}
		method, _ := rawjson.String(hosttest.Get(want, "method"))
		given = rawjson.Splice(given, rawjson.Edit{Key: string(key), Value: []byte(answers[method])})
	}
	r.server.script(map[string]string{"tools/call": `"result":{"content":[]}`})
	params := rawjson.Splice([]byte(requests["tools/call"]), rawjson.Edit{Key: "inputResponses", Value: given},
		rawjson.Edit{Key: "requestState", Value: hosttest.Get(got, "requestState")})
	if raw, err := r.do(t, "tools/call", string(params)); err != nil {
		t.Errorf("the retry got %s, %v", raw, err)
	}
	r.answered(t, asked, state, answers)
}

// askedInTurn is questions for a legacy client, which gets a request for each.
func (r *exampleRelay) askedInTurn(t *testing.T, asked, state []byte, answers map[string]string) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.do(t, "tools/call", requests["tools/call"])
	}()
	eventually(t, func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.asked) > 0
	})
	r.server.script(map[string]string{"tools/call": `"result":{"content":[]}`})
	<-done
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, want := range rawjson.Object(asked) {
		method, _ := rawjson.String(hosttest.Get(want, "method"))
		text := append([]byte(method+" "), hosttest.Get(want, "params")...)
		if !slices.ContainsFunc(r.asked, func(q []byte) bool {
			params := q[len(method)+1:]
			return bytes.Equal(q, text) ||
				bytes.Equal(rawjson.Splice(params, rawjson.Edit{Key: "elicitationId"}), text[len(method)+1:])
		}) {
			t.Errorf("the client was asked\n%s, want\n%s", r.asked, text)
		}
	}
	r.answered(t, asked, state, answers)
}

// answered checks what the server has got as answers.
func (r *exampleRelay) answered(t *testing.T, asked, state []byte, answers map[string]string) {
	t.Helper()
	retry := r.server.last("tools/call")
	for key, q := range rawjson.Object(asked) {
		method, _ := rawjson.String(hosttest.Get(q, "method"))
		if got := hosttest.Get(retry, "inputResponses", string(key)); string(got) != answers[method] {
			t.Errorf("the server got the answer\n%s, want\n%s", got, answers[method])
		}
	}
	if got := hosttest.Get(retry, "requestState"); !bytes.Equal(got, state) {
		t.Errorf("the server got the state %s, want %s", got, state)
	}
}

// asks makes questions of the params of one.
func asks(method string, params []byte) []byte {
	return fmt.Appendf(nil, `{"q":{"method":%q,"params":%s}}`, method, params)
}

// usualAnswers are answers to questions of examples.
var usualAnswers = map[string]string{
	"elicitation/create":     `{"action":"decline"}`,
	"sampling/createMessage": `{"role":"assistant","content":{"type":"text","text":"Paris"},"model":"m"}`,
	"roots/list":             `{"roots":[{"uri":"file:///x"}]}`,
}

// check sends an example through the relay in the place of a message that it is for. It reports whether there is one;
// some are for a place that the relay fills itself, or which the tests of that place check.
func (r *exampleRelay) check(t *testing.T, kind string, e []byte) bool {
	t.Helper()
	if inner, ok := rawjson.Get(e, "params"); ok {
		e, kind = inner, strings.TrimSuffix(kind, "Params")
	} else if inner, ok := rawjson.Get(e, "result"); ok {
		e, kind = inner, strings.TrimSuffix(kind, "Response")
	} else if inner, ok := rawjson.Get(e, "error"); ok {
		e = inner
	}
	in := func(format string) []byte { return fmt.Appendf(nil, format, e) }
	with := func(method string) map[string]string {
		all := maps.Clone(usualAnswers)
		all[method] = string(e)
		return all
	}
	const aForm = `{"message":"m","requestedSchema":{"type":"object","properties":{}}}`
	switch strings.TrimSuffix(kind, "Params") {
	case "CallToolRequest":
		r.request(t, "tools/call", e)
	case "ReadResourceRequest":
		r.request(t, "resources/read", e)
	case "GetPromptRequest":
		r.request(t, "prompts/get", e)
	case "CompleteRequest":
		r.request(t, "completion/complete", e)
	case "CallToolResult":
		r.result(t, "tools/call", e)
	case "ReadResourceResult":
		r.result(t, "resources/read", e)
	case "GetPromptResult":
		r.result(t, "prompts/get", e)
	case "CompleteResult":
		r.result(t, "completion/complete", e)
	case "AudioContent", "ImageContent", "TextContent", "EmbeddedResource", "ResourceLink":
		r.result(t, "tools/call", in(`{"content":[%s]}`))
	case "BlobResourceContents", "TextResourceContents":
		r.result(t, "resources/read", in(`{"contents":[%s]}`))
	case "HeaderMismatchError", "InternalError", "InvalidParamsError", "MethodNotFoundError", "ParseError",
		"MissingRequiredClientCapabilityError", "UnsupportedProtocolVersionError":
		r.failure(t, e)
	case "LoggingMessageNotification":
		r.note(t, "notifications/message", e)
	default:
		if !r.server.modern {
			return false // it asks otherwise
		}
		switch strings.TrimSuffix(kind, "Params") {
		case "CreateMessageRequest":
			r.questions(t, asks("sampling/createMessage", e), nil, usualAnswers)
		case "ElicitRequest", "ElicitRequestForm", "ElicitRequestURL":
			r.questions(t, asks("elicitation/create", e), []byte(`"kept"`), usualAnswers)
		case "BooleanSchema",
			"NumberSchema",
			"StringSchema",
			"TitledMultiSelectEnumSchema",
			"TitledSingleSelectEnumSchema",
			"UntitledMultiSelectEnumSchema",
			"UntitledSingleSelectEnumSchema":
			r.questions(t, asks("elicitation/create",
				in(`{"message":"m","requestedSchema":{"type":"object","properties":{"x":%s}}}`)), nil, usualAnswers)
		case "SamplingMessage":
			r.questions(t, asks("sampling/createMessage", in(`{"messages":[%s],"maxTokens":1}`)), nil, usualAnswers)
		case "ToolResultContent", "ToolUseContent":
			r.questions(
				t,
				asks("sampling/createMessage", in(`{"messages":[{"role":"user","content":[%s]}],"maxTokens":1}`)),
				nil,
				usualAnswers,
			)
		case "ModelPreferences":
			r.questions(
				t,
				asks("sampling/createMessage", in(`{"messages":[],"modelPreferences":%s,"maxTokens":1}`)),
				nil,
				usualAnswers,
			)
		case "InputRequests":
			r.questions(t, e, nil, usualAnswers)
		case "InputRequiredResult":
			if _, ok := rawjson.Get(e, "inputRequests"); !ok && !r.modern {
				return false // a legacy client cannot be told to come again
			}
			r.questions(t, hosttest.Get(e, "inputRequests"), hosttest.Get(e, "requestState"), usualAnswers)
		case "ElicitResult":
			r.questions(t, asks("elicitation/create", []byte(aForm)), nil, with("elicitation/create"))
		case "CreateMessageResult":
			r.questions(t, asks("sampling/createMessage", []byte(`{"messages":[],"maxTokens":1,"tools":[]}`)), nil,
				with("sampling/createMessage"))
		default:
			return false
		}
	}
	return true
}

// The official example messages pass byte for byte, in the place that each is for and, all of them, as a part of the
// arguments and results of calls; in all pairings of eras, but for what docs/relay.md lists.
func TestOfficialExamplesPass(t *testing.T) {
	examples := readExamples(t)
	names := slices.Sorted(maps.Keys(examples))
	tools := `{"name":"get_weather","inputSchema":{"type":"object"}}`
	for _, name := range names {
		if strings.HasPrefix(name, "CallToolRequest") {
			for _, own := range []json.RawMessage{hosttest.Get(examples[name], "name"),
				hosttest.Get(examples[name], "params", "name")} {
				if own != nil && !strings.Contains(tools, `"name":`+string(own)) {
					tools += `,{"name":` + string(own) + `,"inputSchema":{"type":"object"}}`
				}
			}
		}
	}
	lists := map[string]string{
		"tools/list": `{"tools":[` + tools + `]}`, "resources/list": `{"resources":[]}`,
		"resources/templates/list": `{"resourceTemplates":[]}`, "prompts/list": `{"prompts":[{"name":"code_review"}]}`,
	}
	for server, modern := range map[string]bool{"modern": true, "legacy": false} {
		for era, revision := range eras {
			t.Run(server+" server, "+era+" client", func(t *testing.T) {
				r := relayTo(t, serveScripted(t, modern, lists), revision)
				placed := 0
				for _, name := range names {
					e := examples[name]
					t.Run(name, func(t *testing.T) {
						kind, _, _ := strings.Cut(name, "/")
						if r.check(t, kind, e) {
							placed++
						}
						r.request(
							t,
							"tools/call",
							fmt.Appendf(nil, `{"name":"get_weather","arguments":{"example":%s}}`, e),
						)
						r.result(t, "tools/call", fmt.Appendf(nil, `{"content":[],"structuredContent":%s}`, e))
					})
				}
				t.Logf("%d of %d examples were sent in the place that they are for", placed, len(names))
				if least := map[bool]int{true: 69, false: 41}[modern]; placed < least {
					t.Errorf("%d examples were sent in the place that they are for, want %d", placed, least)
				}
			})
		}
	}
}

// What the official examples list is listed byte for byte.
func TestOfficialExamplesOfListsPass(t *testing.T) {
	examples := readExamples(t)
	lists, want := map[string]string{}, map[string][]string{}
	add := func(method, member string, entries ...[]byte) {
		var all []string
		for _, e := range entries {
			if !slices.Contains(all, string(e)) {
				all = append(all, string(e))
			}
		}
		lists[method] = fmt.Sprintf(`{"resultType":"complete",%q:[%s]}`, member, strings.Join(all, ","))
		want[method] = all
	}
	entries := func(kind, member string, single string) (all [][]byte) {
		seen := map[string]bool{}
		for _, name := range slices.Sorted(maps.Keys(examples)) {
			e := examples[name]
			of, _, _ := strings.Cut(name, "/")
			var found [][]byte
			switch of {
			case kind + "Response":
				e = hosttest.Get(e, "result")
				fallthrough
			case kind:
				for one := range rawjson.Elements(hosttest.Get(e, member)) {
					found = append(found, one)
				}
			case single:
				found = [][]byte{e}
			}
			for _, one := range found { // each name and address once
				key := string(hosttest.Get(one, "name")) + string(hosttest.Get(one, "uri"))
				if !seen[key] {
					seen[key] = true
					all = append(all, one)
				}
			}
		}
		return all
	}
	add("tools/list", "tools", entries("ListToolsResult", "tools", "Tool")...)
	add("resources/list", "resources", entries("ListResourcesResult", "resources", "Resource")...)
	add(
		"resources/templates/list",
		"resourceTemplates",
		entries("ListResourceTemplatesResult", "resourceTemplates", "")...)
	add("prompts/list", "prompts", entries("ListPromptsResult", "prompts", "")...)
	members := map[string]string{"tools/list": "tools", "resources/list": "resources", "prompts/list": "prompts",
		"resources/templates/list": "resourceTemplates"}
	for server, modern := range map[string]bool{"modern": true, "legacy": false} {
		for era, revision := range eras {
			t.Run(server+" server, "+era+" client", func(t *testing.T) {
				r := relayTo(t, serveScripted(t, modern, lists), revision)
				for method, all := range want {
					if len(all) == 0 {
						t.Errorf("%s: there are no examples", method)
					}
					raw, err := r.do(t, method, `{}`)
					var got []string
					for e := range rawjson.Elements(hosttest.Get(raw, members[method])) {
						got = append(got, string(e))
					}
					if err != nil || !slices.Equal(got, all) {
						t.Errorf("%s: %v\n got %s\nwant %s", method, err, got, all)
					}
				}
			})
		}
	}
}
