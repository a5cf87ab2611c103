package app

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// The test starts the preset of design D as its variables do: on standard input and output and over HTTP, without
// sessions. The program on the pipe and a program with the local token are one owner: what one creates the other
// sees, uses and ends. A caller without the token owns none of it.
func TestStandardInputAndTheLocalTokenAreOneOwner(t *testing.T) {
	if !sandboxesWork(t) {
		t.Skip("this machine runs no sandboxes")
	}
	cfg := settings(t)
	cfg.View.Modules = []string{"sandbox"}
	cfg.Modules.Sandbox.Pool.Enabled, cfg.Modules.Sandbox.Driver = false, "namespaces"
	cfg.Sessions.Off, cfg.Listen.Stdio = true, true
	cfg.Listen.HTTP.Open, cfg.Listen.HTTP.Host, cfg.Listen.HTTP.Port = true, "127.0.0.1", 0
	in, toHost := io.Pipe()
	fromHost, out := io.Pipe()
	a, _ := liveOn(t, cfg, Options{In: in, Out: out})
	t.Cleanup(func() { toHost.Close(); out.Close() })
	var url string
	for _, d := range a.Listeners() {
		if d.Kind == "HTTP" {
			url = d.Address
		}
	}
	answers := bufio.NewReader(fromHost)
	id := 0
	overPipe := func(message string) string {
		if _, err := io.WriteString(toHost, message+"\n"); err != nil {
			t.Fatal(err)
		}
		for {
			line, err := answers.ReadString('\n')
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(line, fmt.Sprintf(`"id":%d`, id)) {
				return line
			}
		}
	}
	overHTTP := func(token string) func(string) string {
		return func(message string) string {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(message))
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Content-Type", "application/json")
			r.Header.Set("Accept", "application/json, text/event-stream")
			if token != "" {
				r.Header.Set("Authorization", "Bearer "+token)
			}
			res, err := http.DefaultClient.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			b, err := io.ReadAll(res.Body)
			if err != nil {
				t.Fatal(err)
			}
			text := string(b)
			if _, data, events := strings.Cut(text, "data: {"); events {
				text = "{" + data
			}
			return text
		}
	}
	type box struct {
		ID string `json:"sandbox_id"`
	}
	call := func(say func(string) string, name, args string) (text string) {
		t.Helper()
		id++
		answer := say(
			fmt.Sprintf(
				`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":%q,"arguments":%s}}`,
				id,
				name,
				args,
			),
		)
		var r struct{ Result toolAnswer }
		if err := json.NewDecoder(strings.NewReader(answer)).Decode(&r); err != nil || len(r.Result.Content) == 0 {
			t.Fatalf("%s: %s, %v", name, answer, err)
		}
		return r.Result.Content[0].Text
	}
	create := func(say func(string) string) string {
		t.Helper()
		var made box
		if text := call(say, "create_sandbox", `{}`); json.Unmarshal([]byte(text), &made) != nil || made.ID == "" {
			t.Fatalf("made %s", text)
		}
		return made.ID
	}
	if answer := overPipe(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"c","version":"1"}}}`); !strings.Contains(
		answer,
		"serverInfo",
	) {
		t.Fatal(answer)
	}
	local, stranger := overHTTP(a.LocalToken()), overHTTP("")
	ofPipe, ofToken := create(overPipe), create(local)
	for name, say := range map[string]func(string) string{"standard input": overPipe, "the local token": local} {
		if text := call(say, "list_sandboxes", `{}`); !strings.Contains(text, ofPipe) ||
			!strings.Contains(text, ofToken) {
			t.Errorf("%s lists %s, want %s and %s", name, text, ofPipe, ofToken)
		}
	}
	if text := call(stranger, "list_sandboxes", `{}`); strings.Contains(text, ofPipe) ||
		strings.Contains(text, ofToken) {
		t.Errorf("a caller without the token lists %s", text)
	}
	if text := call(overPipe, "write_file",
		fmt.Sprintf(`{"sandbox_id":%q,"path":"/tmp/x","content":"over the pipe"}`, ofToken)); strings.Contains(
		text,
		"not found",
	) {
		t.Error(text)
	}
	if text := call(local, "read_file", fmt.Sprintf(`{"sandbox_id":%q,"path":"/tmp/x"}`, ofToken)); !strings.Contains(
		text,
		"over the pipe",
	) {
		t.Errorf("the file is %s", text)
	}
	if text := call(stranger, "read_file", fmt.Sprintf(`{"sandbox_id":%q,"path":"/tmp/x"}`, ofToken)); strings.Contains(
		text,
		"over the pipe",
	) {
		t.Error("a caller without the token reads the file")
	}
	call(overPipe, "destroy_sandbox", fmt.Sprintf(`{"sandbox_id":%q}`, ofToken))
	call(local, "destroy_sandbox", fmt.Sprintf(`{"sandbox_id":%q}`, ofPipe))
	for _, say := range []func(string) string{overPipe, local} {
		text := call(say, "list_sandboxes", `{}`)
		if slices.ContainsFunc([]string{ofPipe, ofToken}, func(id string) bool { return strings.Contains(text, id) }) {
			t.Errorf("after both were ended: %s", text)
		}
	}
}
