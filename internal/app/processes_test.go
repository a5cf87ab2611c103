package app

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	nethttp "net/http"
	"strings"
	"testing"
)

// visitor is a client over HTTP with a session.
type visitor struct {
	h       *hearing
	session string
	token   string
}

// send posts a message and gives the last one that comes back.
func (v *visitor) send(method, body string) string {
	v.h.t.Helper()
	r, err := nethttp.NewRequestWithContext(v.h.t.Context(), method, "http://"+v.h.door+"/mcp", strings.NewReader(body))
	if err != nil {
		v.h.t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	r.Header.Set("Authorization", "Bearer "+v.token)
	if v.session != "" {
		r.Header.Set("Mcp-Session-Id", v.session)
		r.Header.Set("MCP-Protocol-Version", "2025-06-18")
	}
	res, err := nethttp.DefaultClient.Do(r)
	if err != nil {
		v.h.t.Fatal(err)
	}
	defer res.Body.Close()
	if v.session == "" {
		v.session = res.Header.Get("Mcp-Session-Id")
	}
	var last string
	for lines := bufio.NewReader(res.Body); ; {
		line, err := lines.ReadString('\n')
		if line = strings.TrimPrefix(strings.TrimSpace(line), "data: "); strings.HasPrefix(line, "{") {
			last = line
		}
		if err == io.EOF {
			return last
		}
		if err != nil {
			v.h.t.Fatal(err)
		}
	}
}

// A process that is to end with its session does when the client ends that, in
// a host with doors, facts and sessions as they are.
func TestAProcessEndsWithASessionOverHTTP(t *testing.T) {
	h := hearingHost(t, nil)
	v := &visitor{h: h, token: h.tokens["ann"]}
	v.send("POST", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`)
	if v.session == "" {
		t.Fatal("there is no session")
	}
	v.send("POST", `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	begin := func(lifetime string) string {
		var r struct {
			Result struct{ StructuredContent struct{ ID string } }
		}
		answer := v.send("POST", fmt.Sprintf(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"process_start","arguments":{"command":"sleep","args":["1000"],"lifetime":%q}}}`, lifetime))
		if json.Unmarshal([]byte(answer), &r); r.Result.StructuredContent.ID == "" {
			t.Fatal(answer)
		}
		return r.Result.StructuredContent.ID
	}
	ends, stays := begin("session"), begin("host")
	v.send("DELETE", "")
	ann := h.as("ann")
	var out struct {
		Status   string
		TimedOut bool
	}
	ann.does("process_output", fmt.Sprintf(`{"id":%q,"wait":"exit","timeout":45}`, ends), &out)
	if out.Status != "killed" || out.TimedOut {
		t.Errorf("got %+v", out)
	}
	ann.does("process_output", fmt.Sprintf(`{"id":%q}`, stays), &out)
	if out.Status != "running" {
		t.Errorf("the other one: %+v", out)
	}
}
