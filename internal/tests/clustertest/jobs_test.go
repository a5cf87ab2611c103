package clustertest

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"gatehouse/internal/packages/packagestest"
)

// slowPackage returns the arguments of the installation of a package whose server does not start before a file is
// there, and the paths of that and of the file in which each start writes a line.
func slowPackage(t *testing.T, id string) (args map[string]any, open, starts string) {
	t.Helper()
	text, _, open, starts := slowScript(t)
	script := filepath.Join(t.TempDir(), "start.sh")
	if err := os.WriteFile(script, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	env := packagestest.Environment("good")
	env["GATEHOUSE_TEST_NODE"] = ""
	return map[string]any{"id": id, "command": script, "env": env, "trust": true, "confirm": id}, open, starts
}

// slowScript returns the script of a server that does not start before the file open is there and that writes a line to
// the file starts, and that of one which starts at once.
func slowScript(t *testing.T) (slow, quick, open, starts string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	open, starts = filepath.Join(dir, "open"), filepath.Join(dir, "starts")
	quick = fmt.Sprintf("exec %s\n", self)
	slow = fmt.Sprintf("#!/bin/sh\necho start >>%s\nwhile [ ! -e %s ]; do sleep .1; done\n%s", starts, open, quick)
	return slow, "#!/bin/sh\n" + quick, open, starts
}

func lines(path string) int {
	raw, _ := os.ReadFile(path) // none before the first start
	return strings.Count(string(raw), "\n")
}

// taskState returns the status of a task by tasks/get, and the whole answer.
func taskState(t *testing.T, n *node, token, id string) (status, answer string) {
	t.Helper()
	answer = modernAs(t, n.url, token, "tasks/get", id, map[string]any{"taskId": id})
	var a struct {
		Result struct {
			Status string `json:"status"`
		} `json:"result"`
	}
	if err := json.Unmarshal([]byte(answer), &a); err != nil {
		t.Errorf("tasks/get: %v in %.300s", err, answer)
	}
	return a.Result.Status, answer
}

// TestJobsAreTakenOver kills the node of an installation while that runs. Exactly one other node goes on with it, under
// the same id: a client that asks any node sees it work, and then its end. The node that was killed returns and says
// the same; a job that cannot be run again is told as lost, by it as well.
func TestJobsAreTakenOver(t *testing.T) {
	t.Parallel()
	nodes := startNodes(t, "package", "process")
	token := administrator(t, nodes[0])
	args, open, starts := slowPackage(t, "up")
	const jobs = "gatehouse:///public/jobs"
	on := listenAs(t, nodes[1], token, "", map[string]any{"resourceSubscriptions": []string{jobs}})
	// Nodes do not know what a client has read elsewhere, so that it is told to read again.
	eventually(t, "a client that subscribes is told to read", func() bool { return on.count("resources/updated") > 0 })
	told := on.count("resources/updated")
	begun := nodes[0].callAs(t, token, "package_install", args)
	job := find(t, `"job":"([a-z2-7]+_[a-z2-7]{10})"`, begun)
	lost := startJobAs(t, nodes[0], token)
	eventually(t, "the installation has started the server", func() bool { return lines(starts) == 1 })
	eventually(t, "a client of another node hears of the job", func() bool { return on.count("resources/updated") > told })
	for _, n := range nodes {
		eventually(t, "each node shows the job and its node", func() bool {
			got := modernAs(t, n.url, token, "resources/read", jobs, map[string]any{"uri": jobs})
			return strings.Contains(got, job) && strings.Contains(got, `\"node\": \"`+nodeID(t, nodes[0]))
		})
	}
	checkWithoutRights := startInstallsWithoutRights(t, nodes[0], nodes[1])

	nodes[0].cmd.Process.Kill()
	nodes[0].cmd.Wait()
	killed := time.Now()
	done := make(chan struct{})
	var polling sync.WaitGroup
	for _, n := range nodes[1:] {
		polling.Go(func() { // the client never hears that the job is gone or lost
			for {
				if status, answer := taskState(t, n, token, job); status != "working" && status != "completed" {
					t.Errorf("the job while it moves: %.400s", answer)
					return
				}
				select {
				case <-done:
					return
				case <-time.After(200 * time.Millisecond):
				}
			}
		})
	}
	eventually(t, "another node has started the server", func() bool { return lines(starts) >= 2 })
	t.Logf("another node went on %v after the death of the first", time.Since(killed).Round(time.Millisecond))
	if err := os.WriteFile(open, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, n := range nodes[1:] {
		eventually(t, "the installation has ended", func() bool {
			return strings.Contains(n.callAs(t, token, "job_wait", map[string]any{"id": job}), `"tools":[`)
		})
		if status, answer := taskState(t, n, token, job); status != "completed" || !strings.Contains(answer, "up_echo") {
			t.Errorf("the task at its end: %.600s", answer)
		}
		eventually(t, "the job that cannot run again is lost", func() bool {
			return strings.Contains(n.callAs(t, token, "job_wait", map[string]any{"id": lost}), "lost: node")
		})
	}
	checkWithoutRights(nodes[2])
	close(done)
	polling.Wait()

	back := nodes[0]
	back.start(t, back.cmd.Args[1:]...)
	back.awaitServing(t)
	if got := back.callAs(t, token, "job_wait", map[string]any{"id": job}); !strings.Contains(got, `"tools":[`) {
		t.Errorf("the job at the node that returned: %.600s", got)
	}
	if status, answer := taskState(t, back, token, job); status != "completed" {
		t.Errorf("the task at the node that returned: %.600s", answer)
	}
	if got := back.callAs(t, token, "job_wait", map[string]any{"id": lost}); !strings.Contains(got, "stopped while") {
		t.Errorf("the job that is lost, at the node that returned: %.600s", got)
	}
	eventually(t, "the node that returned has the package", func() bool {
		return strings.Contains(back.callAs(t, token, "up_where", map[string]any{}), "home=")
	})
	if n := installs(nodes); n != 4 {
		t.Errorf("%d jobs and runs, want three jobs of which one node each goes on with one, and the first run", n)
	}
}

// startInstallsWithoutRights starts an installation of each of two administrators, then takes the role of one and
// revokes the token of the other. It returns a function that checks at a node that no node has gone on with theirs.
func startInstallsWithoutRights(t *testing.T, n, other *node) func(at *node) {
	t.Helper()
	type caller struct{ job, token, starts, said string }
	callers := map[string]*caller{"demoted": {said: "denied"}, "revoked": {said: "was revoked"}}
	for name, c := range callers {
		n.command(t, "user", "add", name, "--no-password", "--role", "admin")
		c.token = strings.TrimSpace(n.command(t, "token", "create", "--user", name, "--name", "test"))
		var args map[string]any
		args, _, c.starts = slowPackage(t, name)
		c.job = find(t, `"job":"([a-z2-7]+_[a-z2-7]{10})"`, n.callAs(t, c.token, "package_install", args))
		eventually(t, "the installation has started the server", func() bool { return lines(c.starts) == 1 })
	}
	other.command(t, "user", "roles", "demoted")
	other.command(t, "token", "revoke", find(t, `(t_[a-z2-7]+)`, other.command(t, "token", "list", "--user", "revoked")))
	callers["revoked"].token = strings.TrimSpace(other.command(t, "token", "create", "--user", "revoked", "--name", "new"))
	return func(at *node) {
		for name, c := range callers {
			var got string
			eventually(t, "the job of a caller without rights has ended", func() bool {
				got = at.callAs(t, c.token, "job_wait", map[string]any{"id": c.job, "seconds": 1})
				return strings.Contains(got, `"isError":true`)
			})
			if !strings.Contains(got, c.said) {
				t.Errorf("%s: the job has ended with %.400s", name, got)
			}
			if lines(c.starts) != 1 || strings.Contains(got, `"tools":[`) {
				t.Errorf("%s: the installation ran again: %.400s", name, got)
			}
		}
	}
}

// installs counts the nodes' lines about jobs that they went on with, and the first run.
func installs(nodes []*node) (n int) {
	for _, one := range nodes {
		n += strings.Count(one.output.String(), "this node goes on with a job")
	}
	return n + 1
}

// startJobAs is startJob with a token; "" is none.
func startJobAs(t *testing.T, n *node, token string) string {
	t.Helper()
	as := ""
	if token != "" {
		as = "token " + token
	}
	_, header, err := post(n.url, as, initialize)
	if err != nil {
		t.Fatal(err)
	}
	got, _, err := post(n.url, header.Get("Mcp-Session-Id")+as, `{"jsonrpc":"2.0","id":7,"method":"tools/call",`+
		`"params":{"name":"process_run","arguments":{"command":"sleep","args":["1000"]},"task":{}}}`)
	if err != nil {
		t.Fatal(err)
	}
	return find(t, `"taskId":"([a-z2-7]+_[a-z2-7]{10})"`, got)
}
