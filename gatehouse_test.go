package gatehouse_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"gatehouse"
	"gatehouse/module"
)

// book is where a host of a test logs.
type book struct {
	mu    sync.Mutex
	text  strings.Builder
	lines chan string
}

func newBook() *book { return &book{lines: make(chan string, 100)} }

func (b *book) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lines <- string(p)
	return b.text.Write(p)
}

// address waits until a door says where it listens.
func (b *book) address(t *testing.T) string {
	t.Helper()
	for {
		select {
		case line := <-b.lines:
			if _, a, ok := strings.Cut(line, "address="); ok {
				return strings.TrimSpace(a)
			}
		case <-time.After(30 * time.Second):
			t.Fatal("no door listens")
		}
	}
}

func build(t *testing.T, opts ...gatehouse.Option) *gatehouse.Server {
	t.Helper()
	s, err := gatehouse.New(append([]gatehouse.Option{gatehouse.WithWorkspaceRoot(t.TempDir())}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return s
}

func TestSeveralDoorsCloseWithTheHost(t *testing.T) {
	b := newBook()
	s := build(t, gatehouse.WithInsecure(), gatehouse.WithLogger(slog.New(slog.NewTextHandler(b, nil))))
	ended := make(chan error, 2)
	go func() { ended <- s.ServeTCP(t.Context(), ":0") }()
	tcp := strings.TrimPrefix(b.address(t), "tcp://")
	go func() { ended <- s.ServeUnix(t.Context(), filepath.Join(t.TempDir(), "s")) }()
	b.address(t)
	if !strings.HasPrefix(tcp, "127.0.0.1:") {
		t.Errorf("an empty host listens on %s", tcp)
	}
	conn, err := net.Dial("tcp", tcp)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := s.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	for range 2 {
		if err := <-ended; err != nil {
			t.Errorf("a door ended with %v", err)
		}
	}
	if err := s.ServeTCP(t.Context(), ":0"); !errors.Is(err, gatehouse.ErrClosed) {
		t.Errorf("a door after the end: %v, want ErrClosed", err)
	}
}

// A program's host refuses callers over TCP without a token, unless it was
// built so.
func TestWhoComesInOverTCP(t *testing.T) {
	const hello = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","_meta":{%s}}}` + "\n"
	none, right, wrong := "", `"gatehouse/token":"0123456789abcdef"`, `"gatehouse/token":"0123456789abcdeX"`
	token, insecure := gatehouse.WithAuthToken("0123456789abcdef"), gatehouse.WithInsecure()
	if err := build(t).ServeTCP(t.Context(), ":0"); !errors.Is(err, gatehouse.ErrNoToken) {
		t.Errorf("without either: %v, want ErrNoToken", err)
	}
	for name, c := range map[string]struct {
		options []gatehouse.Option
		want    map[string]string
	}{
		"a token": {[]gatehouse.Option{token},
			map[string]string{none: "credentials are needed", right: "serverInfo", wrong: "not valid here"}},
		"insecure": {[]gatehouse.Option{insecure},
			map[string]string{none: "serverInfo", right: "not valid here"}},
		"first insecure": {[]gatehouse.Option{insecure, token},
			map[string]string{none: "credentials are needed", right: "serverInfo"}},
		"at last insecure": {[]gatehouse.Option{token, insecure},
			map[string]string{none: "serverInfo", right: "not valid here"}},
		"a token, with state": {[]gatehouse.Option{token, gatehouse.WithState(t.TempDir())},
			map[string]string{none: "credentials are needed", right: "serverInfo"}},
	} {
		b := newBook()
		s := build(t, append(c.options, gatehouse.WithLogger(slog.New(slog.NewTextHandler(b, nil))))...)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- s.ServeTCP(ctx, ":0") }()
		tcp := strings.TrimPrefix(b.address(t), "tcp://")
		for meta, want := range c.want {
			if got := says(t, tcp, fmt.Sprintf(hello, meta)); !strings.Contains(got, want) {
				t.Errorf("%s, _meta {%s}: got %s, want %s", name, meta, got, want)
			}
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// says sends one line over TCP and reads one.
func says(t *testing.T, addr, line string) string {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, line); err != nil {
		t.Fatal(err)
	}
	answer, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return answer
}

func TestAListenerOfOnesOwnIsServed(t *testing.T) {
	s := build(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, ln) }()
	url := "http://" + ln.Addr().String()
	list := `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"t","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}}}`
	req, err := http.NewRequestWithContext(t.Context(), "POST", url+"/mcp", strings.NewReader(list))
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{"Content-Type": "application/json",
		"Accept":               "application/json, text/event-stream",
		"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/list"} {
		req.Header.Set(name, value)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	if err != nil || resp.StatusCode != 200 || !strings.Contains(string(body), `"file_read"`) {
		t.Errorf("%s, %v: %.200s", resp.Status, err, body)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if _, err := net.Dial("tcp", ln.Addr().String()); err == nil {
		t.Error("the listener is still open")
	}
}

func TestADoorClosesWithItsContext(t *testing.T) {
	b := newBook()
	s := build(t, gatehouse.WithInsecure(), gatehouse.WithLogger(slog.New(slog.NewTextHandler(b, nil))))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.ServeTCP(ctx, "127.0.0.1:0") }()
	b.address(t)
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	web := httptest.NewServer(s.Handler())
	defer web.Close()
	resp, err := http.Get(web.URL + "/health")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != 200 {
		t.Errorf("health is %d after another door has closed", resp.StatusCode)
	}
}

func TestOptionsChoose(t *testing.T) {
	s := build(
		t,
		gatehouse.WithModules("file", "lang"),
		gatehouse.WithTools("!lang_*"),
		gatehouse.WithReadOnly(),
		gatehouse.WithOrigins(
			"https://pages.example",
		),
		gatehouse.WithHosts("tools.example"),
		gatehouse.WithoutSessions(),
		gatehouse.WithState(t.TempDir()),
		gatehouse.WithDeadline(time.Second),
		gatehouse.WithContext("file"),
	)
	list := ask(
		t,
		s,
		"POST",
		"/mcp",
		"tools.example",
		"https://pages.example",
		`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`,
	)
	body := list.Body.String()
	if list.Code != 200 || !strings.Contains(body, `"file_read"`) {
		t.Fatalf("%d %s", list.Code, body)
	}
	for _, hidden := range []string{"lang_detect", "dir_list", "file_write"} {
		if strings.Contains(body, `"`+hidden+`"`) {
			t.Errorf("%s is listed", hidden)
		}
	}
	for _, c := range [][2]string{{"other.example", ""}, {"tools.example", "https://other.example"}} {
		if got := ask(t, s, "POST", "/mcp", c[0], c[1], `{"jsonrpc":"2.0","id":1,"method":"ping"}`); got.Code != 403 {
			t.Errorf("host %s, origin %s: %d, want 403", c[0], c[1], got.Code)
		}
	}
	if got := ask(t, s, "POST", "/mcp/lang", "localhost", "",
		`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`); got.Code != 200 ||
		strings.Contains(got.Body.String(), "file_read") {
		t.Errorf("the context lang: %d %s", got.Code, got.Body)
	}
}

// ask asks the handler without a network.
func ask(t *testing.T, s *gatehouse.Server, method, path, host, origin, body string) *httptest.ResponseRecorder {
	t.Helper()
	req := httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(body))
	req.Host = host
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json")
	if origin != "" {
		req.Header.Set("Origin", origin)
	}
	rec := httptest.NewRecorder()
	s.Handler().ServeHTTP(rec, req)
	return rec
}

func TestNewRefusesWhatCannotBe(t *testing.T) {
	for want, opt := range map[string]gatehouse.Option{
		"no/such":                      gatehouse.WithWorkspaceRoot(filepath.Join(t.TempDir(), "no/such")),
		`there is no module "attic"`:   gatehouse.WithModules("attic"),
		`there is no context "attic"`:  gatehouse.WithContext("attic"),
		"is not a pattern":             gatehouse.WithTools("["),
		"tool deadline":                gatehouse.WithDeadline(-time.Second),
		"origin":                       gatehouse.WithOrigins("pages.example"),
		`host "a b"`:                   gatehouse.WithHosts("a b"),
		`configuration for module "x"`: gatehouse.WithModuleConfig("x", 1),
		"unsupported type: func()":     gatehouse.WithModuleConfig("x", func() {}),
	} {
		s, err := gatehouse.New(opt)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error with %q", err, want)
		}
		if s != nil {
			t.Errorf("%q: there is a host beside the error", want)
		}
	}
}

// A module of the program reads its own configuration, and learns of what does
// not fit it.
func TestAModuleReadsItsConfiguration(t *testing.T) {
	type settings struct {
		Depth int
		Names []string
	}
	var got settings
	read := func(into any) module.New {
		return func(_ context.Context, d module.Deps) (module.Module, error) {
			if err := d.Config(into); err != nil {
				return nil, err
			}
			return offerless{}, nil
		}
	}
	build(
		t,
		gatehouse.WithModule("mine", read(&got)),
		gatehouse.WithModuleConfig("mine", map[string]any{"depth": 3, "names": []string{"a"}}),
	)
	if want := (settings{3, []string{"a"}}); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}

	build(t, gatehouse.WithModule("mine", read(&got))) // it has no configuration, and keeps its defaults
	if got.Depth != 3 {
		t.Errorf("without a configuration: got %+v", got)
	}

	for want, opts := range map[string][]gatehouse.Option{
		"expected a pointer": {gatehouse.WithModule("mine", read(42))},
		`unknown field "depht"`: {
			gatehouse.WithModule("mine", read(&got)),
			gatehouse.WithModuleConfig("mine", json.RawMessage(`{"depht":1}`)),
		},
		"cannot unmarshal string": {
			gatehouse.WithModule("mine", read(&got)),
			gatehouse.WithModuleConfig("mine", struct{ Depth string }{"deep"}),
		},
	} {
		s, err := gatehouse.New(append(opts, gatehouse.WithWorkspaceRoot(t.TempDir()))...)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error with %q", err, want)
		}
		if s != nil {
			s.Shutdown(t.Context())
		}
	}
}

// offerless is a module without tools.
type offerless struct{}

func (offerless) Offer(context.Context, module.Audience) (*module.Offer, error) {
	return &module.Offer{}, nil
}
func (offerless) Close(context.Context) error { return nil }

func TestShutdownTwiceAndWithoutUse(t *testing.T) {
	s, err := gatehouse.New()
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := s.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
	}
}
