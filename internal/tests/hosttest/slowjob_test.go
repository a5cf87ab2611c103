package hosttest_test

import (
	"fmt"
	"runtime"
	"runtime/metrics"
	"strconv"
	"strings"
	"testing"
	"time"

	"gatehouse/internal/mcp/rawjson"
	"gatehouse/internal/tests/hosttest"
	"gatehouse/module/moduletest"
)

// maxGrowth is by how many bytes the live heap may grow while 100 MB pass
// through.
const maxGrowth = 20 << 20

// slowJob: a call that takes long becomes a task where the client can follow
// one, prints far more than a client can be sent, and costs little memory.
func slowJob(t *testing.T, named hosttest.Named) {
	o := offering("slow", moduletest.SlowJob)
	o.Promote = 20 * time.Millisecond
	h := named.Make(t, o)
	printed(t, h)
	stopped(t, h)
}

func printed(t *testing.T, h hosttest.Harness) {
	heap := watchHeap()
	var r hosttest.Reply
	if h.Traits().Modern {
		r = hosttest.Call(h, "slow_print", `{}`, nil) // promoted by the host
	} else {
		r = h.Finish(h.Start("slow_print", `{}`), nil) // asked for by the client
	}
	growth := heap()
	if growth > maxGrowth {
		t.Errorf("the heap grew by %d bytes, want at most %d", growth, maxGrowth)
	}
	t.Logf("the heap grew by %d bytes", growth)
	fine(t, "print", r)
	if r.Task == "" {
		t.Error("the call did not become a task")
	}
	same(t, "result", r.Get("structuredContent"), fmt.Sprintf(`{"printed":%d}`, moduletest.SlowBytes))
	readBack(t, h, &r)
	if !h.Traits().Modern {
		grows(t, h)
	}
	if !h.Traits().CanAsk() {
		// Who reads only the answer gets the same answer.
		r := fine(t, "mute", hosttest.Call(hosttest.Muted(h), "slow_print", `{"bytes":1000000}`, nil))
		same(t, "mute", r.Get("content", 1, "size"), "1000000")
		if len(r.Notes) > 0 {
			t.Errorf("told %v to a client that reads only the answer", r.Notes)
		}
	}
}

// readBack reads the output where the result says it is, at both ends and in
// the middle, as a resource, and all of it from the spool.
func readBack(t *testing.T, h hosttest.Harness, r *hosttest.Reply) {
	t.Helper()
	link := r.Get("content", 1)
	uri, _ := rawjson.String(hosttest.Get(link, "uri"))
	same(t, "size", hosttest.Get(link, "size"), fmt.Sprint(moduletest.SlowBytes))
	for _, at := range []int64{0, moduletest.SlowBytes / 2, moduletest.SlowBytes - 100} {
		page := fine(t, "read", hosttest.Read(h, fmt.Sprintf("%s?offset=%d", uri, at)))
		text, _ := rawjson.String(page.Get("contents", 0, "text"))
		if want := string(moduletest.SlowLine(at)); !strings.HasPrefix(text, want) {
			t.Errorf("at %d: got %.120q, want %q", at, text, want)
		}
	}
	handle := uri[strings.LastIndexByte(uri, '/')+1:]
	var at int64
	for {
		c, err := h.Host().Spool.Read("anonymous/default", handle, at, 4_000_000)
		if err != nil {
			t.Fatal(err)
		}
		if len(c.Data) > 0 &&
			(string(c.Data[:100]) != string(moduletest.SlowLine(at)) ||
				string(c.Data[len(c.Data)-100:]) != string(moduletest.SlowLine(c.Next-100))) {
			t.Fatalf("the spool holds something else between %d and %d", at, c.Next)
		}
		if at = c.Next; c.Done {
			break
		}
	}
	if at != moduletest.SlowBytes {
		t.Errorf("%d bytes are in the spool", at)
	}
}

// grows: a client that waits for the answer sees progress, each step further
// than the last; in a task it would see the task's.
func grows(t *testing.T, h hosttest.Harness) {
	t.Helper()
	r := fine(t, "print", hosttest.Call(h, "slow_print", `{"bytes":5000000,"piece":1000}`, nil))
	last := -1.0
	told := r.Notifications("notifications/progress")
	for _, p := range told {
		// A host that says of a slow call that it goes on takes a step between two whole ones.
		n, err := strconv.ParseFloat(string(hosttest.Get(p, "progress")), 64)
		if err != nil || n <= last {
			t.Errorf("progress %v after %v: %v", n, last, err)
		}
		last = n
	}
	if last != 5_000_000 || len(told) > 500 {
		t.Errorf("%d signs of progress, the last %v", len(told), last)
	}
}

// stopped: a job ends when it is cancelled, and with its host.
func stopped(t *testing.T, h hosttest.Harness) {
	t.Helper()
	forever := `{"forever":true}`
	if h.Traits().Restarts {
		// No host can go on with work whose host has gone: the job has failed,
		// and says why.
		task := h.Start("slow_wait", forever)
		r := h.Do("tasks/get", `{"taskId":"`+task+`"}`, nil)
		same(t, "status after a restart", r.Get("status"), `"failed"`)
		if text := string(r.Get("error", "message")); !strings.Contains(text, "the host stopped while this job ran") {
			t.Errorf("the job failed with %s", text)
		}
		return
	}
	task := h.Start("slow_wait", forever)
	r := h.Do("tasks/cancel", `{"taskId":"`+task+`"}`, nil)
	if r.Error != nil {
		t.Fatal(r.Error)
	}
	r = h.Do("tasks/get", `{"taskId":"`+task+`"}`, nil)
	same(t, "status", r.Get("status"), `"cancelled"`)
	for deadline := time.Now().Add(time.Minute); h.Host().Calls.Running() > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the cancelled call still runs")
		}
	}
}

// watchHeap measures by how much the live heap grows until the result is
// called. What is garbage already does not count, whenever it is collected.
func watchHeap() (growth func() int64) {
	heap := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	size := func() int64 { metrics.Read(heap); return int64(heap[0].Value.Uint64()) }
	runtime.GC()
	before := size()
	most, stop, done := before, make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			case <-time.After(2 * time.Millisecond):
				most = max(most, size())
			}
		}
	}()
	return func() int64 {
		close(stop)
		<-done
		return most - before
	}
}
