//go:build linux && (amd64 || arm64)

package api_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gatehouse/internal/sandbox/firecracker/api"
	"gatehouse/internal/sandbox/firecracker/fake"
)

// reach is a client of something that listens at a socket.
func reach(t *testing.T, h http.Handler) *api.Client {
	t.Helper()
	dir, err := os.MkdirTemp("", "api") // a test's own folder may have too long a name for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	l, err := net.Listen("unix", filepath.Join(dir, "api.sock"))
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: h}
	go server.Serve(l)
	t.Cleanup(func() { server.Close() })
	c := api.New(func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", l.Addr().String())
	})
	t.Cleanup(func() { c.Close() })
	return c
}

// vmm is a client of a process that has nothing, with a folder for its files.
func vmm(t *testing.T) (*api.Client, string) {
	t.Helper()
	dir := t.TempDir()
	v := &fake.VMM{ID: "one", Version: "1.16.1", At: func(path string) string { return filepath.Join(dir, path) }}
	t.Cleanup(func() { v.Close() })
	for name, says := range map[string]string{"kernel": "\x7fELF", "bad-kernel": "bzImage", "disk": "ext4"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(says), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return reach(t, v), dir
}

// refused fails the test unless an error is a Fault that says this.
func refused(t *testing.T, err error, says string) {
	t.Helper()
	f, ok := errors.AsType[*api.Fault](err)
	if !ok || f.Status != http.StatusBadRequest || !strings.Contains(f.Message, says) {
		t.Errorf("got %v, want a fault that says %q", err, says)
	}
}

func TestEverythingCanBeSaid(t *testing.T) {
	c, dir := vmm(t)
	ctx := t.Context()
	rate := &api.RateLimiter{Bandwidth: &api.TokenBucket{Size: 1 << 20, RefillTime: 100}}
	for name, err := range map[string]error{
		"logger":    c.PutLogger(ctx, api.Logger{Path: "log", Level: "Warning", ShowLevel: true}),
		"metrics":   c.PutMetrics(ctx, api.Metrics{Path: "metrics"}),
		"machine":   c.PutMachine(ctx, api.Machine{VCPUs: 2, MemoryMiB: 256}),
		"boot":      c.PutBootSource(ctx, api.BootSource{Kernel: "kernel", Args: "quiet"}),
		"drive":     c.PutDrive(ctx, api.Drive{ID: "vda", Path: "disk", ReadOnly: true, Rate: rate}),
		"interface": c.PutNetworkInterface(ctx, api.NetworkInterface{ID: "eth0", HostDev: "tap0", RX: rate}),
		"mmds":      c.PutMMDSConfig(ctx, api.MMDSConfig{Interfaces: []string{"eth0"}, Version: "V2"}),
		"vsock":     c.PutVsock(ctx, api.Vsock{CID: 3, Path: "v.sock"}),
		"entropy":   c.PutEntropy(ctx, api.Entropy{}),
		"data":      c.PutMMDS(ctx, map[string]any{"a": 1, "b": 2}),
	} {
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := c.PatchMMDS(ctx, map[string]any{"a": nil}); err != nil {
		t.Error(err)
	}
	var data map[string]any
	if err := c.MMDS(ctx, &data); err != nil || len(data) != 1 || data["b"] != 2.0 {
		t.Errorf("the metadata: %v, %v", data, err)
	}
	if m, err := c.Machine(ctx); err != nil || m != (api.Machine{VCPUs: 2, MemoryMiB: 256}) {
		t.Errorf("the machine: %+v, %v", m, err)
	}
	if v, err := c.Version(ctx); err != nil || v != "1.16.1" {
		t.Errorf("the version: %q, %v", v, err)
	}
	if i, err := c.Instance(ctx); err != nil || i != (api.Instance{
		App:     "Firecracker",
		ID:      "one",
		State:   api.NotStarted,
		Version: "1.16.1",
	}) {
		t.Errorf("the instance: %+v, %v", i, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "v.sock")); !os.IsNotExist(err) {
		t.Errorf("the socket is there before the machine has started: %v", err)
	}
}

func TestWhatIsSaidTooEarlyIsRefused(t *testing.T) {
	c, _ := vmm(t)
	ctx := t.Context()
	const early = "not supported before starting the microVM"
	refused(t, c.Pause(ctx), early)
	refused(t, c.Resume(ctx), early)
	refused(t, c.FlushMetrics(ctx), early)
	refused(t, c.CtrlAltDel(ctx), early)
	refused(t, c.CreateSnapshot(ctx, api.SnapshotCreate{State: "s", Memory: "m"}), early)
	refused(t, c.PatchDrive(ctx, api.DriveUpdate{ID: "vda", Path: "disk"}), early)
	refused(t, c.PatchNetworkInterface(ctx, api.NetworkUpdate{ID: "eth0"}), early)
	refused(t, c.Start(ctx), "without kernel configuration")
}

func TestWhatIsWrongIsRefused(t *testing.T) {
	c, _ := vmm(t)
	ctx := t.Context()
	refused(t, c.PutMachine(ctx, api.Machine{VCPUs: 33, MemoryMiB: 128}), "number of vCPUs")
	refused(t, c.PutMachine(ctx, api.Machine{VCPUs: 1}), "memory size")
	refused(t, c.PutBootSource(ctx, api.BootSource{Kernel: "nothing"}), "kernel file cannot be opened")
	refused(t, c.PutDrive(ctx, api.Drive{ID: "vda", Path: "nothing"}), "Invalid block device path")
	refused(t, c.PutDrive(ctx, api.Drive{ID: "a-b", Path: "disk"}), "alphanumeric")
	refused(t, c.PutVsock(ctx, api.Vsock{CID: 2, Path: "v.sock"}), "guest_cid")
	refused(t, c.PutLogger(ctx, api.Logger{Level: "Loud"}), "unknown variant `Loud`")
	refused(t, c.PatchMMDS(ctx, map[string]any{}), "not initialized")
	if err := c.PutDrive(ctx, api.Drive{ID: "vda", Path: "disk", Root: true}); err != nil {
		t.Error(err)
	}
	refused(t, c.PutDrive(ctx, api.Drive{ID: "vdb", Path: "disk", Root: true}), "root block device already exists")
	if err := c.PutBootSource(ctx, api.BootSource{Kernel: "bad-kernel"}); err != nil {
		t.Error(err)
	}
	refused(t, c.Start(ctx), "Invalid ELF magic number")
}

func TestASnapshotIsLoadedByAFreshProcessOnly(t *testing.T) {
	c, _ := vmm(t)
	load := api.SnapshotLoad{State: "s", Memory: api.MemoryBackend{Type: "File", Path: "m"}}
	if err := c.PutLogger(t.Context(), api.Logger{Path: "log"}); err != nil {
		t.Error(err)
	}
	if err := c.PutEntropy(t.Context(), api.Entropy{}); err != nil {
		t.Error(err)
	}
	refused(t, c.LoadSnapshot(t.Context(), load), "not allowed after configuring boot-specific resources")
	fresh, _ := vmm(t)
	refused(t, fresh.LoadSnapshot(t.Context(), load), "Failed to restore from snapshot")
}

func TestAnAnswerHasABoundAndAnEnd(t *testing.T) {
	hold := make(chan struct{})
	defer close(hold)
	c := reach(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/version": // more than a client reads
			for range 3 << 10 {
				if _, err := w.Write(make([]byte, 1<<10)); err != nil {
					return
				}
			}
		case "/machine-config":
			w.Write([]byte("no JSON"))
		case "/mmds":
			http.Redirect(w, r, "http://localhost/", http.StatusFound)
		case "/vsock":
			w.WriteHeader(http.StatusInternalServerError)
			w.Write([]byte("{\"fault_message\": \"line\\none\\u001b[31m\"}"))
		case "/entropy":
			w.WriteHeader(http.StatusBadRequest)
		default:
			<-hold
		}
	}))
	if _, err := c.Version(t.Context()); err == nil || !strings.Contains(err.Error(), "more than") {
		t.Errorf("too long an answer: %v", err)
	}
	if _, err := c.Machine(t.Context()); err == nil || !strings.Contains(err.Error(), "unexpected answer") {
		t.Errorf("another answer: %v", err)
	}
	if err := c.MMDS(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "redirection") {
		t.Errorf("a redirection: %v", err)
	}
	f, _ := errors.AsType[*api.Fault](c.PutVsock(t.Context(), api.Vsock{}))
	if f == nil || f.Status != 500 || f.Message != "line one [31m" || f.Method != http.MethodPut || f.Path != "/vsock" {
		t.Errorf("a fault: %+v", f)
	}
	if f, _ := errors.AsType[*api.Fault](c.PutEntropy(t.Context(), api.Entropy{})); f == nil ||
		f.Message != "400 Bad Request" {
		t.Errorf("a fault without a message: %+v", f)
	}
	over := errors.New("the caller has had enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	time.AfterFunc(10*time.Millisecond, func() { cancel(over) })
	if err := c.Pause(ctx); !errors.Is(err, over) {
		t.Errorf("no answer: %v", err)
	}
}

func FuzzMessage(f *testing.F) {
	f.Add([]byte(`{"fault_message": "no"}`))
	f.Add([]byte("\x00\xff\n"))
	f.Fuzz(func(t *testing.T, body []byte) {
		c := reach(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusBadRequest)
			w.Write(body)
		}))
		err := c.Pause(t.Context())
		fault, ok := errors.AsType[*api.Fault](err)
		if !ok || fault.Message == "" || len(fault.Message) > 1100 ||
			strings.ContainsAny(fault.Message, "\n\r\x00\x1b") {
			t.Errorf("%q became %v", body, err)
		}
	})
}
