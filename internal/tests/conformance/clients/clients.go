// Package clients runs real MCP clients against Gatehouse and records what each of them passes to its model.
//
// A client decides which part of a tool's result the model reads: the content, the structured content, or both.
// Only the client's next request to its model shows it. Therefore [Model] serves the published APIs of models on
// loopback, requests a list of tool calls, and records the results. The clients are npm packages, pinned in the npm
// folder and installed below .tools by Install. Only tests use this package.
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

// Install installs the clients below .tools unless they are there. The output of npm goes to log.
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

	// Run lets the client call tools of the MCP server at mcp until the model requests none. home is the client's
	// home folder. It returns the client's output.
	Run func(ctx context.Context, tools conformance.Tools, home string, model *Model, mcp string) ([]byte, error)

	// TextOnly means that the client is a command that prints texts, and saves pictures only if it is told where.
	TextOnly bool
}

// All returns the clients that are tested.
var All = []Client{
	{Name: "Claude Code", Run: claudeCode},
	{Name: "Codex", Run: codex},
	{Name: "AI SDK", Run: script("aisdk.mjs")},
	{Name: "LangChain", Run: script("langchain.mjs")},
	{Name: "mcporter", Run: mcporter, TextOnly: true},
}

// command prepares a client: with a home folder of its own, without a proxy, and without variables that would lead
// it to another model or describe this process's surroundings.
func command(ctx context.Context, home, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = home
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + home, "TMPDIR=" + home, "LANG=C.UTF-8", "NO_COLOR=1"}
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// binary returns the native program in the npm package for this machine. The launchers of the packages are not
// used, because installation scripts link them, and those do not run.
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

// claudeCodeEnvironment directs Claude Code to the model only.
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

// codexModel returns the settings that direct Codex to a model at an address.
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

// script runs a program of this repository that uses a library.
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

// mcporter has no model of its own: an agent runs its command line, one command per call, and reads the output.
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
