package file

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"testing"
	"time"

	"gatehouse/internal/files/roots"
	"gatehouse/module"
	"gatehouse/tool"
)

// watched is the module with one root.
type watched struct {
	*files
	t   *testing.T
	dir string
	set *roots.Set
}

func newWatched(t *testing.T) *watched {
	t.Helper()
	w := &watched{t: t, dir: t.TempDir()}
	set, err := roots.Open([]roots.Dir{{Path: w.dir}}, roots.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { set.Close() })
	w.set = set
	m, err := New(Config{})(t.Context(), module.Deps{})
	if err != nil {
		t.Fatal(err)
	}
	w.files = m.(*files)
	t.Cleanup(func() { w.Close(context.Background()) })
	return w
}

func (w *watched) write(name, text string) {
	w.t.Helper()
	if err := os.WriteFile(w.dir+"/"+name, []byte(text), 0o644); err != nil {
		w.t.Fatal(err)
	}
}

// follow watches a path; the channel gets a value for each change that is told.
func (w *watched) follow(name string) (told chan struct{}, stop func()) {
	w.t.Helper()
	told = make(chan struct{}, 1000)
	stop, err := w.offer.Templates[0].Watch(
		tool.Caller{},
		"file://"+w.dir+"/"+name,
		func(json.RawMessage) { told <- struct{}{} },
	)
	if err != nil {
		w.t.Fatal(err)
	}
	return told, stop
}

func await(t *testing.T, told chan struct{}, what string) {
	t.Helper()
	select {
	case <-told:
	case <-time.After(time.Minute):
		t.Fatalf("%s was not told", what)
	}
}

// The watch that the module opens tells of changes; see internal/files/filewatch.
func TestWatchTells(t *testing.T) {
	w := newWatched(t)
	w.write("a", "1")
	told, stop := w.follow("a")
	w.write("a", "2")
	await(t, told, "a write")
	stop()
}

func TestWatchRefuses(t *testing.T) {
	w := newWatched(t)
	w.write(".env", "SECRET=1")
	for uri, code := range map[string]string{
		"file:///etc/passwd":          "outside_root",
		"file://" + w.dir + "/none":   "not_found",
		"file://elsewhere/a":          "invalid_arguments",
		"file://" + w.dir + "/../out": "",
		"file://" + w.dir + "/.env":   "",
	} {
		_, err := w.offer.Templates[0].MayWatch(t.Context(), &tool.Call{Name: uri, Roots: w.set})
		r, ok := errors.AsType[*tool.Refusal](err)
		if !ok || code != "" && string(r.Code) != code {
			t.Errorf("%s: got %v, want %s", uri, err, code)
		}
	}
	if err := w.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.write("a", "")
	if _, err := w.watcher.Watch(w.dir+"/a", func() {}); err == nil {
		t.Error("a closed module watches")
	}
}

func TestReadResource(t *testing.T) {
	w := newWatched(t)
	w.write("a b.md", "# hi\n")
	w.write("x.png", "\x89PNG\r\n\x1a\n\x00\x01")
	w.write(".env", "SECRET=1")
	w.write("big", string(bytes.Repeat([]byte("x"), maxResource+1)))
	read := func(name string) (tool.Content, error) {
		res, err := w.offer.Templates[0].Read(
			t.Context(),
			&tool.Call{Name: "file://" + w.dir + "/" + name, Roots: w.set},
		)
		if err != nil {
			return tool.Content{}, err
		}
		return res.Content[0], nil
	}
	if c, err := read("a%20b.md"); err != nil || c.Text != "# hi\n" || c.Type != "resource" {
		t.Errorf("text: %+v %v", c, err)
	}
	if c, err := read("x.png"); err != nil || c.MIME != "image/png" || string(c.Data) != "\x89PNG\r\n\x1a\n\x00\x01" {
		t.Errorf("bytes: %+v %v", c, err)
	}
	for _, name := range []string{".env", "big", "none", "../etc"} {
		if c, err := read(name); err == nil {
			t.Errorf("%s was read: %.40q", name, c.Text)
		}
	}
}

func TestCompletePath(t *testing.T) {
	w := newWatched(t)
	os.Mkdir(w.dir+"/alpha", 0o755)
	w.write("also", "")
	w.write("beta", "")
	w.write(".env", "")
	for value, want := range map[string][]string{
		w.dir + "/al": {w.dir + "/alpha/", w.dir + "/also"},
		w.dir + "/":   {w.dir + "/alpha/", w.dir + "/also", w.dir + "/beta"},
		w.dir + "/z":  {},
		"/etc/pass":   {},
		"":            {w.dir},
	} {
		args, _ := json.Marshal(module.Completing{Argument: "path", Value: value})
		res, err := w.offer.Templates[0].Complete(t.Context(), &tool.Call{Args: args, Roots: w.set})
		if err != nil || !slices.Equal(res.Completion.Values, want) {
			t.Errorf("%q: got %v %v, want %v", value, res.Completion, err, want)
		}
	}
}
