package relaytest

import (
	"slices"
	"strings"
	"testing"
	"time"

	"gatehouse/internal/tests/hosttest"
	"gatehouse/module"
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
