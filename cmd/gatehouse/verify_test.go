package main

import (
	"archive/tar"
	"archive/zip"
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// verifyVariable asks for the test of third-party servers, which takes an hour and the
// registries of packages: make verify-packages. Its value is 1 for all of them, or the
// beginnings of names of those that are to be tried, with commas between.
const verifyVariable = "GATEHOUSE_VERIFY_PACKAGES"

// triedServer is one that newcomers install first, added by one command. The
// credentials are placeholders: a server that lists its tools only with real ones, or
// only with a network, fails, and the table says so.
type triedServer struct {
	name  string
	words string // of gatehouse package add, after the name
	call  string // a tool as the server names it, and its arguments as JSON; "" if each needs the outside
	want  string // a part of the result
	other string // another version, to which it is updated; "" is found in its registry
}

const oneVersion = "-" // of a server of which no other version is known to run

var thirdParty = []triedServer{
	{
		"everything",
		"npm:@modelcontextprotocol/server-everything",
		`echo {"message":"hello from a test"}`,
		"hello from a test",
		"",
	},
	{
		"memory",
		"npm:@modelcontextprotocol/server-memory --env MEMORY_FILE_PATH=${data}/memory.jsonl",
		`create_entities {"entities":[{"name":"${once}","entityType":"person","observations":["met"]}]}`,
		"met",
		"",
	},
	{"fs", "npm:@modelcontextprotocol/server-filesystem ${data}", `list_allowed_directories {}`, "/data", ""},
	{
		"sequential-thinking",
		"npm:@modelcontextprotocol/server-sequential-thinking",
		`sequentialthinking {"thought":"a","nextThoughtNeeded":false,"thoughtNumber":1,"totalThoughts":1}`,
		"1",
		"",
	},
	{"playwright", "npm:@playwright/mcp", "", "", ""},
	{"chrome", "npm:chrome-devtools-mcp", "", "", ""},
	{"context7", "npm:@upstash/context7-mcp", "", "", ""},
	{"notion", "npm:@notionhq/notion-mcp-server --env NOTION_TOKEN=placeholder", "", "", ""},
	{"firecrawl", "npm:firecrawl-mcp --env FIRECRAWL_API_KEY=placeholder", "", "", ""},
	{"tavily", "npm:tavily-mcp --env TAVILY_API_KEY=placeholder", "", "", ""},
	{"exa", "npm:exa-mcp-server --env EXA_API_KEY=placeholder", "", "", ""},
	{
		"supabase",
		"npm:@supabase/mcp-server-supabase --env SUPABASE_ACCESS_TOKEN=sbp_0000000000000000000000000000000000000000 " +
			"--allow-host supabase.com --allow-host api.supabase.com",
		"",
		"",
		"",
	},
	{"sentry", "npm:@sentry/mcp-server --env SENTRY_ACCESS_TOKEN=placeholder", "", "", ""},
	{"mongodb", "npm:mongodb-mcp-server", "", "", ""},
	{
		"stripe",
		"npm:@stripe/mcp --env STRIPE_SECRET_KEY=rk_test_placeholder --allow-host mcp.stripe.com",
		"",
		"",
		"",
	},
	{"kubernetes", "npm:mcp-server-kubernetes", `ping {}`, "", ""},
	{"brave", "npm:@brave/brave-search-mcp-server --env BRAVE_API_KEY=placeholder", "", "", ""},
	{"airtable", "npm:airtable-mcp-server --env AIRTABLE_API_KEY=pat.placeholder", "", "", ""},
	{"figma", "npm:figma-developer-mcp --env FIGMA_API_KEY=placeholder -- --stdio", "", "", ""},
	{"github", "npm:@modelcontextprotocol/server-github --env GITHUB_PERSONAL_ACCESS_TOKEN=placeholder", "", "", ""},
	{
		"slack",
		"npm:@modelcontextprotocol/server-slack --env SLACK_BOT_TOKEN=xoxb-placeholder --env SLACK_TEAM_ID=T000",
		"",
		"",
		"",
	},
	{"puppeteer", "npm:@modelcontextprotocol/server-puppeteer", "", "", ""},
	{"postgres", "npm:@modelcontextprotocol/server-postgres postgresql://127.0.0.1/none", "", "", ""},
	{"eslint", "npm:@eslint/mcp", "", "", ""},
	{"chart", "npm:@antv/mcp-server-chart", "", "", oneVersion},
	{
		"git",
		"npm:@cyanheads/git-mcp-server --env MCP_TRANSPORT_TYPE=stdio",
		`git_init {"path":"${data}/made"}`,
		"made",
		"",
	},
	{"pdf", "npm:@sylphlab/pdf-reader-mcp", "", "", oneVersion},
	{"py-time", "pypi:mcp-server-time", `get_current_time {"timezone":"Etc/UTC"}`, "Etc/UTC", ""},
	{"py-fetch", "pypi:mcp-server-fetch", "", "", ""},
	{"py-git", "uvx mcp-server-git", `git_log {"repo_path":"${repo}"}`, "first", ""},
	{
		"py-sqlite",
		"pypi:mcp-server-sqlite,mcp==1.30.0 -- --db-path ${data}/a.db",
		`write_query {"query":"CREATE TABLE a(b)"}`,
		"",
		"",
	},
	{"py-calculator", "pypi:mcp-server-calculator", `calculate {"expression":"6*7"}`, "42", oneVersion},
	{
		"py-duckdb",
		"pypi:mcp-server-motherduck -- --db-path :memory: --read-write",
		`execute_query {"sql":"SELECT 6*7"}`,
		"42",
		"",
	},
	{"py-excel", "pypi:excel-mcp-server -- stdio", `create_workbook {"path":"${data}/${once}.xlsx"}`, ".xlsx", ""},
	{
		"py-markitdown",
		"uvx markitdown-mcp",
		`convert_to_markdown {"uri":"data:text/html,<h1>Heading</h1>"}`,
		"Heading",
		"0.0.1a7",
	},
	{"py-duckduckgo", "pypi:duckduckgo-mcp-server", "", "", ""},
	{"py-wikipedia", "pypi:wikipedia-mcp", "", "", ""},
	{"py-timeserver", "pypi:mcp-simple-timeserver", `get_local_time {}`, "20", ""},
	{"py-word", "pypi:office-word-mcp-server", `create_document {"filename":"${data}/a.docx"}`, "a.docx", ""},
	{
		"go-hello",
		"go:github.com/modelcontextprotocol/go-sdk/examples/server/hello@v1.8.0",
		`greet {"name":"Ann"}`,
		"Ann",
		"v1.7.0",
	},
	{"rust-time", "crate:time-mcp", `current_time {}`, "20", oneVersion},
	{"image", "IMAGE", `about {}`, "kind=image", "another image"},
	{"bundle", "BUNDLE", `echo {"message":"hello from a bundle"}`, "hello from a bundle", "1.0.1"},
}

const (
	tableBegin = "<!-- servers: written by make verify-packages -->\n"
	tableEnd   = "<!-- end of servers -->\n"

	addTime = 10 * time.Minute
)

// Each of the servers is added by one command, called once, updated and removed. The test
// writes what it saw into the table of docs/packages.md, row by row, and fails if fewer than
// nine of ten work.
func TestThirdPartyServers(t *testing.T) {
	only := os.Getenv(verifyVariable)
	if only == "" {
		t.Skip("make verify-packages runs it")
	}
	dir := t.TempDir()
	program := filepath.Join(dir, "gatehouse")
	if out, err := exec.Command("go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	images := serveImages(t)
	tried := trying{
		program: program, data: filepath.Join(dir, "xdg_data_home", "gatehouse", "packages"), images: images,
	}
	tried.env = append(os.Environ(), "npm_config_userconfig="+npmConfig(t, "userconfig"),
		"npm_config_cache="+npmConfig(t, "cache"))
	for _, name := range []string{"HOME", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME",
		"XDG_STATE_HOME"} {
		path := filepath.Join(dir, strings.ToLower(name))
		if err := os.Mkdir(path, 0o700); err != nil {
			t.Fatal(err)
		}
		tried.env = append(tried.env, name+"="+path)
	}
	// Toolchains of the host's user are found by their variables, not by the home that the test gives.
	for name, folder := range map[string]string{"RUSTUP_HOME": ".rustup", "CARGO_HOME": ".cargo", "GOPATH": "go",
		"GOMODCACHE": "go/pkg/mod", "GOCACHE": ".cache/go-build"} {
		home, err := os.UserHomeDir()
		if err != nil {
			t.Fatal(err)
		}
		if os.Getenv(name) == "" {
			tried.env = append(tried.env, name+"="+filepath.Join(home, folder))
		}
	}
	// A loaded machine takes longer to start Python than the default allows.
	settings := filepath.Join(dir, "xdg_config_home", "gatehouse", "gatehouse.yaml")
	if err := errors.Join(os.MkdirAll(filepath.Dir(settings), 0o700),
		os.WriteFile(settings, fmt.Appendf(nil,
			"modules:\n  package:\n    begin: 2m\n  sandbox:\n    registries: [\"http://%s\"]\n",
			images.host), 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, said, err := tried.run(t.Context(), "daemon", "start"); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	defer func() {
		if _, said, err := tried.run(context.WithoutCancel(t.Context()), "daemon", "stop"); err != nil {
			t.Errorf("%v: %s", err, said)
		}
	}()
	rows := readServerTable(t)
	for _, s := range thirdParty {
		if only != "1" &&
			!slices.ContainsFunc(
				strings.Split(only, ","),
				func(p string) bool { return strings.HasPrefix(s.name, p) },
			) {
			continue
		}
		switch s.words {
		case "BUNDLE":
			s.words = everythingBundle(t)
		case "IMAGE":
			s.words = "oci:" + images.host + "/made/server:1"
		}
		rows[s.name] = tried.server(t.Context(), s)
		t.Log(strings.TrimSpace(rows[s.name]))
		// A run takes an hour; what it has found stays if it is interrupted.
		writeServerTable(t, serverTable(rows))
	}
	worked := 0
	for _, s := range thirdParty {
		if rows[s.name] != "" && !strings.Contains(rows[s.name], "| fails") {
			worked++
		}
	}
	if only == "1" && worked*10 < len(thirdParty)*9-10 {
		t.Errorf("%d of %d work", worked, len(thirdParty))
	}
}

// trying tries servers, one after the other.
type trying struct {
	program string
	env     []string
	data    string // the folder of packages
	images  *imageRegistry
	calls   int
}

// run runs one command. said is what it printed to standard error.
func (y *trying) run(ctx context.Context, words ...string) (out, said string, err error) {
	ctx, cancel := context.WithTimeout(ctx, addTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, y.program, words...)
	cmd.Env = y.env
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err = cmd.Run()
	return stdout.String(), stderr.String(), err
}

// server adds a server, calls it, updates it to another version, brings the first one back and calls that, removes it,
// and gives its row.
func (y *trying) server(ctx context.Context, s triedServer) string {
	begun := time.Now()
	result, runs, call, update, back := "", "-", "-", "-", "-"
	args := append([]string{"package", "add", s.name, "--yes"}, flagsFirst(strings.Fields(s.words))...)
	out, said, err := y.run(ctx, args...)
	took, tools := time.Since(begun), strings.Count(out, "\n")
	if err != nil {
		result = "fails: " + reason(said, err)
	} else {
		if m := regexp.MustCompile(`Installed \S+ (.*)`).FindStringSubmatch(said); m != nil {
			result = m[1]
		}
		runs, call = y.confinement(ctx, s.name), y.call(ctx, s)
		update, back = y.updateAndBack(ctx, s)
	}
	removed := y.remove(ctx, s.name, err == nil)
	shown := regexp.MustCompile(`[^ ]*/([^/ ]+\.mcpb)`).ReplaceAllString(s.words, "$1")
	shown = regexp.MustCompile(`127\.0\.0\.1:\d+`).ReplaceAllString(shown, "REGISTRY")
	return fmt.Sprintf(
		"| `%s` | `%s` | %s | %s | %d | %s | %s | %s | %s | %.0f |\n",
		s.name,
		shown,
		result,
		runs,
		tools,
		call,
		update,
		back,
		removed,
		took.Seconds(),
	)
}

// confinement says whether a package runs in a sandbox.
func (y *trying) confinement(ctx context.Context, name string) string {
	out, said, err := y.run(ctx, "package", "info", name, "--json")
	var i struct{ Confinement string }
	if err == nil {
		err = json.Unmarshal([]byte(out), &i)
	}
	if err != nil {
		return "fails: " + reason(said, err)
	}
	return i.Confinement
}

// call calls one tool of a server, if one needs nothing from outside.
func (y *trying) call(ctx context.Context, s triedServer) string {
	tool, given, ok := strings.Cut(s.call, " ")
	if !ok {
		return "needs the outside"
	}
	data := filepath.Join(y.data, s.name, "data")
	if strings.Contains(given, "${repo}") {
		cmd := exec.CommandContext(
			ctx,
			"sh",
			"-c",
			`git init -q "$0" && cd "$0" && git -c user.name=a -c user.email=a@b.c `+
				`commit -q --allow-empty -m first`,
			filepath.Join(data, "repo"),
		)
		if said, err := cmd.CombinedOutput(); err != nil {
			return "fails: " + reason(string(said), err)
		}
	}
	y.calls++
	given = strings.NewReplacer("${data}", data, "${once}", fmt.Sprint("a", y.calls), "${repo}",
		filepath.Join(data, "repo")).
		Replace(given)
	id := strings.ReplaceAll(s.name, "-", "_") + "_" // a tool whose own name begins so keeps it once
	out, said, err := y.run(ctx, "call", "--daemon", id+strings.TrimPrefix(tool, id), "--json", given)
	switch {
	case err != nil:
		return "fails: " + reason(said+out, err)
	case !strings.Contains(out, s.want):
		return "fails: another result"
	}
	return "`" + tool + "`"
}

// updateAndBack updates a package to the version before the newest, and rolls that back; then its tool
// answers again.
func (y *trying) updateAndBack(ctx context.Context, s triedServer) (update, back string) {
	words, other := []string{"package", "update", s.name, "--yes"}, s.other
	switch {
	case other == oneVersion:
		return "-", "-"
	case strings.HasSuffix(s.words, ".mcpb"):
		if err := writeBundle(s.words, other); err != nil {
			return "fails: " + err.Error(), "-"
		}
	case s.name == "image":
		if err := y.images.push(other); err != nil {
			return "fails: " + err.Error(), "-"
		}
	case other == "":
		var err error
		if other, err = y.otherVersion(ctx, s.words); err != nil {
			return "fails: " + err.Error(), "-"
		}
		fallthrough
	default:
		words = append(words[:3], other, "--yes")
	}
	if _, said, err := y.run(ctx, words...); err != nil {
		return "fails: " + reason(said, err), "-"
	}
	if _, said, err := y.run(ctx, "package", "rollback", s.name, "--yes"); err != nil {
		return other, "fails: " + reason(said, err)
	}
	if answer := y.call(ctx, s); strings.HasPrefix(answer, "fails") {
		return other, answer
	}
	return other, "works"
}

// otherVersion returns the newest version of a package of npm or PyPI but one.
func (y *trying) otherVersion(ctx context.Context, target string) (string, error) {
	words := strings.Fields(strings.NewReplacer("uvx ", "pypi:").Replace(target))
	kind, name, _ := strings.Cut(words[0], ":")
	name, _, _ = strings.Cut(name, ",")
	cmd := exec.CommandContext(ctx, "npm", "view", name, "versions", "--json")
	if kind == "pypi" {
		cmd = exec.CommandContext(ctx, "pip", "index", "versions", name)
	}
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w", strings.Join(cmd.Args, " "), err)
	}
	if kind == "pypi" {
		_, list, _ := strings.Cut(string(out), "Available versions: ")
		list, _, _ = strings.Cut(list, "\n")
		if all := strings.Split(list, ", "); len(all) > 1 {
			return all[1], nil // the newest is first
		}
		return "", errors.New("it has one version")
	}
	var all []string
	if err := json.Unmarshal(out, &all); err != nil {
		return "", errors.New("it has one version")
	}
	all = slices.DeleteFunc(all, func(v string) bool { return strings.Contains(v, "-") })
	if len(all) < 2 {
		return "", errors.New("it has one version")
	}
	return all[len(all)-2], nil
}

// remove removes a server, and says whether something is left of it.
func (y *trying) remove(ctx context.Context, name string, installed bool) string {
	if installed {
		if _, said, err := y.run(ctx, "package", "remove", name, "--yes"); err != nil {
			return "fails: " + reason(said, err)
		}
	}
	if _, err := os.Stat(filepath.Join(y.data, name)); !errors.Is(err, fs.ErrNotExist) {
		return "fails: its folder is left"
	}
	left := 0
	err := filepath.WalkDir(filepath.Join(y.data, ".store"), func(_ string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			left++
		}
		return nil
	})
	if err != nil || left > 0 {
		return fmt.Sprintf("fails: %d files are left", left)
	}
	return "nothing left"
}

// flagsFirst gives the words of a target with the flags of the command before it.
func flagsFirst(words []string) []string {
	i := slices.Index(words, "--env")
	if i < 0 {
		return append(
			[]string{"--"},
			slices.DeleteFunc(slices.Clone(words), func(w string) bool { return w == "--" })...)
	}
	rest := slices.Clone(words[:i])
	var flags []string
	for words = words[i:]; len(words) > 1 && (words[0] == "--env" || words[0] == "--allow-host"); words = words[2:] {
		flags = append(flags, words[:2]...)
	}
	words = slices.DeleteFunc(words, func(w string) bool { return w == "--" })
	return slices.Concat(flags, []string{"--"}, rest, words)
}

// everythingBundle makes a bundle of the protocol's reference server with what it needs, as its authors would.
func everythingBundle(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	install := exec.Command("npm", "install", "--ignore-scripts", "--no-bin-links", "--no-audit", "--no-fund",
		"@modelcontextprotocol/server-everything")
	install.Dir = dir
	if out, err := install.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	path := filepath.Join(dir, "everything.mcpb")
	if err := writeBundle(path, "1.0.0"); err != nil {
		t.Fatal(err)
	}
	return path
}

// writeBundle writes a bundle of the node_modules beside it.
func writeBundle(path, version string) error {
	const entry = "node_modules/@modelcontextprotocol/server-everything/dist/index.js"
	manifest := fmt.Sprintf(
		`{"manifest_version":"0.3","name":"everything","version":%q,"description":"x","author":{"name":"x"},
		"server":{"type":"node","entry_point":%q,"mcp_config":{"command":"node","args":["${__dirname}/%s","stdio"]}}}`,
		version,
		entry,
		entry,
	)
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	z := zip.NewWriter(f)
	w, err := z.Create("manifest.json")
	if err == nil {
		_, err = io.WriteString(w, manifest)
	}
	root := os.DirFS(filepath.Dir(path))
	err = errors.Join(err, fs.WalkDir(root, "node_modules", func(name string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		b, err := fs.ReadFile(root, name)
		if err != nil {
			return err
		}
		w, err := z.Create(name)
		if err == nil {
			_, err = w.Write(b)
		}
		return err
	}))
	return errors.Join(err, z.Close(), f.Close())
}

// imageRegistry is a registry of images in this process, without TLS, with an image of one server.
type imageRegistry struct {
	host    string
	program []byte
}

func serveImages(t *testing.T) *imageRegistry {
	t.Helper()
	s := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(s.Close)
	path := filepath.Join(t.TempDir(), "server")
	build := exec.Command("go", "build", "-o", path, "main.go")
	build.Dir, build.Env = "../../internal/packages/testdata/imageserver", append(os.Environ(), "CGO_ENABLED=0",
		"GOFLAGS=")
	out, err := build.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	r := &imageRegistry{host: strings.TrimPrefix(s.URL, "http://")}
	if r.program, err = os.ReadFile(path); err == nil {
		err = r.push("first")
	}
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// push gives the tag of the server's image another image.
func (r *imageRegistry) push(what string) error {
	var b bytes.Buffer
	files := tar.NewWriter(&b)
	for path, content := range map[string][]byte{"app/server": r.program, "state/seed": []byte(what)} {
		err := files.WriteHeader(&tar.Header{Name: path, Mode: 0o755, Size: int64(len(content))})
		if _, writing := files.Write(content); err != nil || writing != nil {
			return errors.Join(err, writing)
		}
	}
	if err := files.Close(); err != nil {
		return err
	}
	layer, err := tarball.LayerFromOpener(
		func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b.Bytes())), nil },
	)
	if err != nil {
		return err
	}
	img, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		return err
	}
	c, err := img.ConfigFile()
	if err != nil {
		return err
	}
	c = c.DeepCopy()
	c.OS, c.Architecture = "linux", runtime.GOARCH
	c.Config = v1.Config{
		Entrypoint: []string{"/app/server"}, Env: []string{"PATH=/app", "KIND=image"}, WorkingDir: "/app",
		Volumes: map[string]struct{}{"/state": {}},
	}
	if img, err = mutate.ConfigFile(img, c); err != nil {
		return err
	}
	ref, err := name.ParseReference(r.host + "/made/server:1")
	if err != nil {
		return err
	}
	return remote.Write(ref, img)
}

func npmConfig(t *testing.T, key string) string {
	t.Helper()
	out, err := exec.Command("npm", "config", "get", key).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

// asked finds a host that a package asked for in vain, in what the host or Node says of it.
var asked = regexp.MustCompile(`\bnetwork: (?:refused|allowed) DNS .*|\bgetaddrinfo ENOTFOUND \S+`)

// reason is the line of an error that says most.
func reason(said string, err error) string {
	lines := bufio.NewScanner(strings.NewReader(said))
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		if line != "" && !strings.HasPrefix(line, "[gatehouse]") {
			if host := asked.FindString(said); host != "" {
				line = line[:min(len(line), 100)] + "; " + host
			}
			return strings.ReplaceAll(line[:min(len(line), 200)], "|", "/")
		}
	}
	return err.Error()
}

const tableHead = "| name | words of `gatehouse package add` | result | runs as | tools | one call | updated to | rollback | " +
	"removal | seconds |\n|---|---|---|---|---|---|---|---|---|---|\n"

// serverTable is the table of the rows that are known, in the order of thirdParty.
func serverTable(rows map[string]string) string {
	var table strings.Builder
	table.WriteString(tableHead)
	known, worked := 0, 0
	for _, s := range thirdParty {
		if rows[s.name] == "" {
			continue
		}
		known++
		if !strings.Contains(rows[s.name], "| fails") {
			worked++
		}
		table.WriteString(rows[s.name])
	}
	fmt.Fprintf(&table, "\n%d of %d that were tried work on %s/%s; the list has %d.\n", worked, known, runtime.GOOS,
		runtime.GOARCH, len(thirdParty))
	return table.String()
}

// readServerTable reads the rows of earlier runs, by name.
func readServerTable(t *testing.T) map[string]string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("..", "..", "docs", "packages.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), tableBegin)
	table, _, _ := strings.Cut(rest, tableEnd)
	rows := map[string]string{}
	for line := range strings.Lines(table) {
		cells := strings.Split(line, " | ")
		name := strings.Trim(cells[0], "|` ")
		if len(cells) == 10 && strings.HasPrefix(cells[0], "| `") {
			rows[name] = strings.Join(cells, " | ")
		}
	}
	return rows
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
