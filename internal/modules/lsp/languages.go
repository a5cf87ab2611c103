package lsp

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"gatehouse/internal/files/language"
	"gatehouse/tool"
)

// serverKind is a language server that the module knows how to use.
type serverKind struct {
	name     string     // the name in the settings
	ids      []string   // languages of package language, and their names of the protocol if those differ
	files    []string   // endings of the names of files whose changes the server must learn of
	commands [][]string // the first that is installed is used
	options  map[string]any
	install  string // a line that installs the first command
	// tsserver means that diagnostics are asked of the TypeScript compiler below the server, because the server reports
	// them without saying for which version of a file.
	tsserver bool
}

var knownServers = []serverKind{
	{
		name: "go", ids: []string{"go"}, files: []string{".go", "go.mod", "go.sum", "go.work"},
		commands: [][]string{{"gopls"}}, options: map[string]any{"pullDiagnostics": true},
		install: "go install golang.org/x/tools/gopls@latest",
	},
	{
		name: "typescript", ids: []string{"typescript", "tsx", "javascript", "jsx"},
		files: []string{
			".ts",
			".tsx",
			".mts",
			".cts",
			".js",
			".jsx",
			".mjs",
			".cjs",
			"tsconfig.json",
			"jsconfig.json",
			"package.json",
		},
		commands: [][]string{{"typescript-language-server", "--stdio"}},
		options: map[string]any{
			"disableAutomaticTypingAcquisition": true,
			"preferences": map[string]any{
				"providePrefixAndSuffixTextForRename": false,
			}, // rename the definition too
			"tsserver": map[string]any{
				"useSyntaxServer": "never",
			}, // it knows one file alone
		},
		install: "npm install -g typescript-language-server typescript@5", tsserver: true,
	},
	{
		name: "python", ids: []string{"python"}, files: []string{".py", ".pyi", "pyproject.toml", "pyrightconfig.json"},
		commands: [][]string{
			{"pyright-langserver", "--stdio"}, {"basedpyright-langserver", "--stdio"}, {"pylsp"},
		},
		install: "npm install -g pyright",
	},
	{
		name: "rust", ids: []string{"rust"}, files: []string{".rs", "Cargo.toml", "Cargo.lock"},
		commands: [][]string{{"rust-analyzer"}}, install: "rustup component add rust-analyzer",
	},
	{
		name: "cpp", ids: []string{"c", "cpp", "objective-c"},
		files:    []string{".c", ".cc", ".cpp", ".cxx", ".h", ".hh", ".hpp", "compile_commands.json"},
		commands: [][]string{{"clangd"}}, install: "apt-get install clangd",
	},
	{
		name: "java", ids: []string{"java"}, files: []string{".java", "pom.xml", "build.gradle"},
		commands: [][]string{{"jdtls"}}, install: "install Eclipse JDT LS (jdtls)",
	},
	{
		name: "ruby", ids: []string{"ruby"}, files: []string{".rb", "Gemfile"},
		commands: [][]string{{"ruby-lsp"}, {"solargraph", "stdio"}}, install: "gem install ruby-lsp",
	},
	{
		name: "php", ids: []string{"php"}, files: []string{".php"},
		commands: [][]string{{"intelephense", "--stdio"}}, install: "npm install -g intelephense",
	},
	{
		name: "shell", ids: []string{"shell"}, files: []string{".sh", ".bash"},
		commands: [][]string{{"bash-language-server", "start"}}, install: "npm install -g bash-language-server",
	},
}

// withSettings returns the known servers with those of the settings in their places.
func withSettings(lines []string) ([]serverKind, error) {
	kinds := slices.Clone(knownServers)
	for _, line := range lines {
		name, command, ok := strings.Cut(line, "=")
		argv := strings.Fields(command)
		if name = strings.TrimSpace(name); !ok || name == "" || len(argv) == 0 {
			return nil, fmt.Errorf("servers: %q does not have the form language=command line", line)
		}
		i := slices.IndexFunc(kinds, func(k serverKind) bool { return k.name == name || slices.Contains(k.ids, name) })
		if i < 0 {
			id, found := language.Lookup(name)
			if !found {
				return nil, fmt.Errorf("servers: %q names no known language", line)
			}
			k := serverKind{name: id, ids: []string{id}}
			for _, l := range language.All() {
				if l.ID == id {
					k.files = l.Extensions
				}
			}
			kinds, i = append(kinds, k), len(kinds)
		}
		kinds[i].commands = [][]string{argv}
	}
	return kinds, nil
}

// CheckServers returns what is wrong with the setting servers.
func CheckServers(lines []string) error {
	_, err := withSettings(lines)
	return err
}

// kindOf returns the server for a file.
func (m *service) kindOf(path string) (*serverKind, error) {
	id := language.ByName(filepath.Base(path))
	for i := range m.kinds {
		if slices.Contains(m.kinds[i].ids, id) {
			return &m.kinds[i], nil
		}
	}
	return nil, &tool.Refusal{
		Code:    tool.CodeUnsupported,
		Message: fmt.Sprintf("no language server is known for %s (%s)", path, id),
		Next:    "Use file_search, or ask an administrator to set modules.lsp.servers.",
	}
}

// command returns the command line of an installed server.
func (k *serverKind) command() ([]string, error) {
	for _, argv := range k.commands {
		if path, err := exec.LookPath(argv[0]); err == nil {
			return append([]string{path}, argv[1:]...), nil
		}
	}
	next := "Ask an administrator to install it on the host"
	if k.install != "" {
		next += ": " + k.install
	}
	return nil, &tool.Refusal{
		Code:    tool.CodeUnavailable,
		Message: "the language server " + k.commands[0][0] + " is not installed",
		Next:    next + ".",
	}
}

// watches reports whether the server must learn of changes of a file.
func (k *serverKind) watches(name string) bool {
	return slices.ContainsFunc(k.files, func(end string) bool { return strings.HasSuffix(name, end) })
}

// languageID returns the protocol's name of the language of a file.
func languageID(path string) string {
	switch filepath.Ext(path) {
	case ".tsx":
		return "typescriptreact"
	case ".jsx":
		return "javascriptreact"
	case ".sh", ".bash":
		return "shellscript"
	}
	return language.ByName(filepath.Base(path))
}

// Missing describes the servers that are not installed, with the lines that install them, for gatehouse doctor.
func Missing(lines []string) (names, install []string) {
	kinds, err := withSettings(lines)
	if err != nil {
		return nil, nil
	}
	for _, k := range kinds[:min(3, len(kinds))] { // the others are for single users
		if _, err := k.command(); err != nil {
			names, install = append(names, k.commands[0][0]), append(install, k.install)
		}
	}
	return names, install
}
