package metrics

import (
	"strings"
	"testing"

	"gatehouse/module"
	"gatehouse/module/moduletest"
)

// agent calls the tools of one module.
type agent struct {
	t      *testing.T
	module module.Module
}

func start(t *testing.T) agent {
	m, err := New(Config{})(t.Context(), module.Deps{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close(t.Context()) })
	return agent{t, m}
}

// call gives the structured result, or the code of a refusal and its text.
func (a agent) call(name, scope, args string, out any) string {
	a.t.Helper()
	c := moduletest.NewCall(a.t, args)
	c.Caller.Context = scope
	return c.Ask(a.t, a.module, name, out)
}

func TestWhatIsRecordedAddsUp(t *testing.T) {
	a := start(t)
	var done recordOut
	for _, args := range []string{
		`{"type":"build","agent_id":"ann","repo":"main","value":2.5,"labels":{"os":"linux"},"data":{"big":12345678901234567890}}`,
		`{"type":"build","agent_id":"bob","repo":"main","value":7.5,"labels":{"os":"mac"}}`,
		`{"type":"chat","agent_id":"bob"}`,
	} {
		if bad := a.call("metrics_record", "lab", args, &done); bad != "" || !done.Success || done.Timestamp == "" {
			t.Fatal(bad, done)
		}
	}
	var q queryOut
	a.call("metrics_query", "lab", `{"group_by":"os","step":"1h"}`, &q)
	if q.Total != 3 || len(q.ByType) != 2 || q.ByType[0] != (entry{"build", 2}) ||
		q.ByAgent[0] != (entry{"bob", 2}) || q.ByRepo[0] != (entry{"main", 2}) {
		t.Errorf("got %+v", q)
	}
	if len(q.Groups) != 3 || len(q.Events) != 3 || q.Events[0].Type != "chat" ||
		string(q.Events[2].Data) != `{"big":12345678901234567890}` {
		t.Errorf("got %+v", q)
	}
	a.call("metrics_query", "lab", `{"type":"b*","group_by":"type"}`, &q)
	if g := q.Groups[0]; q.Total != 2 || *g.Avg != 5 || *g.Min != 2.5 || *g.Max != 7.5 || *g.Sum != 10 {
		t.Errorf("got %+v", q)
	}
	var own queryOut
	a.call("metrics_record", "lab", `{"type":"call.file_read","value":3}`, &done)
	if a.call("metrics_query", "lab", `{}`, &own); own.Total != 3 || len(own.ByType) != 2 || len(own.Events) != 3 {
		t.Errorf("the calls of the host are among what agents measured: %+v", own)
	}
	if a.call("metrics_query", "lab", `{"type":"call.*"}`, &own); own.Total != 1 ||
		own.ByType[0].Key != "call.file_read" {
		t.Errorf("asked for calls: %+v", own)
	}
	var elsewhere queryOut
	if a.call("metrics_query", "den", `{}`, &elsewhere); elsewhere.Total != 0 || elsewhere.Events == nil ||
		elsewhere.ByType == nil {
		t.Errorf("another context sees %+v", elsewhere)
	}
}

func TestQuestionsThatAreRefused(t *testing.T) {
	a := start(t)
	for args, want := range map[string]string{
		`{"since":"7"}`:            `since is "7"`,
		`{"since":"-3d"}`:          `since is "-3d"`,
		`{"since":"0h"}`:           `since is "0h"`,
		`{"since":"99999999999d"}`: `since is "99999999999d"`,
		`{"since":"3w"}`:           `since is "3w"`,
		`{"step":"soon"}`:          `step is "soon"`,
		`{"step":"1m"}`:            "more than 500 steps",
		`{"type":"["}`:             "is not a pattern",
	} {
		if got := a.call("metrics_query", "lab", args, &queryOut{}); !strings.HasPrefix(got, "invalid_arguments") ||
			!strings.Contains(got, want) {
			t.Errorf("%s: got %q, want %q", args, got, want)
		}
	}
	if got := a.call("metrics_record", "lab", `{"type":"x","data":"`+strings.Repeat("x", 9000)+`"}`,
		&recordOut{}); !strings.Contains(
		got,
		"data has",
	) {
		t.Errorf("got %q", got)
	}
}
