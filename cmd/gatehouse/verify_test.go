package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"
)

// verifyVariable asks for the test of third-party servers, which takes minutes and
// npm's registry: make verify-packages.
const verifyVariable = "GATEHOUSE_VERIFY_PACKAGES"

// thirdParty are servers that newcomers install first, each added by one command. The
// credentials are placeholders: a server that lists its tools only with real ones, or
// only with a network, fails, and the table says so.
var thirdParty = []struct{ name, words string }{
	{"everything", "npm:@modelcontextprotocol/server-everything"},
	{"memory", "npm:@modelcontextprotocol/server-memory"},
	{"fs", "npm:@modelcontextprotocol/server-filesystem ${data}"},
	{"sequential-thinking", "npm:@modelcontextprotocol/server-sequential-thinking"},
	{"playwright", "npm:@playwright/mcp"},
	{"chrome", "npm:chrome-devtools-mcp"},
	{"context7", "npm:@upstash/context7-mcp"},
	{"notion", "npm:@notionhq/notion-mcp-server --env NOTION_TOKEN=placeholder"},
	{"firecrawl", "npm:firecrawl-mcp --env FIRECRAWL_API_KEY=placeholder"},
	{"tavily", "npm:tavily-mcp --env TAVILY_API_KEY=placeholder"},
	{"exa", "npm:exa-mcp-server --env EXA_API_KEY=placeholder"},
	{"supabase", "npm:@supabase/mcp-server-supabase --env SUPABASE_ACCESS_TOKEN=sbp_0000000000000000000000000000000000000000"},
	{"sentry", "npm:@sentry/mcp-server --env SENTRY_ACCESS_TOKEN=placeholder"},
	{"mongodb", "npm:mongodb-mcp-server"},
	{"stripe", "npm:@stripe/mcp --env STRIPE_SECRET_KEY=rk_test_placeholder"},
	{"kubernetes", "npm:mcp-server-kubernetes"},
	{"brave", "npm:@brave/brave-search-mcp-server --env BRAVE_API_KEY=placeholder"},
	{"airtable", "npm:airtable-mcp-server --env AIRTABLE_API_KEY=pat.placeholder"},
	{"figma", "npm:figma-developer-mcp --env FIGMA_API_KEY=placeholder -- --stdio"},
	{"github", "npm:@modelcontextprotocol/server-github --env GITHUB_PERSONAL_ACCESS_TOKEN=placeholder"},
	{"slack", "npm:@modelcontextprotocol/server-slack --env SLACK_BOT_TOKEN=xoxb-placeholder --env SLACK_TEAM_ID=T000"},
	{"puppeteer", "npm:@modelcontextprotocol/server-puppeteer"},
	{"postgres", "npm:@modelcontextprotocol/server-postgres postgresql://127.0.0.1/none"},
	{"eslint", "npm:@eslint/mcp"},
	{"chart", "npm:@antv/mcp-server-chart"},
	{"git", "npm:@cyanheads/git-mcp-server --env MCP_TRANSPORT_TYPE=stdio"},
	{"pdf", "npm:@sylphlab/pdf-reader-mcp"},
}

const (
	tableBegin = "<!-- servers: written by make verify-packages -->\n"
	tableEnd   = "<!-- end of servers -->\n"

	addTime = 10 * time.Minute
)

// Each of the servers is added by one command. The test writes what it saw into the
// table of docs/packages.md, and fails if fewer than nine of ten work.
func TestThirdPartyServers(t *testing.T) {
	if os.Getenv(verifyVariable) == "" {
		t.Skip("make verify-packages runs it")
	}
	dir := t.TempDir()
	program := filepath.Join(dir, "gatehouse")
	if out, err := exec.Command("go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	env := append(os.Environ(), "npm_config_userconfig="+npmConfig(t, "userconfig"), "npm_config_cache="+npmConfig(t, "cache"))
	for _, name := range []string{"HOME", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME"} {
		path := filepath.Join(dir, strings.ToLower(name))
		if err := os.Mkdir(path, 0o700); err != nil {
			t.Fatal(err)
		}
		env = append(env, name+"="+path)
	}
	var table bytes.Buffer
	table.WriteString("| name | words of `gatehouse package add` | result | tools | seconds |\n|---|---|---|---|---|\n")
	worked := 0
	for _, s := range thirdParty {
		begun := time.Now()
		version, tools, why := addServer(t.Context(), program, env, s.name, s.words)
		result := version
		if why != "" {
			result = why
		} else {
			worked++
		}
		line := fmt.Sprintf("| `%s` | `%s` | %s | %d | %.0f |\n", s.name, s.words, result, tools, time.Since(begun).Seconds())
		t.Log(strings.TrimSpace(line))
		table.WriteString(line)
		// A run takes hours; what it has found stays if it is interrupted.
		writeServerTable(t, table.String()+fmt.Sprintf("\nThe run on %s/%s is not complete.\n", runtime.GOOS, runtime.GOARCH))
	}
	folder := filepath.Join(dir, "xdg_data_home", "gatehouse", "packages")
	once, each, err := sizes(folder)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(&table, "\n%d of %d on %s/%s; the %d programs have %.2f GB of files, and %.2f GB on the disk.\n",
		worked, len(thirdParty), runtime.GOOS, runtime.GOARCH, worked, float64(each)/1e9, float64(once)/1e9)
	writeServerTable(t, table.String())
	if worked*10 < len(thirdParty)*9-10 {
		t.Errorf("%d of %d work", worked, len(thirdParty))
	}
}

func npmConfig(t *testing.T, key string) string {
	t.Helper()
	out, err := exec.Command("npm", "config", "get", key).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

// addServer adds one server. why is the last line of the command if it failed.
func addServer(ctx context.Context, program string, env []string, name, words string) (version string, tools int, why string) {
	ctx, cancel := context.WithTimeout(ctx, addTime)
	defer cancel()
	args := append([]string{"package", "add", name}, strings.Fields(words)...)
	cmd := exec.CommandContext(ctx, program, append(args[:3:3], append([]string{"--yes"}, args[3:]...)...)...)
	cmd.Env = env
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		return "", 0, "fails: " + reason(said.String(), err)
	}
	if m := regexp.MustCompile(`Installed \S+ (.*)`).FindStringSubmatch(said.String()); m != nil {
		version = m[1]
	}
	return version, strings.Count(out.String(), "\n"), ""
}

// reason is the line of an error that says most.
func reason(said string, err error) string {
	lines := bufio.NewScanner(strings.NewReader(said))
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		if line != "" && !strings.HasPrefix(line, "[gatehouse]") {
			return strings.ReplaceAll(line[:min(len(line), 160)], "|", "/")
		}
	}
	return err.Error()
}

// sizes are the bytes of the programs below a folder: with each file once, and as they
// would be without sharing.
func sizes(folder string) (once, each int64, err error) {
	var seen = map[int64][]fs.FileInfo{} // by size
	err = filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if !strings.Contains(path, string(filepath.Separator)+".store"+string(filepath.Separator)) {
			each += info.Size()
		}
		for _, other := range seen[info.Size()] {
			if os.SameFile(other, info) {
				return nil
			}
		}
		seen[info.Size()] = append(seen[info.Size()], info)
		once += info.Size()
		return nil
	})
	return once, each, err
}

func writeServerTable(t *testing.T, table string) {
	t.Helper()
	path := filepath.Join("..", "..", "docs", "packages.md")
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(b), tableBegin)
	_, after, found := strings.Cut(rest, tableEnd)
	if !ok || !found {
		t.Fatal(errors.New("docs/packages.md has no place for the table"))
	}
	if err := os.WriteFile(path, []byte(before+tableBegin+"\n"+table+"\n"+tableEnd+after), 0o644); err != nil {
		t.Fatal(err)
	}
}
