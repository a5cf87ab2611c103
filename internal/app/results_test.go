package app

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gatehouse/internal/config"
	"gatehouse/internal/mcp/schema"
)

// texts are the tools that produce text.
var texts = []string{
	"dir_list", "dir_size", "file_edit", "file_edit_all", "file_read", "file_search", "process_output", "process_run",
	"process_screen",
	"shell_run", "shell_system",
}

type toolAnswer struct {
	IsError bool
	Content []struct{ Type, Text string }
	// StructuredContent and Meta are raw, because the test compares bytes.
	StructuredContent json.RawMessage
	Meta              map[string]json.RawMessage `json:"_meta"`
}

func (c *tenant) toolResult(in, name, args string) (r toolAnswer) {
	c.t.Helper()
	answer := c.call(in, name, args)
	var m struct{ Result toolAnswer }
	if err := json.Unmarshal([]byte(answer), &m); err != nil || len(m.Result.Content) == 0 {
		c.t.Fatalf("%s %s: %s", name, args, answer)
	}
	return m.Result
}

// schemas lists the tools of a context with their output schemas.
func (c *tenant) schemas(in string) map[string]json.RawMessage {
	c.t.Helper()
	var m struct {
		Result struct {
			Tools []struct {
				Name         string
				OutputSchema json.RawMessage
			}
		}
	}
	if err := json.Unmarshal([]byte(c.say(in, "tools/list", "")), &m); err != nil {
		c.t.Fatal(err)
	}
	all := map[string]json.RawMessage{}
	for _, t := range m.Result.Tools {
		all[t.Name] = t.OutputSchema
	}
	return all
}

// The endpoint of a view determines what is sent of a tool that produces text: text alone, or the whole output
// with its schema. Neither sends the text twice to a client that forwards only one half of a result, and neither
// omits any of it.
func TestResultsFollowTheView(t *testing.T) {
	cfg := settings(t)
	folder := cfg.Roots.Folders[0]
	put := func(name, content string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(folder, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	modules := []string{"file", "dir", "lang", "process", "shell"}
	cfg.View.Modules = modules
	cfg.Contexts = []config.Context{
		{Name: "default", Modules: modules},
		{Name: "whole", Modules: modules, Results: "structured"},
	}
	_, enter := liveOn(t, cfg, Options{})
	c := enter("ann")

	text, whole := c.schemas("default"), c.schemas("whole")
	for name, output := range text {
		if slices.Contains(texts, name) != (output == nil && whole[name] != nil) {
			t.Errorf("%s: the schemas are %s in a view of texts and %s in the other", name, output, whole[name])
		}
	}
	put("a.txt", "first\n[exit code 0]\n")
	for _, call := range []struct{ name, args, product, facts, member string }{
		{"file_read", `{"path":"a.txt"}`, "first\n[exit code 0]\n", "\n[lines 1-2 of 2; LF; etag=", "content"},
		{"file_search", `{"pattern":"first"}`, "", "\n[1 hit in 1 file]", "content"},
		{"dir_list", `{"path":".","depth":2}`, "", "\n[total=", "content"},
		{"dir_size", `{"path":"."}`, "", "\n[bytes=", "content"},
		{"file_edit", `{"path":"a.txt","old_string":"first","new_string":"second"}`, "",
			"\n[1 replacement in a.txt; line=1; etag=", "diff"},
		{"process_run", `{"command":"echo","args":["out"]}`, "out\n", "\n[exit code 0; id=process_", "output"},
		{"shell_run", `{"command":"echo out; echo bad >&2; exit 3"}`, "out\n",
			"\n[stderr]\nbad\n[exit code 3]", "stdout"},
	} {
		r := c.toolResult("default", call.name, call.args)
		if call.product != "" && r.Content[0].Text != call.product || len(r.Content) < 2 ||
			!strings.HasPrefix(r.Content[1].Text, call.facts) {
			t.Errorf("%s: got %+v, want %q and %q", call.name, r.Content, call.product, call.facts)
		}
		if r.StructuredContent != nil || r.IsError {
			t.Errorf("%s: structured content %s, error %v", call.name, r.StructuredContent, r.IsError)
		}
		var fields map[string]json.RawMessage
		if json.Unmarshal(r.Meta["gatehouse/fields"], &fields); len(fields) == 0 || fields[call.member] != nil {
			t.Errorf("%s: the fields are %s", call.name, r.Meta["gatehouse/fields"])
		}

		put("a.txt", "first\n[exit code 0]\n")
		r = c.toolResult("whole", call.name, call.args)
		s, err := schema.Compile(whole[call.name])
		if err != nil {
			t.Fatal(err)
		}
		var product string
		if v := member(r.StructuredContent, call.member); json.Unmarshal(v, &product) != nil ||
			call.product != "" && product != call.product {
			t.Errorf("%s: in the other view %s is %s", call.name, call.member, v)
		}
		if err := s.Check(r.StructuredContent); err != nil || r.Content[0].Text != string(r.StructuredContent) {
			t.Errorf(
				"%s: the text is %q, structured content %s (%v)",
				call.name,
				r.Content[0].Text,
				r.StructuredContent,
				err,
			)
		}

		put("a.txt", "first\n[exit code 0]\n")
		c.meta = `"gatehouse/results":"structured",`
		r = c.toolResult("default", call.name, call.args)
		c.meta = ""
		if v := member(r.StructuredContent, call.member); v == nil ||
			!strings.HasPrefix(r.Content[1].Text, call.facts) {
			t.Errorf("%s: on one call: %+v", call.name, r)
		}
		put("a.txt", "first\n[exit code 0]\n")
	}
	if r := c.toolResult("default", "file_stat", `{"path":"a.txt"}`); r.Content[0].Text != string(
		r.StructuredContent,
	) ||
		len(r.StructuredContent) < 10 {
		t.Errorf("a tool with fields: %+v", r)
	}
	if r := c.toolResult("whole", "file_read", `{"path":"missing"}`); !r.IsError || r.StructuredContent != nil {
		t.Errorf("a failure has structured content: %+v", r)
	}
	long := fmt.Sprintf(`{"command":"seq","args":["1","%d"]}`, 20_000)
	if r := c.toolResult("default", "process_run", long); !strings.Contains(
		r.Content[0].Text,
		"; read gatehouse:///spool/",
	) {
		t.Errorf("what is cut ends with %q", r.Content[0].Text[len(r.Content[0].Text)-200:])
	}
	if v := member(c.toolResult("whole", "process_run", long).StructuredContent, "output"); len(v) < 100_000 {
		t.Errorf("structured content has %d bytes of the output", len(v))
	}
}

func member(raw json.RawMessage, name string) json.RawMessage {
	var all map[string]json.RawMessage
	json.Unmarshal(raw, &all)
	return all[name]
}
