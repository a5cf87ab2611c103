package conformance

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"gatehouse/internal/tests/oidctest"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// The settings of examples/team work as they are, with the names of a real provider and a proxy in front in place of
// those below example.com: the official client logs in, may read, asks for the second scope and writes, and the ledger
// names the person.
func TestTheTeamExample(t *testing.T) {
	h := needFixture(t)
	var behind atomic.Pointer[httputil.ReverseProxy]
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		behind.Load().ServeHTTP(w, r)
	}))
	defer proxy.Close()
	resource := proxy.URL + "/mcp"
	home, err := os.MkdirTemp("", "team") // the path of a socket in it is at most about 100 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(home) })
	file, folder := teamSettings(t, home, map[string]string{
		"https://id.example.com":        oidctest.Start(t, resource),
		"https://tools.example.com/mcp": resource,
	})
	bin, err := BuildGatehouse(t.Context(), home)
	if err != nil {
		t.Fatal(err)
	}
	// The program may have to be compiled, so the patience with its client begins here.
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	env := append(os.Environ(), "HOME="+home, "TMPDIR="+home, "XDG_RUNTIME_DIR=", "XDG_CONFIG_HOME=", "XDG_DATA_HOME=",
		"XDG_STATE_HOME=", "XDG_CACHE_HOME=")
	behind.Store(
		httputil.NewSingleHostReverseProxy(startHost(t, env, bin, "serve", "--config", file, "--http", "-p", "0")),
	)

	resp, err := http.Post(resource, "application/json", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("without a login: %s", resp.Status)
	}
	out := output(t, h.tools.Command(ctx, t.TempDir(), h.tools.Script("oauth.mjs"), "modern", "registers", resource))
	var got admitted
	if err := json.Unmarshal(out, &got); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	got.holds(t, folder)
	audit := exec.CommandContext(ctx, bin, "audit", "--tool", "file_write", "--outcome", "ok", "--json")
	audit.Env = env
	if ledger := output(t, audit); !bytes.Contains(ledger, []byte("248289761001@")) {
		t.Errorf("the ledger does not name who wrote: %s", ledger)
	}
}

// teamSettings copies the settings of the example, with other names, and makes the folder that they share.
func teamSettings(t *testing.T, home string, names map[string]string) (file, folder string) {
	t.Helper()
	top, err := Top()
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(top, "examples", "team", "gatehouse.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
	for name, is := range names {
		if !strings.Contains(text, name) {
			t.Fatalf("the example does not name %s", name)
		}
		text = strings.ReplaceAll(text, name, is)
	}
	file, folder = filepath.Join(home, "gatehouse.yaml"), filepath.Join(home, "shared")
	if err := os.Mkdir(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	for path, text := range map[string]string{file: text, filepath.Join(folder, "a.txt"): "hello"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return file, folder
}

// startHost starts a host with a listener for HTTP, stops it at the end of the test, and returns its address.
func startHost(t *testing.T, env []string, bin string, args ...string) *url.URL {
	t.Helper()
	cmd := exec.Command(bin, args...)
	cmd.Env = env
	out, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	late := time.AfterFunc(time.Minute, func() { cmd.Process.Kill() })
	found, ended := make(chan string, 1), make(chan struct{})
	go func() {
		defer close(ended)
		defer close(found)
		listening := regexp.MustCompile(`Listening on (http://[^/]+)/`)
		var said bytes.Buffer
		for lines := bufio.NewScanner(out); lines.Scan(); {
			said.WriteString(lines.Text() + "\n")
			if m := listening.FindStringSubmatch(lines.Text()); m != nil && late.Stop() {
				found <- m[1]
			}
		}
		t.Logf("the host said:\n%s", said.String())
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		late := time.AfterFunc(time.Minute, func() { cmd.Process.Kill() })
		<-ended
		if err := cmd.Wait(); err != nil && late.Stop() {
			t.Logf("the host ended with %v", err)
		}
		late.Stop()
	})
	address, ok := <-found
	if !ok {
		t.Fatal("the host did not listen")
	}
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	return u
}
