package repotest

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"net/http"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"gatehouse/internal/app"
	"gatehouse/internal/config"
	"gatehouse/internal/mcp/protocol"
	"gatehouse/internal/modules/publicstate"
	"gatehouse/internal/state"
	"gatehouse/internal/tests/hosttest"
	"gatehouse/module"
	"gatehouse/tool"
)

const (
	pathBegin = "<!-- path: written by go test ./internal/tests/repotest -update -->\n"
	pathEnd   = "<!-- end of path -->"

	mostCallFrames  = 19
	mostStateFrames = 12
)

// ourFrames returns the functions of this program on the stack of the caller, the outermost first, without those of
// this package.
func ourFrames() (all []string) {
	pcs := make([]uintptr, 200)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs)])
	for more := true; more; {
		var f runtime.Frame
		f, more = frames.Next()
		name, ok := strings.CutPrefix(f.Function, "gatehouse/")
		if ok && !strings.Contains(name, "repotest") && !strings.HasPrefix(name, "internal/tests/") {
			all = append(all, strings.TrimPrefix(name, "internal/"))
		}
	}
	slices.Reverse(all)
	return all
}

// probeModule is a module with one tool, which records the stack of its handler.
type probeModule struct{ stack chan []string }

func (p probeModule) Offer(context.Context, module.Audience) (*module.Offer, error) {
	type in struct {
		Text string `json:"text"`
	}
	probe := func(_ context.Context, _ *tool.Call, v in) (in, error) {
		p.stack <- ourFrames()
		return v, nil
	}
	return &module.Offer{
		Tools: []tool.Tool{tool.New(tool.Def{Name: "probe", Description: "Records the stack."}, probe)},
	}, nil
}

func (p probeModule) Close(context.Context) error { return nil }

// callPath calls a tool of a whole host over HTTP, without a session, and returns the functions that the call ran
// through until the tool's handler.
func callPath(t *testing.T) []string {
	t.Helper()
	home := t.TempDir()
	cfg, err := config.FromEnv(func(name string) string { return map[string]string{"HOME": home}[name] })
	if err != nil {
		t.Fatal(err)
	}
	cfg.Roots.Folders = []string{t.TempDir()}
	cfg.Auth.Insecure = true
	cfg.Listen.HTTP.Open, cfg.Listen.HTTP.Port = true, 0
	p := probeModule{make(chan []string, 1)}
	a, err := app.New(t.Context(), cfg, app.Options{Bare: true, Private: true, Extra: []app.Module{
		{Name: "path", New: func(context.Context, module.Deps) (module.Module, error) { return p, nil }},
	}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	defer func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	body := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"probe","arguments":{"text":"x"},` +
		`"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{},` +
		`"io.modelcontextprotocol/clientInfo":{"name":"path","version":"1"}}}}`
	r, err := http.NewRequestWithContext(t.Context(), "POST", a.Listeners()[0].Address, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{
		"Content-Type": "application/json", "Accept": "application/json, text/event-stream",
		"Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": "probe",
	} {
		r.Header.Set(name, value)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, _ := io.ReadAll(resp.Body)
	select {
	case all := <-p.stack:
		return all
	default:
		t.Fatalf("the tool was not called: %s %s", resp.Status, answer)
		return nil
	}
}

// stackLog is a log of state that records the stack of each change. It stores nothing.
type stackLog struct {
	mu    sync.Mutex
	stack []string
}

func (l *stackLog) Append(_ context.Context, _ string, expected uint64, _ state.Patch) (uint64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stack = ourFrames()
	return expected + 1, nil
}

func (l *stackLog) Follow(ctx context.Context, _ string, from uint64) iter.Seq2[state.Change, error] {
	return func(yield func(state.Change, error) bool) {
		if yield(state.Change{Revision: from}, nil) {
			<-ctx.Done()
		}
	}
}

// watchedModule records the stacks of the changes that a module reports.
type watchedModule struct {
	module.Module
	stack chan []string
}

func (m watchedModule) Offer(ctx context.Context, to module.Audience) (*module.Offer, error) {
	o, err := m.Module.Offer(ctx, to)
	if err != nil {
		return nil, err
	}
	now := *o
	recorded := func(all []module.Resource) (changed []module.Resource) {
		for _, r := range all {
			if watch := r.Watch; watch != nil {
				r.Watch = func(c tool.Caller, uri string, changed func(json.RawMessage)) (func(), error) {
					return watch(c, uri, func(meta json.RawMessage) {
						record(m.stack, ourFrames())
						changed(meta)
					})
				}
			}
			changed = append(changed, r)
		}
		return changed
	}
	now.Resources, now.Templates = recorded(o.Resources), recorded(o.Templates)
	return &now, nil
}

// record sends a stack unless one was sent before.
func record(to chan []string, stack []string) {
	select {
	case to <- stack:
	default:
	}
}

// statePath changes a value of the tree to which a client has subscribed. It returns the functions of each goroutine
// that takes part: the change until its record, the end of the window in which changes are gathered, the module that
// reports the update, and the writer of the notification.
func statePath(t *testing.T) (path [4][]string) {
	t.Helper()
	l := &stackLog{}
	tree := state.New(state.Options{Log: l, Window: time.Millisecond})
	ended := make(chan error, 1)
	ctx, stop := context.WithCancel(t.Context())
	go func() { ended <- tree.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		<-ended
		tree.Close()
	})
	m, err := state.Attach[int](t.Context(), tree, "/public/number", state.Durable)
	if err != nil {
		t.Fatal(err)
	}
	var watches publicstate.Watches
	public := publicstate.New(publicstate.Options{
		Tree: tree, Watches: &watches, SeesAll: func(tool.Caller) bool { return true },
	})
	windows, reports, notified := make(chan []string, 1), make(chan []string, 1), make(chan []string, 1)
	h := hosttest.New(t, hosttest.Options{Modules: map[string]module.New{
		"public": func(ctx context.Context, d module.Deps) (module.Module, error) {
			m, err := public(ctx, d)
			return watchedModule{m, reports}, err
		},
	}})
	own, _, err := tree.Subscribe(state.Pointer{"public", "number"}, "")
	if err != nil {
		t.Fatal(err)
	}
	own.OnReady(func() { record(windows, ourFrames()) })
	got := make(chan []byte, 100)
	p := h.Engine.Pipe(protocol.Caller{Caller: tool.Caller{Principal: "ann"}}, func(msg []byte) error {
		if strings.Contains(string(msg), "notifications/resources/updated") {
			record(notified, ourFrames())
		}
		got <- slices.Clone(msg)
		return nil
	})
	t.Cleanup(func() { p.Close(nil) })
	request := func(id int, method, params string) {
		p.Receive(fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%d,"method":%q,"params":%s}`, id, method, params))
		for {
			select {
			case msg := <-got:
				var answer struct {
					ID    int             `json:"id"`
					Error json.RawMessage `json:"error"`
				}
				if json.Unmarshal(msg, &answer); answer.ID == id {
					if answer.Error != nil {
						t.Fatalf("%s: %s", method, msg)
					}
					return
				}
			case <-time.After(time.Minute):
				t.Fatalf("%s is not answered", method)
			}
		}
	}
	request(
		1,
		"initialize",
		`{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"path","version":"1"}}`,
	)
	p.Receive([]byte(`{"jsonrpc":"2.0","method":"notifications/initialized"}`))
	request(2, "resources/subscribe", `{"uri":"gatehouse:///public/number"}`)
	if _, err := m.Set(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	for i, from := range []chan []string{windows, reports, notified} {
		select {
		case path[i+1] = <-from:
		case <-time.After(time.Minute):
			t.Fatal("the client is not notified")
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	path[0] = l.stack
	return path
}

// The paths of a call and of a state change stay short. docs/design.md lists them.
func TestPathsAreShort(t *testing.T) {
	call := callPath(t)
	change := statePath(t)
	packages := map[string]bool{}
	for _, f := range call {
		dir, name := filepath.Split(f)
		pkg, _, _ := strings.Cut(name, ".")
		packages[dir+pkg] = true
	}
	if len(call) > mostCallFrames {
		t.Errorf("a call runs through %d functions before its handler, want at most %d", len(call), mostCallFrames)
	}
	steps := len(slices.Concat(change[:]...))
	if steps > mostStateFrames {
		t.Errorf("a state change runs through %d functions before its notification, want at most %d", steps,
			mostStateFrames)
	}
	replaceGenerated(t, filepath.Join("docs", "design.md"), pathBegin, pathEnd, fmt.Sprintf(`
A call over HTTP without a session runs through %d functions in %d packages before
the handler of its tool:

%s
A change of the state tree runs through %d functions on four goroutines before a
subscriber is notified: until it is recorded, when the window has ended in which
changes are gathered, in the module that reports the update, and in the writer of the
notification:

%s%s%s%s
`, len(call), len(packages), listFrames(call), steps,
		listFrames(change[0]), listFrames(change[1]), listFrames(change[2]), listFrames(change[3])))
}

// listFrames returns functions as indented lines of at most 84 characters, which name a package once.
func listFrames(all []string) string {
	var b strings.Builder
	line, last := "   ", ""
	for _, f := range all {
		dir, name := filepath.Split(f)
		pkg, rest, _ := strings.Cut(name, ".")
		if pkg = dir + pkg; pkg == last {
			f = rest
		}
		last = pkg
		if len(line)+len(f)+1 > 84 {
			b.WriteString(line + "\n")
			line = "       "
		}
		line += " " + f
	}
	b.WriteString(line + "\n")
	return b.String()
}
