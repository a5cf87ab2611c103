package relaytest

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"gatehouse"
	"gatehouse/internal/mcp/client"
	"gatehouse/internal/packages"
	"gatehouse/module"
)

// verify makes the tests of this file as long as a release needs them; see make verify-relay.
const verify = "GATEHOUSE_VERIFY_RELAY"

func times(short, long int) int {
	if os.Getenv(verify) != "" {
		return long
	}
	return short
}

// leftovers are what a host could leave behind with each call or server.
type leftovers struct {
	children, files, routines int
	heap                      uint64
}

func (l leftovers) String() string {
	return fmt.Sprintf("%d children, %d descriptors, %d goroutines, %d KiB of heap", l.children, l.files, l.routines,
		l.heap>>10)
}

// countLeftovers counts what this process has, after a garbage collection.
func countLeftovers(t *testing.T) (l leftovers) {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip("counts need /proc: ", err)
	}
	l.files, l.routines = len(files), runtime.NumGoroutine()
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		b, _ := os.ReadFile(path)
		_, rest, _ := strings.Cut(string(b), ") ")
		if fields := strings.Fields(rest); len(fields) > 1 && fields[1] == strconv.Itoa(os.Getpid()) {
			l.children++
		}
	}
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	l.heap = m.HeapAlloc
	return l
}

// settled waits until no more is left than before; what stays is an error.
func settled(t *testing.T, before leftovers, heap uint64) {
	t.Helper()
	var now leftovers
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		now = countLeftovers(t)
		if now.children <= before.children && now.files <= before.files+2 && now.routines <= before.routines+2 &&
			now.heap <= before.heap+heap {
			t.Logf("before: %v; after: %v", before, now)
			return
		}
	}
	t.Errorf("before: %v; after: %v", before, now)
}

// host serves a package with a child as its server over HTTP, and returns its address.
func host(t *testing.T) (*packages.Manager, string) {
	t.Helper()
	r := upstreams(t)["child"]
	r.TrustHints = true
	m, open := install(t, r, nil)
	s, err := newRelay(open)
	if err != nil {
		t.Fatal(err)
	}
	web := &http.Server{Handler: s.Handler()}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go web.Serve(l)
	t.Cleanup(func() {
		web.Close()
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		s.Shutdown(ctx)
	})
	return m, "http://" + l.Addr().String() + "/mcp"
}

func newRelay(open module.New) (*gatehouse.Server, error) {
	return gatehouse.New(gatehouse.WithModules(), gatehouse.WithModule("package", open), gatehouse.WithInsecure(),
		gatehouse.WithLogger(slog.New(slog.DiscardHandler)))
}

// visitOnce connects, calls a read-only tool of the package and leaves.
func visitOnce(ctx context.Context, url string) error {
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	c := client.NewHTTP(url, client.HTTPOptions{Client: &http.Client{Transport: transport}},
		client.ConnOptions{Name: "soak", Version: "1"})
	defer c.Close()
	if err := c.Connect(ctx, "2025-11-25"); err != nil {
		return err
	}
	raw, err := c.Do(ctx, client.Request{Method: "tools/call", Name: "up_test_simple_text",
		Params: []byte(`{"name":"up_test_simple_text","arguments":{}}`)})
	if err == nil && !strings.Contains(string(raw), "simple text") {
		err = fmt.Errorf("answered %s", raw)
	}
	return err
}

// Clients that connect, call and leave, one after the other and beside each other, leave nothing behind.
func TestNothingIsLeftOfClients(t *testing.T) {
	_, url := host(t)
	many := func(n int) {
		var work sync.WaitGroup
		var next atomic.Int64
		for range 8 {
			work.Go(func() {
				for next.Add(1) <= int64(n) {
					if err := visitOnce(t.Context(), url); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		work.Wait()
	}
	many(times(50, 1000)) // caches fill
	before := countLeftovers(t)
	many(times(100, 10_000))
	settled(t, before, 4<<20)
}

// Servers that are killed while they are called are started again, leave nothing behind, and no call of a tool that
// changes nothing fails.
func TestNothingIsLeftOfKilledServers(t *testing.T) {
	m, url := host(t)
	ctx, stop := context.WithTimeout(t.Context(), time.Hour)
	defer stop()
	var done atomic.Int64
	ended := make(chan struct{})
	var callers sync.WaitGroup
	for range 4 {
		callers.Go(func() {
			for {
				select {
				case <-ended:
					return
				default:
				}
				if err := visitOnce(ctx, url); err != nil {
					t.Errorf("a call of a read-only tool: %v", err)
					return
				}
				done.Add(1)
			}
		})
	}
	groups := map[string]bool{}
	kill := func(n int) {
		last := 0
		for range n {
			pid, since := 0, done.Load()
			for ctx.Err() == nil && !t.Failed() && (pid == 0 || pid == last || done.Load() < since+8) {
				if i, err := m.Info("up"); err == nil {
					pid = i.PID
				}
				time.Sleep(time.Millisecond)
			}
			if t.Failed() {
				return
			}
			addGroups(groups, pid)
			syscall.Kill(pid, syscall.SIGKILL)
			last = pid
		}
	}
	kill(times(3, 50))
	for since := done.Load(); ctx.Err() == nil && !t.Failed() && done.Load() < since+8; {
		time.Sleep(time.Millisecond) // until the server runs again
	}
	before := countLeftovers(t)
	kill(times(10, 1000))
	close(ended)
	callers.Wait()
	if i, err := m.Info("up"); err != nil || i.Public.Health.Restarts < uint64(times(10, 1000)) {
		t.Errorf("health %+v, %v", i.Public.Health, err)
	}
	settled(t, before, 4<<20)
	if _, err := m.Stop(t.Context(), "up"); err != nil {
		t.Fatal(err)
	}
	for folder := range groups {
		if _, err := os.Stat(folder); err == nil {
			t.Errorf("the control group %s is left", folder)
		}
	}
}

// addGroups adds the folders of the control groups that a process has and this one has not.
func addGroups(all map[string]bool, pid int) {
	here, _ := os.ReadFile("/proc/self/cgroup")
	there, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	for line := range strings.Lines(string(there)) {
		// hierarchy:controllers:path, without controllers in version 2
		part := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(part) == 3 && !strings.Contains(string(here), line) {
			all[filepath.Join("/sys/fs/cgroup", part[1], part[2])] = true
		}
	}
}
