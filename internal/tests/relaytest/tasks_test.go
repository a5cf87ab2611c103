package relaytest

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"gatehouse"
	"gatehouse/internal/packages"
	"gatehouse/internal/tests/hosttest"
	"gatehouse/module"
	"gatehouse/tool"
)

// A tool that its server runs as a task alone is offered, and its task is one of this host to
// clients of both eras, with its status, result and cancellation. Clients that call it
// without a task wait for its end.
func TestTasksOfServers(t *testing.T) {
	for name, r := range upstreams(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m, make := install(t, r, nil)
			info, err := m.Info("up")
			legacy := name == "legacy http"
			// Only a legacy server says of a tool that it runs as a task alone.
			if err != nil || legacy && !slices.Contains(info.Names, "up_failing_job") {
				t.Errorf("its tools are %v, %v", info.Names, err)
			}
			for _, h := range hosttest.Harnesses()[:2] {
				t.Run(h.Name, func(t *testing.T) {
					h := h.Make(t, hosttest.Options{Modules: map[string]module.New{"package": make}})
					r := hosttest.Call(h, "up_slow_compute", `{"seconds":0.2,"label":"x"}`, nil)
					if r.Error != nil || r.IsError() || !strings.Contains(string(r.Result), "0.2") {
						t.Errorf("slow_compute: %s %v", r.Result, r.Error)
					}
					if strings.Contains(string(r.Result), "related-task") && h.Traits().Modern {
						t.Errorf("the server's task shows in %s", r.Result)
					}
					if r := hosttest.Call(h, "up_protocol_error_job", `{}`, nil); r.Error == nil {
						t.Errorf("protocol_error_job: %s", r.Result)
					}
					if r := hosttest.Call(h, "up_failing_job", `{}`, nil); !r.IsError() ||
						!strings.Contains(r.Text(), "this job always fails") {
						t.Errorf("failing_job: %s %v", r.Result, r.Error)
					}
					if legacy {
						checkTask(t, h)
					}
				})
			}
		})
	}
}

// checkTask runs a tool as a task of this host.
func checkTask(t *testing.T, h hosttest.Harness) {
	task := h.Start("up_failing_job", `{}`)
	if r := h.Finish(task, nil); !r.IsError() || !strings.Contains(r.Text(), "this job always fails") {
		t.Errorf("the task failing_job: %s %v", r.Result, r.Error)
	}
	task = h.Start("up_failing_job", `{}`)
	if r := h.Do("tasks/cancel", `{"taskId":"`+task+`"}`, nil); r.Error != nil {
		t.Errorf("cancel: %v", r.Error)
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		r := h.Do("tasks/get", `{"taskId":"`+task+`"}`, nil)
		if strings.Contains(string(r.Get("status")), "cancelled") {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the task is %s %v", r.Result, r.Error)
		}
	}
}

// holder has a tool that its server runs as a task alone, until release is closed.
type holder struct {
	release chan struct{}
	runs    atomic.Int32
}

func (o *holder) open(context.Context, module.Deps) (module.Module, error) { return o, nil }
func (o *holder) Close(context.Context) error                              { return nil }

func (o *holder) Offer(context.Context, module.Audience) (*module.Offer, error) {
	return &module.Offer{Tools: []tool.Tool{tool.New(
		tool.Def{Name: "held", Description: "Waits.", Task: tool.TaskRequired},
		func(ctx context.Context, c *tool.Call, _ struct{}) (tool.Result, error) {
			o.runs.Add(1)
			select {
			case <-o.release:
				return tool.Result{Content: []tool.Content{{Type: "text", Text: "held to the end"}}}, nil
			case <-ctx.Done():
				return tool.Result{}, context.Cause(ctx)
			}
		})}}, nil
}

// A task of a server over HTTP goes on while the host is replaced: the client's handle answers on the next host, with
// the server's result, and the tool has run once.
func TestATaskOutlivesTheHost(t *testing.T) {
	for _, legacy := range []bool{true, false} {
		t.Run(map[bool]string{true: "legacy", false: "modern"}[legacy], func(t *testing.T) {
			t.Parallel()
			for _, way := range hosttest.Harnesses()[:2] {
				t.Run(way.Name, func(t *testing.T) {
					o := &holder{release: make(chan struct{})}
					up := serveFixture(t, legacy, gatehouse.WithModule("holder", o.open))
					r := packages.Record{Source: packages.Source{Kind: packages.URL, From: up.URL + "/mcp"}}
					file := filepath.Join(t.TempDir(), "jobs.db")
					task := startHeld(t, way, r, file)
					_, make := install(t, r, nil)
					h := way.Make(t,
						hosttest.Options{Modules: map[string]module.New{"package": make}, JobsFile: file})
					if s := h.Do("tasks/get", `{"taskId":"`+task+`"}`, nil); string(s.Get("status")) != `"working"` {
						t.Fatalf("on the next host the task is %s %v", s.Result, s.Error)
					}
					close(o.release)
					if r := h.Finish(task, nil); r.Error != nil || r.Text() != "held to the end" {
						t.Errorf("the task ends with %s %v", r.Result, r.Error)
					}
					if n := o.runs.Load(); n != 1 {
						t.Errorf("the tool ran %d times", n)
					}
				})
			}
		})
	}
}

// startHeld begins a task on a host of its own, and returns it once the host has stopped.
func startHeld(t *testing.T, way hosttest.Named, r packages.Record, file string) string {
	t.Helper()
	_, make := install(t, r, nil)
	h := way.Make(t, hosttest.Options{Modules: map[string]module.New{"package": make}, JobsFile: file})
	task := beginHeld(t, h)
	h.Host().Stop()
	return task
}

// beginHeld begins a task, and returns it once the upstream server has begun it: before that, a server that is
// restarted gets the call anew.
func beginHeld(t *testing.T, h hosttest.Harness) string {
	t.Helper()
	task := h.Start("up_held", `{}`)
	for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		all, err := h.Host().Jobs.Get(ownerOfHeld(t, h, task), task)
		if err == nil && all.Repeatable {
			return task
		}
		if time.Now().After(end) {
			t.Fatalf("the task is not kept: %+v, %v", all, err)
		}
	}
}

func ownerOfHeld(t *testing.T, h hosttest.Harness, task string) string {
	t.Helper()
	owner, err := h.Host().Jobs.Owner(task)
	if err != nil {
		t.Fatal(err)
	}
	return owner
}

// A task that is lost with its server, a child, fails at once: on the next host, and if only the child was killed.
func TestATaskThatIsLostFails(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	r := packages.Record{
		Source: packages.Source{Kind: packages.Command}, Command: self, Env: childEnv(t, "legacy holder"),
	}
	way := hosttest.Harnesses()[1]
	file := filepath.Join(t.TempDir(), "jobs.db")
	task := startHeld(t, way, r, file)
	m, make := install(t, r, nil)
	h := way.Make(t, hosttest.Options{Modules: map[string]module.New{"package": make}, JobsFile: file})
	if r := h.Finish(task, nil); r.Error == nil && !r.IsError() {
		t.Errorf("on the next host the lost task ends with %s", r.Result)
	}
	task = beginHeld(t, h)
	if _, err := m.Restart(t.Context(), "up"); err != nil {
		t.Fatal(err)
	}
	if r := h.Finish(task, nil); r.Error == nil && !r.IsError() {
		t.Errorf("of a server that was restarted, the lost task ends with %s", r.Result)
	}
}
