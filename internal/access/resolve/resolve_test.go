package resolve

import (
	"context"
	"testing"

	"gatehouse/internal/access/permit"
	"gatehouse/tool"
)

// A rule over the commands of a call that runs programs outside its arguments cannot be evaluated.
func TestCodeThatArgumentsDoNotHold(t *testing.T) {
	type in struct {
		Source string `json:"source,omitempty" names:"code"`
	}
	x := tool.New(
		tool.Def{Name: "x"},
		func(context.Context, *tool.Call, in) (tool.Result, error) { return tool.Result{}, nil },
	)
	for _, args := range []string{`{}`, `{"source":"npm:x"}`} {
		if got, err := (Resolver{}).Commands(&tool.Caller{}, permit.Op{Name: "x", Tool: &x}, []byte(args)); err == nil {
			t.Errorf("%s: got %v", args, got)
		}
	}
}
