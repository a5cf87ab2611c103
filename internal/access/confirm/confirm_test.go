package confirm

import (
	"context"
	"encoding/json"
	"errors"
	"testing"

	"gatehouse/module/moduletest"
	"gatehouse/tool"
)

func TestNothingHappensWithoutAYes(t *testing.T) {
	for name, c := range map[string]struct {
		can     tool.Abilities
		answer  json.RawMessage
		confirm string
		want    string // code of the refusal
	}{
		"yes":                {tool.CanElicit, moduletest.Accept(map[string]bool{"confirm": true}), "", ""},
		"no":                 {tool.CanElicit, moduletest.Accept(map[string]bool{"confirm": false}), "", "declined"},
		"away":               {tool.CanElicit, moduletest.Decline(), "", "declined"},
		"asked all the same": {tool.CanElicit, moduletest.Decline(), "the barn", "declined"},
		"cannot ask":         {0, nil, "", "needs_approval"},
		"says so itself":     {0, nil, "the barn", "needs_approval"},
		"word, not asked":    {tool.WordCounts, nil, "", "unconfirmed"},
		"another thing":      {tool.WordCounts, nil, "the other", "unconfirmed"},
		"has asked":          {tool.WordCounts, nil, "the barn", ""},
		"only an operator": {tool.CanElicit | tool.OnlyOperator, moduletest.Accept(map[string]bool{"confirm": true}),
			"", "needs_approval"},
		"operator, not word": {tool.WordCounts | tool.OnlyOperator, nil, "the barn", "needs_approval"},
	} {
		call := moduletest.NewCall(t)
		call.Caller.Can = c.can
		if c.answer != nil {
			call.Peer.Answers["confirm"] = c.answer
		}
		done := false
		_, err := call.Run(t.Context(), func(_ context.Context, c2 *tool.Call) (tool.Result, error) {
			if err := Ask(c2, "the barn", "Burn the barn?", c.confirm); err != nil {
				return tool.Result{}, err
			}
			done = true
			return tool.Result{}, nil
		})
		code := ""
		if r, ok := errors.AsType[*tool.Refusal](err); ok {
			code = string(r.Code)
		} else if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if code != c.want || done != (c.want == "") {
			t.Errorf("%s: refused with %q, done %v", name, code, done)
		}
	}
}
