package clustertest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
)

// TestListsNameTheirNodes makes on one node a build, a forward, and where a driver works a sandbox, a snapshot and a
// program; another node lists each with the node that has it. A WebSocket client of a third node hears of them.
func TestListsNameTheirNodes(t *testing.T) {
	t.Parallel()
	nodes := startNodes(t, "build", "net", "sandbox", "code", "ws", "process")
	token := administrator(t, nodes[0])
	heard := hearEvents(t, nodes[2], token)
	home := nodeID(t, nodes[0])
	call := func(n *node, name string, args map[string]any) string {
		t.Helper()
		return n.callAs(t, token, name, args)
	}
	makefile := "all:\n\t@echo it is built\n"
	if err := os.WriteFile(filepath.Join(nodes[0].dir, "work", "Makefile"), []byte(makefile), 0o600); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{ // the ids of what lists have to show
		"build_list": find(t, `"id":"(build_[^"]+)"`, call(nodes[0], "build_run", map[string]any{"tool": "make"})),
		"net_forward_list": find(t, `"id":"([^"]+)"`, call(nodes[0], "net_forward_start",
			map[string]any{"target": "127.0.0.1:1"})),
	}
	if _, err := os.Stat("/proc/self/ns/user"); err == nil && os.Getuid() == 0 {
		box := find(t, `"sandbox_id":"([^"]+)"`, call(nodes[0], "sandbox_create", map[string]any{}))
		want["sandbox_list"] = box
		want["sandbox_snapshots"] = find(t, `"snapshot_id":"([^"]+)"`, call(nodes[0], "sandbox_snapshot",
			map[string]any{"sandbox_id": box}))
		ran := call(nodes[0], "code_run", map[string]any{"language": "python", "code": "print(6 * 7)"})
		if !strings.Contains(ran, "42") {
			t.Errorf("a program: %.400s", ran)
		}
		eventually(t, "programs of all nodes", func() bool {
			return strings.Contains(call(nodes[1], "code_list", map[string]any{}), "on node "+home)
		})
	}
	for list, id := range want {
		for _, n := range nodes {
			eventually(t, list+" of all nodes", func() bool {
				got := call(n, list, map[string]any{})
				return strings.Contains(got, id) && strings.Contains(got, `"node":"`+home+`"`) &&
					!strings.Contains(got, `"unreached"`)
			})
		}
	}
	process := find(t, `"id":"([^"]+)"`, call(nodes[0], "process_start",
		map[string]any{"command": "sh", "args": []string{"-c", "while sleep .1; do echo it lives; done"}}))
	output := hearChannel(t, nodes[1], token, "process:"+process)
	eventually(t, "a client of another node hears what the process prints", func() bool {
		return strings.Contains(output(), "process_status") && strings.Contains(output(), "it lives")
	})
	call(nodes[2], "process_stop", map[string]any{"id": process})
	eventually(t, "a client of another node hears that the process has ended", func() bool {
		return strings.Contains(output(), `"durationSeconds"`)
	})
	eventually(t, "a client of another node hears of the build", func() bool {
		return strings.Contains(heard(), `"subject":"module.build.`) && strings.Contains(heard(), `"node":"`+home+`"`)
	})
}

// hearEvents connects a WebSocket client to a node, which subscribes to all events until the test ends, and returns
// what it has heard.
func hearEvents(t *testing.T, n *node, token string) (heard func() string) {
	t.Helper()
	return hearChannel(t, n, token, "event:*")
}

func hearChannel(t *testing.T, n *node, token, channel string) (heard func() string) {
	t.Helper()
	ctx, stop := context.WithTimeout(context.Background(), 5*time.Minute)
	address := "ws" + strings.TrimSuffix(strings.TrimPrefix(n.url, "http"), "/mcp") + "/ws"
	c, _, err := websocket.Dial(ctx, address, &websocket.DialOptions{
		HTTPHeader: map[string][]string{"Authorization": {"Bearer " + token}},
	})
	if err == nil {
		err = c.Write(ctx, websocket.MessageText, []byte(`{"type":"subscribe","data":"`+channel+`"}`))
	}
	if err != nil {
		stop()
		t.Fatal(err)
	}
	var mu sync.Mutex
	var all strings.Builder
	var reading sync.WaitGroup
	reading.Go(func() {
		for {
			_, raw, err := c.Read(ctx)
			if err != nil {
				return
			}
			mu.Lock()
			all.Write(raw)
			mu.Unlock()
		}
	})
	t.Cleanup(func() { stop(); reading.Wait() })
	heard = func() string {
		mu.Lock()
		defer mu.Unlock()
		return all.String()
	}
	eventually(t, "the client has subscribed", func() bool { return strings.Contains(heard(), "subscribe") })
	return heard
}

// TestCallsOfContextsOnAllNodes has more calls of a context at all nodes than may run at once in it: they wait, and
// never run more together. One node alone may run as many; when a node has died while it ran them, the others may.
func TestCallsOfContextsOnAllNodes(t *testing.T) {
	t.Parallel()
	const most = 2
	nodes := startNodes(t, "process")
	nodes[0].command(t, "context", "create", "few", "--module", "process", "--calls", fmt.Sprint(most))
	token := administrator(t, nodes[0])
	file := filepath.Join(t.TempDir(), "runs")
	run := func(calls *sync.WaitGroup, n *node, script string) {
		calls.Go(func() {
			got := n.callIn(t, "few", token, "process_run", map[string]any{"command": "sh", "args": []string{"-c", script}})
			if strings.Contains(got, `"isError":true`) || !strings.Contains(got, `"result"`) {
				t.Logf("a call: %.300s", got) // of the node that is killed
			}
		})
	}
	script := fmt.Sprintf("echo + >>%s; sleep 1; echo - >>%[1]s", file)
	var calls sync.WaitGroup
	// check starts calls at some nodes, and counts those that ran at once. A node that does not get the processor for
	// as long as a loan lasts cannot ask for it again, so that more run: only what happens three times is an error.
	check := func(what string, at []*node, want int) {
		t.Helper()
		for tries := 1; ; tries++ {
			for _, n := range at {
				run(&calls, n, script)
			}
			calls.Wait()
			raw, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			running, highest := 0, 0
			for line := range strings.Lines(string(raw)) {
				if strings.HasPrefix(line, "+") {
					running++
				} else {
					running--
				}
				highest = max(highest, running)
			}
			got := strings.Count(string(raw), "+")
			said := fmt.Sprintf("%s: %d calls, of which %d ran at once; want %d, at least %d and at most %d at once",
				what, got, highest, len(at), want, most)
			if err := os.Remove(file); err != nil {
				t.Fatal(err)
			}
			switch {
			case highest <= most && highest >= want && got == len(at):
				return
			case highest <= most || tries == 3:
				t.Error(said)
				return
			}
			t.Log(said)
		}
	}
	check("calls at all nodes", slices.Repeat(nodes, 3), 1)
	check("calls at one node", slices.Repeat(nodes[2:], 6), most)

	var lost sync.WaitGroup
	begun := filepath.Join(t.TempDir(), "begun")
	for range most {
		run(&lost, nodes[2], "echo + >>"+begun+"; sleep 1000")
	}
	eventually(t, "a node uses all slots", func() bool { return lines(begun) == most })
	nodes[2].cmd.Process.Kill()
	nodes[2].cmd.Wait()
	check("calls after the death of a node", slices.Repeat(nodes[:2], 3), 1)
	lost.Wait()
}
