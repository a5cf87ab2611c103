package app

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"gatehouse/internal/config"
	"gatehouse/internal/modules/shell"
)

// A host offers a shell only if it is named, and in no other view.
func TestTheShellIsNowhereUnlessItIsNamed(t *testing.T) {
	isShell := func(name string) bool { return strings.HasPrefix(name, "shell_") || name == "execute_command" }
	all, preset := []string{"shell_run", "shell_execute_command", "shell_system"}, []string{"execute_command"}
	for _, x := range []struct {
		what   string
		change func(*config.Config)
		has    map[string][]string // by context; nil if there is none
	}{
		{"nothing is named", func(*config.Config) {}, map[string][]string{"default": {}, "file": {}, "shell": nil}},
		{"other modules are named", func(c *config.Config) { c.View.Modules = []string{"file", "process"} },
			map[string][]string{"default": {}, "shell": nil}},
		{"its context is named", func(c *config.Config) { c.View.Context = "shell" },
			map[string][]string{"": preset, "shell": preset, "default": {}, "file": {}}},
		{"it alone is named", func(c *config.Config) { c.View.Modules = []string{"shell"} },
			map[string][]string{"": preset, "shell": preset, "default": all}},
		{"it is one of those that are named", func(c *config.Config) { c.View.Modules = []string{"file", "shell"} },
			map[string][]string{"": all, "shell": preset, "file": {}}},
		{"a context names it", func(c *config.Config) {
			c.Contexts = []config.Context{{Name: "main"}, {Name: "ops", Modules: []string{"shell"}, Aliases: true}}
		}, map[string][]string{"": {}, "main": {}, "ops": {"shell_run", "execute_command", "system.shell"},
			"shell": nil}},
	} {
		cfg := settings(t)
		x.change(&cfg)
		c := clientOf(t, cfg)
		for in, want := range x.has {
			if want == nil {
				if got := c.say(in, "tools/list", ""); !strings.Contains(got, "Context not found") {
					t.Errorf("%s: there is a context %s: %s", x.what, in, got)
				}
				continue
			}
			got := slices.DeleteFunc(c.names(in), func(n string) bool { return !isShell(n) && n != "system.shell" })
			if slices.Sort(got); !slices.Equal(got, slices.Sorted(slices.Values(want))) {
				t.Errorf("%s: %q has %v, want %v", x.what, in, got, want)
			}
		}
	}
}

// Processes can be started in the contexts that name their module, not in a context that names no modules.
func TestAContextThatNamesNoModulesRunsNoPrograms(t *testing.T) {
	cfg := settings(t)
	cfg.Contexts = []config.Context{{Name: "main"}, {Name: "ops", Modules: []string{"process"}}}
	c := clientOf(t, cfg)
	if slices.Contains(c.names("main"), "process_start") || !slices.Contains(c.names("ops"), "process_start") {
		t.Errorf("main has %v, ops has %v", c.names("main"), c.names("ops"))
	}
}

func needShell(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("/bin/sh"); err != nil {
		t.Skip(err)
	}
}

// shellHost returns a client of a host whose default context replaces the other shell server.
func shellHost(t *testing.T, change func(*shell.Settings)) *visitor {
	t.Helper()
	needShell(t)
	h := hearingHost(t, func(c *config.Config) {
		c.View.Modules, c.View.Context = nil, "shell"
		if change != nil {
			change(&c.Modules.Shell)
		}
	})
	v := &visitor{h: h, token: h.tokens["ann"]}
	v.send(
		"POST",
		`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`,
	)
	v.send("POST", `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	return v
}

// execute calls the preset's only tool.
func (v *visitor) execute(command string) (r struct {
	IsError           bool
	Content           []struct{ Type, Text, URI string }
	StructuredContent struct {
		Command, Output string
		ReturnCode      int `json:"return_code"`
	}
}) {
	v.h.t.Helper()
	args, _ := json.Marshal(map[string]string{"command": command}) // a string
	answer := v.send(
		"POST",
		fmt.Sprintf(
			`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"execute_command","arguments":%s}}`,
			args,
		),
	)
	var m struct{ Result any }
	m.Result = &r
	if err := json.Unmarshal([]byte(answer), &m); err != nil {
		v.h.t.Fatal(answer)
	}
	return r
}

func TestThePresetShellOverHTTP(t *testing.T) {
	v := shellHost(t, func(s *shell.Settings) { s.Deny, s.NoStderr = []string{"rm*"}, true })
	var list struct {
		Result struct{ Tools []struct{ Name string } }
	}
	answer := v.send("POST", `{"jsonrpc":"2.0","id":3,"method":"tools/list"}`)
	if json.Unmarshal([]byte(answer), &list); len(list.Result.Tools) != 1 ||
		list.Result.Tools[0].Name != "execute_command" {
		t.Errorf("the tools are %s", answer)
	}

	r := v.execute("echo out; echo err >&2; exit 3")
	if s := r.StructuredContent; r.IsError || s.Command != "echo out; echo err >&2; exit 3" || s.Output != "out\n" ||
		s.ReturnCode != 3 {
		t.Errorf("%+v", r)
	}
	var text map[string]any
	if json.Unmarshal([]byte(r.Content[0].Text), &text); len(r.Content) != 1 || text["output"] != "out\n" ||
		text["return_code"] != 3.0 ||
		len(text) != 3 {
		t.Errorf("the text is %q", r.Content[0].Text)
	}
	r = v.execute("echo x | xargs rm")
	if json.Unmarshal([]byte(r.Content[0].Text), &text); !r.IsError ||
		text["output"] != "Command denied by security policy" ||
		text["return_code"] != -1.0 ||
		!strings.HasPrefix(r.Content[len(r.Content)-1].Text, "denied: ") {
		t.Errorf("%+v", r)
	}
}

// Output that does not fit into a result can be read in full by the caller who ran the command.
func TestLongOutputOfACommandCanBeRead(t *testing.T) {
	v := shellHost(t, func(s *shell.Settings) { s.Output = 4 << 10 })
	r := v.execute("seq 1 30000; echo over >&2")
	if s := r.StructuredContent; len(s.Output) > 5000 || !strings.HasPrefix(s.Output, "1\n2\n") ||
		!strings.HasSuffix(s.Output, "\n30000\nover\n") ||
		!strings.Contains(s.Output, "bytes are missing here") {
		t.Errorf("%.300s", s.Output)
	}
	uri := ""
	for _, c := range r.Content {
		if c.Type == "resource_link" {
			uri = c.URI
		}
	}
	whole := v.read(uri)
	if strings.Count(whole, "\n") != 30001 || !strings.Contains(whole, "\n15000\n15001\n") {
		t.Errorf("%d bytes can be read at %q", len(whole), uri)
	}
	other := &visitor{h: v.h, token: v.h.tokens["bob"]}
	other.send(
		"POST",
		`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`,
	)
	if got := other.read(uri); got != "" {
		t.Errorf("another caller reads %.100s", got)
	}
}

// read reads a long output, page by page, and returns "" if it cannot be read.
func (v *visitor) read(uri string) string {
	v.h.t.Helper()
	var whole strings.Builder
	for next := json.Number("0"); ; {
		var m struct {
			Result struct {
				Contents []struct{ Text string }
				Meta     struct {
					Next json.Number `json:"gatehouse/next"`
					Done bool        `json:"gatehouse/done"`
				} `json:"_meta"`
			}
		}
		answer := v.send(
			"POST",
			fmt.Sprintf(
				`{"jsonrpc":"2.0","id":4,"method":"resources/read","params":{"uri":%q}}`,
				uri+"?offset="+string(next),
			),
		)
		if json.Unmarshal([]byte(answer), &m); len(m.Result.Contents) != 1 {
			return ""
		}
		text, _, _ := strings.Cut(m.Result.Contents[0].Text, "[") // a page ends with a mark, and with a line
		whole.WriteString(text)
		if m.Result.Meta.Done || m.Result.Meta.Next == next {
			return whole.String()
		}
		next = m.Result.Meta.Next
	}
}

// A waiting caller receives the output of a command while it runs.
func TestPartialOutputOfACommandRidesOnProgress(t *testing.T) {
	needShell(t)
	cfg := settings(t)
	cfg.View.Context = "shell"
	c := clientOf(t, cfg)
	c.pipe.Receive(
		[]byte(
			`{"jsonrpc":"2.0","id":77,"method":"tools/call","params":{"name":"execute_command","arguments":{"command":"echo first; until [ -e go ]; do sleep 0.05; done; echo last"},"_meta":{"progressToken":"p","io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`,
		),
	)
	for {
		m := string(c.message())
		if strings.Contains(m, `"id":77`) {
			t.Fatalf("it ended before it printed anything: %s", m)
		}
		if strings.Contains(m, `"notifications/progress"`) && strings.Contains(m, "first") {
			break
		}
	}
	putFile(t, "", cfg.Roots.Folders[0], "go")
	for {
		if m := string(c.message()); strings.Contains(m, `"id":77`) {
			expect(t, m, `"output":"first\nlast\n"`, `"return_code":0`)
			return
		}
	}
}
