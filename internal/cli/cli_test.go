package cli

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	"gatehouse/internal/mcp/client"
)

func schemaOf(t *testing.T, text string) (s client.Schema) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		t.Fatal(err)
	}
	return s
}

const sample = `{"type":"object","required":["path"],"properties":{
	"path":{"type":"string","description":"which file"},
	"limit":{"type":"integer","default":10},
	"ratio":{"type":["number","null"]},
	"deep":{"type":"boolean"},
	"kind":{"type":"string","enum":["a","b"]},
	"globs":{"type":"array","items":{"type":"string"}},
	"counts":{"type":"array","items":{"type":"integer"}},
	"env":{"type":"object"},
	"free":{}}}`

func TestWordsBecomeArguments(t *testing.T) {
	s := schemaOf(t, sample)
	for words, want := range map[string]string{
		"path=a.txt":                 `{"path":"a.txt"}`,
		"path=12":                    `{"path":"12"}`,
		"path=":                      `{"path":""}`,
		"path=a=b":                   `{"path":"a=b"}`,
		"limit=12345678901234567890": `{"limit":12345678901234567890}`,
		"ratio=0.5 deep=true":        `{"deep":true,"ratio":0.5}`,
		"ratio=null":                 `{"ratio":null}`,
		"globs=*.go globs=*.md":      `{"globs":["*.go","*.md"]}`,
		`globs=["x"]`:                `{"globs":["x"]}`,
		"counts=1 counts=2":          `{"counts":[1,2]}`,
		`env={"A":"b"}`:              `{"env":{"A":"b"}}`,
		"free=1":                     `{"free":1}`,
		"free=one":                   `{"free":"one"}`,
		"unknown=x":                  `{"unknown":"x"}`,
		"":                           `{}`,
		"limit=x":                    "limit=x: expected a whole number",
		"limit=":                     "limit=: expected a whole number",
		`limit="1"`:                  `limit="1": expected a whole number`,
		"deep=yes":                   "deep=yes: expected true or false",
		"ratio=x":                    "ratio=x: expected a number or null",
		"counts=x":                   "counts=x: expected a whole number",
		"env=x":                      "env=x: expected an object in JSON",
		"path":                       `"path" is not an argument; expected key=value`,
		"=x":                         `"=x" is not an argument; expected key=value`,
		"path=a path=b":              "path is given twice",
	} {
		got, err := arguments(s, strings.Fields(words), "", nil)
		if err != nil {
			got = []byte(err.Error())
		}
		if string(got) != want {
			t.Errorf("%s: got %s, want %s", words, got, want)
		}
	}
}

func TestArgumentsAsJSON(t *testing.T) {
	big := `{"n":12345678901234567890}`
	if got, err := arguments(client.Schema{}, nil, big, nil); err != nil || string(got) != big {
		t.Errorf("got %s, %v; want it untouched", got, err)
	}
	if got, err := arguments(client.Schema{}, nil, "-", strings.NewReader(big)); err != nil || string(got) != big {
		t.Errorf("got %s, %v; want it from standard input", got, err)
	}
	for _, bad := range []string{"[1]", "null", "{", "1"} {
		if _, err := arguments(client.Schema{}, nil, bad, nil); err == nil ||
			!strings.Contains(err.Error(), "--json requires an object") {
			t.Errorf("%s: got %v, want a refusal", bad, err)
		}
	}
}

func TestNearest(t *testing.T) {
	names := slices.Values([]string{"file_read", "file_write", "dir_list", "port", "http"})
	for word, want := range map[string]string{
		"file_raed": "file_read", "fileread": "file_read", "dir_lsit": "dir_list", "prt": "port", "htp": "http",
		"htt": "http", "file": "file_read", "browser": "", "x": "",
	} {
		if got := nearest(word, names); got != want {
			t.Errorf("nearest(%q) = %q, want %q", word, got, want)
		}
	}
}

func TestAToolIsExplained(t *testing.T) {
	t.Chdir(t.TempDir())
	var out strings.Builder
	yes := true
	entry := client.Tool{Name: "look", Description: "Looks. \x1b[31mReally.", Input: schemaOf(t, sample)}
	entry.Annotations.ReadOnly = &yes
	if err := describeTool(&out, entry, []string{"--modules=look", "-d=it's"}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"Looks. ?[31mReally.", "It changes nothing.", "path    string, required", "limit   integer, default 10",
		"kind    a|b", "globs   list of string", "ratio   number or null", "free    anything",
		"gatehouse call look path=README.md --modules=look '-d=it'\\''s'\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing from\n%s", want, out.String())
		}
	}
}

func TestResultsAreShownForPeople(t *testing.T) {
	for name, c := range map[string]struct{ result, out, err string }{
		"product":         {`{"content":[{"type":"text","text":"line"},{"type":"text","text":"\n[lines=1]"}],"structuredContent":{"text":"line","lines":1}}`, "line\n", "[lines=1]\n"},
		"no product":      {`{"content":[{"type":"text","text":"\n[exit code 0]"}],"_meta":{"gatehouse/fields":{"exit_code":0}}}`, "", "[exit code 0]\n"},
		"relayed product": {`{"content":[{"type":"text","text":"line\n"},{"type":"text","text":"\n[lines=1]"}],"_meta":{"gatehouse/fields":{"lines":1}}}`, "line\n", "[lines=1]\n"},
		"structure alone": {`{"content":[],"structuredContent":{"n":12345678901234567890,"a":[]}}`,
			"{\n  \"n\": 12345678901234567890,\n  \"a\": []\n}\n", ""},
		"mirrored": {`{"content":[{"type":"text","text":"{\n \"a\": 1}"}],"structuredContent":{"a":1}}`,
			"{\n  \"a\": 1\n}\n", ""},
		"text":     {`{"content":[{"type":"text","text":"a\n"},{"type":"text","text":"b"}]}`, "a\nb\n", ""},
		"link":     {`{"content":[{"type":"resource_link","uri":"file:///a"}]}`, "file:///a\n", ""},
		"embedded": {`{"content":[{"type":"resource","resource":{"uri":"x:1","text":"inside"}}]}`, "inside\n", ""},
		"picture": {`{"content":[{"type":"image","mimeType":"image/png","data":"AAAA"}]}`, "",
			"[gatehouse] not shown: image, image/png, 3 bytes\n"},
		"blob": {`{"content":[{"type":"resource","resource":{"uri":"x:1","mimeType":"a/b","blob":"AAAA"}}]}`,
			"", "[gatehouse] not shown: x:1, a/b, 3 bytes\n"},
		"nothing": {`{"content":[]}`, "", ""},
	} {
		var r client.Result
		if err := json.Unmarshal([]byte(c.result), &r); err != nil {
			t.Fatal(err)
		}
		var out, stderr strings.Builder
		if err := showResult(&out, &stderr, &r); err != nil {
			t.Error(err)
		}
		if out.String() != c.out || stderr.String() != c.err {
			t.Errorf("%s: got %q and %q, want %q and %q", name, out.String(), stderr.String(), c.out, c.err)
		}
	}
}

func TestDescriptorsAreGraded(t *testing.T) {
	for limit, want := range map[string]string{"1024": "warn", "4096": "ok", "1048576": "ok", "unlimited": "ok"} {
		f := gradeDescriptors(limit)
		if f.grade != want || (want != "ok") != (f.fix != "") {
			t.Errorf("%s: %+v, want %s, with a fix unless it is ok", limit, f, want)
		}
	}
}

func TestProgressIsReadable(t *testing.T) {
	var out strings.Builder
	say := progress(&out)
	say(3, 10, "three")
	say(0.5, 0, "")
	say(1, 0, "\x1b]0;title\a")
	say(1e-6, 0, "printed")
	if want := "[gatehouse] 3 of 10: three\n[gatehouse] 0.5\n[gatehouse] 1: ?]0;title?\n[gatehouse] printed\n"; out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
}

func TestExitCodes(t *testing.T) {
	alive := t.Context()
	stopped, stop := context.WithCancelCause(t.Context())
	signal := errors.New("interrupt")
	stop(signal)
	root := Root(Environment{Getenv: func(string) string { return "" }})
	refused := &client.RPCError{Code: -32602, Message: "no"}
	for _, c := range []struct {
		name string
		ctx  context.Context
		err  error
		want int
		said string
	}{
		{"well", alive, nil, exitOK, ""},
		{"the tool failed", alive, errToolFailed, exitFailed, ""},
		{"refused", alive, refused, exitFailed, "gatehouse: no (-32602)\n"},
		{"usage", alive, usagef("not so"), exitUsage,
			"gatehouse: not so\nRun \"gatehouse --help\" for how to use it.\n"},
		{"no server", alive, broken(io.EOF), exitConnect, "gatehouse: cannot connect to the server: no answer: EOF\n"},
		{"two lines", alive, errors.Join(io.EOF, refused), exitFailed, "gatehouse: EOF\ngatehouse: no (-32602)\n"},
		{"interrupted", stopped, broken(signal), exitInterrupted, "gatehouse: interrupted\n"},
		{"interrupted inside", stopped, broken(context.Canceled), exitInterrupted, "gatehouse: interrupted\n"},
	} {
		var said strings.Builder
		if got := exitCode(c.ctx, &said, root, c.err); got != c.want || said.String() != c.said {
			t.Errorf("%s: got %d and %q, want %d and %q", c.name, got, said.String(), c.want, c.said)
		}
	}
}
