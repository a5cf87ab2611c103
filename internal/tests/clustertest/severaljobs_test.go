package clustertest

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"gatehouse/internal/packages/packagestest"
)

// slowRemote serves what is at an address as well, at /slow as soon as open is closed. asked counts the requests there.
func slowRemote(t *testing.T, at string) (fast, slow string, asked *atomic.Int32, open chan struct{}) {
	t.Helper()
	to, err := url.Parse(strings.TrimSuffix(at, "/mcp"))
	if err != nil {
		t.Fatal(err)
	}
	asked, open = new(atomic.Int32), make(chan struct{})
	proxy := httputil.NewSingleHostReverseProxy(to)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if path, ok := strings.CutPrefix(r.URL.Path, "/slow"); ok {
			asked.Add(1)
			select {
			case <-open:
			case <-r.Context().Done():
				return
			}
			r.URL.Path = path
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	return "url:" + s.URL + "/mcp", "url:" + s.URL + "/slow/mcp", asked, open
}

// twoVersions installs a package of a node in two versions, of which the first starts while a file is there. It returns
// the paths of that and of the file in which each start of the first writes a line.
func twoVersions(t *testing.T, nodes []*node, token, id string) (open, starts string) {
	t.Helper()
	slow, quick, open, starts := slowScript(t)
	env := packagestest.Environment("good")
	env["GATEHOUSE_TEST_NODE"] = ""
	for version, script := range []string{slow, quick} {
		source := filepath.Join(nodes[0].dir, "work", fmt.Sprint("version-", version+1))
		if err := os.MkdirAll(source, 0o700); err != nil {
			t.Fatal(err)
		}
		for path, text := range map[string]string{filepath.Join(source, "start.sh"): script, open: ""} {
			if err := os.WriteFile(path, []byte(text), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		name, args := "package_install", map[string]any{
			"id": id, "source": "folder:" + source, "command": "./start.sh", "env": env, "trust": true, "nodes": "each",
			"confirm": id,
		}
		if version > 0 {
			name, args = "package_rebuild", map[string]any{"id": id, "source": "folder:" + source, "confirm": id}
		}
		jobEnds(t, nodes[0], token, jobOf(t, nodes[0].callAs(t, token, name, args)), `"tools":[`)
		for _, n := range nodes { // each gets the program
			eventually(t, "each node runs the package", func() bool {
				return homeOf.MatchString(n.callAs(t, token, id+"_where", map[string]any{}))
			})
		}
	}
	if err := os.Remove(open); err != nil {
		t.Fatal(err)
	}
	return open, starts
}

func jobOf(t *testing.T, answer string) string {
	t.Helper()
	return find(t, `"job":"([a-z2-7]+_[a-z2-7]{10})"`, answer)
}

// jobEnds waits for the end of a job, in which there must be a text, and returns it.
func jobEnds(t *testing.T, n *node, token, job, want string) (got string) {
	t.Helper()
	eventually(t, "a job ends with "+want, func() bool {
		got = n.callAs(t, token, "job_wait", map[string]any{"id": job, "seconds": 1})
		return strings.Contains(got, want) || strings.Contains(got, `"isError":true`)
	})
	if !strings.Contains(got, want) {
		t.Errorf("a job has ended with %.1000s, want %s", got, want)
	}
	return got
}

// TestChangesOfSeveralPackagesAreTakenOver kills a node in the middle of package_sync, with package_apply behind it, and
// of package_rollback. Other nodes go on with each where it was; the rollback is done once.
func TestChangesOfSeveralPackagesAreTakenOver(t *testing.T) {
	if !long() {
		t.Skip("set GATEHOUSE_TEST_ALL to kill a node in the middle of other jobs than installations")
	}
	t.Parallel()
	_, at := remoteTasks(t)
	fast, slow, asked, serve := slowRemote(t, at)
	nodes := startNodes(t, "package")
	token := administrator(t, nodes[0])
	open, starts := twoVersions(t, nodes, token, "back")

	locked := func(name, source string) map[string]any { return map[string]any{"name": name, "source": source} }
	sync := jobOf(t, nodes[0].callAs(t, token, "package_sync", map[string]any{
		"lock": map[string]any{
			"gatehouse_lock": 1, "packages": []any{locked("sync-a", fast), locked("sync-b", slow)},
		},
		"confirm": "sync",
	}))
	eventually(t, "the sync is at its second package", func() bool { return asked.Load() > 0 })
	apply := jobOf(t, nodes[0].callAs(t, token, "package_apply", map[string]any{
		"packages": []any{locked("apply-a", fast), locked("apply-b", fast)}, "confirm": "apply",
	}))
	before := lines(starts)
	rollback := jobOf(t, nodes[0].callAs(t, token, "package_rollback", map[string]any{"id": "back", "confirm": "back"}))
	eventually(t, "the rollback is in its middle", func() bool { return lines(starts) > before })
	nodes[0].cmd.Process.Kill()
	nodes[0].cmd.Wait()
	begun, requests := lines(starts), asked.Load()
	eventually(t, "other nodes go on with all three", func() bool {
		return lines(starts) > begun && asked.Load() > requests && installs(nodes) == 4
	})
	close(serve)
	if err := os.WriteFile(open, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, n := range nodes[1:] {
		got := jobEnds(t, n, token, sync, `"steps":[`)
		if strings.Count(got, `"install"`) < 2 || strings.Contains(got, `"error"`) {
			t.Errorf("the sync: %.1000s", got)
		}
		got = jobEnds(t, n, token, apply, `"steps":[`)
		if strings.Count(got, `"install"`) < 2 || strings.Contains(got, `"error"`) {
			t.Errorf("the apply: %.1000s", got)
		}
		jobEnds(t, n, token, rollback, `"tools":[`)
		eventually(t, "every node has the packages and the version before", func() bool {
			list := n.callAs(t, token, "package_list", map[string]any{})
			return strings.Contains(list, "sync-a") && strings.Contains(list, "sync-b") &&
				strings.Contains(list, "apply-a") && strings.Contains(list, "apply-b") &&
				strings.Contains(n.callAs(t, token, "package_why", map[string]any{"id": "back"}), "/version-1")
		})
	}
	// What package_apply has declared is declared by the settings of the node on which it was called.
	why := nodes[1].callAs(t, token, "package_why", map[string]any{"id": "apply-a"})
	if strings.Contains(why, nodeID(t, nodes[1])+":") || strings.Contains(why, nodeID(t, nodes[2])+":") {
		t.Errorf("the settings of another node declare the package: %.600s", why)
	}
}
