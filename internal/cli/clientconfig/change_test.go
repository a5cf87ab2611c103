package clientconfig

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// machine is one with an empty home folder and no program installed.
func machine(t *testing.T) (Machine, Store) {
	t.Helper()
	home := t.TempDir()
	return Machine{
		GOOS: runtime.GOOS, Home: home, Project: filepath.Join(home, "project"),
		Getenv: func(string) string { return "" },
		Look:   func(string) bool { return false },
	}, Store{filepath.Join(home, "book")}
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func connect(t *testing.T, m Machine, b Store, id string, s Server) *Change {
	t.Helper()
	ch, err := m.PlanPut(FindClient(id), User, s)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Apply(ch); err != nil {
		t.Fatal(err)
	}
	return ch
}

func disconnect(t *testing.T, m Machine, b Store, id string) *Change {
	t.Helper()
	ch, err := m.PlanRemove(b, FindClient(id), User, "gatehouse")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Apply(ch); err != nil {
		t.Fatal(err)
	}
	return ch
}

const memory = "{ \"mcpServers\" : { },\n\n \"a\":1 }"

// A file that nothing else has changed becomes what it was, byte for byte, also
// after several changes of ours; its mode stays, and each step has a backup.
func TestRemoveRestores(t *testing.T) {
	m, b := machine(t)
	path := m.Path(FindClient("cursor"), User)
	writeFile(t, path, memory)
	connect(t, m, b, "cursor", byStdio)
	connect(t, m, b, "cursor", byURL)
	if !strings.Contains(readFile(t, path), "127.0.0.1:3000") {
		t.Fatalf("it holds %s", readFile(t, path))
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o644 && runtime.GOOS != "windows" {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	disconnect(t, m, b, "cursor")
	if got := readFile(t, path); got != memory {
		t.Errorf("got %q, want %q", got, memory)
	}
	if ch := disconnect(t, m, b, "cursor"); ch.Changes() {
		t.Error("there is still something to remove")
	}
	backups, err := filepath.Glob(filepath.Join(b.Dir, "backups", "*"))
	if err != nil || len(backups) < 3 {
		t.Errorf("backups: %v, %v", backups, err)
	}
}

// A file that was made for the server goes with it.
func TestRemoveOfAFileThatWasMade(t *testing.T) {
	m, b := machine(t)
	ch := connect(t, m, b, "codex", byStdio)
	if ch.Existed || !strings.HasPrefix(readFile(t, ch.File), "[mcp_servers.gatehouse]") {
		t.Errorf("existed %t: %s", ch.Existed, readFile(t, ch.File))
	}
	if ch := disconnect(t, m, b, "codex"); !ch.Delete {
		t.Errorf("it is not deleted but becomes %q", ch.After)
	}
	if _, err := os.Stat(ch.File); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file is there: %v", err)
	}
}

// What a user has changed since stays, in the file and in our entry.
func TestLaterEditsStay(t *testing.T) {
	m, b := machine(t)
	path := m.Path(FindClient("gemini"), User)
	writeFile(t, path, "{\n  \"theme\": \"Dracula\"\n}\n")
	connect(t, m, b, "gemini", byStdio)
	edited := strings.Replace(readFile(t, path), "Dracula", "GitHub", 1)
	edited = strings.Replace(edited, `"command"`, "\"trust\": true, // by me\n      \"command\"", 1)
	writeFile(t, path, edited)
	connect(t, m, b, "gemini", urlFor(FindClient("gemini")))
	now := readFile(t, path)
	for _, want := range []string{"GitHub", `"trust": true, // by me`, "httpUrl"} {
		if !strings.Contains(now, want) {
			t.Errorf("%q is gone from\n%s", want, now)
		}
	}
	if strings.Contains(now, `"command"`) {
		t.Errorf("the program is still there:\n%s", now)
	}
	disconnect(t, m, b, "gemini")
	if got, want := readFile(t, path), "{\n  \"theme\": \"GitHub\"\n}\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// Links of a folder of dotfiles stay links; the file behind them is changed, also
// if it is not there yet.
func TestLinksAreFollowed(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("links need a privilege there")
	}
	m, b := machine(t)
	for _, exists := range []bool{true, false} {
		real := filepath.Join(m.Home, "dotfiles", "settings.json")
		os.Remove(real)
		os.MkdirAll(filepath.Dir(real), 0o755)
		if exists {
			writeFile(t, real, "{}\n")
		}
		path := m.Path(FindClient("qwen"), User)
		os.MkdirAll(filepath.Dir(path), 0o755)
		os.Remove(path)
		if err := os.Symlink("../dotfiles/settings.json", path); err != nil {
			t.Fatal(err)
		}
		connect(t, m, b, "qwen", byStdio)
		if info, err := os.Lstat(path); err != nil || info.Mode()&os.ModeSymlink == 0 {
			t.Errorf("the link is gone: %v, %v", info.Mode(), err)
		}
		if !strings.Contains(readFile(t, real), "gatehouse") {
			t.Errorf("the file holds %s", readFile(t, real))
		}
		disconnect(t, m, b, "qwen")
		if got, err := os.ReadFile(real); exists && string(got) != "{}\n" || !exists &&
			!errors.Is(err, os.ErrNotExist) {
			t.Errorf("it existed %t, now it holds %q, %v", exists, got, err)
		}
	}
	path := m.Path(FindClient("kiro"), User)
	os.MkdirAll(filepath.Dir(path), 0o755)
	if err := os.Symlink("mcp.json", path); err != nil {
		t.Fatal(err)
	}
	if _, err := m.PlanPut(FindClient("kiro"), User, byStdio); err == nil {
		t.Error("a link to itself was followed")
	}
}

// A client that writes its file between our reading and our writing loses
// nothing.
//
//redteam:attack Files of clients lose nothing: it is changed while a command changes it
func TestAFileThatChangedMeanwhileIsNotReplaced(t *testing.T) {
	m, b := machine(t)
	path := m.Path(FindClient("claude-code"), User)
	writeFile(t, path, "{}\n")
	ch, err := m.PlanPut(FindClient("claude-code"), User, byStdio)
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, path, "{\"numStartups\": 2}\n")
	if _, err := b.Apply(ch); !errors.Is(err, ErrModified) {
		t.Errorf("got %v, want ErrModified", err)
	}
	if got := readFile(t, path); got != "{\"numStartups\": 2}\n" {
		t.Errorf("the file holds %q", got)
	}
}

// A link in a project, which may come from others, leads to no file outside.
//
//redteam:attack Files of clients lose nothing: a link in a project leads to a file of the user's
func TestALinkOutOfAProject(t *testing.T) {
	m, _ := machine(t)
	c := FindClient("claude-code")
	mine := m.Path(c, User)
	writeFile(t, mine, "{}\n")
	path := m.Path(c, Project)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(mine, path); err != nil {
		t.Skip(err)
	}
	if _, err := m.PlanPut(c, Project, byStdio); err == nil || !strings.Contains(err.Error(), "outside the project") {
		t.Errorf("got %v, want a refusal", err)
	}
	if got := readFile(t, mine); got != "{}\n" {
		t.Errorf("the user's file holds %q", got)
	}
	os.Remove(path)
	writeFile(t, filepath.Join(m.Project, "config", "mcp.json"), "{}\n")
	if err := os.Symlink(filepath.Join("config", "mcp.json"), path); err != nil {
		t.Fatal(err)
	}
	if _, err := m.PlanPut(c, Project, byStdio); err != nil {
		t.Errorf("a link inside the project: %v", err)
	}
}

// A client that reads its file all the time sees the old text or the new one.
func TestAReaderSeesWholeFiles(t *testing.T) {
	m, b := machine(t)
	m.Home = filepath.Join(m.Home, "a [strange] * name?")
	if runtime.GOOS == "windows" {
		t.Skip("no file can be replaced there while it is open")
	}
	c := FindClient("cursor")
	path := m.Path(c, User)
	writeFile(t, path, memory)
	with, err := c.Put([]byte(memory), byStdio)
	if err != nil {
		t.Fatal(err)
	}
	stop, read := make(chan struct{}), make(chan int, 1)
	go func() {
		n := 0
		defer func() { read <- n }()
		for {
			select {
			case <-stop:
				return
			default:
			}
			text, err := os.ReadFile(path)
			if err != nil || string(text) != memory && !bytes.Equal(text, with) {
				t.Errorf("a reader sees %q, %v", text, err)
				return
			}
			n++
		}
	}()
	for range 20 {
		connect(t, m, b, "cursor", byStdio)
		disconnect(t, m, b, "cursor")
	}
	close(stop)
	if n := <-read; n < 20 {
		t.Errorf("the file was read %d times only", n)
	}
}

// A file of another user would become ours, and that user could not read it.
func TestAFileOfAnotherUser(t *testing.T) {
	m, _ := machine(t)
	c := FindClient("cursor")
	path := m.Path(c, User)
	writeFile(t, path, "{}\n")
	if err := os.Chown(path, 65534, 65534); err != nil {
		t.Skip(err)
	}
	if _, err := m.PlanPut(c, User, byStdio); err == nil || !strings.Contains(err.Error(), "another user") {
		t.Errorf("got %v, want a refusal", err)
	}
}

// A text that cannot be read, or is not understood, is refused with the place,
// and nothing is written.
//
//redteam:attack Files of clients lose nothing: invalid, deep, large, doubled or of another form
func TestHostileFiles(t *testing.T) {
	deep := func(open, end string) string { return strings.Repeat(open, 100_000) + strings.Repeat(end, 100_000) }
	for _, one := range []struct{ name, client, text, want string }{
		{"no JSON", "claude-code", "{\n  \"a\": 1,\n  b\n}\n", "line 3, column 3"},
		{"comment", "claude-code", "{\n  \"a\": 1 // x\n}\n", "line 2, column 10"},
		{"half", "cursor", `{"mcpServers": {`, "column 17"},
		{"two values", "cursor", "{}\n{}\n", "line 2, column 1"},
		{"deep", "vscode", `{"a":` + deep("[", "]") + "}", "more than 500 brackets"},
		{"deep objects", "claude-desktop", deep(`{"a":`, "}"), "more than 500 brackets"},
		{"doubled", "cursor", "{\n \"mcpServers\": {},\n \"mcpServers\": {}\n}",
			`line 3, column 2: the member "mcpServers" occurs twice`},
		{"doubled server", "cursor", `{"mcpServers": {"gatehouse": {}, "gatehouse": {"url": "x"}}}`, "occurs twice"},
		{"a list", "cursor", `[]`, "line 1, column 1"},
		{"another type", "cursor", `{"mcpServers": []}`, "expected an object"},
		{"another type of server", "cursor", `{"mcpServers": {"gatehouse": 1}}`, "no object"},
		{"no UTF-8", "claude-code", "{\"a\": \"\xff\"}", "line 1"},
		{"NUL", "cursor", "{\"a\": 1\x00}", "line 1, column 8"},
		{"large", "codex", "a = \"" + strings.Repeat("x", 1<<20) + "\"\n", "more than 262144 bytes"},
		{"no TOML", "codex", "a = 1\n[b\n", "line 3"},
		{"doubled table", "codex", "[a]\n[a]\n", "line 2"},
		{"dotted in an inline table", "codex", `mcp_servers = { x.command = "y" }`, "by hand"},
		{"deep TOML", "codex", "a = " + deep("[", "]")[:200_000], "more than 500 brackets"},
		{"no YAML", "goose", "a: [1\nb: 2\n", "line"},
		{"doubled key", "goose", "extensions:\n  a: 1\nextensions:\n  b: 1\n", "line 3"},
		{"two documents", "goose", "a: 1\n---\nb: 2\n", "line"},
		{"explicit key in flow style", "goose", "extensions: {? developer : {enabled: true}}\n", "by hand"},
		{"aliases", "goose", "a: &a [x, x]\nb: &b [*a, *a]\nextensions: *b\n", "by hand"},
		{"tabs", "goose", "extensions:\n\ta: 1\n", "line"},
		{"no list", "continue", "mcpServers:\n  a: 1\n", "by hand"},
	} {
		t.Run(one.name, func(t *testing.T) {
			m, _ := machine(t)
			m.GOOS = "darwin"
			c := FindClient(one.client)
			path := m.Path(c, User)
			writeFile(t, path, one.text)
			_, err := m.PlanPut(c, User, byStdio)
			if err == nil || !strings.Contains(err.Error(), one.want) || !strings.Contains(err.Error(), path) {
				t.Errorf("got %v, want %q", err, one.want)
			}
			if got := readFile(t, path); got != one.text {
				t.Errorf("the file was changed to %.200q", got)
			}
		})
	}
}

// A megabyte of other settings is no hindrance.
func TestLargeFile(t *testing.T) {
	var b bytes.Buffer
	b.WriteString("{\n  \"projects\": {\n")
	for i := range 10_000 {
		if i > 0 {
			b.WriteString(",\n")
		}
		b.WriteString(strings.Repeat(" ", 4) +
			quote(strings.Repeat("p", 100)+string(rune('a'+i%26))+strings.Repeat("q", i%7)) + ": {}")
	}
	b.WriteString("\n  }\n}\n")
	c := FindClient("claude-code")
	out := put(t, c, b.Bytes(), byStdio)
	if back := removed(t, c, b.Bytes(), out); !bytes.Equal(back, b.Bytes()) {
		t.Error("it is not what it was")
	}
}

// A diff shows what changes, and no secret of other servers.
//
//redteam:attack Keys stay here: a diff of a client's file
func TestDiffHidesSecrets(t *testing.T) {
	m, _ := machine(t)
	c := FindClient("cursor")
	path := m.Path(c, User)
	writeFile(t, path, `{
  "mcpServers": {
    "x": {
      "env": { "GITHUB_TOKEN": "ghp_0123456789abcdefghij", "PLAIN": "shown" },
      "headers": { "Authorization": "Bearer abcdefgh12345678", "X-Api-Key": "k-123456", "X-Token": "${env:TOKEN}" }
    }
  }
}
`)
	ch, err := m.PlanPut(c, User, byStdio)
	if err != nil {
		t.Fatal(err)
	}
	diff := ch.Diff()
	for _, not := range []string{"ghp_", "abcdefgh12345678", "k-123456", "\x1b"} {
		if strings.Contains(diff, not) {
			t.Errorf("it shows %q:\n%s", not, diff)
		}
	}
	for _, want := range []string{"--- " + path, "+    \"gatehouse\": {", "shown", `"GITHUB_TOKEN": "[secret]"`,
		"${env:TOKEN}"} {
		if !strings.Contains(diff, want) {
			t.Errorf("%q is not in\n%s", want, diff)
		}
	}
	minified := &Change{File: "f", Existed: true, Before: []byte(`{"a":"` + strings.Repeat("x", 5000) + `"}`)}
	minified.After = append(bytes.TrimSuffix(minified.Before, []byte("}")), `,"b":{"c":1}}`...)
	if d := minified.Diff(); len(d) > 1000 || !strings.Contains(d, `,"b":{"c":1}}`) {
		t.Errorf("of a long line it shows %d bytes:\n%s", len(d), d)
	}
}

func TestPaths(t *testing.T) {
	env := map[string]string{"APPDATA": "/appdata"}
	getenv := func(name string) string { return env[name] }
	m := func(goos string) Machine {
		return Machine{GOOS: goos, Home: "/home/ann", Project: "/p", Getenv: getenv}
	}
	for _, one := range []struct{ client, goos, want string }{
		{"claude-desktop", "darwin", "/home/ann/Library/Application Support/Claude/claude_desktop_config.json"},
		{"claude-desktop", "windows", "/appdata/Claude/claude_desktop_config.json"},
		{"claude-desktop", "linux", ""},
		{"vscode", "darwin", "/home/ann/Library/Application Support/Code/User/mcp.json"},
		{"vscode", "linux", "/home/ann/.config/Code/User/mcp.json"},
		{"vscode-insiders", "windows", "/appdata/Code - Insiders/User/mcp.json"},
		{"zed", "darwin", "/home/ann/.config/zed/settings.json"},
		{"zed", "windows", "/appdata/Zed/settings.json"},
		{"goose", "linux", "/home/ann/.config/goose/config.yaml"},
		{"goose", "windows", "/appdata/Block/goose/config/config.yaml"},
		{"codex", "linux", "/home/ann/.codex/config.toml"},
	} {
		want := filepath.FromSlash(one.want)
		if got := m(one.goos).Path(FindClient(one.client), User); got != want {
			t.Errorf("%s on %s: got %s, want %s", one.client, one.goos, got, want)
		}
	}
	env["CODEX_HOME"], env["XDG_CONFIG_HOME"] = "/codex", "/xdg"
	for client, want := range map[string]string{"codex": "/codex/config.toml", "zed": "/xdg/zed/settings.json"} {
		if got := m("linux").Path(FindClient(client), User); got != filepath.FromSlash(want) {
			t.Errorf("%s: got %s, want %s", client, got, want)
		}
	}
}

// Each client is complete, and its names are its own.
func TestClients(t *testing.T) {
	names := map[string]bool{}
	for _, c := range Clients {
		for _, n := range append([]string{c.ID}, c.Aliases...) {
			if names[n] {
				t.Errorf("%s is the name of two clients", n)
			}
			names[n] = true
		}
		if c.Title == "" || c.format == nil || len(c.path) == 0 || c.Reload == "" || c.stdio.command == "" ||
			!strings.Contains(c.Source, "https://") || len(c.Programs)+len(c.Folders) == 0 && c.Paste == "" {
			t.Errorf("%s is not complete", c.ID)
		}
	}
}

// Links are written as the documentation of each client has them.
func TestInstallLinks(t *testing.T) {
	s := Server{Name: "gatehouse", Command: "/bin/gatehouse", Args: []string{"stdio"}}
	for client, want := range map[string]string{
		"cursor":          "cursor://anysphere.cursor-deeplink/mcp/install?name=gatehouse&config=eyJjb21tYW5kIjoiL2Jpbi9nYXRlaG91c2UiLCJhcmdzIjpbInN0ZGlvIl19",
		"lm-studio":       "lmstudio://add_mcp?name=gatehouse&config=eyJjb21tYW5kIjoiL2Jpbi9nYXRlaG91c2UiLCJhcmdzIjpbInN0ZGlvIl19",
		"vscode":          "vscode:mcp/install?%7B%22name%22%3A%22gatehouse%22%2C%22type%22%3A%22stdio%22%2C%22command%22%3A%22%2Fbin%2Fgatehouse%22%2C%22args%22%3A%5B%22stdio%22%5D%7D",
		"vscode-insiders": "vscode-insiders:mcp/install?%7B%22name%22%3A%22gatehouse%22%2C%22type%22%3A%22stdio%22%2C%22command%22%3A%22%2Fbin%2Fgatehouse%22%2C%22args%22%3A%5B%22stdio%22%5D%7D",
	} {
		if got, err := FindClient(client).InstallLink(s); err != nil || got != want {
			t.Errorf("%s: got %s, %v, want %s", client, got, err, want)
		}
	}
	if link, err := FindClient("codex").InstallLink(s); err == nil {
		t.Errorf("Codex has the link %s", link)
	}
}
