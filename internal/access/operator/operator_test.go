package operator

import (
	"errors"
	"strings"
	"testing"

	"gatehouse/tool"
)

func TestOnlyThoseWhoRulePass(t *testing.T) {
	ann := Func(func(who tool.Caller) bool { return who.Principal == "ann" })
	for _, c := range []struct {
		who   string
		rules Func
		pass  bool
	}{
		{"ann", ann, true},
		{"bob", ann, false},
		{"", ann, false},
		{"ann", nil, false}, // no administrator is configured
	} {
		call := &tool.Call{Caller: tool.Caller{Principal: c.who}}
		err := c.rules.Check(call, "ring the bell")
		if passed := err == nil; passed != c.pass || c.rules.By(call.Caller) != c.pass {
			t.Errorf("%q: passed %v, want %v", c.who, passed, c.pass)
		}
		if c.pass {
			continue
		}
		if r, ok := errors.AsType[*tool.Refusal](err); !ok || r.Code != "denied" ||
			!strings.Contains(r.Message, "may ring the bell") ||
			r.Next == "" {
			t.Errorf("%q is refused with %v", c.who, err)
		}
	}
}
