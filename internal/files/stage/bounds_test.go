package stage

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"gatehouse/tool"
)

// A task that holds too much takes no more calls until it is reviewed, and a principal has a limited number of tasks.
func TestTasksAreBounded(t *testing.T) {
	m, real := open(t, Options{Bytes: 1 << 20, Most: 2})
	w := begin(t, m, "ann", real)
	w.shell("head -c 3000000 /dev/urandom >large")
	m.closeViews(true) // a task is measured once a minute, and by a new host at once
	v, err := m.Enter(w.id, []string{real}, true)
	if err == nil {
		v.Leave(false)
	}
	if r, ok := errors.AsType[*tool.Refusal](err); !ok || r.Code != tool.CodeTooLarge ||
		!strings.Contains(r.Next, "gatehouse review") {
		t.Errorf("a call of a task that is full: %v", err)
	}
	if r := w.accept(); len(r.Done) != 1 {
		t.Errorf("it cannot be accepted: %+v", r)
	}
	for n := range 3 {
		_, err := m.Begin(Who{Principal: "bob", Context: "c", Session: fmt.Sprint(n)})
		if r, ok := errors.AsType[*tool.Refusal](err); (n == 2) != ok || ok && r.Code != tool.CodeBusy {
			t.Errorf("task %d: %v", n, err)
		}
	}
	if _, err := m.Begin(Who{Principal: "carl", Context: "c"}); err != nil {
		t.Errorf("another principal: %v", err)
	}
}
