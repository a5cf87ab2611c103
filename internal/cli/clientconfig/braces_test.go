package clientconfig

import (
	"strings"
	"testing"
)

// program is a server with short arguments.
var program = Server{Name: "gatehouse", Command: "g", Args: []string{"stdio"}}

// Servers that are written in brackets are edited there: a server is added, changed in place and
// removed, and everything else stays byte for byte.
func TestServersInBraces(t *testing.T) {
	for _, test := range []struct {
		name, client, in, want string
	}{
		{"inline table of all servers", "codex",
			"model = \"m\" # one\nmcp_servers = { a = { command = \"x\", args = [\"y\"] } } # two\n[other]\nb = 1\n",
			"model = \"m\" # one\nmcp_servers = { a = { command = \"x\", args = [\"y\"] }, " +
				"gatehouse = { command = \"g\", args = [\"stdio\"] } } # two\n[other]\nb = 1\n"},
		{"empty inline table", "codex",
			"mcp_servers = {}\n", "mcp_servers = {gatehouse = { command = \"g\", args = [\"stdio\"] }}\n"},
		{"inline table below a header", "codex",
			"[mcp_servers]\na = { command = 'x' }\n",
			"[mcp_servers]\na = { command = 'x' }\n\n[mcp_servers.gatehouse]\ncommand = \"g\"\nargs = [\"stdio\"]\n"},
		{"brackets in strings", "codex",
			"mcp_servers = { \"a}\" = { command = '}', args = [\"{\", ']'] } }\n",
			"mcp_servers = { \"a}\" = { command = '}', args = [\"{\", ']'] }, " +
				"gatehouse = { command = \"g\", args = [\"stdio\"] } }\n"},

		{"flow mapping", "goose",
			"# settings\nextensions: {a: {cmd: x, args: []}} # two\nmode: it's\n",
			"# settings\nextensions: {a: {cmd: x, args: []}, gatehouse: {name: \"gatehouse\", enabled: true, " +
				"type: \"stdio\", cmd: \"g\", args: [\"stdio\"]}} # two\nmode: it's\n"},
		{"flow mapping on lines", "goose",
			"extensions: {\n    a: {cmd: x}, # first\n    'b''s': {cmd: \"y\\\"}\"} # second\n  }\nmode: auto\n",
			"extensions: {\n    a: {cmd: x}, # first\n    'b''s': {cmd: \"y\\\"}\"}, # second\n    gatehouse: {name: " +
				"\"gatehouse\", enabled: true, type: \"stdio\", cmd: \"g\", args: [\"stdio\"]}\n  }\nmode: auto\n"},
		{"flow mapping with a last comma", "goose",
			"extensions: {\n  a: {cmd: x},\n  }\n",
			"extensions: {\n  a: {cmd: x},\n  gatehouse: {name: \"gatehouse\", enabled: true, type: \"stdio\", " +
				"cmd: \"g\", args: [\"stdio\"]},\n  }\n"},
		{"JSON as YAML", "goose",
			"{\"mode\":\"ä\",\"extensions\":{\"a\":{\"cmd\":\"x\"}}}",
			"{\"mode\":\"ä\",\"extensions\":{\"a\":{\"cmd\":\"x\"}, gatehouse: {name: \"gatehouse\", enabled: true, " +
				"type: \"stdio\", cmd: \"g\", args: [\"stdio\"]}}}"},
		{"JSON without the mapping", "goose",
			"{\"mode\": \"ä\"}\n",
			"{\"mode\": \"ä\", extensions: {gatehouse: {name: \"gatehouse\", enabled: true, " +
				"type: \"stdio\", cmd: \"g\", args: [\"stdio\"]}}}\n"},
		{"list of flow mappings", "continue",
			"name: mine\nmcpServers: [{name: a, command: x}, {name: 'b', command: y}]\n",
			"name: mine\nmcpServers: [{name: a, command: x}, {name: 'b', command: y}, " +
				"{name: \"gatehouse\", command: \"g\", args: [\"stdio\"]}]\n"},
		{"list on lines", "continue",
			"mcpServers: [\n  {name: a, command: x}\n  ]\n",
			"mcpServers: [\n  {name: a, command: x},\n  {name: \"gatehouse\", command: \"g\", args: [\"stdio\"]}\n  ]\n"},
		{"items of a block in braces", "continue",
			"mcpServers:\n  - {name: a, command: x}\n",
			"mcpServers:\n  - {name: a, command: x}\n  - name: \"gatehouse\"\n    command: \"g\"\n    args:\n" +
				"      - \"stdio\"\n"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := FindClient(test.client)
			for _, newline := range []string{"\n", "\r\n"} {
				in := strings.ReplaceAll(test.in, "\n", newline)
				want := strings.ReplaceAll(test.want, "\n", newline)
				out := put(t, c, []byte(in), program)
				if string(out) != want {
					t.Fatalf("got\n%s\nwant\n%s", out, want)
				}
				changed := program
				changed.Args = []string{"stdio", "-d", "a, b}"}
				again := put(t, c, put(t, c, out, changed), program)
				if string(again) != want {
					t.Errorf("changed there and back, got\n%s\nwant\n%s", again, want)
				}
				put(t, c, out, Server{Name: "gatehouse", URL: "http://127.0.0.1:1/mcp"})
				if back := removed(t, c, []byte(in), out); string(back) != in {
					t.Errorf("without the server it is\n%q\nwant\n%q", back, in)
				}
			}
		})
	}
}

// A server of this program that is written in brackets itself, with members of the user's, is changed
// in place.
func TestAServerInBracesIsChanged(t *testing.T) {
	for _, test := range []struct{ name, client, in, want, without string }{
		{"inline table", "codex",
			"[mcp_servers]\ngatehouse = { command = \"old\", args = [], startup_timeout_sec = 9 } # ours\n",
			"[mcp_servers]\ngatehouse = { command = \"g\", args = [\"stdio\"], startup_timeout_sec = 9 } # ours\n",
			"[mcp_servers]\n"},
		{"first of several", "codex",
			"mcp_servers = { gatehouse = { command = \"old\" }, b = { command = \"x\" } }\n",
			"mcp_servers = { gatehouse = { command = \"g\", args = [\"stdio\"] }, b = { command = \"x\" } }\n",
			"mcp_servers = { b = { command = \"x\" } }\n"},
		{"dotted keys", "codex",
			"[mcp_servers]\ngatehouse.command = \"old\"\nb.command = \"x\"\n",
			"[mcp_servers]\ngatehouse.command = \"g\"\ngatehouse.args = [\"stdio\"]\nb.command = \"x\"\n",
			"[mcp_servers]\nb.command = \"x\"\n"},
		{"flow in a block", "goose",
			"extensions:\n  gatehouse: {cmd: old, args: [], timeout: 9} # ours\n  b: {cmd: x}\n",
			"extensions:\n  gatehouse: {cmd: \"g\", args: [\"stdio\"], timeout: 9, enabled: true, type: " +
				"\"stdio\"} # ours\n  b: {cmd: x}\n",
			"extensions:\n  b: {cmd: x}\n"},
		{"flow on lines", "goose",
			"extensions: {\n  gatehouse: {\n    cmd: old, # theirs\n    timeout: 9\n  },\n  b: {cmd: x}\n  }\n",
			"", "extensions: {\n  b: {cmd: x}\n  }\n"},
		{"item", "continue",
			"mcpServers: [{name: gatehouse, command: old}, {name: b, command: x}]\n",
			"mcpServers: [{name: gatehouse, command: \"g\", args: [\"stdio\"]}, {name: b, command: x}]\n",
			"mcpServers: [{name: b, command: x}]\n"},
		{"item of a block", "continue",
			"mcpServers:\n  - {name: gatehouse, command: old}\n  - {name: b, command: x}\n",
			"mcpServers:\n  - {name: gatehouse, command: \"g\", args: [\"stdio\"]}\n  - {name: b, command: x}\n",
			"mcpServers:\n  - {name: b, command: x}\n"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := FindClient(test.client)
			out := put(t, c, []byte(test.in), program)
			if test.want != "" && string(out) != test.want {
				t.Errorf("got\n%s\nwant\n%s", out, test.want)
			}
			back, err := c.Remove(out, program.Name, false)
			if err != nil || string(back) != test.without {
				t.Errorf("without the server it is\n%s\n%v, want\n%s", back, err, test.without)
			}
		})
	}
}

// What brackets may hold and is not edited is refused, and the text stays as it is.
func TestBracesThatAreRefused(t *testing.T) {
	for name, test := range map[string]struct{ client, in string }{
		"dotted key in an inline table": {"codex", "mcp_servers = { a.command = \"x\" }\n"},
		"servers that are no table":     {"codex", "mcp_servers = 1\n"},
		"explicit key":                  {"goose", "extensions: {? a : {cmd: x}}\n"},
		"anchor":                        {"goose", "extensions: {a: &b {cmd: x}}\n"},
		"alias of all servers":          {"goose", "x: &b {cmd: x}\nextensions: *b\n"},
		"no closing bracket":            {"goose", "extensions: {a: {cmd: x}\n"},
		"list in place of a mapping":    {"goose", "extensions: [a]\n"},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := FindClient(test.client).Put([]byte(test.in), program)
			if err == nil {
				t.Errorf("%q became %q", test.in, out)
			}
		})
	}
}
