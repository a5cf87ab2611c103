package relaytest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gatehouse"
	"gatehouse/internal/access/secret"
	"gatehouse/internal/mcp/rawjson"
	packagemodule "gatehouse/internal/modules/packages"
	"gatehouse/internal/packages"
	"gatehouse/internal/state"
	"gatehouse/internal/tests/conformance/fixture"
	"gatehouse/internal/tests/hosttest"
	"gatehouse/module"
	"gatehouse/tool"
)

// childVariable makes the test's program the server of the conformance fixture, on
// its standard streams.
const childVariable = "GATEHOUSE_TEST_RELAY_CHILD"

func TestMain(m *testing.M) {
	if how := os.Getenv(childVariable); how != "" {
		if how == "visited" {
			serveVisited()
			os.Exit(0)
		}
		more := []gatehouse.Option{gatehouse.WithModule("live", (&live{}).open)}
		if strings.HasSuffix(how, "asker") {
			more = append(more, gatehouse.WithModule("asks", newAsker))
		}
		if strings.HasSuffix(how, "holder") {
			more = append(more, gatehouse.WithModule("holder", (&holder{}).open))
		}
		s, err := newFixture(more...)
		if err == nil && strings.HasPrefix(how, "legacy") {
			err = withoutDiscovery()
		}
		if err == nil {
			err = errors.Join(s.ServeStdio(context.Background()), s.Shutdown(context.Background()))
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func newFixture(more ...gatehouse.Option) (*gatehouse.Server, error) {
	return gatehouse.New(append([]gatehouse.Option{
		gatehouse.WithModules(), gatehouse.WithModule("fixture", fixture.New), gatehouse.WithInsecure(),
		gatehouse.WithInfo("fixture", "1.0.0"), gatehouse.WithLogger(slog.New(slog.DiscardHandler)),
	}, more...)...)
}

// childEnv is the environment of a server that is a child of this program. Its files are removed with the test's
// even if it was killed.
func childEnv(t testing.TB, how string) map[string]string {
	return map[string]string{childVariable: how, "GORACE": "atexit_sleep_ms=0", "TMPDIR": t.TempDir()}
}

// upstream is a server over HTTP whose requests a test can see and refuse.
type upstream struct {
	*httptest.Server
	refuse atomic.Pointer[func(w http.ResponseWriter, r *http.Request, body []byte) bool]
}

// serveFixture serves the fixture over HTTP. With legacy it answers server/discover
// as a server does that has never heard of it.
func serveFixture(t testing.TB, legacy bool, more ...gatehouse.Option) *upstream {
	t.Helper()
	s, err := newFixture(more...)
	if err != nil {
		t.Fatal(err)
	}
	h := s.Handler()
	u := &upstream{}
	u.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		if f := u.refuse.Load(); f != nil && (*f)(w, r, body) {
			return
		}
		if legacy && bytes.Contains(body, []byte(`"server/discover"`)) {
			http.Error(w, "Bad Request: no session", http.StatusBadRequest)
			return
		}
		h.ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		s.Shutdown(ctx) // it also ends streams, for which Close would wait
		u.Close()
	})
	return u
}

// install returns the module of packages with one package, "up".
func install(t testing.TB, r packages.Record, fill func(map[string]string) (map[string]secret.Text, error)) (
	*packages.Manager, module.New,
) {
	t.Helper()
	return installWith(t, packages.Options{Secrets: fill}, r)
}

// installWith is install with options of the manager.
func installWith(t testing.TB, o packages.Options, r packages.Record) (*packages.Manager, module.New) {
	t.Helper()
	m, built, err := tryInstall(t, o, r)
	if err != nil {
		t.Fatalf("install: %v %s", err, packages.Words(err))
	}
	return m, built
}

func tryInstall(
	t testing.TB, o packages.Options, r packages.Record,
) (m *packages.Manager, built module.New, failed error) {
	t.Helper()
	tree := state.New(state.Options{})
	records, err := state.Attach[map[string]packages.Record](t.Context(), tree, "/private/packages", state.Durable)
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var hosts []func() // of the hosts that have the module
	o.Folder, o.Records, o.Name, o.Version = t.TempDir(), records, "test", "1"
	o.Changed = func() {
		mu.Lock()
		defer mu.Unlock()
		for _, changed := range hosts {
			changed()
		}
	}
	m, err = packages.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	var work sync.WaitGroup
	work.Go(func() { m.Run(ctx) })
	t.Cleanup(func() {
		stop()
		work.Wait()
		tree.Close()
	})
	r.ID, r.Start = "up", packages.OnDemand
	_, failed = m.Install(t.Context(), packages.Plan{Record: r}, nil)
	return m, packagemodule.New(packagemodule.Config{
		Packages: m, Rules: func(tool.Caller) bool { return true },
		Changed: func(changed func()) {
			mu.Lock()
			defer mu.Unlock()
			hosts = append(hosts, changed)
		},
	}), failed
}

// upstreams are the fixture in both eras and over both transports, by name.
func upstreams(t testing.TB) map[string]packages.Record {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return map[string]packages.Record{
		"child": {
			Source: packages.Source{Kind: packages.Command}, Command: self,
			Env: childEnv(t, "1"),
		},
		"http":        {Source: packages.Source{Kind: packages.URL, From: serveFixture(t, false).URL + "/mcp"}},
		"legacy http": {Source: packages.Source{Kind: packages.URL, From: serveFixture(t, true).URL + "/mcp"}},
	}
}

// What a server offers reaches clients of both eras: its tools, resources, templates,
// prompts and completions, under names of this host, and otherwise unchanged.
func TestWhatAServerOffersIsRelayed(t *testing.T) {
	for name, r := range upstreams(t) {
		t.Run(name, func(t *testing.T) {
			m, make := install(t, r, nil)
			info, err := m.Info("up")
			if want := map[bool]string{true: "2025-11-25", false: "2026-07-28"}[name == "legacy http"]; err != nil ||
				info.Server.Protocol != want {
				t.Errorf("the server speaks %q (%v), want %q", info.Server.Protocol, err, want)
			}
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

// checkOffer compares what a client is offered through the relay with what the server
// offers it directly.
func checkOffer(t *testing.T, h, direct hosttest.Harness) {
	for method, member := range map[string]string{
		"resources/list": "uri", "resources/templates/list": "uriTemplate", "prompts/list": "name",
		"tools/list": "name",
	} {
		relayed := map[string]json.RawMessage{}
		for _, e := range hosttest.List(t, h, method) {
			key, _ := rawjson.String(hosttest.Get(e, member))
			relayed[key] = e
		}
		for _, e := range hosttest.List(t, direct, method) {
			own, _ := rawjson.String(hosttest.Get(e, member))
			if strings.HasPrefix(own, "gatehouse:") || relayed["up_"+own] == nil && own == "failing_job" {
				continue // of the host itself; or runs only as a task, to a legacy client
			}
			here := "up_" + own
			if strings.HasPrefix(member, "uri") {
				here = "package://up/" + own
			}
			want := rawjson.Splice(e, rawjson.Edit{Key: member, Value: rawjson.AppendString(nil, here)},
				rawjson.Edit{Key: "annotations"}, rawjson.Edit{Key: "execution"})
			got := rawjson.Splice(relayed[here], rawjson.Edit{Key: "annotations"}, rawjson.Edit{Key: "execution"})
			if !bytes.Equal(got, want) {
				t.Errorf("%s of %s:\n got %s\nwant %s", method, own, got, want)
			}
		}
	}
	if r := hosttest.Read(h, "package://up/test://static-text"); !strings.Contains(string(r.Result),
		"This is the content of") ||
		!strings.Contains(string(r.Result), `"uri":"package://up/test://static-text"`) {
		t.Errorf("read: %s %v", r.Result, r.Error)
	}
	if r := hosttest.Read(h, "package://up/test://template/7/data"); !strings.Contains(string(r.Result),
		"Data for ID: 7") {
		t.Errorf("read of a template: %s %v", r.Result, r.Error)
	}
	if r := hosttest.Read(h, "package://up/test://none"); r.Error == nil {
		t.Errorf("read of what is not there: %s", r.Result)
	}
	prompt := h.Do("prompts/get", `{"name":"up_test_prompt_with_embedded_resource","arguments":{"resourceUri":"test://x"}}`, nil)
	if !strings.Contains(string(prompt.Result), `"uri":"package://up/test://x"`) {
		t.Errorf("prompt: %s %v", prompt.Result, prompt.Error)
	}
	complete := h.Do("completion/complete", `{"ref":{"type":"ref/prompt","name":"up_test_prompt_with_arguments"},`+
		`"argument":{"name":"arg1","value":"par"}}`, nil)
	if !strings.Contains(string(complete.Result), `"paris"`) {
		t.Errorf("completion of a prompt: %s %v", complete.Result, complete.Error)
	}
	complete = h.Do("completion/complete", `{"ref":{"type":"ref/resource","uri":"package://up/test://template/{id}/data"},`+
		`"argument":{"name":"id","value":"12"}}`, nil)
	if !strings.Contains(string(complete.Result), `"124"`) {
		t.Errorf("completion of a template: %s %v", complete.Result, complete.Error)
	}
	call := hosttest.Call(h, "up_test_embedded_resource", `{}`, nil)
	if !strings.Contains(string(call.Result), `"uri":"package://up/test://`) {
		t.Errorf("call: %s %v", call.Result, call.Error)
	}
}

// A session that the server has forgotten is replaced, and the client does not notice.
func TestALostSessionIsReplaced(t *testing.T) {
	u := serveFixture(t, true)
	m, _ := install(t, packages.Record{Source: packages.Source{Kind: packages.URL, From: u.URL + "/mcp"}}, nil)
	call := func() (string, error) {
		raw, err := m.Call(t.Context(), "up", "test_simple_text", json.RawMessage(`{}`), nil, nil)
		return string(raw), err
	}
	if got, err := call(); err != nil || !strings.Contains(got, `"text"`) {
		t.Fatalf("got %s, %v", got, err)
	}
	var lost atomic.Int32
	forget := func(w http.ResponseWriter, r *http.Request, body []byte) bool {
		if r.Header.Get("Mcp-Session-Id") == "" || !bytes.Contains(body, []byte("tools/call")) || lost.Load() > 0 {
			return false
		}
		lost.Add(1)
		http.Error(w, "session not found", http.StatusNotFound)
		return true
	}
	u.refuse.Store(&forget)
	if got, err := call(); err != nil || lost.Load() != 1 || !strings.Contains(got, `"text"`) {
		t.Errorf("after %d lost sessions: got %s, %v", lost.Load(), got, err)
	}
}

// The headers of a package carry its secrets to its server, and neither its state nor its
// log shows them. Redirects to another host do not take them there.
func TestHeadersGoToTheServerAlone(t *testing.T) {
	const key = "very-secret-value-1"
	u := serveFixture(t, false)
	var with, without, elsewhere atomic.Int32
	check := func(w http.ResponseWriter, r *http.Request, _ []byte) bool {
		if r.Header.Get("Authorization") == "Bearer "+key {
			with.Add(1)
			r.Header.Del("Authorization") // the fixture knows no tokens
			return false
		}
		without.Add(1)
		http.Error(w, "no credentials", http.StatusUnauthorized)
		return true
	}
	u.refuse.Store(&check)
	fill := func(settings map[string]string) (map[string]secret.Text, error) {
		all := map[string]secret.Text{}
		for name, value := range settings {
			all[name] = secret.New(strings.ReplaceAll(value, "${secret:KEY}", key))
		}
		return all, nil
	}
	r := packages.Record{
		Source:  packages.Source{Kind: packages.URL, From: u.URL + "/mcp"},
		Headers: map[string]string{"Authorization": "Bearer ${secret:KEY}"},
	}
	m, _ := install(t, r, fill)
	info, err := m.Info("up")
	if err != nil || with.Load() == 0 || without.Load() != 0 {
		t.Errorf("%d requests with the key, %d without, %v", with.Load(), without.Load(), err)
	}
	if shown := fmt.Sprintf("%+v", info); strings.Contains(shown, key) {
		t.Errorf("the state shows it: %s", shown)
	}
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { elsewhere.Add(1) }))
	defer other.Close()
	away := func(w http.ResponseWriter, r *http.Request, _ []byte) bool {
		http.Redirect(w, r, other.URL+"/mcp", http.StatusTemporaryRedirect)
		return true
	}
	u.refuse.Store(&away)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if raw, err := m.Call(ctx, "up", "test_simple_text", json.RawMessage(`{}`), nil, nil); err == nil ||
		elsewhere.Load() != 0 {
		t.Errorf("a redirect was followed %d times: %s", elsewhere.Load(), raw)
	}
}
