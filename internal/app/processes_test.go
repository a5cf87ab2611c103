package app

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	nethttp "net/http"
	"runtime"
	"slices"
	"strings"
	"testing"

	"gatehouse/internal/mcp/protocol"
	"gatehouse/internal/modules/publicstate"
	"gatehouse/tool"
)

// visitor is a client over HTTP with a session.
type visitor struct {
	h       *hearing
	session string
	token   string
}

// send posts a message and returns the last message of the response.
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

// A process that was started to end with its session does so when the client ends the session, in a complete host.
func TestAProcessEndsWithASessionOverHTTP(t *testing.T) {
	h := hearingHost(t, nil)
	v := &visitor{h: h, token: h.tokens["ann"]}
	v.send(
		"POST",
		`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`,
	)
	if v.session == "" {
		t.Fatal("there is no session")
	}
	v.send("POST", `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	begin := func(lifetime string) string {
		var r struct {
			Result struct{ StructuredContent struct{ ID string } }
		}
		answer := v.send(
			"POST",
			fmt.Sprintf(
				`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"process_start","arguments":{"command":"sleep","args":["1000"],"lifetime":%q}}}`,
				lifetime,
			),
		)
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

// A detached process keeps running when the host ends; the next host has it, in its tools and in its tree.
func TestADetachedProcessSurvivesARestart(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("processes outlive their host on Linux only")
	}
	cfg := settings(t)
	cfg.View.Modules = []string{"process"}
	var id string
	host := func(use func(c *tenant)) {
		a, err := New(t.Context(), cfg, Options{})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- a.Run(ctx) }()
		c := &tenant{t: t, in: make(chan json.RawMessage, 1000)}
		c.pipe = a.engine.Pipe(protocol.Caller{Caller: tool.Caller{Principal: "ann"}}, func(m []byte) error {
			c.in <- slices.Clone(m)
			return nil
		})
		defer func() {
			c.pipe.Close(nil)
			stop()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}()
		use(c)
	}
	host(func(c *tenant) {
		answer := c.call(
			"default",
			"process_start",
			`{"command":"sh","args":["-c","echo begun; sleep 1000"],"detach":true}`,
		)
		if strings.Contains(answer, "unsupported") {
			t.Skip(answer)
		}
		var r struct {
			Result struct{ StructuredContent struct{ ID string } }
		}
		if json.Unmarshal([]byte(answer), &r); r.Result.StructuredContent.ID == "" {
			t.Fatal(answer)
		}
		id = r.Result.StructuredContent.ID
		expect(
			t,
			c.call("default", "process_output", fmt.Sprintf(`{"id":%q,"wait":"text","match":"begun"}`, id)),
			"begun",
			`"running"`,
		)
	})
	host(func(c *tenant) {
		eventually(t, "the process is in the tree", func() bool {
			v, _ := c.readPublic("default", publicstate.PublicURI+"/processes")
			return slices.Equal(members(v), []string{id})
		})
		expect(t, c.call("default", "process_list", "{}"), id, `"running"`)
		expect(t, c.call("default", "process_output", fmt.Sprintf(`{"id":%q}`, id)), "begun", `"running"`)
		expect(t, c.call("default", "process_kill", fmt.Sprintf(`{"id":%q}`, id)), `"success":true`)
		eventually(t, "the process has left the tree", func() bool {
			v, _ := c.readPublic("default", publicstate.PublicURI+"/processes")
			return len(members(v)) == 0
		})
	})
	host(func(c *tenant) {
		expect(t, c.call("default", "process_list", "{}"), id, `"killed"`)
		expect(t, c.call("default", "process_remove", fmt.Sprintf(`{"id":%q}`, id)), `"success":true`)
	})
}
