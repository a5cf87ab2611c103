package contextstore

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
)

func TestTemplates(t *testing.T) {
	values := func(n, _ string) (string, bool) {
		v, ok := map[string]string{"a": "1", "b": "{{a}}", "empty": ""}[n]
		return v, ok
	}
	for text, want := range map[string]string{
		"":                "",
		"plain } text":    "plain } text",
		"{{a}}":           "1",
		"x{{ a }}y{{a}}":  "x1y1",
		"{{b}}":           "{{a}}", // values are not looked at again
		`\{{a}} is {{a}}`: "{{a}} is 1",
		"[{{missing?}}]":  "[]",
		"{{empty}}":       "",
		"{{a}}}}":         "1}}",
	} {
		tpl, err := ParseTemplate(text)
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		if got, err := tpl.Expand(values); got != want || err != nil {
			t.Errorf("%q: got %q, %v; want %q", text, got, err, want)
		}
	}
	for _, bad := range []string{"{{", "{{}}", "{{a", "{{a b}}", "{{{a}}}", "{{1}}", "{{?}}",
		"{{" + strings.Repeat("a", 129) + "}}"} {
		if _, err := ParseTemplate(bad); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
	tpl, _ := ParseTemplate("{{a}}{{missing}}")
	if _, err := tpl.Expand(values); !errors.Is(err, ErrAbsent) ||
		!slices.Equal(tpl.Names(), []string{"a", "missing"}) {
		t.Errorf("got %v", err)
	}
	if one, _ := ParseTemplate("{{a?}}"); true {
		if n, ok := one.Only(); n != "a" || !ok {
			t.Errorf("got %q, %t", n, ok)
		}
	}
}

// A valid template expands with each placeholder replaced once, whatever the text.
func FuzzTemplate(f *testing.F) {
	for _, s := range []string{"{{a}}", `\{{`, "{{a?}} {{", "x}}{{b}}", "{{{{a}}}}"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		tpl, err := ParseTemplate(text)
		if err != nil {
			return
		}
		got, err := tpl.Expand(func(string, string) (string, bool) { return "", true })
		if err != nil || len(got) > len(text) {
			t.Fatalf("%q became %q, %v", text, got, err)
		}
		if len(tpl.Names()) == 0 && got != strings.ReplaceAll(text, `\{{`, "{{") {
			t.Fatalf("%q became %q", text, got)
		}
	})
}

// For every definition, checking it and building a view of it ends without a panic, and an accepted definition is
// the same when it is read again.
func FuzzDefinition(f *testing.F) {
	r := whole()
	raw, err := json.Marshal(r.Definition)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(raw))
	f.Add(`{"own_tools":[{"name":"x","description":"y","input":{"type":"object"},"http":{"url":"http://h/{{"}}]}`)
	f.Add(`{"rules":[{"then":"ask","when":"args.a == 1"}],"modules":null}`)
	f.Fuzz(func(t *testing.T, text string) {
		r := Record{Name: "x"}
		if r.ReadJSON([]byte(text)) != nil || r.Check() != nil {
			return
		}
		fixed := Fixed{}
		if _, err := fixed.With([]Record{r}); err != nil {
			t.Fatalf("%s: checked, and then %v", text, err)
		}
		raw, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		var again Record
		if err := Decode(raw, &again); err != nil {
			t.Fatalf("%s cannot be read again: %v", raw, err)
		}
		if twice, err := json.Marshal(again); err != nil || string(twice) != string(raw) {
			t.Fatalf("%s became %s", raw, twice)
		}
	})
}
