package modulehost_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"gatehouse/internal/dispatch/bus"
	"gatehouse/internal/dispatch/modulehost"
	"gatehouse/module"
	"gatehouse/tool"
)

// maker returns a module whose tool run asks once, records a value and starts a job.
func maker(trace func(string, ...any)) *workshop {
	w := &workshop{}
	w.offer = func(module.Audience) (*module.Offer, error) {
		return &module.Offer{Tools: []tool.Tool{
			{Def: tool.Def{Name: "run", Restartable: true}, Run: func(_ context.Context, c *tool.Call) (tool.Result, error) {
				if string(c.Args) == `"here"` {
					tool.Stay(c)
				}
				value, err := tool.Once(c, "value", func() (string, error) { return "first", nil })
				id, again := tool.JobOf(c)
				trace("handler %s %q %v", value, id, again)
				if err != nil || string(c.Args) == `"none"` {
					return tool.Result{Content: []tool.Content{tool.Text("nothing to do")}}, err
				}
				id, err = w.deps.Job(c, "later", func(_ context.Context, c *tool.Call) (tool.Result, error) {
					id, again := tool.JobOf(c)
					trace("job %s %s %q %v", value, c.Args, id, again)
					return said("done")
				})
				trace("started %q", id)
				return tool.Result{}, err
			}},
			{Def: tool.Def{Name: "plain"}, Run: func(_ context.Context, c *tool.Call) (tool.Result, error) {
				_, err := w.deps.Job(c, "later", func(context.Context, *tool.Call) (tool.Result, error) { return said("done") })
				return tool.Result{}, err
			}},
		}}, nil
	}
	return w
}

// A job of a restartable tool runs again on another host: the handler that started it starts none there, and gives what
// the job runs.
func TestAJobRunsAgainOnAnotherHost(t *testing.T) {
	var trace []string
	note := func(format string, args ...any) { trace = append(trace, fmt.Sprintf(format, args...)) }
	h, b, _ := newHost(t)
	add(t, h, "shop", maker(note))
	var from []*modulehost.Start
	h.Bind(nil, nil, func(_ tool.Caller, _ string, _ modulehost.Round, s *modulehost.Start) (string, error) {
		from = append(from, s)
		return "job_1", nil
	})
	call := func(name, args string) {
		t.Helper()
		_, err := b.Do(t.Context(), &bus.Request{
			Module: "shop", Method: "tools/call", Name: name, Args: json.RawMessage(args), Caller: &tool.Caller{},
			Recorded: map[string]json.RawMessage{"=value": json.RawMessage(`"recorded"`)},
		}, nil)
		if err != nil {
			t.Fatal(err)
		}
	}
	call("plain", `{}`)
	call("run", `"here"`)
	call("run", `"there"`)
	if len(from) != 3 || from[0] != nil || from[1] != nil || from[2] == nil {
		t.Fatalf("the starts are %v", from)
	}
	raw, err := json.Marshal(from[2])
	if err != nil {
		t.Fatal(err)
	}
	var sent modulehost.Start
	if err := json.Unmarshal(raw, &sent); err != nil {
		t.Fatal(err)
	}

	other, _, _ := newHost(t)
	if other.CanRestart(&sent) {
		t.Error("a host without the module can restart its jobs")
	}
	if _, err := other.Restart("job_1", tool.Caller{}, &sent)(t.Context(), nil, nil, nil); err == nil {
		t.Error("a host without the module restarts its job")
	}
	add(t, other, "shop", maker(note))
	other.Bind(nil, nil, func(tool.Caller, string, modulehost.Round, *modulehost.Start) (string, error) {
		t.Error("the other host starts a job anew")
		return "", nil
	})
	trace = nil
	if !other.CanRestart(&sent) {
		t.Error("a host with the module cannot restart its jobs")
	}
	out, err := other.Restart("job_1", tool.Caller{}, &sent)(t.Context(), nil, nil, nil)
	if err != nil || len(out.Result.Content) != 1 || out.Result.Content[0].Text != "done" {
		t.Errorf("the job: %+v, %v", out.Result, err)
	}
	want := `handler recorded "job_1" true; started "job_1"; job recorded "there" "job_1" true`
	if got := strings.Join(trace, "; "); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	sent.Args = json.RawMessage(`"none"`)
	out, err = other.Restart("job_1", tool.Caller{}, &sent)(t.Context(), nil, nil, nil)
	if err != nil || len(out.Result.Content) != 1 || out.Result.Content[0].Text != "nothing to do" {
		t.Errorf("a handler that has nothing to do: %+v, %v", out.Result, err)
	}
	sent.Name = "plain"
	if _, err := other.Restart("job_1", tool.Caller{}, &sent)(t.Context(), nil, nil, nil); err == nil {
		t.Error("a tool that is not restartable runs again")
	}
}
