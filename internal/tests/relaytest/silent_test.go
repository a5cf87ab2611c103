package relaytest

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"gatehouse/internal/mcp/rawjson"
	"gatehouse/internal/packages"
	"gatehouse/internal/tests/hosttest"
	"gatehouse/module"
)

// A server that takes a question about its task and never answers holds up its task for a while only: it is asked again,
// and the call gets the result.
func TestAServerThatIsSilentAboutItsTaskIsAskedAgain(t *testing.T) {
	if testing.Short() {
		t.Skip("it waits for a time limit")
	}
	t.Parallel()
	var calls, looks atomic.Int32
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		id, _ := rawjson.Get(body, "id")
		if err != nil || r.Method != http.MethodPost || id == nil {
			w.WriteHeader(http.StatusAccepted)
			return
		}
		result := ""
		switch method, _ := rawjson.String(hosttest.Get(body, "method")); method {
		case "server/discover":
			result = `{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{},` +
				`"extensions":{"io.modelcontextprotocol/tasks":{}}},"serverInfo":{"name":"silent","version":"1"}}`
		case "tools/list":
			result = `{"resultType":"complete","tools":[{"name":"long","inputSchema":{"type":"object"}}]}`
		case "tools/call":
			calls.Add(1)
			result = `{"resultType":"task","taskId":"t1","status":"working","pollIntervalMs":50}`
		case "tasks/get":
			if looks.Add(1) == 1 {
				<-r.Context().Done()
				return
			}
			result = `{"resultType":"complete","taskId":"t1","status":"completed","result":{"content":[{"type":"text","text":"done"}]}}`
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":%s}`, id, result)
	}))
	defer up.Close()
	_, make := install(t, packages.Record{Source: packages.Source{Kind: packages.URL, From: up.URL + "/mcp"}}, nil)
	h := hosttest.Harnesses()[1].Make(t, hosttest.Options{Modules: map[string]module.New{"package": make}})
	if r := hosttest.Call(h, "up_long", `{}`, nil); r.Text() != "done" {
		t.Errorf("the call ends with %s %v", r.Result, r.Error)
	}
	if calls.Load() != 1 || looks.Load() != 2 {
		t.Errorf("%d calls, %d looks", calls.Load(), looks.Load())
	}
}
