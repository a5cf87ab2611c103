package moduletest

import (
	"encoding/json"
	"errors"
	"testing"

	"gatehouse/module"
	"gatehouse/tool"
)

// Ask calls a tool of a module and gives its Answer.
func (c *Call) Ask(t testing.TB, m module.Module, name string, into any) (refused string) {
	t.Helper()
	res, err := c.Tool(t.Context(), Tool(t, m, name))
	return Answer(t, res, err, into)
}

// Answer decodes the structured result of a call into a value, unless that is
// nil. A refusal, or any other error, comes as text instead; "" is none.
func Answer(t testing.TB, res tool.Result, err error, into any) (refused string) {
	t.Helper()
	if r, ok := errors.AsType[*tool.Refusal](err); ok {
		return r.Text()
	}
	if err != nil {
		return err.Error()
	}
	b, err := json.Marshal(res.Structured)
	if err == nil && into != nil {
		err = json.Unmarshal(b, into)
	}
	if err != nil {
		t.Fatalf("the result %v: %v", res.Structured, err)
	}
	return ""
}
