package custom

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"gatehouse/internal/dispatch/contextstore"
	"gatehouse/internal/files/roots"
	"gatehouse/module"
	"gatehouse/module/moduletest"
	"gatehouse/tool"
)

func offering(list ...contextstore.Resource) contextstore.Record {
	return contextstore.Record{
		Definition: contextstore.Definition{Env: map[string]string{"KEY": ""}, OwnResources: list},
	}
}

// readOwn reads a resource with the variables of its URI, in the folder.
func readOwn(t *testing.T, r module.Resource, set tool.Roots, vars ...any) (tool.Content, error) {
	t.Helper()
	c := moduletest.NewCall(t, vars...)
	c.Name = r.URI
	if set != nil {
		c.Roots = set
	}
	res, err := c.Run(t.Context(), r.Read)
	if err != nil || len(res.Content) != 1 {
		return tool.Content{}, err
	}
	return res.Content[0], nil
}

// folders is a root with some files, of which one is protected, and one that
// lies outside it behind a link.
func folders(t *testing.T) (dir string, set *roots.Set) {
	t.Helper()
	top := t.TempDir()
	dir = filepath.Join(top, "in")
	for path, text := range map[string]string{
		"in/notes/build.md": "# Build", "in/notes/big.md": strings.Repeat("x", 101), "in/notes/raw.md": "\x00\xff",
		"in/other.md": "other", "in/.env": "SECRET=1", "out/build.md": "outside",
	} {
		path = filepath.Join(top, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(filepath.Join(top, "out", "build.md"), filepath.Join(dir, "notes", "link.md")); err != nil {
		t.Fatal(err)
	}
	set, err := roots.Open([]roots.Dir{{Path: dir}}, roots.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { set.Close() })
	return dir, set
}

func TestAResourceOfText(t *testing.T) {
	o := play(t, "", offering(
		contextstore.Resource{URI: "team://motd", Name: "motd", MIME: "text/markdown", Text: new(`Hello \{{you}}`)},
		contextstore.Resource{URI: "team://hello/{who}{?note}", Name: "hello", Text: new("Hello {{who}}.{{note?}}"),
			Variables: []contextstore.Variable{{Name: "who", Values: []string{"ann", "anna", "bob"}}}},
		contextstore.Resource{URI: "team://long/{x}", Name: "long", Text: new("{{x}}{{x}}"), MaxOutput: 10},
	))
	if len(o.Resources) != 1 || len(o.Templates) != 2 {
		t.Fatalf("%d resources and %d templates are offered", len(o.Resources), len(o.Templates))
	}
	if c, err := readOwn(t, o.Resources[0], nil, "{}"); err != nil || c.Text != "Hello {{you}}" ||
		c.MIME != "text/markdown" {
		t.Errorf("got %+v, %v", c, err)
	}
	if c, err := readOwn(t, o.Templates[0], nil, "who", "{{note}}"); err != nil || c.Text != "Hello {{note}}." ||
		c.MIME != "text/plain" {
		t.Errorf("got %+v, %v", c, err)
	}
	if _, err := readOwn(t, o.Templates[0], nil, "note", "x"); code(err) != "invalid_arguments" {
		t.Errorf("without its variable: got %v", err)
	}
	if _, err := readOwn(t, o.Templates[1], nil, "x", "123456"); code(err) != "too_large" {
		t.Errorf("got %v, want too_large", err)
	}
	res, err := moduletest.NewCall(t, "argument", "who", "value", "ann").Run(t.Context(), o.Templates[0].Complete)
	if err != nil || !slices.Equal(res.Completion.Values, []string{"ann", "anna"}) {
		t.Errorf("proposed %+v, %v", res.Completion, err)
	}
}

//redteam:attack Tools run with what the call carries: a variable of a context's own resource leads to another file
func TestAResourceOfAFileStaysInItsFolder(t *testing.T) {
	_, set := folders(t)
	o := play(t, "", offering(
		contextstore.Resource{URI: "team://notes/{+topic}", Name: "notes", File: "notes/{{topic}}.md", MaxOutput: 100},
		contextstore.Resource{URI: "team://any/{+name}", Name: "any", File: "./{{name}}{{name}}/{{name}}"},
		contextstore.Resource{URI: "team://env", Name: "env", File: ".env"},
	))
	r := o.Templates[0]
	if c, err := readOwn(t, r, set, "topic", "build"); err != nil || c.Text != "# Build" {
		t.Errorf("got %+v, %v", c, err)
	}
	if c, err := readOwn(t, r, set, "topic", "raw"); err != nil || c.Text != "" || string(c.Data) != "\x00\xff" {
		t.Errorf("got %+v, %v; want the bytes", c, err)
	}
	for topic, want := range map[string]string{
		"../other": "invalid_arguments", "..\\other": "invalid_arguments", "/etc/passwd": "invalid_arguments",
		"x\x00": "invalid_arguments",
		"none":  "not_found", "big": "too_large", "link": "outside_root",
	} {
		if c, err := readOwn(t, r, set, "topic", topic); code(err) != want {
			t.Errorf("%q: got %+v, %v, want %s", topic, c, err, want)
		}
	}
	if _, err := readOwn(t, o.Templates[1], set, "name", "."); code(err) != "invalid_arguments" {
		t.Errorf("two dots made of values: got %v", err)
	}
	if c, err := readOwn(t, o.Resources[0], set, "{}"); err == nil {
		t.Errorf("a protected file is read: %+v", c)
	}
	if c, err := readOwn(t, r, nil, "topic", "build"); err == nil {
		t.Errorf("a call without the folder reads %+v", c)
	}
}

func TestAResourceOfAProgram(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	of := func(part string, c contextstore.Command) module.Resource {
		c.Path = self
		r := contextstore.Resource{URI: "team://run/{a}", Name: "run", Command: &c, MaxOutput: 1000}
		if part == "wait" {
			r.Timeout = "200ms"
		}
		return play(t, part, offering(r)).Templates[0]
	}
	if c, err := readOwn(t, of("arguments", contextstore.Command{Args: []string{"-n{{a}}"}}), nil,
		"a", "x; id"); err != nil ||
		strings.TrimSpace(c.Text) != `["-nx; id"]` {
		t.Errorf("got %+v, %v", c, err)
	}
	if c, err := readOwn(t, of("tell", contextstore.Command{}), nil, "{}"); err != nil ||
		strings.Contains(c.Text, "s3cret") {
		t.Errorf("got %+v, %v; want the secret hidden", c, err)
	}
	for part, want := range map[string]string{"fail": "failed", "flood": "too_large", "wait": "timeout"} {
		if c, err := readOwn(t, of(part, contextstore.Command{}), nil, "{}"); code(err) != want {
			t.Errorf("%s: got %+v, %v, want %s", part, c, err, want)
		}
	}
	if _, err := readOwn(t, of("arguments", contextstore.Command{Args: []string{"{{a}}"}}), nil, "a", "--evil"); code(
		err,
	) != "invalid_arguments" {
		t.Errorf("an option: got %v", err)
	}
}

func TestAResourceOfARequest(t *testing.T) {
	at, last := server(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/items/picture":
			w.Header().Set("Content-Type", "image/png")
			w.Write([]byte("\x89PNG\x00"))
		case "/items/none":
			http.Error(w, "no such item", 404)
		default:
			w.Header().Set("Content-Type", "application/json; charset=utf-8")
			io.WriteString(w, `{"key":"`+r.Header.Get("X-Key")[len("Bearer "):]+`"}`)
		}
	})
	r := play(t, "", offering(contextstore.Resource{URI: "team://items/{+id}", Name: "items", HTTP: &contextstore.HTTP{
		URL: at + "/items/{{id}}", Headers: map[string]string{"X-Key": "Bearer {{env.KEY}}"},
	}})).Templates[0]
	if c, err := readOwn(t, r, nil, "id", "a b"); err != nil || c.MIME != "application/json" ||
		strings.Contains(c.Text, "s3cret") {
		t.Errorf("got %+v, %v", c, err)
	}
	if h := last(); h.method != "GET" || h.uri != "/items/a%20b" || h.body != "" {
		t.Errorf("the server heard %+v", h)
	}
	if c, err := readOwn(t, r, nil, "id", "picture"); err != nil || c.MIME != "image/png" ||
		string(c.Data) != "\x89PNG\x00" {
		t.Errorf("got %+v, %v", c, err)
	}
	for id, want := range map[string]string{"none": "failed", "../admin": "invalid_arguments",
		"..": "invalid_arguments"} {
		if c, err := readOwn(t, r, nil, "id", id); code(err) != want {
			t.Errorf("%s: got %+v, %v, want %s", id, c, err, want)
		}
	}
}

// A subscriber is told when the file changes, or the definition.
func TestWhatSubscribersAreTold(t *testing.T) {
	dir, set := folders(t)
	m := New(Options{Roots: func(tool.Caller) tool.Roots { return set }})
	if _, err := m.Make(t.Context(), module.Deps{Changed: func(module.Audience) {}}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close(context.Background()) })
	define := func(text, file string) *module.Offer {
		r := offering(contextstore.Resource{URI: "team://motd", Name: "motd", Text: &text},
			contextstore.Resource{URI: "team://notes/{topic}", Name: "notes", File: file})
		r.Name = "dev"
		if err := r.Check(); err != nil {
			t.Fatal(err)
		}
		if err := m.Set(&r); err != nil {
			t.Fatal(err)
		}
		o, _ := m.Offer(t.Context(), module.Audience{})
		return o
	}
	o := define("one", "notes/{{topic}}.md")
	for topic, want := range map[string]string{"build": "<nil>", "none": "not_found", "link": "outside_root"} {
		c := moduletest.NewCall(t, "topic", topic)
		c.Roots = set
		if _, err := c.Run(t.Context(), o.Templates[0].MayWatch); code(err) != want {
			t.Errorf("%s: got %v, want %s", topic, err, want)
		}
	}
	follow := func(r module.Resource, uri string) (chan struct{}, func()) {
		told := make(chan struct{}, 1000)
		stop, err := r.Watch(tool.Caller{}, uri, func(json.RawMessage) { told <- struct{}{} })
		if err != nil {
			t.Fatal(err)
		}
		return told, stop
	}
	await := func(told chan struct{}, what string) {
		t.Helper()
		select {
		case <-told:
		case <-time.After(time.Minute):
			t.Fatalf("%s was not told", what)
		}
	}
	text, endText := follow(o.Resources[0], "team://motd")
	file, endFile := follow(o.Templates[0], "team://notes/build")
	if err := os.WriteFile(filepath.Join(dir, "notes", "build.md"), []byte("# More"), 0o644); err != nil {
		t.Fatal(err)
	}
	await(file, "a change of the file")
	define("one", "notes/{{topic}}.md")
	if len(text) > 0 {
		t.Error("a definition that is the same as before is told as a change")
	}
	define("two", "notes/{{topic}}.md")
	await(text, "a change of the text")
	define("two", "other.md")
	await(file, "a change of the path")
	endText()
	endFile()
	endText()
	define("three", "other.md")
	if len(text) > 0 || len(m.watches) > 0 {
		t.Error("a subscription that has ended is told of a change")
	}
}
