package clustertest

import (
	"context"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"gatehouse"
	"gatehouse/internal/sandbox/sandboxtest"
	"gatehouse/module"
	"gatehouse/tool"
)

// heldServer has a tool that it runs as a task alone, until release is closed.
type heldServer struct {
	release chan struct{}
	runs    atomic.Int32
}

func (h *heldServer) open(context.Context, module.Deps) (module.Module, error) { return h, nil }
func (h *heldServer) Close(context.Context) error                              { return nil }

func (h *heldServer) Offer(context.Context, module.Audience) (*module.Offer, error) {
	return &module.Offer{Tools: []tool.Tool{tool.New(
		tool.Def{Name: "held", Description: "Waits.", Task: tool.TaskRequired},
		func(ctx context.Context, _ *tool.Call, _ struct{}) (tool.Result, error) {
			h.runs.Add(1)
			select {
			case <-h.release:
				return tool.Result{Content: []tool.Content{tool.Text("held to the end")}}, nil
			case <-ctx.Done():
				return tool.Result{}, context.Cause(ctx)
			}
		})}}, nil
}

// remoteTasks serves a heldServer over HTTP.
func remoteTasks(t *testing.T) (h *heldServer, url string) {
	t.Helper()
	h = &heldServer{release: make(chan struct{})}
	s, err := gatehouse.New(gatehouse.WithModules(), gatehouse.WithModule("holder", h.open), gatehouse.WithInsecure(),
		gatehouse.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		t.Fatal(err)
	}
	up := httptest.NewServer(s.Handler())
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		s.Shutdown(ctx)
		up.Close()
	})
	return h, up.URL + "/mcp"
}

// slowRegistry has a small image, and answers requests for its blobs once open is closed.
func slowRegistry(t *testing.T) (host, image string, asked *atomic.Int32, open chan struct{}) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "layer.tar")
	if out, err := exec.Command("tar", "-C", sandboxtest.SmallImage(t), "-cf", file, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	layer, err := tarball.LayerFromFile(file)
	if err != nil {
		t.Fatal(err)
	}
	img, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		t.Fatal(err)
	}
	config, err := img.ConfigFile()
	if err == nil {
		config = config.DeepCopy()
		config.OS, config.Architecture = "linux", runtime.GOARCH
		img, err = mutate.ConfigFile(img, config)
	}
	if err != nil {
		t.Fatal(err)
	}
	asked, open = new(atomic.Int32), make(chan struct{})
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	var slow atomic.Bool
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if slow.Load() && strings.Contains(r.URL.Path, "/blobs/") {
			asked.Add(1)
			select {
			case <-open:
			case <-r.Context().Done():
				return
			}
		}
		inner.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	host = strings.TrimPrefix(s.URL, "http://")
	image = host + "/some/thing:v1"
	ref, err := name.ParseReference(image)
	if err == nil {
		err = remote.Write(ref, img)
	}
	if err != nil {
		t.Fatal(err)
	}
	slow.Store(true)
	return host, image, asked, open
}

// startTaskAs starts a tool as a task of a legacy client and returns its id.
func startTaskAs(t *testing.T, n *node, token, name, args string) string {
	t.Helper()
	_, header, err := post(n.url, "token "+token, initialize)
	if err != nil {
		t.Fatal(err)
	}
	got, _, err := post(n.url, header.Get("Mcp-Session-Id")+"token "+token,
		`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"`+name+`","arguments":`+args+`,"task":{}}}`)
	if err != nil {
		t.Fatal(err)
	}
	return find(t, `"taskId":"([a-z2-7]+_[a-z2-7]{10})"`, got)
}

// TestOtherJobsAreTakenOver kills a node while it installs a package again, creates a sandbox whose image is being
// fetched, and follows a task of a remote server. Others go on with all of them under their ids; the remote server runs
// its task once.
func TestOtherJobsAreTakenOver(t *testing.T) {
	if !long() {
		t.Skip("set GATEHOUSE_TEST_ALL to kill a node in the middle of other jobs than installations")
	}
	t.Parallel()
	held, url := remoteTasks(t)
	host, image, asked, serve := slowRegistry(t)
	settings := filepath.Join(t.TempDir(), "gatehouse.yaml")
	text := fmt.Sprintf("modules:\n  sandbox:\n    registries: [http://%s]\n    templates:\n      - {name: small, image: %s}\n",
		host, image)
	if err := os.WriteFile(settings, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	nodes := startNodesIn(t, []string{"GATEHOUSE_CONFIG=" + settings}, "package", "sandbox")
	token := administrator(t, nodes[0])
	args, open, starts := slowPackage(t, "re")
	if err := os.WriteFile(open, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	jobEnds(t, nodes[0], token, jobOf(t, nodes[0].callAs(t, token, "package_install", args)), `"tools":[`)
	jobEnds(t, nodes[0], token, jobOf(t, nodes[0].callAs(t, token, "package_install",
		map[string]any{"id": "far", "source": "url:" + url, "confirm": "far"})), `"tools":[`)
	if err := os.Remove(open); err != nil {
		t.Fatal(err)
	}
	before := lines(starts)

	remoteTask := startTaskAs(t, nodes[0], token, "far_held", `{}`)
	box := startTaskAs(t, nodes[0], token, "sandbox_create", `{"template":"small"}`)
	eventually(t, "the remote task and the image are in their middle", func() bool {
		return held.runs.Load() == 1 && asked.Load() > 0
	})
	// The server of a package has 30 s to start, so that this comes last.
	rebuild := jobOf(t, nodes[0].callAs(t, token, "package_rebuild", map[string]any{"id": "re", "confirm": "re"}))
	eventually(t, "the package is in its middle", func() bool { return lines(starts) > before })
	nodes[0].cmd.Process.Kill()
	nodes[0].cmd.Wait()
	wait, fetches := lines(starts), asked.Load()
	eventually(t, "other nodes go on with all three", func() bool {
		return lines(starts) > wait && asked.Load() > fetches && installs(nodes) == 4
	})
	close(held.release)
	close(serve)
	if err := os.WriteFile(open, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, n := range nodes[1:] {
		jobEnds(t, n, token, rebuild, `"tools":[`)
		jobEnds(t, n, token, remoteTask, "held to the end")
		jobEnds(t, n, token, box, `"sandbox_id":"`)
	}
	if n := held.runs.Load(); n != 1 {
		t.Errorf("the remote server has run its task %d times", n)
	}
}
