// Package clients drives real MCP clients against Gatehouse and records what
// each of them hands to its model.
//
// A client decides by itself which part of a tool's result the model reads:
// the content, the structured content, or both. Only the client's next request
// to its model shows it. So [Model] speaks the published APIs of models over
// loopback, asks for a list of tool calls, and keeps the results that come
// back. The clients are npm packages, pinned in the npm folder and installed
// below .tools by Install. Only tests use this package.
package clients

import (
	"context"
	"embed"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"gatehouse/internal/tests/conformance"
)

//go:embed npm
var files embed.FS

var pinned = conformance.Packages{Files: files}

func dir() (string, error) {
	top, err := conformance.Top()
	return filepath.Join(top, ".tools", "clients"), err
}

// Install installs the clients below .tools, and does nothing if they are
// there. What npm prints goes to log.
func Install(ctx context.Context, log io.Writer) error {
	dir, err := dir()
	if err != nil {
		return err
	}
	_, err = pinned.Install(ctx, dir, log)
	return err
}

// Open returns the clients that Install has installed.
func Open() (conformance.Tools, error) {
	dir, err := dir()
	if err != nil {
		return conformance.Tools{}, err
	}
	return pinned.Open(dir)
}

// Client is one program that connects a model to MCP servers.
type Client struct {
	Name string

	// Run has the client call tools of the MCP server at mcp until the model
	// asks for none. home is the client's home folder. It returns what the
	// client printed.
	Run func(ctx context.Context, tools conformance.Tools, home string, model *Model, mcp string) ([]byte, error)
}

// All are the clients that are driven.
var All = []Client{
	{"Claude Code", claudeCode},
	{"Codex", codex},
	{"AI SDK", script("aisdk.mjs")},
	{"LangChain", script("langchain.mjs")},
	{"mcporter", mcporter},
}

// command prepares a client: its own home folder, no proxy, and nothing in the
// environment that would lead it to another model or tell it about this one's
// surroundings.
func command(ctx context.Context, home, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = home
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + home, "TMPDIR=" + home, "LANG=C.UTF-8", "NO_COLOR=1"}
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// binary is the native program in the variant of an npm package for this
// machine. The packages' own launchers are not used: they are linked to it by
// installation scripts, which do not run.
func binary(tools conformance.Tools, pattern string) (string, error) {
	arch := map[string]string{"amd64": "x64"}[runtime.GOARCH]
	if arch == "" {
		arch = runtime.GOARCH
	}
	pattern = filepath.Join(tools.Dir, "node_modules", strings.ReplaceAll(pattern, "PLATFORM", runtime.GOOS+"-"+arch))
	found, err := filepath.Glob(pattern)
	if err == nil && len(found) == 0 {
		err = fmt.Errorf("the package has no program for this machine: nothing matches %s", pattern)
	}
	if err != nil {
		return "", err
	}
	return found[0], nil
}

func claudeCode(ctx context.Context, tools conformance.Tools, home string, model *Model, mcp string) ([]byte, error) {
	program, err := binary(tools, "@anthropic-ai/claude-code-PLATFORM/claude")
	if err != nil {
		return nil, err
	}
	config, err := json.Marshal(map[string]any{
		"mcpServers": map[string]any{"gatehouse": map[string]string{"type": "http", "url": mcp}},
	})
	if err != nil {
		return nil, err
	}
	cmd := command(ctx, home, program, "-p", "Go on.", "--model", "claude-sonnet-4-5", "--output-format", "json",
		"--strict-mcp-config", "--mcp-config", string(config), "--allowedTools", "mcp__gatehouse")
	cmd.Env = append(cmd.Env, claudeCodeEnvironment(model)...)
	return cmd.CombinedOutput()
}

// claudeCodeEnvironment leads Claude Code to the model, and nowhere else.
func claudeCodeEnvironment(model *Model) []string {
	return []string{
		"ANTHROPIC_BASE_URL=" + model.URL,
		"ANTHROPIC_API_KEY=none",
		"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1", // telemetry, error reports, updates
		"DISABLE_TELEMETRY=1",
		"DISABLE_ERROR_REPORTING=1",
		"DISABLE_AUTOUPDATER=1",
		"ENABLE_TOOL_SEARCH=false", // all tools are in each request
	}
}

// codexModel are the settings that lead Codex to a model at an address.
const codexModel = `model = "gpt-5"
model_provider = "mock"
approval_policy = "never"
sandbox_mode = "read-only"
check_for_update_on_startup = false

[analytics]
enabled = false

[model_providers.mock]
name = "mock"
base_url = %q
wire_api = "responses"
env_key = "MOCK_KEY"
request_max_retries = 0
stream_max_retries = 0
`

func codex(ctx context.Context, tools conformance.Tools, home string, model *Model, mcp string) ([]byte, error) {
	program, err := binary(tools, "@openai/codex-PLATFORM/vendor/*/bin/codex")
	if err != nil {
		return nil, err
	}
	config := fmt.Sprintf(codexModel+`
[mcp_servers.gatehouse]
url = %q
default_tools_approval_mode = "approve"
`, model.URL+"/v1", mcp)
	folder := filepath.Join(home, ".codex")
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(folder, "config.toml"), []byte(config), 0o600); err != nil {
		return nil, err
	}
	cmd := command(ctx, home, program, "exec", "--skip-git-repo-check", "Go on.")
	cmd.Env = append(cmd.Env, "MOCK_KEY=none", "CODEX_HOME="+folder)
	return cmd.CombinedOutput()
}

// script runs one of our programs that use a library.
func script(name string) func(context.Context, conformance.Tools, string, *Model, string) ([]byte, error) {
	return func(ctx context.Context, tools conformance.Tools, home string, model *Model, mcp string) ([]byte, error) {
		cmd := command(ctx, home, tools.Node, tools.Script(name), model.URL+"/v1", mcp)
		cmd.Env = append(
			cmd.Env,
			"AI_SDK_TELEMETRY_DISABLED=1",
			"LANGCHAIN_TRACING_V2=false",
			"LANGSMITH_TRACING=false",
		)
		return cmd.CombinedOutput()
	}
}

// mcporter has no model of its own: an agent runs its command line, one command
// for each call, and reads what it prints.
func mcporter(ctx context.Context, tools conformance.Tools, home string, model *Model, mcp string) ([]byte, error) {
	for {
		call, ok := model.Next()
		if !ok {
			return nil, nil
		}
		args, err := json.Marshal(call.Args)
		if err != nil {
			return nil, err
		}
		cmd := command(
			ctx,
			home,
			tools.Node,
			tools.Script("node_modules", "mcporter", "dist", "cli.js"),
			"call",
			"--http-url",
			mcp,
			"--allow-http",
			"--name",
			"gatehouse",
			"--tool",
			call.Tool,
			"--args",
			string(args),
		)
		var stderr strings.Builder
		cmd.Stderr = &stderr
		out, err := cmd.Output() // exits with 1 if the tool answers with an error, which it prints
		if err != nil && len(out) == 0 {
			return []byte(stderr.String() + string(out)), fmt.Errorf("mcporter call %s: %w", call.Tool, err)
		}
		model.Give(string(out))
	}
}
