package hosttest_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"gatehouse/internal/app"
	"gatehouse/internal/dispatch/notify"
	"gatehouse/module"
	"gatehouse/tool"
)

// ringerHome names the variable with the home folder of the host that TestAHostIsKilledDuringNotifications kills.
const ringerHome = "GATE_RINGER_HOME"

// bell is a module with a tool that publishes a notification.
type bell struct{ deps module.Deps }

func (bell) Close(context.Context) error { return nil }

func (b bell) Offer(context.Context, module.Audience) (*module.Offer, error) {
	ring := tool.New(
		tool.Def{Name: "bell_ring", Description: "For a test.", Effects: tool.Writes},
		func(_ context.Context, _ *tool.Call, in struct {
			N int `json:"n"`
		}) (tool.Result, error) {
			notify.Publish(b.deps, notify.Notification{Title: fmt.Sprintf("ring %d", in.N),
				Message: strings.Repeat("x", 20)})
			return tool.Result{Content: []tool.Content{tool.Text("done")}}, nil
		},
	)
	return &module.Offer{Tools: []tool.Tool{ring}}, nil
}

// TestRinger is the host that is killed. The test below runs it.
func TestRinger(t *testing.T) {
	home := os.Getenv(ringerHome)
	if home == "" {
		t.Skip("run by TestAHostIsKilledDuringNotifications")
	}
	cfg := victimSettings(t, home)
	cfg.View.Modules = []string{"notification"}
	a, err := app.New(
		t.Context(),
		cfg,
		app.Options{
			Extra: []app.Module{{Name: "bell", New: func(_ context.Context, d module.Deps) (module.Module, error) {
				return bell{d}, nil
			}}},
		},
	)
	must(t, err)
	fmt.Fprintln(os.NewFile(3, "told"), "ready")
	must(t, a.Run(t.Context()))
}

// ringer is a host in a process of its own, and a client of it.
type ringer struct {
	t    *testing.T
	cmd  *exec.Cmd
	conn net.Conn
	in   *bufio.Reader
	id   int
}

func newRinger(t *testing.T, home string) *ringer {
	t.Helper()
	exe, err := os.Executable()
	must(t, err)
	told, out, err := os.Pipe()
	must(t, err)
	defer told.Close()
	r := &ringer{t: t, cmd: exec.Command(exe, "-test.run=^TestRinger$")}
	r.cmd.Env = append(os.Environ(), ringerHome+"="+home)
	r.cmd.ExtraFiles = []*os.File{out}
	var said strings.Builder
	r.cmd.Stdout, r.cmd.Stderr = &said, &said
	must(t, r.cmd.Start())
	out.Close()
	t.Cleanup(r.kill)
	if line, err := bufio.NewReader(told).ReadString('\n'); line != "ready\n" {
		r.kill()
		t.Fatalf("the host does not start: %v %s", err, said.String())
	}
	r.conn, err = net.Dial("unix", filepath.Join(home, "s"))
	must(t, err)
	r.in = bufio.NewReader(r.conn)
	if got, ok := r.ask("initialize", handshake); !ok {
		t.Fatalf("the host does not answer: %s", got)
	}
	return r
}

// kill kills the host and waits until it is gone.
func (r *ringer) kill() {
	if r.cmd.ProcessState == nil {
		r.cmd.Process.Kill()
		r.cmd.Wait() // it was killed
	}
	if r.conn != nil {
		r.conn.Close()
	}
}

func (r *ringer) send(method, params string) int {
	r.id++
	io.WriteString(r.conn, message(r.id, legacyEra, method, params, "")+"\n") // the reader sees the end
	return r.id
}

// answer returns the next answer and its id; ok is false if the host is gone.
func (r *ringer) answer() (id int, result json.RawMessage, ok bool) {
	for {
		line, err := r.in.ReadBytes('\n')
		if err != nil {
			return 0, nil, false
		}
		var m struct {
			ID     int
			Result json.RawMessage
			Error  json.RawMessage
		}
		if json.Unmarshal(line, &m) != nil || m.ID == 0 {
			continue // a notification
		}
		if m.Error != nil {
			r.t.Errorf("the host answers %s", line)
		}
		return m.ID, m.Result, true
	}
}

func (r *ringer) ask(method, params string) (json.RawMessage, bool) {
	want := r.send(method, params)
	for {
		if id, result, ok := r.answer(); !ok || id == want {
			return result, ok
		}
	}
}

func (r *ringer) call(name, args string) string {
	return fmt.Sprintf(`"name":%q,"arguments":%s`, name, args)
}

type rung struct {
	ID   int64
	Seen bool
}

// list returns all notifications by id. It must be readable completely.
func (r *ringer) list() map[int64]rung {
	r.t.Helper()
	all := map[int64]rung{}
	for before := ""; ; {
		result, ok := r.ask("tools/call", r.call("notification_list", `{"limit":100`+before+`}`))
		var got struct {
			IsError           bool
			StructuredContent struct{ Notifications []rung }
		}
		if err := json.Unmarshal(result, &got); !ok || err != nil || got.IsError {
			r.t.Fatalf("notification_list: %v %s", err, result)
		}
		page := got.StructuredContent.Notifications
		for _, n := range page {
			all[n.ID] = n
		}
		if len(page) < 100 {
			return all
		}
		before = fmt.Sprintf(`,"before":%d`, page[len(page)-1].ID)
	}
}

// A host is killed while notifications are added, marked and removed. What was answered is kept: a mark stays, a
// removed notification does not come back, and no id is used twice. A notification that was shown is still there,
// complete.
//
//redteam:attack A kill leaves whole files: a host is killed while notifications come, are marked and removed
func TestAHostIsKilledDuringNotifications(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("needs a further pipe to a child process")
	}
	rounds := 4
	if os.Getenv("GATEHOUSE_TEST_ALL") != "" {
		rounds = 25
	}
	home, err := os.MkdirTemp("", "ring") // short enough for a socket
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(home) })
	marked, removed, known := map[int64]bool{}, map[int64]bool{}, map[int64]bool{}
	doubtful := map[int64]bool{} // the host was killed before it answered their removal
	highest := int64(0)
	for round := range rounds {
		r := newRinger(t, home)
		all := r.list()
		for id := range known {
			if _, there := all[id]; !there && !removed[id] {
				t.Errorf("round %d: notification %d is gone", round, id)
			}
		}
		for id := range removed {
			if _, there := all[id]; there {
				t.Errorf("round %d: notification %d, which was removed, is there again", round, id)
			}
		}
		for id := range marked {
			if n, there := all[id]; there && !n.Seen {
				t.Errorf("round %d: the mark of notification %d is lost", round, id)
			}
		}
		for i := range 12 {
			r.send("tools/call", r.call("bell_ring", fmt.Sprintf(`{"n":%d}`, i)))
		}
		for range 12 {
			if _, _, ok := r.answer(); !ok {
				t.Fatal("the host ended on its own")
			}
		}
		for fresh := 0; fresh < 12; { // told by the way
			fresh = 0
			for id := range r.list() {
				if !known[id] {
					fresh++
				}
			}
		}
		var ids []int64
		for id := range r.list() {
			if !known[id] && !doubtful[id] && id <= highest {
				t.Errorf("round %d: id %d is given again", round, id)
			}
			known[id] = true
			ids = append(ids, id)
		}
		slices.Sort(ids)
		highest = max(highest, ids[len(ids)-1])
		ids = ids[max(0, len(ids)-24):]
		// The host is killed during marks and removals, each time at another point; those that were answered count.
		did := map[int]func(){}
		for i, id := range ids {
			if i%3 == 0 && i < len(ids)-1 { // so that the last id stays
				did[r.send("tools/call", r.call("notification_remove",
					fmt.Sprintf(`{"ids":[%d]}`, id)))] = func() { removed[id] = true }
				doubtful[id] = true
			} else {
				did[r.send("tools/call", r.call("notification_mark_seen",
					fmt.Sprintf(`{"ids":[%d]}`, id)))] = func() { marked[id] = true }
			}
			r.send("tools/call", r.call("bell_ring", `{"n":1}`))
		}
		enough := len(did) // first all, then each time another number
		if round > 0 {
			enough = 1 + round*5%len(did)
		}
		for enough > 0 {
			id, result, ok := r.answer()
			if !ok {
				t.Fatal("the host ended on its own")
			}
			if f := did[id]; f != nil {
				if enough--; strings.Contains(string(result), `"isError":true`) {
					t.Errorf("round %d: %s", round, result)
				}
				f()
			}
		}
		r.kill()
		for id := range doubtful {
			delete(known, id)
		}
	}
	if len(marked) == 0 || len(removed) == 0 {
		t.Errorf("%d marks and %d removals were answered, want some of each", len(marked), len(removed))
	}
}
