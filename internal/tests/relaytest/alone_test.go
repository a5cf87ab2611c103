package relaytest

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"gatehouse/internal/app"
	"gatehouse/internal/config"
	"gatehouse/internal/mcp/client"
	"gatehouse/internal/mcp/rawjson"
	"gatehouse/internal/packages"
	"gatehouse/internal/tests/hosttest"
)

// aloneConfig are the settings of a host whose files are below a folder.
func aloneConfig(t testing.TB, home string) config.Config {
	t.Helper()
	bare, err := config.WithoutFile(func(name string) string { return map[string]string{"HOME": home}[name] })
	if err != nil {
		t.Fatal(err)
	}
	cfg := bare.Config
	cfg.Folders = config.Folders{
		Config: filepath.Join(home, "config"), Data: filepath.Join(home, "data"), State: filepath.Join(home, "state"),
		Cache: filepath.Join(home, "cache"), Runtime: filepath.Join(home, "run"),
	}
	return cfg
}

// serveAlone serves one server alone to one client, and returns the client's connection.
func serveAlone(t testing.TB, home string, r packages.Record) *client.Conn {
	t.Helper()
	return serveAloneTo(t, home, r, client.ConnOptions{})
}

func serveAloneTo(t testing.TB, home string, r packages.Record, o client.ConnOptions) *client.Conn {
	t.Helper()
	ours, theirs := net.Pipe()
	r.ID, r.Start, r.Title = "up", packages.OnDemand, "up"
	h, err := app.New(t.Context(), aloneConfig(t, home), app.Options{
		Conn: theirs, Alone: &app.Alone{Package: r, Dir: t.TempDir(), Env: os.Environ()},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ours.Close() }) // after the host has ended
	runHost(t, h)
	return overPipe(t, ours, o)
}

func overPipe(t testing.TB, pipe net.Conn, o client.ConnOptions) *client.Conn {
	t.Helper()
	o.Name, o.Version = "test", "1"
	lines := client.NewLines(func(_ context.Context, b []byte) (int, error) { return pipe.Write(b) }, o)
	go func() {
		b := make([]byte, 64<<10)
		for {
			n, err := pipe.Read(b)
			lines.Write(b[:n])
			if err != nil {
				lines.Conn.Fail(err)
				return
			}
		}
	}()
	t.Cleanup(func() { lines.Conn.Close() })
	return lines.Conn
}

// connectDirect connects to a server of upstreams without a relay.
func connectDirect(t *testing.T, r packages.Record) *client.Conn {
	t.Helper()
	if r.Source.Kind == packages.URL {
		c := client.NewHTTP(r.Source.From, client.HTTPOptions{}, client.ConnOptions{Name: "test", Version: "1"})
		t.Cleanup(func() { c.Close() })
		return c
	}
	cmd := exec.Command(r.Command, r.Args...)
	cmd.Env = os.Environ()
	for name, value := range r.Env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	lines := client.NewLines(func(_ context.Context, b []byte) (int, error) { return in.Write(b) },
		client.ConnOptions{Name: "test", Version: "1"})
	cmd.Stdout = lines
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		cmd.Wait()
	})
	return lines.Conn
}

// eras are the revisions that clients begin with.
var eras = map[string]string{"modern": "2026-07-28", "legacy": "2025-11-25"}

// A server that is served alone has its own names, addresses, information and order of lists, for clients of both
// eras, and nothing of the host is there.
func TestAServerAlone(t *testing.T) {
	all := upstreams(t)
	for name, r := range all {
		for era, revision := range eras {
			t.Run(name+" to "+era, func(t *testing.T) {
				direct, alone := connectDirect(t, r), serveAlone(t, t.TempDir(), r)
				if strings.HasPrefix(name, "legacy") {
					direct = connectDirect(t, all["http"]) // the same server, as a client of the other era sees it
				}
				for _, c := range []*client.Conn{direct, alone} {
					if err := c.Connect(t.Context(), revision); err != nil || c.Revision() != revision {
						t.Fatalf("revision %s: %v", c.Revision(), err)
					}
				}
				checkSelf(t, direct, alone)
				checkLists(t, direct, alone)
				for _, one := range []struct{ method, params string }{
					{"tools/call", `{"name":"test_simple_text","arguments":{}}`},
					{"tools/call", `{"name":"test_embedded_resource"}`},
					{"resources/read", `{"uri":"test://static-text"}`},
					{"resources/read", `{"uri":"test://template/9/data"}`},
					{"prompts/get",
						`{"name":"test_prompt_with_embedded_resource","arguments":{"resourceUri":"test://x"}}`},
				} {
					request := client.Request{Method: one.method, Params: json.RawMessage(one.params)}
					if request.Name, _ = rawjson.String(hosttest.Get(request.Params, "name")); request.Name == "" {
						request.Name, _ = rawjson.String(hosttest.Get(request.Params, "uri"))
					}
					want, err := direct.Do(t.Context(), request)
					got, err2 := alone.Do(t.Context(), request)
					if err != nil || err2 != nil || !bytes.Equal(ofContent(got), ofContent(want)) {
						t.Errorf("%s %s:\n got %s (%v)\nwant %s (%v)", one.method, one.params, got, err2, want, err)
					}
				}
			})
		}
	}
}

// ofContent is a result without the members that the two eras have of their own.
func ofContent(result json.RawMessage) []byte {
	return rawjson.Splice(result, rawjson.Edit{Key: "resultType"}, rawjson.Edit{Key: "_meta"},
		rawjson.Edit{Key: "ttlMs"}, rawjson.Edit{Key: "cacheScope"})
}

// checkSelf compares what the relay and the server say of themselves.
func checkSelf(t *testing.T, direct, alone *client.Conn) {
	t.Helper()
	paths := [][]any{{"serverInfo"}, {"instructions"}, {"_meta", "io.modelcontextprotocol/serverInfo"}}
	for _, name := range []string{"tools", "prompts", "resources", "logging", "completions"} {
		paths = append(paths, []any{"capabilities", name})
	}
	for _, path := range paths {
		got, want := hosttest.Get(alone.Info(), path...), hosttest.Get(direct.Info(), path...)
		if !bytes.Equal(got, want) {
			t.Errorf("%v: got %s, want %s", path, got, want)
		}
	}
}

// checkLists compares the lists of the relay and the server, whose entries and order are the same.
func checkLists(t *testing.T, direct, alone *client.Conn) {
	t.Helper()
	for method, member := range map[string]string{
		"tools/list": "tools", "prompts/list": "prompts", "resources/list": "resources",
		"resources/templates/list": "resourceTemplates",
	} {
		entries := func(c *client.Conn) (all []json.RawMessage) {
			raw, err := c.Do(t.Context(), client.Request{Method: method})
			if err != nil {
				t.Fatalf("%s: %v", method, err)
			}
			for e := range rawjson.Elements(hosttest.Get(raw, member)) {
				uri, _ := rawjson.String(hosttest.Get(e, "uri"))
				if strings.HasPrefix(uri, "gatehouse:") || rawjson.Equal(hosttest.Get(e, "name"), "failing_job") {
					continue // of the host of the fixture; or a tool that runs only as a task
				}
				all = append(all, rawjson.Splice(e, rawjson.Edit{Key: "execution"}))
			}
			return all
		}
		got, want := entries(alone), entries(direct)
		if len(got) != len(want) {
			t.Errorf("%s: %d entries, want %d", method, len(got), len(want))
		}
		for i := range min(len(got), len(want)) {
			if !bytes.Equal(got[i], want[i]) && !t.Failed() {
				t.Errorf("%s, entry %d:\n got %s\nwant %s", method, i, got[i], want[i])
			}
		}
	}
}

// A server that offers little is served with little: what it does not declare, the relay does not declare either.
func TestOnlyWhatTheServerHasIsDeclared(t *testing.T) {
	script := filepath.Join(t.TempDir(), "server.sh")
	const text = `while read -r line; do
	case "$line" in
	*server/discover*) echo '{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"no"}}' ;;
	*'"initialize"'*) echo '{"jsonrpc":"2.0","id":2,"result":{"protocolVersion":"2025-06-18","instructions":"caf\u00e9",` +
		`"capabilities":{"tools":{"other":1},"extensions":{"com.example/x":{"n":1.0}}},"serverInfo":{"version":"1", "name":"small","extra":1e400}}}' ;;
	*'"tools/list"'*) echo '{"jsonrpc":"2.0","id":3,"result":{"tools":[{"inputSchema":{"type":"object"},"name":"b/c.d-e"},{"name":"\u0061","inputSchema":{"type":"object"}, "big":12345678901234567890}]}}' ;;
	esac
done`
	if err := os.WriteFile(script, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	r := packages.Record{Source: packages.Source{Kind: packages.Command}, Command: "sh", Args: []string{script}}
	for era, revision := range eras {
		c := serveAlone(t, t.TempDir(), r)
		if err := c.Connect(t.Context(), revision); err != nil {
			t.Fatal(err)
		}
		got := string(hosttest.Get(c.Info(), "capabilities"))
		if want := `{"tools":{},"extensions":{"com.example/x":{"n":1.0}}}`; got != want {
			t.Errorf("%s: capabilities %s, want %s", era, got, want)
		}
		if !bytes.Contains(c.Info(), []byte(`{"version":"1","name":"small","extra":1e400}`)) ||
			!bytes.Contains(c.Info(), []byte(`"instructions":"café"`)) {
			t.Errorf("%s: it says %s", era, c.Info())
		}
		list, err := c.Do(t.Context(), client.Request{Method: "tools/list"})
		want := `{"tools":[{"inputSchema":{"type":"object"},"name":"b/c.d-e"},` +
			`{"name":"\u0061","inputSchema":{"type":"object"},"big":12345678901234567890}]`
		if err != nil || !strings.HasPrefix(string(list), want) {
			t.Errorf("%s: list %s (%v), want %s", era, list, err, want)
		}
		if _, err := c.Do(t.Context(),
			client.Request{Method: "resources/read", Params: json.RawMessage(`{"uri":"x://y"}`)}); err == nil {
			t.Errorf("%s: a resource of a server without any was read", era)
		}
	}
}

// A client of a server that is run alone and keeps ending is told what its user can do, which is none of the tools
// for packages.
func TestABrokenServerAlone(t *testing.T) {
	file := filepath.Join(t.TempDir(), "started")
	const text = `test -e "$0.started" && exit 4
touch "$0.started"
while read -r line; do
	case "$line" in
	*server/discover*) echo '{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"no"}}' ;;
	*'"initialize"'*) echo '{"jsonrpc":"2.0","id":2,"result":{"protocolVersion":"2025-06-18",` +
		`"capabilities":{"tools":{}},"serverInfo":{"name":"x","version":"1"}}}' ;;
	*'"tools/list"'*) echo '{"jsonrpc":"2.0","id":3,"result":{"tools":[{"inputSchema":{"type":"object"},"name":"x"}]}}' ;;
	*'"tools/call"'*) exit 4 ;;
	esac
done`
	if err := os.WriteFile(file, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	c := serveAlone(t, t.TempDir(), packages.Record{
		Source: packages.Source{Kind: packages.Command}, Command: "sh", Args: []string{file},
	})
	if err := c.Connect(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		raw, err := c.Do(
			t.Context(),
			client.Request{Method: "tools/call", Params: json.RawMessage(`{"name":"x"}`), Name: "x"},
		)
		said, _ := rawjson.String(hosttest.Get(raw, "content", 0, "text"))
		if strings.Contains(said, "package_") {
			t.Fatalf("it is told to use what is not there: %s", said)
		}
		if strings.Contains(said, "start gatehouse run again") && strings.Contains(said, "code 4") {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("it is told %s %v", said, err)
		}
	}
}

// Tools that a server offers only to clients that can be asked are in the first list of a server that is run alone.
func TestToolsForClientsThatCanBeAsked(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := serveAlone(t, t.TempDir(), packages.Record{
		Source: packages.Source{Kind: packages.Command}, Command: self, Env: childEnv(t, "visited"),
	})
	if err := c.Connect(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	raw, err := c.Do(t.Context(), client.Request{Method: "tools/list"})
	if err != nil || !strings.Contains(string(raw), `"only_asked"`) {
		t.Errorf("the first list is %s %v", raw, err)
	}
}

// Two hosts may run one server at once, each with what it stores, and a later one finds what was installed.
func TestRunsAtOnce(t *testing.T) {
	home := t.TempDir()
	folder := t.TempDir()
	manifest := `{"name":"x","version":"1.0.0","bin":"start.sh"}`
	script := "#!/bin/sh\necho started >> \"$GATEHOUSE_PACKAGE_DATA/starts\"\nexec '" + must(os.Executable()) + "'\n"
	for name, text := range map[string]string{"package.json": manifest, "start.sh": script} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	r := packages.Record{Source: packages.Source{Kind: packages.Folder, From: folder}, Env: childEnv(t, "1")}
	r.Env["SECRET_WORD"] = "not stored"
	t.Run("at once", func(t *testing.T) {
		for range 2 {
			c := serveAlone(t, home, r)
			if err := c.Connect(t.Context(), ""); err != nil {
				t.Fatal(err)
			}
		}
	})
	t.Run("later", func(t *testing.T) {
		// so that nothing can be installed again
		if err := os.Remove(filepath.Join(folder, "package.json")); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if err := serveAlone(t, home, r).Connect(t.Context(), ""); err != nil {
			t.Fatal(err)
		}
		t.Log("started in", time.Since(began))
	})
	found := 0
	filepath.WalkDir(filepath.Join(home, "data", "run"), func(path string, _ os.DirEntry, err error) error {
		if filepath.Base(path) == "alone.json" {
			found++
			if b, err := os.ReadFile(path); err != nil || bytes.Contains(b, []byte("not stored")) {
				t.Errorf("%s: %s %v", path, b, err)
			}
		}
		return err
	})
	if found != 2 {
		t.Errorf("%d installations, want one for each host that ran at once", found)
	}
}

func must(s string, err error) string {
	if err != nil {
		panic(err)
	}
	return s
}

// runHost runs a host until the test ends.
func runHost(t testing.TB, h *app.App) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := h.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		stop()
		running.Wait()
	})
}
