package dispatch_test

import (
	"context"
	"strings"
	"testing"

	"gatehouse/internal/access/permit"
	"gatehouse/internal/tests/hosttest"
	"gatehouse/tool"
)

// A call whose job is to run again passes the rules as they are then. A rule that asks is content with the approval
// that the call had.
func TestReadmit(t *testing.T) {
	tools := []tool.Tool{made("w_do", tool.Writes, func(context.Context, *tool.Call) (tool.Result, error) {
		return printableText("done")
	})}
	for _, tt := range []struct {
		then     permit.Kind
		approved bool
		want     string // of the refusal; "" means that it runs again
	}{
		{permit.Allow, false, ""},
		{permit.AskClient, true, ""},
		{permit.AskClient, false, "it needs an approval now"},
		{permit.AskOperator, true, ""},
		{permit.AskOperator, false, "it needs an approval now"},
		{permit.Refuse, true, "not today"},
	} {
		policy, err := permit.New(permit.Options{Default: permit.Allow, Rules: []permit.Rule{
			{Name: "one", Names: []string{"w_do"}, When: "true", Then: tt.then, Reason: "not today"},
		}})
		if err != nil {
			t.Fatal(err)
		}
		visit(t, hosttest.Options{Policy: policy}, &workshop{tools: tools}, func(t *testing.T, h *hosttest.Host) {
			err := h.Calls.Readmit(request(t, h, "w_do", `{}`), tt.approved)
			if err == nil && tt.want != "" || err != nil && (tt.want == "" || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("%v, approved %v: got %v, want %q", tt.then, tt.approved, err, tt.want)
			}
		})
	}
}
