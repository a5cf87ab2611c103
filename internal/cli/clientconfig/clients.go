package clientconfig

import "slices"

// Scope says for whom a file of a client is.
type Scope string

const (
	User    Scope = "user"    // all projects of a user
	Project Scope = "project" // one folder
)

// Client is what is known of one MCP client, from its own documentation.
type Client struct {
	ID      string
	Title   string
	Aliases []string

	// Files are where it reads its servers, at most one for each scope. A client
	// without a file for a platform is not on that platform, or keeps its servers in
	// its own settings: see Paste.
	Files []File

	// Paste names the dialog that takes servers as JSON, of a client that documents no
	// file of a user for them; otherwise it is "".
	Paste string

	format format
	path   []string // the keys that lead to its servers
	list   bool     // its servers are a list with names, no mapping
	stdio  shape
	http   shape // without a url, it takes no addresses

	// EnvRef is how a header refers to an environment variable, with %s for its
	// name; "" if that is not documented.
	EnvRef string

	// InProject says that it starts its servers in the folder in which a user
	// works, so that the forwarder needs no folder of its own.
	InProject bool

	Programs []string // commands that show that it is installed
	Folders  []string // folders that show that it is installed, as in File
	Link     linkForm // the form of its installation links; 0 if it documents none
	Reload   string   // what a user does so that it reads a changed file
	Source   string   // the pages that say so
}

// File is a configuration file of a client.
type File struct {
	Scope Scope

	// Paths are keyed by the name of a platform as in runtime.GOOS, or by "" for
	// all others. They begin with a word in braces: {home}, {config} (the folder
	// for settings of the platform), {xdg} ($XDG_CONFIG_HOME or ~/.config, on
	// every platform) or {project}.
	Paths map[string]string

	// Env names a variable that, if it is set, holds the folder of the file.
	Env string
}

// shape is how a server is written.
type shape struct {
	before  object // members in front
	command string // the key of the program
	args    string // the key of its arguments; "" if the program's key holds them too
	env     string
	url     string
	headers string
	bearer  string // the key of the variable that holds a token, where headers take none
	after   object // members behind
	name    string // a key that repeats the name of the server
}

func everywhere(path string) map[string]string { return map[string]string{"": path} }

// vscodeUser is the folder of a user's settings of a Visual Studio Code.
func vscodeUser(product, file string) []File {
	return []File{{Scope: User, Paths: everywhere("{config}/" + product + "/User/" + file)}}
}

var (
	plainStdio = shape{command: "command", args: "args", env: "env"}
	typedStdio = shape{before: object{{"type", "stdio"}}, command: "command", args: "args", env: "env"}
	plainHTTP  = shape{url: "url", headers: "headers"}
	typedHTTP  = shape{before: object{{"type", "http"}}, url: "url", headers: "headers"}

	strictJSON = jsonFormat{}
	jsonc      = jsonFormat{comments: true}
	servers    = []string{"mcpServers"}
)

// Clients are all that are known, in the order in which they are listed.
var Clients = []*Client{
	{
		ID: "claude-code", Title: "Claude Code", Aliases: []string{"claude"},
		Files: []File{
			{Scope: User, Paths: everywhere("{home}/.claude.json"), Env: "CLAUDE_CONFIG_DIR"},
			{Scope: Project, Paths: everywhere("{project}/.mcp.json")},
		},
		format: strictJSON, path: servers, stdio: typedStdio, http: typedHTTP,
		EnvRef: "${%s}", InProject: true, Programs: []string{"claude"}, Folders: []string{"{home}/.claude"},
		Reload: "start a new session",
		Source: "Claude Code: Connect Claude Code to tools via MCP, https://code.claude.com/docs/en/mcp",
	},
	{
		ID: "claude-desktop", Title: "Claude Desktop",
		Files: []File{{Scope: User, Paths: map[string]string{
			"darwin":  "{config}/Claude/claude_desktop_config.json",
			"windows": "{config}/Claude/claude_desktop_config.json",
		}}},
		format: strictJSON, path: servers, stdio: plainStdio,
		Folders: []string{"{config}/Claude"},
		Reload:  "quit and start Claude Desktop",
		Source: "Model Context Protocol: Connect to local MCP servers, " +
			"https://modelcontextprotocol.io/docs/develop/connect-local-servers",
	},
	{
		ID: "codex", Title: "Codex CLI",
		Files: []File{
			{Scope: User, Paths: everywhere("{home}/.codex/config.toml"), Env: "CODEX_HOME"},
			{Scope: Project, Paths: everywhere("{project}/.codex/config.toml")},
		},
		format: tomlFormat{}, path: []string{"mcp_servers"},
		stdio: plainStdio, http: shape{url: "url", headers: "http_headers", bearer: "bearer_token_env_var"},
		InProject: true, Programs: []string{"codex"}, Folders: []string{"{home}/.codex"},
		Reload: "start a new session",
		Source: "Codex: Model Context Protocol, https://developers.openai.com/codex/mcp",
	},
	{
		ID: "cursor", Title: "Cursor",
		Files: []File{
			{Scope: User, Paths: everywhere("{home}/.cursor/mcp.json")},
			{Scope: Project, Paths: everywhere("{project}/.cursor/mcp.json")},
		},
		format: jsonc, path: servers, stdio: plainStdio, http: plainHTTP, EnvRef: "${env:%s}",
		Programs: []string{"cursor"}, Folders: []string{"{home}/.cursor"}, Link: cursorLink,
		Reload: "it reads the file by itself; enable the server in Settings, Tools & MCP",
		Source: "Cursor: Model Context Protocol, https://cursor.com/docs/mcp; " +
			"Install links, https://cursor.com/docs/mcp/install-links",
	},
	vscode("vscode", "VS Code", "Code", "code", vscodeLink, "code"),
	vscode("vscode-insiders", "VS Code Insiders", "Code - Insiders", "code-insiders", insidersLink),
	vscode("vscodium", "VSCodium", "VSCodium", "codium", 0),
	{
		ID: "windsurf", Title: "Windsurf",
		Files:  []File{{Scope: User, Paths: everywhere("{home}/.codeium/windsurf/mcp_config.json")}},
		format: jsonc, path: servers, stdio: plainStdio, http: shape{url: "serverUrl", headers: "headers"},
		EnvRef: "${env:%s}", Programs: []string{"windsurf"}, Folders: []string{"{home}/.codeium/windsurf"},
		Reload: "refresh in the MCP toolbar of Cascade",
		Source: "Windsurf: Cascade MCP integration, https://docs.windsurf.com/windsurf/cascade/mcp",
	},
	{
		ID: "zed", Title: "Zed",
		Files: []File{
			{Scope: User, Paths: map[string]string{
				"": "{xdg}/zed/settings.json", "windows": "{config}/Zed/settings.json",
			}},
			{Scope: Project, Paths: everywhere("{project}/.zed/settings.json")},
		},
		format: jsonc, path: []string{"context_servers"}, stdio: plainStdio, http: plainHTTP,
		Programs: []string{"zed", "zeditor"}, Folders: []string{"{xdg}/zed"},
		Reload: "it reads the file by itself; trust the folder for servers of a project",
		Source: "Zed: Model Context Protocol, https://zed.dev/docs/ai/mcp; " +
			"Configuring Zed, https://zed.dev/docs/configuring-zed; " +
			"Trusted worktrees, https://zed.dev/docs/worktree-trust",
	},
	{
		ID: "junie", Title: "JetBrains Junie", Aliases: []string{"jetbrains"},
		Files: []File{
			{Scope: User, Paths: everywhere("{home}/.junie/mcp/mcp.json")},
			{Scope: Project, Paths: everywhere("{project}/.junie/mcp/mcp.json")},
		},
		format: strictJSON, path: servers, stdio: plainStdio, http: plainHTTP,
		InProject: true, Programs: []string{"junie"}, Folders: []string{"{home}/.junie"},
		Reload: "start a new task",
		Source: "Junie: MCP configuration, https://junie.jetbrains.com/docs/junie-cli-mcp-configuration.html",
	},
	{
		ID: "jetbrains-ai", Title: "JetBrains AI Assistant", Aliases: []string{"ai-assistant"},
		format: strictJSON, path: servers, stdio: plainStdio, http: shape{url: "url"},
		Paste:  "Settings, Tools, AI Assistant, Model Context Protocol (MCP), Add, As JSON",
		Reload: "Apply starts the server",
		Source: "AI Assistant: Model Context Protocol, https://www.jetbrains.com/help/ai-assistant/mcp.html",
	},
	{
		ID: "jetbrains-air", Title: "JetBrains Air", Aliases: []string{"air"},
		Files:  []File{{Scope: Project, Paths: everywhere("{project}/.air/mcp.json")}},
		format: strictJSON, path: servers, stdio: plainStdio, http: shape{url: "url"},
		Paste:  "Settings, AI, MCP Servers, Add Global MCP Server",
		Reload: "start a new task",
		Source: "JetBrains Air: MCP servers, https://www.jetbrains.com/help/air/mcp-servers.html",
	},
	{
		ID: "gemini", Title: "Gemini CLI", Aliases: []string{"gemini-cli"},
		Files: []File{
			{Scope: User, Paths: everywhere("{home}/.gemini/settings.json")},
			{Scope: Project, Paths: everywhere("{project}/.gemini/settings.json")},
		},
		format: jsonc, path: servers, stdio: plainStdio, http: shape{url: "httpUrl", headers: "headers"},
		InProject: true, Programs: []string{"gemini"}, Folders: []string{"{home}/.gemini"},
		Reload: "start a new session",
		Source: "Gemini CLI: MCP servers, https://geminicli.com/docs/tools/mcp-server",
	},
	{
		ID: "qwen", Title: "Qwen Code", Aliases: []string{"qwen-code"},
		Files: []File{
			{Scope: User, Paths: everywhere("{home}/.qwen/settings.json")},
			{Scope: Project, Paths: everywhere("{project}/.qwen/settings.json")},
		},
		format: jsonc, path: servers, stdio: plainStdio, http: shape{url: "httpUrl", headers: "headers"},
		InProject: true, Programs: []string{"qwen"}, Folders: []string{"{home}/.qwen"},
		Reload: "start a new session",
		Source: "Qwen Code: Connect to tools via MCP, https://qwenlm.github.io/qwen-code-docs/en/users/features/mcp/",
	},
	{
		ID: "goose", Title: "Goose",
		Files: []File{{Scope: User, Paths: map[string]string{
			"": "{xdg}/goose/config.yaml", "windows": "{config}/Block/goose/config/config.yaml",
		}}},
		format: yamlFormat{}, path: []string{"extensions"},
		stdio: shape{
			before:  object{{"enabled", true}, {"type", "stdio"}},
			command: "cmd", args: "args", env: "envs", name: "name",
		},
		http: shape{
			before: object{{"enabled", true}, {"type", "streamable_http"}},
			url:    "uri", headers: "headers", name: "name",
		},
		InProject: true, Programs: []string{"goose"}, Folders: []string{"{xdg}/goose"},
		Reload: "start a new session",
		Source: "goose: Configuration files, https://block.github.io/goose/docs/guides/config-files",
	},
	{
		ID: "lm-studio", Title: "LM Studio", Aliases: []string{"lmstudio"},
		Files:  []File{{Scope: User, Paths: everywhere("{home}/.lmstudio/mcp.json")}},
		format: strictJSON, path: servers, stdio: plainStdio, http: plainHTTP,
		Programs: []string{"lms"}, Folders: []string{"{home}/.lmstudio"}, Link: lmStudioLink,
		Reload: "it reads the file by itself",
		Source: "LM Studio: Use MCP servers, https://lmstudio.ai/docs/app/mcp; " +
			"deeplinks, https://lmstudio.ai/docs/app/mcp/deeplink",
	},
	{
		ID: "cline", Title: "Cline",
		Files:  []File{{Scope: User, Paths: everywhere("{home}/.cline/data/settings/cline_mcp_settings.json")}},
		format: strictJSON, path: servers, stdio: plainStdio,
		http:     shape{before: object{{"type", "streamableHttp"}}, url: "url", headers: "headers"},
		Programs: []string{"cline"}, Folders: []string{"{home}/.cline"},
		Reload: "it reads the file by itself",
		Source: "Cline: Configuration, https://docs.cline.bot/getting-started/config; " +
			"MCP overview, https://docs.cline.bot/mcp/mcp-overview",
	},
	{
		ID: "roo", Title: "Roo Code", Aliases: []string{"roo-code"},
		Files: []File{
			{Scope: User, Paths: everywhere(
				"{config}/Code/User/globalStorage/rooveterinaryinc.roo-cline/settings/mcp_settings.json",
			)},
			{Scope: Project, Paths: everywhere("{project}/.roo/mcp.json")},
		},
		format: strictJSON, path: servers, stdio: plainStdio,
		http:      shape{before: object{{"type", "streamable-http"}}, url: "url", headers: "headers"},
		InProject: true,
		Folders:   []string{"{config}/Code/User/globalStorage/rooveterinaryinc.roo-cline"},
		Reload:    "it reads the file by itself",
		Source:    "Roo Code: Using MCP in Roo Code, https://docs.roocode.com/features/mcp/using-mcp-in-roo",
	},
	{
		ID: "continue", Title: "Continue",
		Files:  []File{{Scope: User, Paths: everywhere("{home}/.continue/config.yaml")}},
		format: yamlFormat{}, path: servers, list: true, stdio: plainStdio,
		http:    shape{before: object{{"type", "streamable-http"}}, url: "url"},
		Folders: []string{"{home}/.continue"},
		Reload:  "reload the window of the editor",
		Source: "Continue: How to configure MCP servers, https://docs.continue.dev/customize/deep-dives/mcp; " +
			"config.yaml reference, https://docs.continue.dev/reference",
	},
	{
		ID: "opencode", Title: "opencode",
		Files: []File{
			{Scope: User, Paths: everywhere("{xdg}/opencode/opencode.json")},
			{Scope: Project, Paths: everywhere("{project}/opencode.json")},
		},
		format: jsonc, path: []string{"mcp"},
		stdio: shape{
			before: object{{"type", "local"}}, command: "command", env: "environment", after: object{{"enabled", true}},
		},
		http: shape{
			before: object{{"type", "remote"}}, url: "url", headers: "headers", after: object{{"enabled", true}},
		},
		EnvRef: "{env:%s}", InProject: true, Programs: []string{"opencode"}, Folders: []string{"{xdg}/opencode"},
		Reload: "start a new session",
		Source: "opencode: MCP servers, https://opencode.ai/docs/mcp-servers; Config, https://opencode.ai/docs/config",
	},
	{
		ID: "amp", Title: "Amp",
		Files: []File{
			{Scope: User, Paths: everywhere("{home}/.config/amp/settings.json")},
			{Scope: Project, Paths: everywhere("{project}/.amp/settings.json")},
		},
		format: jsonc, path: []string{"amp.mcpServers"}, stdio: plainStdio, http: plainHTTP,
		EnvRef: "${%s}", InProject: true, Programs: []string{"amp"}, Folders: []string{"{home}/.config/amp"},
		Reload: "start a new session",
		Source: "Amp: Owner's manual, https://ampcode.com/manual",
	},
	{
		ID: "copilot-cli", Title: "GitHub Copilot CLI", Aliases: []string{"copilot"},
		Files: []File{{Scope: User, Paths: everywhere("{home}/.copilot/mcp-config.json"), Env: "COPILOT_HOME"}},
		stdio: shape{
			before: object{{"type", "local"}}, command: "command", args: "args", env: "env",
			after: object{{"tools", []string{"*"}}},
		},
		http: shape{
			before: object{{"type", "http"}}, url: "url", headers: "headers", after: object{{"tools", []string{"*"}}},
		},
		format: strictJSON, path: servers,
		InProject: true, Programs: []string{"copilot"}, Folders: []string{"{home}/.copilot"},
		Reload: "start a new session",
		Source: "GitHub Docs: Adding MCP servers for GitHub Copilot CLI, " +
			"https://docs.github.com/en/copilot/how-tos/copilot-cli/customize-copilot/add-mcp-servers",
	},
	{
		ID: "kiro", Title: "Kiro",
		Files: []File{
			{Scope: User, Paths: everywhere("{home}/.kiro/settings/mcp.json")},
			{Scope: Project, Paths: everywhere("{project}/.kiro/settings/mcp.json")},
		},
		format: strictJSON, path: servers, stdio: plainStdio, http: plainHTTP, EnvRef: "${%s}",
		Programs: []string{"kiro", "kiro-cli"}, Folders: []string{"{home}/.kiro"},
		Reload: "it reads the file by itself",
		Source: "Kiro: MCP configuration, https://kiro.dev/docs/mcp/configuration",
	},
	{
		ID: "warp", Title: "Warp",
		Files: []File{
			{Scope: User, Paths: everywhere("{home}/.warp/.mcp.json")},
			{Scope: Project, Paths: everywhere("{project}/.warp/.mcp.json")},
		},
		format: strictJSON, path: servers, stdio: plainStdio, http: plainHTTP,
		Programs: []string{"warp-terminal"}, Folders: []string{"{home}/.warp"},
		Reload: "it reads the file by itself",
		Source: "Warp: Model Context Protocol, https://docs.warp.dev/agents/capabilities/mcp",
	},
}

// vscode is the definition of a build of Visual Studio Code.
func vscode(id, title, product, program string, link linkForm, aliases ...string) *Client {
	return &Client{
		ID: id, Title: title, Aliases: aliases,
		Files: append(
			vscodeUser(product, "mcp.json"),
			File{Scope: Project, Paths: everywhere("{project}/.vscode/mcp.json")},
		),
		format: jsonc, path: []string{"servers"}, stdio: typedStdio, http: typedHTTP, EnvRef: "${env:%s}",
		Programs: []string{program}, Folders: []string{"{config}/" + product}, Link: link,
		Reload: "it reads the file by itself; start the server from the file or by MCP: List Servers",
		Source: "Visual Studio Code: MCP configuration reference, " +
			"https://code.visualstudio.com/docs/copilot/reference/mcp-configuration",
	}
}

// FindClient returns the client of a name, nil if there is none.
func FindClient(name string) *Client {
	for _, c := range Clients {
		if c.ID == name {
			return c
		}
		if slices.Contains(c.Aliases, name) {
			return c
		}
	}
	return nil
}
