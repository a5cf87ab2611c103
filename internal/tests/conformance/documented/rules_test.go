package documented

import (
	"context"
	"strings"
	"testing"
)

// rule defines how a command or another block of a document is tested. A command without one runs unchanged.
type rule struct {
	file   string
	begins string // of the command or block

	skip    string   // why it cannot run here, or is nothing to run
	replace []string // placeholders and what stands for them: old, new, old, new
	before  func(*testing.T, *session) error
	stdin   string
	typed   string // it runs in a terminal, in which this is typed
	until   string // it goes on until it is stopped; this is printed first
	prints  string // what it prints, as a regular expression
	fails   bool   // it exits with an error, as the document says

	other func(context.Context, *session, string) error // what is done with a block of no commands
}

const (
	drawing   = "a drawing"
	elsewhere = "it needs another machine: npm's registry"
	loginTest = "no such server; internal/cli TestLoggingInToAPackage runs it with one"
	published = "no release is published yet; the tests in release/ install each form of one"
)

var rules = []rule{
	{file: "README.md", begins: "curl -fsSL https://gatehouse.example", skip: published},
	{file: "README.md", begins: "npm install -g gatehouse", skip: published},
	{file: "README.md", begins: "pip install gatehouse", skip: published},
	{file: "README.md", begins: "gatehouse connect claude-code --yes", prints: "Connected Claude Code"},
	{
		file:    "README.md",
		begins:  "make run",
		replace: []string{"make run", "make run PORT=0"},
		until:   "Listening on http",
	},
	{file: "README.md", begins: "make test", skip: "this test is part of it"},
	{
		file:   "README.md",
		begins: "$ gatehouse connect",
		other:  transcript(map[string]string{"main.go": "package main\n\nfunc main() {\n\t// TODO: listen\n}\n"}),
	},
	{
		file:   "README.md",
		begins: `{"mcpServers": {"gatehouse": {"type": "stdio"`,
		other:  written("claude-code"),
	},
	{file: "README.md", begins: "[mcp_servers.gatehouse]", other: written("codex")},
	{file: "README.md", begins: `{"servers"`, other: written("vscode")},
	{file: "README.md", begins: `{"context_servers"`, other: written("zed")},
	{
		file:   "README.md",
		begins: `{"mcpServers": {"gatehouse": {"command"`,
		other:  written("cursor", "claude-desktop", "windsurf", "kiro", "lm-studio"),
	},
	{file: "README.md", begins: `{"mcpServers": {"gatehouse": {"type": "http"`, other: entry},
	{file: "README.md", begins: "gatehouse call file_search", prints: "README.md"},
	{
		file:   "README.md",
		begins: "gatehouse package add github --secret",
		typed:  "t0ken\ny\n",
		prints: "github_greet",
	},
	{file: "README.md", begins: "gatehouse call --modules file,sandbox sandbox_run", prints: `(?m)^42$`},
	{file: "README.md", begins: "gatehouse audit --follow", until: "context.created"},
	{file: "README.md", begins: "gatehouse backup create", stdin: "correct horse battery\n", prints: "backup"},
	{file: "README.md", begins: "package main", other: saved("main.go")},

	{file: "docs/appliance.md", begins: "gatehouse tools --modules system", prints: "system_vhost_list_passthrough"},
	{file: "docs/appliance.md", begins: "gatehouse call --daemon system_confirm",
		skip: "no change waits; internal/modules/system confirms one"},
	{file: "docs/appliance.md", begins: "gatehouse call --daemon server_set_echo_ip",
		skip: "no such service is there; internal/modules/server TestServicesOutsideAreNamedByAdministrators names one"},
	{file: "docs/appliance.md", begins: "polkit.addRule",
		skip: "a rule of polkit; internal/modules/system TestARightOfTheSystemIsNeeded installs it"},

	{file: "docs/cluster.md", begins: "gatehouse serve --http --cluster",
		skip: "it takes three machines; internal/tests/clustertest starts three hosts"},
	{file: "docs/cluster.md", begins: "gatehouse cluster join-token", skip: "internal/cluster TestJoinTokens uses one"},
	{file: "docs/cluster.md", begins: "gatehouse serve --http", replace: []string{"--http", "--http -p 0"},
		until: "Listening on http"},
	{file: "docs/cluster.md", begins: "gatehouse cluster join 10.0.0.1",
		skip: "it takes three machines; internal/tests/clustertest TestJoin joins three hosts"},
	{file: "docs/cluster.md", begins: "gatehouse cluster status", skip: "internal/tests/clustertest asks a node"},
	{file: "docs/editor.md", begins: "gatehouse call --daemon ide_editor_serve",
		skip: "it lasts; internal/modules/ide TestClaudeCodeHasTheHostAsItsEditor starts it"},
	{file: "docs/editor.md", begins: `{"agent_servers"`, skip: "settings of an editor"},

	{file: "docs/audit.md", begins: `{"seq":17`, skip: "a line of the ledger"},

	{
		file: "docs/pages.md", begins: "gatehouse serve --http",
		replace: []string{"--http", "--http -p 0"}, until: "Listening on http",
	},
	{file: "docs/pages.md", begins: `{"link"`, skip: "what a webhook gets; internal/tests/webtest TestAPersonIsAlerted receives one"},
	{file: "docs/connect.md", begins: "gatehouse connect --list", prints: `(?m)^claude-code +not `},
	{file: "docs/connect.md", begins: "gatehouse connect cursor --link", prints: "^cursor://"},
	{
		file:   "docs/connect.md",
		begins: "gatehouse import demo/mcp.json --dry-run",
		before: holding(
			"demo/mcp.json",
			`{"mcpServers": {"github": {"command": "github-mcp-server", "args": ["stdio"]}}}`,
		),
		prints: "becomes the package github, started as",
	},
	{file: "docs/connect.md", begins: "gatehouse import demo/mcp.json --yes", prints: "Installed github with"},

	{file: "docs/contexts.md", begins: "rules:", other: settings},
	{file: "docs/contexts.md", begins: "modules:", other: settings},
	{file: "docs/contexts.md", begins: "contexts:", other: settings},
	{file: "docs/contexts.md", begins: `{"rename"`, skip: "app TestDocumentedShape reads it"},
	{file: "docs/contexts.md", begins: `{"env"`, other: saved("tracker.json")},
	{file: "docs/contexts.md", begins: "gatehouse secret set TRACKER", before: holding("tracker-token", "t0ken\n")},
	{file: "docs/contexts.md", begins: "gatehouse token create", prints: "gh_"},

	{file: "docs/contexts.md", begins: `{"own_resources"`, other: saved("team.json")},
	{file: "docs/contexts.md", begins: "gatehouse context show team", prints: `team://notes/\{topic\}`},

	{file: "docs/browser.md", begins: "# Sign up", skip: "it is what a page looks like"},
	{file: "docs/browser.md", begins: "modules:", other: settings},
	{file: "docs/knowledge.md", begins: "modules:", other: settings},
	{file: "docs/models.md", begins: "modules:", other: settings},
	{file: "docs/stage.md", begins: "contexts:", other: settings},
	{file: "docs/stage.md", begins: "gatehouse review", skip: "the script review runs these commands on a task"},
	{file: "docs/stage.md", begins: "gatehouse undo", skip: "the script review runs these commands on a task"},
	{file: "docs/guardrails.md", begins: "guardrails:", other: settings},
	{
		file:   "docs/guardrails.md",
		begins: `{"guardrail"`,
		skip:   "access/guardrail TestAHookDecides asks such a question",
	},
	{file: "docs/guardrails.md", begins: `{"decision"`, skip: "access/guardrail TestAHookDecides gets such an answer"},

	{file: "docs/design.md", begins: "bytes      server", skip: drawing},
	{file: "docs/design.md", begins: "cmd/*", skip: drawing},
	{file: "docs/design.md", begins: "server/httpserver/h1.", skip: drawing},
	{file: "docs/design.md", begins: "state.(*Mount", skip: drawing},

	{file: "docs/login.md", begins: "auth:", other: settings},
	{
		file: "docs/login.md", begins: "gatehouse ui --print",
		prints: `(?m)^http://127\.0\.0\.1:\d+/#login=[a-z2-7]{52}$`,
		before: serving("gatehouse serve --http -p 0", `Listening on http://[^/]+:(\d+)/`),
	},
	{file: "docs/operating.md", begins: "gatehouse token create", prints: "gh_"},
	{file: "docs/operating.md", begins: `{"version": "1.4.0"`, skip: "a manifest of releases"},

	{file: "docs/packages.md", begins: "view:", other: settings},
	{file: "docs/packages.md", begins: "gatehouse package add memory npm:", skip: elsewhere},
	{file: "docs/packages.md", begins: "gatehouse package add files npm:", skip: elsewhere},
	{file: "docs/packages.md", begins: "gatehouse package add docs https:",
		skip: "no such server; internal/tests/relaytest adds one"},
	{
		file:   "docs/packages.md",
		begins: "gatehouse package add github --secret",
		typed:  "t0ken\ny\n",
		prints: "github_greet",
	},
	{file: "docs/packages.md", begins: "gatehouse package login docs", skip: loginTest},
	{file: "docs/packages.md", begins: "gatehouse package logout docs", skip: loginTest},
	{file: "docs/packages.md", begins: "gatehouse package add pets openapi:",
		skip: "it needs an API; internal/packages TestADocumentIsAPackage adds one"},
	{file: "docs/packages.md", begins: "gatehouse package add tracker openapi:",
		skip: "it needs an API; internal/packages TestADocumentIsAPackage adds one"},
	{file: "docs/packages.md", begins: "gatehouse package list", prints: "github"},
	{file: "docs/packages.md", begins: "gatehouse package info github", prints: "GITHUB_PERSONAL_ACCESS_TOKEN"},
	{file: "docs/packages.md", begins: "gatehouse package tools github", prints: `github_greet +off`},
	{file: "docs/packages.md", begins: "gatehouse package update memory", skip: elsewhere},
	{file: "docs/supply-chain.md", begins: "gatehouse package why github",
		skip: "cmd/gatehouse TestScripts/packagelock has a package"},
	{file: "docs/supply-chain.md", begins: "gatehouse package stats github",
		skip: "internal/packages TestWhyAndStatsAndShell has a package"},
	{file: "docs/supply-chain.md", begins: "gatehouse package shell github",
		skip: "internal/packages TestWhyAndStatsAndShell has a package"},
	{file: "docs/supply-chain.md", begins: "gatehouse package sync",
		skip: "cmd/gatehouse TestScripts/packagelock installs one"},
	{file: "docs/supply-chain.md", begins: "gatehouse package add memory --locked", skip: elsewhere},
	{file: "docs/supply-chain.md", begins: "gatehouse package lock",
		skip: "cmd/gatehouse TestScripts/packagelock locks one"},
	{file: "docs/supply-chain.md", begins: "gatehouse package changes github",
		skip: "cmd/gatehouse TestScripts/packagereview has something to review"},
	{file: "docs/supply-chain.md", begins: "gatehouse package approve github",
		skip: "nothing waits; cmd/gatehouse TestScripts approves"},
	{file: "docs/supply-chain.md", begins: "gatehouse package refuse github",
		skip: "nothing waits; cmd/gatehouse TestScripts refuses"},
	{file: "docs/supply-chain.md", begins: "gatehouse package rollback memory", skip: elsewhere},
	{file: "docs/packages.md", begins: "gatehouse search weather", skip: elsewhere},
	{file: "docs/packages.md", begins: "gatehouse pick weather", skip: elsewhere},
	{file: "docs/packages.md", begins: "gatehouse package add weather", skip: elsewhere},
	{file: "docs/packages.md", begins: "packages:", other: settings},
	{file: "docs/packages.md", begins: "gatehouse package apply --dry-run", prints: "install memory"},
	{file: "docs/packages.md", begins: "<data>/packages", skip: drawing},
	{file: "docs/packages.md", begins: "gatehouse package add docs npm:", skip: elsewhere},
	{file: "docs/packages.md", begins: "gatehouse package grant docs", skip: "cmd/gatehouse TestScripts/packagegrant"},
	{file: "docs/packages.md", begins: "gatehouse package revoke docs", skip: "cmd/gatehouse TestScripts/packagegrant"},

	{file: "docs/relay.md", begins: "gatehouse run npm:", skip: elsewhere},
	{file: "docs/relay.md", begins: "gatehouse run https:", skip: "no such server; internal/tests/relaytest runs one"},
	{file: "docs/relay.md", begins: "gatehouse run -- ", prints: "github-mcp-server server"},
	{file: "docs/relay.md", begins: "gatehouse run --http", replace: []string{"-p 8080", "-p 0"},
		until: "Listening on http"},

	{
		file:   "docs/sandbox-matrix.md",
		begins: "GATEHOUSE_SANDBOX_MATRIX",
		skip:   "it takes minutes and writes the document; make sandboxes runs the same tests",
	},

	{file: "docs/sandboxes.md", begins: "modules:", other: settings},

	{file: "docs/tutorial.md", begins: "package main\n\nimport (\n\t\"bufio\"", other: saved("main.go")},
	{
		file:    "docs/tutorial.md",
		begins:  "./words -http",
		replace: []string{":3000", ":0"},
		until:   `address=http://127\.0\.0\.1:`,
	},
	{
		file:   "docs/tutorial.md",
		begins: "gatehouse tools --url",
		before: serving("./words -http 127.0.0.1:0", `address=http://127\.0\.0\.1:(\d+)/`),
		prints: `words after which it stops`,
	},
	{
		file:   "docs/tutorial.md",
		begins: "gatehouse call --url http://127.0.0.1:3000/mcp word_count path=main.go most=20",
		prints: `"words": 20\b`,
	},
	{
		file:   "docs/tutorial.md",
		begins: "gatehouse call --url http://127.0.0.1:3000/mcp word_count path=/etc/passwd",
		prints: "outside_root",
		fails:  true,
	},
	{
		file:   "docs/tutorial.md",
		begins: "gatehouse call --url http://127.0.0.1:3000/mcp word_count pth=main.go",
		prints: `did you mean "?path`,
		fails:  true,
	},
	{file: "docs/tutorial.md", begins: "package main\n\nimport (\n\t\"testing\"", other: saved("main_test.go")},
	{file: "docs/tutorial.md", begins: "go test", prints: `^ok\s`},
	{file: "docs/tutorial.md", begins: "gatehouse call --daemon words_word_count", prints: `"words": \d\d\d`},
	{file: "docs/tutorial.md", begins: `{"mcpServers": {"words"`, other: entry},

	{file: "examples/embedding/README.md", begins: "go test", prints: `^ok\s`},
	{
		file:    "examples/embedding/README.md",
		begins:  "ORDERS_TOKEN=correct-horse-battery ./embedding",
		replace: []string{":3000", ":0"},
		until:   "address=127",
	},
	{
		file:   "examples/embedding/README.md",
		begins: "curl",
		before: serving(
			"ORDERS_TOKEN=correct-horse-battery ./embedding -addr 127.0.0.1:0",
			`address=127\.0\.0\.1:(\d+)`,
		),
		prints: `"status":"paid"`,
	},
	{
		file:   "examples/embedding/README.md",
		begins: "gatehouse call --url http://127.0.0.1:3000/mcp --token correct-horse-battery order_find",
		prints: `"id": "1001"`,
	},
	{
		file:   "examples/embedding/README.md",
		begins: "gatehouse call --url http://127.0.0.1:3000/mcp --token correct-horse-battery order_ship",
		prints: `"status": "shipped"`,
	},

	{file: "examples/module/README.md", begins: "go test", prints: `ok\s+gatehouse/examples/module/notes`},
	{
		file:    "examples/module/README.md",
		begins:  "./notes-host",
		replace: []string{":3000", ":0"},
		until:   `address=http://127\.0\.0\.1:`,
	},
	{
		file:   "examples/module/README.md",
		begins: "gatehouse call --url http://127.0.0.1:3000/mcp note_write",
		before: serving("./notes-host -http 127.0.0.1:0", `address=http://127\.0\.0\.1:(\d+)/`),
		prints: "notes://plan",
	},
	{
		file:   "examples/module/README.md",
		begins: "gatehouse call --url http://127.0.0.1:3000/mcp note_find",
		prints: `"plan"`,
	},

	{
		file:    "examples/team/README.md",
		begins:  "gatehouse serve",
		replace: []string{"gatehouse.yaml", "gatehouse.yaml --http -p 0"},
		until:   "Listening on http",
	},
	{
		file:   "examples/team/README.md",
		begins: "gatehouse secret set REGISTRY_TOKEN",
		before: holding("registry-token", "t0ken\n"),
	},
	{file: "examples/team/README.md", begins: "gatehouse connect", prints: "https://tools.example.com/mcp"},

	{
		file:    "examples/home/README.md",
		begins:  "gatehouse serve",
		replace: []string{"gatehouse.yaml", "gatehouse.yaml --http -p 0"},
		until:   "Listening on https",
	},
	{
		file:   "examples/home/README.md",
		begins: "gatehouse call --url https://127.0.0.1:3443/mcp --token \"$(cat token)\" file_write",
		before: serving("gatehouse serve --config gatehouse.yaml --http -p 0", `Listening on https://[^/]+:(\d+)/`),
		prints: "list.txt",
	},
	{
		file:   "examples/home/README.md",
		begins: "gatehouse call --url https://127.0.0.1:3443/mcp --token \"$(cat token)\" file_read",
		prints: "flour, eggs",
	},
	{
		file:   "examples/home/README.md",
		begins: "gatehouse call --url https://127.0.0.1:3443/mcp --token \"$(cat token)\" --context code sandbox_run",
		prints: `(?m)^42$`,
	},
	{file: "examples/home/README.md", begins: "gatehouse connect", prints: "https://box.local:3443/mcp"},
	{
		file:   "examples/home/README.md",
		begins: "gatehouse secret set BACKUP_PASSWORD",
		before: holding("backup-password", "correct horse battery\n"),
	},
	{file: "examples/home/README.md", begins: "gatehouse backup create", prints: "gatehouse-.*age"},
}

// find returns the rule for a command or block, and records that it was used.
func find(file, text string, used map[*rule]bool) *rule {
	for i := range rules {
		if r := &rules[i]; r.file == file && strings.HasPrefix(text, r.begins) {
			used[r] = true
			return r
		}
	}
	return nil
}
