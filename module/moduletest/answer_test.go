package moduletest

import (
	"errors"
	"testing"

	"gatehouse/tool"
)

func TestAnAnswerIsAValueOrText(t *testing.T) {
	for name, c := range map[string]struct {
		res  tool.Result
		err  error
		n    int
		text string
	}{
		"a value": {tool.Result{Structured: map[string]int{"n": 7}}, nil, 7, ""},
		"a refusal": {tool.Result{}, &tool.Refusal{Code: "busy", Message: "the bell rings", Next: "Wait."}, 0,
			"busy: the bell rings\nWait."},
		"an error": {tool.Result{}, errors.New("the rope broke"), 0, "the rope broke"},
	} {
		var out struct{ N int }
		if text := Answer(t, c.res, c.err, &out); text != c.text || out.N != c.n {
			t.Errorf("%s: got %q and %d", name, text, out.N)
		}
		if text := Answer(t, c.res, c.err, nil); text != c.text {
			t.Errorf("%s, value unwanted: got %q", name, text)
		}
	}
}
