package packages

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gatehouse/internal/access/secret"
	"gatehouse/internal/packages/packagestest"
)

// A server of a Go module is built once, by its version.
func TestAServerOfAGoModule(t *testing.T) {
	h := openHome(t, Options{Settings: Settings{Begin: 2 * time.Minute}})
	i := h.install(Record{ID: "hello", Source: mustSource(t,
		"go:github.com/modelcontextprotocol/go-sdk/examples/server/hello@v1.8.0")})
	if i.Public.Version != "v1.8.0" || i.Public.Tools == 0 {
		t.Errorf("got %+v", i.Public)
	}
	if got, err := h.call("hello", "greet", `{"name":"Ann"}`); err != nil || !strings.Contains(got, "Ann") {
		t.Errorf("got %s, %v", got, err)
	}
}

// crateServer is a server without dependencies, because a crate with the usual ones takes minutes to build.
const crateServer = `use std::io::{self, BufRead, Write};
fn main() {
    for line in io::stdin().lock().lines().map_while(Result::ok) {
        let Some(at) = line.find("\"id\":") else { continue };
        let id: String = line[at + 5..].chars().take_while(|c| *c != ',' && *c != '}').collect();
        let body = if line.contains("\"initialize\"") {
            r#""result":{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"c","version":"1"}}"#
        } else if line.contains("\"tools/list\"") {
            r#""result":{"tools":[{"name":"about","inputSchema":{"type":"object"}}]}"#
        } else if line.contains("\"tools/call\"") {
            r#""result":{"content":[{"type":"text","text":"built by cargo"}]}"#
        } else {
            r#""error":{"code":-32601,"message":"no"}"#
        };
        println!("{{\"jsonrpc\":\"2.0\",\"id\":{id},{body}}}");
        io::stdout().flush().unwrap();
    }
}
`

// A server of a crate is built by the crate's own lock file, here from a folder that replaces the registry. Its other
// program is started by its name.
func TestAServerOfACrate(t *testing.T) {
	home := t.TempDir()
	at := "vendored/a-server/"
	write(t, home, map[string]string{
		"config.toml": "[source.crates-io]\nreplace-with = 'here'\n[source.here]\ndirectory = '" + home +
			"/vendored'\n",
		at + "Cargo.toml": "[package]\nname = 'a-server'\nversion = '1.2.3'\nedition = '2021'\n" +
			"[[bin]]\nname = 'other'\npath = 'src/main.rs'\n[[bin]]\nname = 'a-server'\npath = 'src/main.rs'\n",
		at + "Cargo.lock":           "version = 3\n[[package]]\nname = 'a-server'\nversion = '1.2.3'\n",
		at + "src/main.rs":          crateServer,
		at + ".cargo-checksum.json": `{"files":{},"package":"` + hashOf(nil) + `"}`,
	})
	toolchains := os.Getenv("RUSTUP_HOME")
	if toolchains == "" {
		if user, err := os.UserHomeDir(); err == nil {
			toolchains = filepath.Join(user, ".rustup")
		}
	}
	t.Setenv("RUSTUP_HOME", toolchains)
	t.Setenv("CARGO_HOME", home)
	h := openHome(t, Options{Settings: Settings{Begin: 2 * time.Minute}})
	i := h.install(Record{ID: "up", Source: mustSource(t, "crate:a-server")})
	if i.Public.Version != "1.2.3" || i.Public.Source != "crate:a-server" {
		t.Errorf("got %+v", i.Public)
	}
	if _, err := os.Stat(filepath.Join(i.Record.program(h.folder("up")), "objects")); !os.IsNotExist(err) {
		t.Errorf("what was compiled is left: %v", err)
	}
	if got, err := h.call("up", "about", `{}`); err != nil || got != "built by cargo" {
		t.Errorf("got %s, %v", got, err)
	}
	if i, err := h.Rebuild(t.Context(), "up", "crate:a-server@1.2.3", nil); err != nil || i.Public.Version != "1.2.3" {
		t.Errorf("got %+v, %v", i.Public, err)
	}
	h.install(Record{ID: "two", Source: mustSource(t, "crate:a-server"), Command: "other"})
	for want, r := range map[string]Record{
		"cargo cannot install": {ID: "bad", Source: mustSource(t, "crate:a-server@9.9.9")},
		"has a-server, other":  {ID: "bad", Source: mustSource(t, "crate:a-server"), Command: "third"},
	} {
		if _, err := h.Install(t.Context(), Plan{Record: r}, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

func mustSource(t *testing.T, text string) Source {
	t.Helper()
	s, err := ParseSource(text)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// serving serves files, which can be replaced.
func serving(t *testing.T, files map[string][]byte) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch b, ok := files[r.URL.Path]; {
		case r.URL.Path == "/away":
			http.Redirect(w, r, "http://192.0.2.1/x", http.StatusFound)
		case ok:
			w.Write(b)
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(s.Close)
	return s.URL
}

func hashOf(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// A program and an archive are fetched from addresses. Another content than the hash, or than before, is refused.
func TestFilesOfAddresses(t *testing.T) {
	needsShell(t)
	test, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program := []byte("#!/bin/sh\nexec '" + test + "'\n")
	files := map[string][]byte{"/server": program, "/a.tgz": tarred(t, map[string]string{
		"package/package.json": `{"name":"a","version":"1.0.0","bin":"run"}`, "package/run": string(program),
	})}
	base := serving(t, files)
	h := openHome(t, Options{Settings: Settings{Begin: 2 * time.Minute}})
	env := packagestest.Environment("good")
	i := h.install(Record{ID: "one", Env: env, Source: mustSource(t, "binary:"+base+"/server#sha256="+hashOf(program))})
	if i.Digest != "sha256:"+hashOf(program) || i.Public.Tools == 0 {
		t.Errorf("got %+v", i.Record)
	}
	i = h.install(Record{ID: "two", Env: env, Source: mustSource(t, "archive:"+base+"/a.tgz")})
	if i.Public.Version != "1.0.0" || i.Digest != "sha256:"+hashOf(files["/a.tgz"]) {
		t.Errorf("got %+v", i.Record)
	}
	if left, _ := filepath.Glob(filepath.Join(h.folder("two"), "*.download")); left != nil {
		t.Errorf("left: %v", left)
	}

	files["/a.tgz"] = tarred(t, map[string]string{
		"package/package.json": `{"name":"a","version":"2.0.0","bin":"run"}`, "package/run": string(program),
	})
	if _, err := h.Rebuild(t.Context(), "two", "", nil); err == nil ||
		!strings.Contains(err.Error(), "has changed since") {
		t.Errorf("got %v", err)
	}
	now, err := h.Rebuild(t.Context(), "two", i.Source.String(), nil)
	if err != nil || now.Public.Version != "2.0.0" || now.Digest != "sha256:"+hashOf(files["/a.tgz"]) {
		t.Errorf("got %+v, %v", now.Record, err)
	}
	for source, want := range map[string]string{
		"binary:" + base + "/server#sha256=" + hashOf(nil): "its hash is sha256:" + hashOf(program),
		"archive:" + base + "/none":                        "404",
		"archive:" + base + "/server":                      "archive:",
	} {
		_, err := h.Install(t.Context(), Plan{Record: Record{ID: "bad", Env: env, Source: mustSource(t, source)}}, nil)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v", source, err)
		}
		if _, err := os.Stat(h.folder("bad")); !os.IsNotExist(err) {
			t.Errorf("%s: something is left: %v", source, err)
		}
	}
}

// A redirect of an address elsewhere is not followed to this machine or without TLS.
func TestRedirectsOfDownloads(t *testing.T) {
	for _, c := range []struct {
		from, to string
		ok       bool
	}{
		{"https://example.com/a", "https://example.org/b", true},
		{"https://example.com/a", "http://example.com/b", false},
		{"https://example.com/a", "https://127.0.0.1/b", false},
		{"https://example.com/a", "https://localhost/b", false},
		{"http://127.0.0.1:1/a", "http://127.0.0.1:2/b", true},
	} {
		from, _ := http.NewRequest(http.MethodGet, c.from, nil)
		to, _ := http.NewRequest(http.MethodGet, c.to, nil)
		if err := downloads.CheckRedirect(to, []*http.Request{from}); (err == nil) != c.ok {
			t.Errorf("%s to %s: %v", c.from, c.to, err)
		}
	}
}

// bundle makes a bundle of files, and gives its path.
func bundle(t *testing.T, files map[string]string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "a.mcpb")
	if err := os.WriteFile(path, zipped(t, files), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// nodeServer is a server in one file that says its arguments and variables.
const nodeServer = `const lines = require('readline').createInterface({input: process.stdin});
lines.on('line', l => { const m = JSON.parse(l); if (m.id === undefined) return;
const say = r => console.log(JSON.stringify({jsonrpc: '2.0', id: m.id, result: r}));
if (m.method === 'initialize') say({protocolVersion: '2025-06-18', capabilities: {tools: {}}, serverInfo: {name: 'b', version: '1'}});
else if (m.method === 'tools/list') say({tools: [{name: 'about', inputSchema: {type: 'object'}}]});
else if (m.method === 'tools/call') say({content: [{type: 'text', text: JSON.stringify({args: process.argv.slice(2), key: process.env.KEY, mode: process.env.MODE, unset: process.env.UNSET})}]});
else console.log(JSON.stringify({jsonrpc: '2.0', id: m.id, error: {code: -32601, message: 'no'}})); });`

const nodeManifest = `{"manifest_version":"0.3","name":"b","display_name":"About","version":"1.2.3","author":{"name":"a"},
"server":{"type":"node","entry_point":"server/index.js","mcp_config":{"command":"node",
 "args":["${__dirname}/server/index.js","${user_config.folders}","--size=${user_config.size}","${user_config.nothing}"],
 "env":{"KEY":"${user_config.key}","MODE":"x","UNSET":"${user_config.nothing}"},
 "platform_overrides":{"linux":{"env":{"MODE":"linux"}},"darwin":{"env":{"MODE":"darwin"}}}}},
"user_config":{"key":{"type":"string","title":"Key","required":true,"sensitive":true},
 "folders":{"type":"directory","multiple":true,"required":true},
 "size":{"type":"number","default":10,"min":1,"max":100},"nothing":{"type":"string"}}}`

// A bundle is unpacked, and started as its manifest says, with what its user configures.
func TestABundle(t *testing.T) {
	path := bundle(t, map[string]string{"manifest.json": nodeManifest, "server/index.js": nodeServer})
	h := openHome(
		t,
		Options{
			Settings: Settings{Begin: 2 * time.Minute},
			Secrets:  fillOf(t, map[string]string{"MINE": "the value of it"}),
		},
	)
	record := Record{ID: "about", Source: Source{Bundle, path}}
	for want, config := range map[string]map[string][]string{
		"requires values of its configuration: folders, key": nil,
		"config other":                {"other": {"x"}},
		"config key: it is sensitive": {"key": {"plain"}, "folders": {"/a"}},
		"config folders: \"a\": expected an absolute path": {"key": {"${secret:MINE}"},
			"folders": {"a"}},
		"config size: \"101\": expected a number, at least 1, at most 100": {"size": {"101"}, "key": {"${secret:MINE}"},
			"folders": {"/a"}},
		"config key: expected one value": {"key": {"${secret:MINE}", "x"}, "folders": {"/a"}},
	} {
		record.Config = config
		if _, err := h.Install(t.Context(), Plan{Record: record}, nil); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%v: got %v, want %s", config, err, want)
		}
	}
	record.Config = map[string][]string{"key": {"${secret:MINE}"}, "folders": {"/a", "/b c"}}
	i := h.install(record)
	if i.Public.Version != "1.2.3" || i.Public.Title != "About" {
		t.Errorf("got %+v", i.Public)
	}
	got, err := h.call("about", "about", `{}`)
	if err != nil || !strings.Contains(got, `"args":["/a","/b c","--size=10"]`) || strings.Contains(got, "unset") ||
		!strings.Contains(got, `"key":"the value of it"`) || strings.Contains(got, `"mode":"x"`) {
		t.Errorf("got %s, %v", got, err)
	}
	if got := fmt.Sprint(i.Record); strings.Contains(got, "the value of it") {
		t.Errorf("the record has the secret: %s", got)
	}
}

// What a manifest may not say is refused before anything of it runs.
func TestHostileBundles(t *testing.T) {
	h := openHome(
		t,
		Options{
			Settings: Settings{Begin: 2 * time.Minute},
			Secrets:  fillOf(t, map[string]string{"GITHUB": "the value of it"}),
		},
	)
	manifest := func(server, more string) string {
		return `{"name":"b","version":"1","server":` + server + more + `}`
	}
	for want, files := range map[string]map[string]string{
		"refers to secrets": {"manifest.json": manifest(
			`{"type":"node","entry_point":"a.js","mcp_config":{"command":"node","env":{"X":"${secret:GITHUB}"}}}`, "")},
		"refers to a secret": {"manifest.json": manifest(
			`{"type":"node","entry_point":"a.js","mcp_config":{"command":"node","env":{"X":"${sec${user_config.a}"}}}`,
			`,"user_config":{"a":{"type":"string","default":"ret:GITHUB}"}}`)},
		"leads out of it":          {"manifest.json": manifest(`{"type":"node","entry_point":"../a.js"}`, "")},
		"is not in it":             {"manifest.json": manifest(`{"type":"binary","mcp_config":{"command":"/bin/sh"}}`, "")},
		"leads out":                {"manifest.json": manifest(`{"type":"binary","mcp_config":{"command":"../../x"}}`, "")},
		"server.type is \"other\"": {"manifest.json": manifest(`{"type":"other","entry_point":"a"}`, "")},
		"fetch its server at each": {"manifest.json": manifest(`{"type":"node","mcp_config":{"command":"npx","args":["-y","x"]}}`, "")},
		"it is for plan9, and this": {"manifest.json": manifest(`{"type":"node","entry_point":"a"}`,
			`,"compatibility":{"platforms":["plan9"]}`)},
		"no manifest":              {"other.json": "{}"},
		"manifest.json: ":          {"manifest.json": "{"},
		"\"../x\" leads out of it": {"manifest.json": manifest(`{"type":"node","entry_point":"a"}`, ""), "../x": "x"},
	} {
		_, err := h.Install(t.Context(), Plan{Record: Record{ID: "bad", Source: Source{Bundle, bundle(t, files)}}}, nil)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "the value of it") {
			t.Errorf("%v: got %v, want %s", files, err, want)
		}
	}
}

// A bundle of type uv gets what its pyproject.toml says, once.
func TestABundleOfUV(t *testing.T) {
	programs(t, "uv")
	path := bundle(t, map[string]string{
		"manifest.json": `{"name":"b","version":"1","server":{"type":"uv","entry_point":"src/server.py",
			"mcp_config":{"command":"uv","args":["run","--directory","${__dirname}","src/server.py","hello"]}}}`,
		"pyproject.toml": "[project]\nname = 'b'\nversion = '1'\nrequires-python = '>=3.9'\n" +
			"dependencies = ['tzdata']\n",
		"src/server.py": `import json, sys, tzdata
for line in sys.stdin:
    m = json.loads(line)
    if 'id' not in m: continue
    r = {'jsonrpc': '2.0', 'id': m['id']}
    if m['method'] == 'initialize': r['result'] = {'protocolVersion': '2025-06-18', 'capabilities': {'tools': {}}, 'serverInfo': {'name': 'b', 'version': '1'}}
    elif m['method'] == 'tools/list': r['result'] = {'tools': [{'name': 'about', 'inputSchema': {'type': 'object'}}]}
    elif m['method'] == 'tools/call': r['result'] = {'content': [{'type': 'text', 'text': sys.argv[1] + ' ' + tzdata.IANA_VERSION}]}
    else: r['error'] = {'code': -32601, 'message': 'no'}
    print(json.dumps(r), flush=True)
`,
	})
	h := openHome(t, Options{Settings: Settings{Begin: 2 * time.Minute}})
	h.install(Record{ID: "about", Source: Source{Bundle, path}})
	t.Setenv("UV_OFFLINE", "1")
	if got, err := h.call("about", "about", `{}`); err != nil || !strings.HasPrefix(got, "hello 20") {
		t.Errorf("got %s, %v", got, err)
	}
}

// fillOf fills in the secrets of a store.
func fillOf(t *testing.T, values map[string]string) func(map[string]string) (map[string]secret.Text, error) {
	t.Helper()
	vault := secret.In(t.TempDir(), "")
	for name, value := range values {
		if err := vault.Set(name, secret.New(value)); err != nil {
			t.Fatal(err)
		}
	}
	return vault.Fill
}
