package relaytest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gatehouse"
	"gatehouse/internal/packages"
	"gatehouse/internal/tests/conformance"
	"gatehouse/internal/tests/conformance/fixture"
	"gatehouse/internal/tests/hosttest"
	"gatehouse/module"
	"gatehouse/tool"
)

// serveSSE starts a server of the official TypeScript SDK that knows HTTP+SSE alone, and
// returns its address without a path.
func serveSSE(t *testing.T, args ...string) string {
	t.Helper()
	if testing.Short() {
		t.Skip("with -short nothing is run that needs the pinned npm packages")
	}
	dir, err := conformance.ToolsDir()
	if err != nil {
		t.Fatal(err)
	}
	tools, err := conformance.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	script, err := filepath.Abs(filepath.Join("testdata", "sseserver.mjs"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := tools.Command(context.Background(), t.TempDir(), script, append([]string{tools.Dir}, args...)...)
	cmd.Stderr = t.Output()
	return startPrinting(t, cmd)
}

// startPrinting starts a server that prints its address first and ends with its input.
func startPrinting(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	late := time.AfterFunc(time.Minute, func() { cmd.Process.Kill() })
	lines := bufio.NewReader(out)
	line, err := lines.ReadString('\n')
	t.Cleanup(func() {
		in.Close()
		io.Copy(io.Discard, lines)
		cmd.Wait()
		late.Stop()
	})
	if err != nil {
		t.Fatalf("the server did not start: %v", err)
	}
	return strings.TrimSpace(line)
}

// A server that knows only HTTP+SSE is found by its refusal of a POST, and a session whose
// stream it has ended is replaced.
func TestAServerOfHTTPWithSSE(t *testing.T) {
	at := serveSSE(t)
	m, make := install(t, packages.Record{Source: packages.Source{Kind: packages.URL, From: at + "/sse"}}, nil)
	if info, err := m.Info("up"); err != nil || len(info.Names) != 2 {
		t.Fatalf("its tools are %v, %v", info.Names, err)
	}
	for _, h := range hosttest.Harnesses()[:2] {
		t.Run(h.Name, func(t *testing.T) {
			h := h.Make(t, hosttest.Options{Modules: map[string]module.New{"package": make}})
			r := hosttest.Call(h, "up_echo", `{"a":1}`, nil)
			if r.Text() != `echo {"a":1}` {
				t.Errorf("got %s %v", r.Result, r.Error)
			}
			if told := r.Notifications("notifications/progress"); len(told) != 1 ||
				!strings.Contains(string(told[0]), `"half"`) {
				t.Errorf("it was told %s", told)
			}
		})
	}
	resp, err := http.Post(at+"/drop", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if _, err := m.Call(t.Context(), "up", "echo", json.RawMessage(`{}`), nil, nil); err != nil {
		// The end of the stream and the call are not ordered: a call that was sent on the
		// session that ended may have run, so it is not repeated.
		if !strings.Contains(err.Error(), "may have run") {
			t.Fatal(err)
		}
		if raw, err := m.Call(t.Context(), "up", "echo", json.RawMessage(`{}`), nil, nil); err != nil {
			t.Errorf("after its session was lost: %s, %v", raw, err)
		}
	}
}

// addressLog receives the log of a server and passes on where it listens.
type addressLog chan string

func (l addressLog) Write(b []byte) (int, error) {
	var line struct{ Msg, Address string }
	if json.Unmarshal(b, &line) == nil && line.Msg == "listening" {
		l <- line.Address
	}
	return len(b), nil
}

// A host is a package of another by its socket, with the token that it requires over TCP.
func TestAServerAtASocket(t *testing.T) {
	const token = "a-token-of-sixteen-bytes-or-more"
	for name, listen := range map[string]func(context.Context, *gatehouse.Server, string) error{
		packages.Unix: func(ctx context.Context, s *gatehouse.Server, folder string) error {
			return s.ServeUnix(ctx, filepath.Join(folder, "s"))
		},
		packages.TCP: func(ctx context.Context, s *gatehouse.Server, _ string) error {
			return s.ServeTCP(ctx, "127.0.0.1:0")
		},
	} {
		t.Run(name, func(t *testing.T) {
			folder, err := os.MkdirTemp("", "s") // t.TempDir is too long for the path of a socket
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.RemoveAll(folder) })
			address := make(addressLog, 1)
			s, err := newFixture(gatehouse.WithAuthToken(token),
				gatehouse.WithLogger(slog.New(slog.NewJSONHandler(address, nil))))
			if err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			ctx, stop := context.WithCancel(context.Background())
			go func() { ended <- listen(ctx, s, folder) }()
			t.Cleanup(func() {
				stop()
				<-ended
				s.Shutdown(context.Background())
			})
			var at string
			select {
			case at = <-address:
			case err := <-ended:
				t.Fatal(err)
			}
			source, err := packages.ParseSource(name + ":" + strings.TrimPrefix(at, name+":"))
			if err != nil {
				t.Fatal(err)
			}
			r := packages.Record{Source: source}
			if name == packages.TCP {
				r.Headers = map[string]string{"Authorization": "Bearer " + token}
			}
			_, make := install(t, r, nil)
			for _, h := range hosttest.Harnesses()[:2] {
				t.Run(h.Name, func(t *testing.T) {
					with := func(name string, make module.New) hosttest.Harness {
						return h.Make(t, hosttest.Options{Modules: map[string]module.New{name: make}})
					}
					checkOffer(t, with("package", make), with("fixture", fixture.New))
				})
			}
		})
	}
}

// A server over HTTP whose listener is a Unix socket is called as one at an address.
func TestAServerOfHTTPOverAUnixSocket(t *testing.T) {
	fixture := serveFixture(t, false)
	dir, err := os.MkdirTemp("", "s") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket := filepath.Join(dir, "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: fixture.Config.Handler}
	go s.Serve(l)
	t.Cleanup(func() { s.Close() })
	m, make := install(t,
		packages.Record{Source: packages.Source{Kind: packages.URL, From: "http+unix:" + socket + ":/mcp"}}, nil)
	if info, err := m.Info("up"); err != nil || info.Server.Protocol != "2026-07-28" {
		t.Fatalf("it speaks %q, %v", info.Server.Protocol, err)
	}
	for _, h := range hosttest.Harnesses()[:2] {
		with := h.Make(t, hosttest.Options{Modules: map[string]module.New{"package": make}})
		if r := hosttest.Call(with,
			"up_test_simple_text", `{}`, nil); r.Text() != "This is a simple text response for testing." {
			t.Errorf("%s: got %s %v", h.Name, r.Result, r.Error)
		}
	}
	for _, wrong := range []string{"http+unix:run/s:/mcp", "http+unix:/run/s:mcp", "http+unix:"} {
		r := packages.Record{ID: "wrong", Source: packages.Source{Kind: packages.URL, From: wrong}}
		if _, err := m.Install(t.Context(), packages.Plan{Record: r}, nil); err == nil {
			t.Errorf("%s was installed", wrong)
		}
	}
}

// A server of both eras is called in the revision of the client: legacy callers get a session of their own, each
// principal another, and modern callers share the connection of the newest. If the server refuses sessions, the newest
// is used.
func TestAServerOfBothErasIsCalledInTheClientsEra(t *testing.T) {
	fixture := serveFixture(t, false)
	var mu sync.Mutex
	calls := map[string][]string{} // sessions of calls, by revision
	var refuse atomic.Bool
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(body))
		revision := r.Header.Get("MCP-Protocol-Version")
		switch {
		case bytes.Contains(body, []byte(`"tools/call"`)):
			mu.Lock()
			calls[revision] = append(calls[revision], r.Header.Get("Mcp-Session-Id"))
			mu.Unlock()
		case bytes.Contains(body, []byte(`"initialize"`)) && refuse.Load():
			http.Error(w, "no sessions", http.StatusBadRequest)
			return
		case bytes.Contains(body, []byte(`"server/discover"`)): // it has no tasks
			kept := httptest.NewRecorder()
			fixture.Config.Handler.ServeHTTP(kept, r)
			w.Header().Set("Content-Type", kept.Header().Get("Content-Type"))
			w.WriteHeader(kept.Code)
			w.Write(
				bytes.ReplaceAll(
					kept.Body.Bytes(),
					[]byte(`"io.modelcontextprotocol/tasks"`),
					[]byte(`"example.com/other"`),
				),
			)
			return
		}
		fixture.Config.Handler.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	m, _ := install(t, packages.Record{Source: packages.Source{Kind: packages.URL, From: s.URL + "/mcp"}}, nil)
	call := func(who, session string) {
		t.Helper()
		from := &packages.Peer{Caller: &tool.Caller{Principal: who, Owner: who + "/", Session: session}}
		raw, err := m.Call(t.Context(), "up", "test_simple_text", json.RawMessage(`{}`), nil, from)
		if err != nil || !bytes.Contains(raw, []byte("simple text response")) {
			t.Fatalf("%s: %s %v", who, raw, err)
		}
	}
	sessions := func(revision string) []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(calls[revision])
	}
	call("ann", "") // it starts the server
	for range 2 {
		call("ann", "a")
		call("bob", "b")
	}
	call("ann", "")
	got := sessions("2025-11-25")
	if len(got) != 4 || got[0] == "" || got[0] != got[2] || got[1] != got[3] || got[0] == got[1] {
		t.Errorf("legacy callers were served in the sessions %q", got)
	}
	if got := sessions("2026-07-28"); len(got) != 2 || got[0]+got[1] != "" {
		t.Errorf("modern callers were served in the sessions %q", got)
	}
	refuse.Store(true)
	call("carol", "c")
	call("carol", "c")
	if got := sessions("2026-07-28"); len(got) != 4 {
		t.Errorf("without sessions there were %d calls in the newest revision, of 4", len(got))
	}
}
