package process

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"gatehouse/internal/dispatch/hub"
	"gatehouse/module/moduletest"
	"gatehouse/tool"
)

const newsWait = 45 * time.Second // a test's patience

// listener is a client of the hub.
type listener struct {
	t    *testing.T
	conn *websocket.Conn
}

// withHub is the module with a hub, and what makes clients of it.
func withHub(t *testing.T, config Config) (*fixture, func(owner string) listener) {
	t.Helper()
	h := hub.New(hub.Options{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.Serve(w, r, hub.Caller{Caller: tool.Caller{Owner: strings.Trim(r.URL.Path, "/")}})
	}))
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); h.Run(ctx) }()
	t.Cleanup(func() { stop(); <-done; server.Close() })
	host := moduletest.NewHost(t)
	deps := host.Deps()
	config.Hub = h
	m, err := New(config)(t.Context(), deps)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close(context.Background()) })
	return &fixture{t: t, m: m, host: host, dir: moduletest.Folder(t)}, func(owner string) listener {
		t.Helper()
		conn, _, err := websocket.Dial(t.Context(), "ws"+strings.TrimPrefix(server.URL, "http")+"/"+owner, nil)
		if err != nil {
			t.Fatal(err)
		}
		conn.SetReadLimit(-1)
		t.Cleanup(func() { conn.CloseNow() })
		return listener{t, conn}
	}
}

// usual is the owner of calls in tests.
const usual = "anonymous/default"

func (l listener) hear() (m hub.Message) {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), newsWait)
	defer cancel()
	_, b, err := l.conn.Read(ctx)
	if err == nil {
		err = json.Unmarshal(b, &m)
	}
	if err != nil {
		l.t.Fatal(err)
	}
	return m
}

// joins listens to a process, and hears how it is.
func (l listener) joins(id string) (s statusEvent) {
	l.t.Helper()
	if err := l.conn.Write(l.t.Context(), websocket.MessageText,
		[]byte(`{"type":"subscribe","data":"process:`+id+`"}`)); err != nil {
		l.t.Fatal(err)
	}
	if m := l.hear(); m.Type != "subscribe" {
		l.t.Fatalf("got %s %s", m.Type, m.Data)
	}
	m := l.hear()
	if json.Unmarshal(m.Data, &s); m.Type != "process_status" || m.ProcessID != id {
		l.t.Fatalf("got %s %s, want how the process is", m.Type, m.Data)
	}
	return s
}

// toTheEnd gathers what is printed until the process ends.
func (l listener) toTheEnd() (out [2]string, next, lost int64, end statusEvent) {
	l.t.Helper()
	for {
		m := l.hear()
		switch m.Type {
		case "process_output":
			var p outputEvent
			json.Unmarshal(m.Data, &p)
			n := map[string]int{"stdout": stdout, "stderr": stderr}[p.Stream]
			out[n] += p.Text
			next, lost = p.Next, lost+p.Lost
		case "process_status":
			json.Unmarshal(m.Data, &end)
			return out, next, lost, end
		default:
			l.t.Fatalf("got %s on %s: %s", m.Type, m.Channel, m.Data)
		}
	}
}

// A subscriber of a process gets its output from then on, stream by
// stream and in whole characters, and how it ends.
func TestOwnersHearTheirProcesses(t *testing.T) {
	d, client := withHub(t, Config{})
	id := d.sh(`read x; printf 'caf\303'; sleep 0.1; printf '\251\n'; echo oops >&2; printf 'bad \377\n'; exit 3`)
	l := client(usual)
	if s := l.joins(id); s.Status != "running" || s.Command != "sh" || s.PID == 0 {
		t.Errorf("got %+v", s)
	}
	d.do("input", args{"id": id, "input": "go\n"})
	out, next, lost, end := l.toTheEnd()
	if out[stdout] != "café\nbad \\xff\n" || out[stderr] != "oops\n" || lost != 0 {
		t.Errorf("got %q, %d lost", out, lost)
	}
	if end.Status != "exited" || *end.ExitCode != 3 || end.Duration <= 0 {
		t.Errorf("got %+v", end)
	}
	if o := d.do("output", args{"id": id, "since": next}); o.Output != "" {
		t.Errorf("there is more after what was heard: %q", o.Output)
	}
	if s := client(usual).joins(id); s.Status != "exited" {
		t.Errorf("a late subscriber gets %+v", s)
	}
	d.do("remove", args{"id": id})
	if m := l.hear(); m.Type != "unsubscribe" {
		t.Errorf("got %s, want the end of the channel", m.Type)
	}
}

func TestNobodyElseHearsAProcess(t *testing.T) {
	d, client := withHub(t, Config{})
	id := d.sh("sleep 1000")
	l := client("eve/default")
	if err := l.conn.Write(t.Context(), websocket.MessageText,
		[]byte(`{"type":"subscribe","data":"process:`+id+`"}`)); err != nil {
		t.Fatal(err)
	}
	if m := l.hear(); m.Type != "error" || !strings.Contains(string(m.Data), "not_found") {
		t.Errorf("got %s %s", m.Type, m.Data)
	}
}

// A flood of output neither blocks the process nor its subscribers: they get
// where something is missing, and the end of it.
func TestAFloodIsHeardInParts(t *testing.T) {
	d, client := withHub(t, Config{Settings: Settings{Buffer: 64 << 10}})
	id := d.sh(`read x; head -c 50000000 /dev/zero | tr '\0' a; echo; echo the end`)
	l := client(usual)
	l.joins(id)
	d.do("input", args{"id": id, "input": "go\n"})
	out, _, lost, end := l.toTheEnd()
	if got := int64(len(out[stdout])) + lost; got != 50_000_000+9 || lost == 0 {
		t.Errorf("%d bytes were told or told as lost, want all", got)
	}
	if !strings.HasSuffix(out[stdout], "a\nthe end\n") || *end.ExitCode != 0 {
		t.Errorf("got %q, %+v", out[stdout][max(0, len(out[stdout])-20):], end)
	}
}
