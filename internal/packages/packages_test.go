package packages

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"gatehouse/internal/access/secret"
	"gatehouse/internal/dispatch/progress"
	"gatehouse/internal/packages/packagestest"
	"gatehouse/internal/state"
	"gatehouse/tool"
)

func TestMain(m *testing.M) {
	packagestest.Main(os.Stdout)
	if at := os.Getenv(webVariable); at != "" {
		serveWeb(at)
	}
	busyHost()
	os.Exit(m.Run())
}

const patience = time.Minute // for what should be quick

// home is a house with what it tells.
type home struct {
	*Manager
	t    testing.TB
	dir  string
	tree *state.Tree
	end  func()

	mu    sync.Mutex
	shown map[string]*Public
	saw   []string // states and phases of all packages, as they were shown
}

func openHome(t testing.TB, o Options) *home {
	t.Helper()
	return reopen(t, o, t.TempDir(), new(state.MemoryLog))
}

// reopen opens a house on a folder and a log of records.
func reopen(t testing.TB, o Options, dir string, log state.Log) *home {
	t.Helper()
	h := &home{t: t, dir: dir, shown: map[string]*Public{}}
	h.tree = state.New(state.Options{Log: log})
	ctx, stop := context.WithCancel(context.Background())
	var work sync.WaitGroup
	work.Go(func() { h.tree.Run(ctx) })
	records, err := state.Attach[map[string]Record](t.Context(), h.tree, "/private/packages", state.Durable)
	if err != nil {
		t.Fatal(err)
	}
	o.Folder, o.Records, o.Show, o.Name = dir, records, h.show, "test"
	if o.restart == (restartPolicy{}) {
		o.restart = restartPolicy{first: 10 * time.Millisecond, max: 20 * time.Millisecond}
	}
	if h.Manager, err = Open(o); err != nil {
		t.Fatal(err)
	}
	run, halt := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- h.Run(run) }()
	h.end = sync.OnceFunc(func() {
		halt()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		stop()
		work.Wait()
		h.tree.Close()
	})
	t.Cleanup(h.end)
	return h
}

func (h *home) show(id string, p *Public) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if p == nil {
		delete(h.shown, id)
		h.saw = append(h.saw, id+" gone")
		return
	}
	h.shown[id] = p
	h.saw = append(h.saw, fmt.Sprintf("%s %s %s", id, p.State, p.Status))
	if p.Progress != nil {
		for _, f := range p.Progress.Phases {
			if f.Progress.State == progress.Running {
				h.saw = append(h.saw, id+" "+f.Name)
			}
		}
	}
}

func (h *home) has(what string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Contains(h.saw, what)
}

func (h *home) eventually(what string, is func() bool) {
	h.t.Helper()
	for end := time.Now().Add(patience); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			h.t.Fatalf("never: %s", what)
		}
	}
}

// server is a record of the test's own program as a server.
func server(t testing.TB, id, how string) Record {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return Record{ID: id, Source: Source{Kind: Command}, Command: program, Env: packagestest.Environment(how)}
}

func (h *home) install(r Record) Info {
	h.t.Helper()
	i, err := h.Install(h.t.Context(), Plan{Record: r}, nil)
	if err != nil {
		h.t.Fatal(err, Words(err))
	}
	return i
}

// call calls a tool and gives the text of its first block.
func (h *home) call(id, own, args string) (string, error) {
	raw, err := h.Call(h.t.Context(), id, own, json.RawMessage(args), nil, nil)
	var r struct{ Content []struct{ Text string } }
	if err == nil && (json.Unmarshal(raw, &r) != nil || len(r.Content) == 0) {
		return string(raw), nil
	}
	if err != nil {
		return "", err
	}
	return r.Content[0].Text, nil
}

func (h *home) names() (all []string) {
	for _, t := range h.Tools() {
		all = append(all, t.Name)
	}
	return all
}

func code(err error) string {
	if r, ok := errors.AsType[*tool.Refusal](err); ok {
		return string(r.Code)
	}
	return fmt.Sprint(err)
}

func TestAPackageIsInstalledAndItsToolsCanBeCalled(t *testing.T) {
	h := openHome(t, Options{})
	i := h.install(server(t, "my-server", "good"))
	if i.Public.State != Installed || i.Public.Title != "A test server" || i.Public.Version != "1.2.3" ||
		i.Public.Tools != 15 ||
		i.Server.Protocol != "2025-11-25" ||
		i.Installed.IsZero() ||
		i.Record.Start != OnDemand {
		t.Errorf("got %+v", i)
	}
	for _, want := range []string{"my_server_echo", "my_server_second_page"} {
		if !slices.Contains(h.names(), want) {
			t.Errorf("no %s in %v", want, h.names())
		}
	}
	for _, want := range []string{"my-server " + PhaseTry, "my-server " + PhaseKeep, "my-server installed idle"} {
		if !h.has(want) {
			t.Errorf("%q was not shown: %v", want, h.saw)
		}
	}
	got, err := h.call("my-server", "echo", `{"text":"a","n":12345678901234567890.10}`)
	if err != nil || !strings.Contains(got, `"arguments":{"text":"a","n":12345678901234567890.10}`) {
		t.Errorf("got %s, %v", got, err)
	}
	if !h.has("my-server installed running") {
		t.Errorf("it was not shown to run: %v", h.saw)
	}
	if err := h.Remove("my-server", false); err != nil {
		t.Fatal(err)
	}
	if len(h.Tools()) != 0 || h.shown["my-server"] != nil {
		t.Errorf("left: %v, %v", h.names(), h.shown)
	}
	if left, _ := filepath.Glob(filepath.Join(h.dir, "my*")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func TestWhatAServerSaysIsPassedOnAsItCame(t *testing.T) {
	h := openHome(t, Options{})
	h.install(server(t, "up", "good"))
	raw, err := h.Call(t.Context(), "up", "raw", json.RawMessage(`{}`), nil, nil)
	if err != nil || string(raw) != packagestest.Result {
		t.Errorf("got %s, %v", raw, err)
	}
	_, err = h.call("up", "fail", `{}`)
	w, ok := errors.AsType[*tool.WireError](err)
	if !ok || w.Code != -31999 || w.Message != "upstream says <no>" || string(w.Data) != `{"z":12345678901234567890}` {
		t.Errorf("got %v", err)
	}
	var echo Offered
	for _, o := range h.Tools() {
		if o.Own == "echo" {
			echo = o
		}
	}
	want := `{"name":"echo","title":"Echo","description":"Says it again.","inputSchema":{"type":"object","properties":{"text":{"type":"string"},"n":{"type":"number"}},"required":["text"]},"x-unknown":12345678901234567890}`
	if string(echo.Raw) != want {
		t.Errorf("listed as %s", echo.Raw)
	}
}

func TestOfMetaOnlyWhatIsForTheServerIsPassedOn(t *testing.T) {
	h := openHome(t, Options{})
	h.install(server(t, "up", "good"))
	meta := `{"gatehouse/token":"gh_secret","io.modelcontextprotocol/clientInfo":{"name":"x"},"progressToken":"theirs","traceparent":"00-1","my.example/n":1e400}`
	raw, err := h.Call(
		t.Context(),
		"up",
		"echo",
		json.RawMessage(`{"text":"a"}`),
		json.RawMessage(meta),
		&Peer{Progress: func(float64, float64, string) {}},
	)
	if err != nil {
		t.Fatal(err)
	}
	got := string(raw)
	if strings.Contains(got, "gh_secret") || strings.Contains(got, "clientInfo") || strings.Contains(got, "theirs") {
		t.Errorf("passed on too much: %s", got)
	}
	for _, want := range []string{`\"traceparent\":\"00-1\"`, `\"my.example/n\":1e400`, `\"progressToken\":`} {
		if !strings.Contains(got, want) {
			t.Errorf("%s is missing in %s", want, got)
		}
	}
}

func TestProgressAndCancellationGoThrough(t *testing.T) {
	h := openHome(t, Options{})
	h.install(server(t, "up", "good"))
	var mu sync.Mutex
	var steps []string
	_, err := h.Call(t.Context(), "up", "progress", json.RawMessage(`{}`), nil,
		&Peer{Progress: func(done, total float64, note string) {
			mu.Lock()
			defer mu.Unlock()
			steps = append(steps, fmt.Sprintf("%v/%v %s", done, total, note))
		}})
	if want := []string{"1/3 step 1", "2/3 step 2", "3/3 step 3"}; err != nil || !slices.Equal(steps, want) {
		t.Errorf("got %v, %v", steps, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := h.Call(ctx, "up", "sleep", json.RawMessage(`{}`), nil, nil)
		ended <- err
	}()
	said := func(what string) func() bool {
		return func() bool {
			lines, _ := h.Logs("up", -1, true, 100)
			return slices.ContainsFunc(lines, func(l Line) bool { return l.Message == what })
		}
	}
	h.eventually("it sleeps", said("sleeping"))
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	h.eventually("the server hears of it", said("cancelled"))
}

func TestToolsThatComeAreOffered(t *testing.T) {
	changed := make(chan struct{}, 100)
	h := openHome(t, Options{Changed: func() { changed <- struct{}{} }})
	r := server(t, "up", "good")
	r.NewTools = AllowNew
	h.install(r)
	if _, err := h.call("up", "grow", `{}`); err != nil {
		t.Fatal(err)
	}
	h.eventually("the new tool is there", func() bool { return slices.Contains(h.names(), "up_grown") })
	if len(changed) == 0 {
		t.Error("nobody was told")
	}
}

// What a server says of itself is shown to all callers and stored: with its secrets
// in it, they are taken out.
func TestSecretsThatAServerSaysAreNotShown(t *testing.T) {
	const key = "a-very-secret-key"
	vault := secret.In(t.TempDir(), "")
	if err := vault.Set("KEY", secret.New(key)); err != nil {
		t.Fatal(err)
	}
	h := openHome(t, Options{Secrets: vault.Fill})
	r := server(t, "up", "talkative")
	r.Env["SECRET"] = "${secret:KEY}"
	h.install(r)
	lines, err := h.Logs("up", 0, false, 100)
	if err != nil {
		t.Fatal(err)
	}
	records, _, _ := h.opts.Records.Get()
	kept, _ := json.Marshal(records)
	listing, err := os.ReadFile(filepath.Join(h.opts.Folder, "up", "listing.json"))
	if err != nil {
		t.Fatal(err)
	}
	for what, said := range map[string]string{
		"the log": fmt.Sprint(lines), "the record": string(kept), "the list": string(listing),
		"the names": fmt.Sprint(h.names()),
	} {
		if strings.Contains(said, key) {
			t.Errorf("%s has it: %s", what, said)
		}
	}
	if said := fmt.Sprint(lines); !strings.Contains(said, "it starts with "+secret.Mask) ||
		!strings.Contains(said, "it has "+secret.Mask) {
		t.Errorf("the log says %s", said)
	}
	if !strings.Contains(string(kept), "One with "+secret.Mask) ||
		!strings.Contains(string(listing), "Says it with "+secret.Mask) {
		t.Errorf("kept: %s, %s", kept, listing)
	}
	r = server(t, "locked", "locked")
	r.Env["SECRET"] = "${secret:KEY}"
	_, err = h.Install(t.Context(), Plan{Record: r}, nil)
	if err == nil || strings.Contains(err.Error()+Words(err), key) ||
		!strings.Contains(err.Error(), "initialize: nobody is let in with "+secret.Mask) {
		t.Errorf("got %v, %s", err, Words(err))
	}
}

//redteam:attack A package's server is a stranger: a server prints its secret
func TestSecretsReachTheServerAndNoLog(t *testing.T) {
	vault := secret.In(t.TempDir(), "")
	if err := vault.Set("KEY", secret.New("a-very-secret-key")); err != nil {
		t.Fatal(err)
	}
	h := openHome(t, Options{Secrets: vault.Fill})
	r := server(t, "up", "good")
	r.Env["SECRET"] = "${secret:KEY}"
	h.install(r)
	got, err := h.call("up", "where", `{}`)
	if err != nil || !strings.Contains(got, "secret=a-very-secret-key") || !strings.Contains(got, "dir=data") {
		t.Errorf("got %s, %v", got, err)
	}
	lines, err := h.Logs("up", 0, false, 100)
	said := fmt.Sprint(lines)
	if err != nil || strings.Contains(said, "a-very-secret-key") ||
		!strings.Contains(said, "the server starts with "+secret.Mask) {
		t.Errorf("the log says %s, %v", said, err)
	}
	records, _, _ := h.opts.Records.Get()
	if b, _ := json.Marshal(records); strings.Contains(string(b), "a-very-secret-key") {
		t.Errorf("the record holds it: %s", b)
	}
	r.ID, r.Env = "other", maps.Clone(r.Env)
	r.Env["SECRET"] = "${secret:MISSING}"
	if _, err := h.Install(t.Context(), Plan{Record: r}, nil); err == nil ||
		!strings.Contains(err.Error(), "gatehouse secret set MISSING") {
		t.Errorf("got %v", err)
	}
}
