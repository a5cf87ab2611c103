package custom

import (
	"encoding/json"
	"net/url"
	"strings"
	"testing"

	"gatehouse/internal/dispatch/contextstore"
	"gatehouse/internal/mcp/rawjson"
)

func template(t *testing.T, text string) contextstore.Template {
	t.Helper()
	tpl, err := contextstore.ParseTemplate(text)
	if err != nil {
		t.Fatal(err)
	}
	return tpl
}

// Whatever a value is, a request goes to its author's host, to a path with as
// many segments and a query with the same names.
func FuzzAddress(f *testing.F) {
	for _, s := range []string{"x", "../..", "..", "?a=b#c", "/@evil", "%2e%2e", "a/../b", "\x00", "ä&q=2"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, value string) {
		raw, err := json.Marshal(map[string]string{"a": value})
		if err != nil {
			t.Fatal(err)
		}
		v, err := readValues(raw)
		if err != nil {
			t.Fatal(err)
		}
		r := &request{host: "https://example.com", url: template(t, "https://example.com/x/{{a}}/y?q={{a}}&r=1")}
		s, err := r.address(v)
		if err != nil {
			return
		}
		u, err := url.Parse(s)
		if err != nil || u.Scheme != "https" || u.Host != "example.com" || u.User != nil || u.Fragment != "" {
			t.Fatalf("%q leads to %s", value, s)
		}
		parts := strings.Split(u.EscapedPath(), "/")
		if once, err := url.PathUnescape(u.EscapedPath()); err != nil || strings.Count(once, "/") != 3 ||
			strings.Contains(once, "\\") {
			t.Fatalf("%q leads to %s, which is %q to a server that decodes it", value, s, once)
		}
		if len(parts) != 4 || parts[1] != "x" || parts[3] != "y" || parts[2] == ".." || parts[2] == "." {
			t.Fatalf("%q leads to %s", value, s)
		}
		q, err := url.ParseQuery(u.RawQuery)
		if err != nil || len(q) != 2 || len(q["q"]) != 1 || q.Get("r") != "1" {
			t.Fatalf("%q asks %s", value, s)
		}
	})
}

// Whatever the arguments are, a program gets as many as were written, none of
// the values is an option, and a body stays JSON with the same members.
func FuzzArguments(f *testing.F) {
	for _, s := range []string{`{"a":"x"}`, `{"a":"-rf"}`, `{"a":-1}`, `{"a":["-x",1]}`, `{"a":{"b":"{{a}}"}}`,
		`{"a":null}`, `{"a":"\u0000"}`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, args string) {
		if rawjson.Check([]byte(args), 0) != nil || rawjson.Kind([]byte(args)) != '{' {
			return
		}
		v, err := readValues(json.RawMessage(args))
		if err != nil {
			return
		}
		if _, list := v["a"]; list && rawjson.Kind(v["a"]) != '[' {
			got, err := expandArgs(
				[]contextstore.Template{template(t, "run"), template(t, "{{a}}"), template(t, "--to={{a}}")}, v,
			)
			if err == nil && (len(got) != 3 || got[0] != "run" || strings.HasPrefix(got[1], "-") &&
				rawjson.Kind(v["a"]) != '0' || !strings.HasPrefix(got[2], "--to=")) {
				t.Fatalf("%s became %q", args, got)
			}
		}
		filled, err := v.fillValues(map[string]any{"k": "{{a}}", "l": []any{"x {{a}}"}})
		if err != nil {
			return
		}
		raw, err := json.Marshal(filled)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for k := range rawjson.Object(raw) {
			if n++; string(k) != "k" && string(k) != "l" {
				t.Fatalf("%s became %s", args, raw)
			}
		}
		if n != 2 {
			t.Fatalf("%s became %s", args, raw)
		}
	})
}
