package relaytest

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"gatehouse/internal/mcp/client"
	"gatehouse/internal/mcp/rawjson"
	"gatehouse/internal/packages"
	"gatehouse/internal/tests/hosttest"
)

// serveVisited is a server of 2025-11-25 on standard streams. Its tool roots asks for the client's roots, and returns
// them with how often they were said to have changed. Its tool ask asks its client to visit a URL, and refuse
// refuses the call until the client has visited one. The tool visit, which stands for the page, reports both as done.
func serveVisited() {
	lines := bufio.NewReaderSize(os.Stdin, 1<<20)
	asked, changed, more := "", 0, ""
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		id, _ := rawjson.Get(line, "id")
		method, _ := rawjson.String(hosttest.Get(line, "method"))
		tool, _ := rawjson.String(hosttest.Get(line, "params", "name"))
		if method == "" && rawjson.Equal(id, "question") {
			fmt.Printf(`{"jsonrpc":"2.0","id":%s,"result":{"content":[]}}`+"\n", asked)
			continue
		}
		if method == "" && rawjson.Equal(id, "roots") {
			said := fmt.Sprintf("%d changes: %s", changed, hosttest.Get(line, "result"))
			fmt.Printf(`{"jsonrpc":"2.0","id":%s,"result":{"content":[{"type":"text","text":%q}]}}`+"\n", asked, said)
			continue
		}
		switch method + " " + tool {
		case "initialize ":
			if hosttest.Get(line, "params", "capabilities", "elicitation") != nil {
				more = `,{"name":"only_asked","inputSchema":{"type":"object"}}`
			}
			fmt.Printf(`{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},`+
				`"serverInfo":{"name":"visited","version":"1"}}}`+"\n", id)
		case "tools/list ":
			fmt.Printf(`{"jsonrpc":"2.0","id":%s,"result":{"tools":[{"name":"ask","inputSchema":{"type":"object"}},`+
				`{"name":"refuse","inputSchema":{"type":"object"}},{"name":"visit","inputSchema":{"type":"object"}},`+
				`{"name":"roots","inputSchema":{"type":"object"}}%s]}}`+"\n", id, more)
		case "notifications/roots/list_changed ":
			changed++
		case "tools/call roots":
			asked = string(id)
			fmt.Println(`{"jsonrpc":"2.0","id":"roots","method":"roots/list"}`)
		case "tools/call ask":
			asked = string(id)
			fmt.Println(`{"jsonrpc":"2.0","id":"question","method":"elicitation/create","params":{"mode":"url",` +
				`"elicitationId":"of ask","url":"https://example.com/a","message":"Visit this."}}`)
		case "tools/call refuse":
			fmt.Printf(
				`{"jsonrpc":"2.0","id":%s,"error":{"code":-32042,"message":"visit first","data":{"elicitations":[`+
					`{"mode":"url","elicitationId":"of refuse","url":"https://example.com/b","message":"And this."}]}}}`+"\n",
				id,
			)
		case "tools/call visit":
			for _, of := range []string{"of ask", "of refuse", "of nobody"} {
				fmt.Printf(`{"jsonrpc":"2.0","method":"notifications/elicitation/complete",`+
					`"params":{"elicitationId":%q,"more":1.0}}`+"\n", of)
			}
			fmt.Printf(`{"jsonrpc":"2.0","id":%s,"result":{"content":[]}}`+"\n", id)
		default:
			if id != nil {
				fmt.Printf(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"no such method"}}`+"\n", id)
			}
		}
	}
}

// A client that was asked to visit a URL, by a question or by the refusal of a call, is told when that is done, and
// nothing of what it was not asked. Clients of 2026-07-28, which has no such notification, are not told.
func TestAClientLearnsThatItsVisitIsDone(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	r := packages.Record{
		Source: packages.Source{Kind: packages.Command}, Command: self, Env: childEnv(t, "visited"),
	}
	for era, revision := range eras {
		t.Run(era, func(t *testing.T) {
			told := make(chan string, 100)
			var questions []string
			c := serveAloneTo(t, t.TempDir(), r, client.ConnOptions{
				Capabilities: json.RawMessage(`{"elicitation":{"form":{},"url":{}}}`),
				Notified: func(method string, params json.RawMessage) {
					if method == "notifications/elicitation/complete" {
						told <- string(params)
					}
				},
				Answer: func(_ context.Context, method string, params json.RawMessage) (json.RawMessage,
					*client.RPCError) {
					questions = append(questions, string(params))
					return json.RawMessage(`{"action":"accept"}`), nil
				},
			})
			if err := c.Connect(t.Context(), revision); err != nil || c.Revision() != revision {
				t.Fatalf("revision %s, %v", c.Revision(), err)
			}
			call := func(name string) (json.RawMessage, error) {
				return c.Do(t.Context(), client.Request{
					Method: "tools/call", Name: name, Params: json.RawMessage(`{"name":"` + name + `"}`),
				})
			}
			if raw, err := call("ask"); err != nil {
				t.Fatalf("ask: %s, %v", raw, err)
			}
			if raw, err := call("refuse"); err == nil && era == "legacy" {
				t.Fatalf("refuse: %s", raw)
			}
			if raw, err := call("visit"); err != nil {
				t.Fatalf("visit: %s, %v", raw, err)
			}
			if era == "modern" {
				if len(told) > 0 {
					t.Errorf("it was told %s", <-told)
				}
				return
			}
			for _, of := range []string{"of ask", "of refuse"} {
				select {
				case got := <-told:
					if want := fmt.Sprintf(`{"elicitationId":%q,"more":1.0}`, of); got != want {
						t.Errorf("it was told %s, want %s", got, want)
					}
				case <-time.After(time.Minute):
					t.Fatalf("it was not told of %s", of)
				}
			}
			if raw, err := call("visit"); err != nil || len(told) > 0 {
				t.Errorf("a second time: %s, %v; it was told %d more", raw, err, len(told))
			}
			if len(questions) != 1 {
				t.Errorf("it was asked %q", questions)
			}
		})
	}
}

// When a client's roots change, the server that knows them is told, keeps running, and gets the new ones.
func TestAServerLearnsThatRootsHaveChanged(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var folder atomic.Value
	folder.Store("one")
	roots := func() string { return `{"roots":[{"uri":"file:///work/` + folder.Load().(string) + `"}]}` }
	c := serveAloneTo(t, t.TempDir(), packages.Record{
		Source: packages.Source{Kind: packages.Command}, Command: self, Env: childEnv(t, "visited"),
	}, client.ConnOptions{
		Capabilities: json.RawMessage(`{"roots":{"listChanged":true}}`),
		Answer: func(context.Context, string, json.RawMessage) (json.RawMessage, *client.RPCError) {
			return json.RawMessage(roots()), nil
		},
	})
	if err := c.Connect(t.Context(), eras["legacy"]); err != nil {
		t.Fatal(err)
	}
	call := func() (changes int, known string) {
		t.Helper()
		raw, err := c.Do(t.Context(), client.Request{
			Method: "tools/call", Name: "roots", Params: json.RawMessage(`{"name":"roots"}`),
		})
		if err != nil {
			t.Fatalf("%s %v", raw, err)
		}
		said, _ := rawjson.String(hosttest.Get(raw, "content", 0, "text"))
		count, known, _ := strings.Cut(said, " changes: ")
		changes, err = strconv.Atoi(count)
		if err != nil {
			t.Fatalf("%s: %v", raw, err)
		}
		return changes, known
	}
	for range 2 { // the second time its host knows that it asks
		if _, got := call(); got != roots() {
			t.Errorf("it knows %s, want %s", got, roots())
		}
	}
	for _, next := range []string{"two", "three"} {
		before, _ := call()
		folder.Store(next)
		if err := c.Notify(t.Context(), "notifications/roots/list_changed", nil); err != nil {
			t.Fatal(err)
		}
		eventually(t, func() bool {
			changes, known := call()
			return changes == before+1 && known == roots()
		})
	}
}
