package rag

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gatehouse/internal/files/index"
	"gatehouse/internal/files/roots"
	"gatehouse/module"
	"gatehouse/module/moduletest"
	"gatehouse/tool"
)

func TestTheModuleKeepsTheContract(t *testing.T) {
	moduletest.Run(t, New(Config{}), moduletest.Options{})
}

// agent calls the tools of one module in one folder.
type agent struct {
	t      *testing.T
	dir    string
	roots  tool.Roots
	module module.Module
	owner  string
}

func start(t *testing.T) agent {
	store := index.Open(filepath.Join(t.TempDir(), "index.db"), index.Options{})
	t.Cleanup(func() { store.Close() })
	m, err := New(Config{Store: store})(t.Context(), module.Deps{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close(context.Background()) })
	return agent{t: t, module: m, owner: "ann/lab"}.in(t.TempDir())
}

// in returns the agent with another folder.
func (a agent) in(dir string, protect ...string) agent {
	set, err := roots.Open([]roots.Dir{{Path: dir}}, roots.Options{Protect: protect})
	if err != nil {
		a.t.Fatal(err)
	}
	a.t.Cleanup(func() { set.Close() })
	a.dir, a.roots = dir, set
	return a
}

func (a agent) write(name, text string) {
	a.t.Helper()
	path := filepath.Join(a.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		a.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		a.t.Fatal(err)
	}
}

// call returns the code and text of a refusal, or "" and the result in out.
func (a agent) call(name, args string, out any) string {
	a.t.Helper()
	c := moduletest.NewCall(a.t, args)
	c.Caller.Owner = a.owner
	_, c.Caller.Context = tool.SplitOwner(a.owner)
	c.Roots = a.roots
	return c.Ask(a.t, a.module, name, out)
}

func (a agent) ingest(args string) (out ingestOut) {
	a.t.Helper()
	if bad := a.call("rag_ingest", args, &out); bad != "" {
		a.t.Fatal(bad)
	}
	return out
}

func (a agent) query(args string) (out queryOut) {
	a.t.Helper()
	if bad := a.call("rag_query", args, &out); bad != "" {
		a.t.Fatal(bad)
	}
	return out
}

const guide = `# The boat guide

Words about boats.

## Mooring

Tie the bow line first. Fenders protect the hull from the quay <wall>.

## Engine

The diesel engine needs oil every hundred hours.
Check the impeller of the cooling pump.
`

const code = `package winch

import "fmt"

// Winch pulls a rope.
type Winch struct{ load int }

// TightenRope pulls until the load is reached.
func (w *Winch) TightenRope(limit int) error {
	if w.load > limit {
		return fmt.Errorf("overload")
	}
	return nil
}
`

func TestPassagesAreCited(t *testing.T) {
	a := start(t)
	a.write("docs/boat.md", guide)
	a.write("winch.go", code)
	a.write("picture.bin", "\x00\x01\x02")
	a.write("node/.gitignore", "skipped.md\n")
	a.write("node/skipped.md", "# Ignored diesel engine\n")
	out := a.ingest(`{"path":"."}`)
	if !out.Success || out.Added != 3 || out.Skipped != 1 || out.Chunks < 3 || out.Collection != "documents" {
		t.Fatalf("got %+v", out) // the third is .gitignore itself
	}
	q := a.query(`{"question":"Which oil does the diesel engine need?","topK":1}`)
	r := q.Results[0]
	if r.Source != filepath.Join("docs", "boat.md") || r.Citation != "docs/boat.md:1-12" ||
		r.Category != "documentation" ||
		r.Score <= 0 || !strings.HasPrefix(q.Text, r.Citation) ||
		q.Weak {
		t.Errorf("got %+v", q)
	}
	if !strings.Contains(q.Context, "&lt;wall&gt;") || strings.Contains(q.Context, "<wall>") {
		t.Errorf("the context is not escaped: %s", q.Context)
	}
	q = a.query(`{"question":"tighten rope"}`) // parts of a name
	if r := q.Results[0]; r.Source != "winch.go" || !strings.Contains(r.Content, "TightenRope") || r.Line > 8 {
		t.Errorf("got %+v", q)
	}
	q = a.query(`{"question":"price of tulips in Amsterdam"}`)
	if !q.Weak || q.Coverage > 0.2 {
		t.Errorf("no passage is about it, and the answer does not say so: %+v", q)
	}
	q = a.query(`{"question":"diesel","glob":"*.go"}`)
	for _, r := range q.Results {
		if r.Source != "winch.go" {
			t.Errorf("%s is not selected by the glob", r.Source)
		}
	}
	var none queryOut
	if bad := a.call("rag_query", `{"question":"x","collection":"other"}`, &none); !strings.HasPrefix(
		bad,
		"not_found",
	) {
		t.Errorf("got %q", bad)
	}
}

func TestMaxTokensLimitsAllPassages(t *testing.T) {
	a := start(t)
	for _, name := range []string{"a.txt", "b.txt", "c.txt"} {
		a.write(name, strings.Repeat("The harbour of "+name+" is deep.\n", 60))
	}
	a.ingest(`{"path":"."}`)
	q := a.query(`{"question":"deep harbour","max_tokens":100}`)
	n := 0
	for _, r := range q.Results {
		n += len(r.Content)
		if got := strings.Count(r.Content, "\n") + r.Line; got != r.Last {
			t.Errorf("%s ends with line %d", r.Citation, got)
		}
	}
	if n == 0 || n > 100*bytesPerToken {
		t.Errorf("the passages have %d bytes", n)
	}
}

func TestIngestIsIncremental(t *testing.T) {
	a := start(t)
	a.write("one.md", "# One\n\nThe anchor is heavy.\n")
	a.write("two.md", "# Two\n\nThe mast is tall.\n")
	a.write("three.md", "# Three\n\nThe sail is white.\n")
	a.ingest(`{"path":"."}`)
	if out := a.ingest(`{"path":"."}`); out.Unchanged != 3 || out.Chunks != 0 || out.Removed != 0 {
		t.Errorf("nothing changed, and got %+v", out)
	}
	a.write("two.md", "# Two\n\nThe mast is made of spruce wood.\n")
	if err := os.Remove(filepath.Join(a.dir, "three.md")); err != nil {
		t.Fatal(err)
	}
	if q := a.query(`{"question":"white sail"}`); q.Results[0].Stale != "gone" {
		t.Errorf("got %+v", q)
	}
	if q := a.query(`{"question":"tall mast"}`); q.Results[0].Stale != "changed" ||
		!strings.Contains(q.Text, "[stale: changed]") {
		t.Errorf("got %+v", q)
	}
	if err := os.Rename(filepath.Join(a.dir, "one.md"), filepath.Join(a.dir, "moved.md")); err != nil {
		t.Fatal(err)
	}
	out := a.ingest(`{"path":"."}`)
	if out.Changed != 1 || out.Removed != 1 || out.Renamed != 1 || out.Added != 0 {
		t.Errorf("got %+v", out)
	}
	if q := a.query(`{"question":"heavy anchor","topK":1}`); q.Results[0].Source != "moved.md" ||
		q.Results[0].Stale != "" {
		t.Errorf("got %+v", q)
	}
	if q := a.query(`{"question":"white sail"}`); !q.Weak {
		t.Errorf("the removed file is still found: %+v", q)
	}
	if err := os.Chtimes(filepath.Join(a.dir, "two.md"), time.Now(), time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	if out := a.ingest(`{"path":"."}`); out.Unchanged != 2 {
		t.Errorf("a file was only touched, and got %+v", out)
	}
	var bad string
	if bad = a.call("rag_ingest", `{"path":".","glob":"*.none","recreate":true}`, &out); !strings.HasPrefix(
		bad,
		"not_found",
	) {
		t.Errorf("got %q", bad)
	}
	if q := a.query(`{"question":"heavy anchor"}`); len(q.Results) == 0 {
		t.Error("a recreate without files emptied the collection")
	}
}

func TestOneFileIsTheSameFile(t *testing.T) {
	a := start(t)
	a.write("docs/boat.md", guide)
	a.ingest(`{"path":"docs/boat.md"}`)
	if out := a.ingest(`{"path":"docs"}`); out.Unchanged != 1 || out.Added != 0 {
		t.Errorf("got %+v", out)
	}
	if out := a.ingest(`{"path":"docs","recreate":true}`); out.Added != 1 {
		t.Errorf("got %+v", out)
	}
}

func TestCollectionsBelongToTheirOwner(t *testing.T) {
	a := start(t)
	a.write("secret/key.md", "# Keys\n\nThe vault code is purple.\n")
	a.write("open.md", "# Open\n\nThe vault is in the cellar.\n")
	a.ingest(`{"path":"."}`)
	b := a
	b.owner = "bob/lab"
	var q queryOut
	if bad := b.call("rag_query", `{"question":"vault"}`, &q); !strings.HasPrefix(bad, "not_found") {
		t.Errorf("another owner got %q %+v", bad, q)
	}
	a.ingest(`{"path":".","shared":true}`)
	if q := b.query(`{"question":"vault"}`); len(q.Results) != 2 {
		t.Errorf("a shared collection gave %+v", q)
	}
	guarded := b.in(a.dir, "secret/**")
	if q := guarded.query(`{"question":"vault code"}`); len(q.Results) != 1 || q.Results[0].Source != "open.md" ||
		q.Hidden != 1 {
		t.Errorf("a protected file is shown: %+v", q)
	}
	if q := b.in(t.TempDir()).query(`{"question":"vault code"}`); len(q.Results) != 0 || q.Hidden != 2 {
		t.Errorf("files outside the caller's roots are shown: %+v", q)
	}
	foreign := b
	foreign.owner = "bob/den"
	if bad := foreign.call("rag_query", `{"question":"vault"}`, &q); !strings.HasPrefix(bad, "not_found") {
		t.Errorf("another context got %q", bad)
	}
	var gone removeOut
	if bad := b.call("rag_delete", `{"collection":"documents"}`, &gone); !strings.HasPrefix(bad, "not_found") {
		t.Errorf("another caller deleted it: %q", bad)
	}
	var list collectionsOut
	if a.call("rag_collections", `{"show_stats":true}`, &list); len(list.Collections) != 1 ||
		list.Collections[0].Points != 2 || list.Collections[0].Status != "green" || list.Collections[0].Files != 2 {
		t.Errorf("got %+v", list)
	}
	if bad := a.call("rag_delete", `{"collection":"documents"}`, &gone); bad != "" || !gone.Success {
		t.Error(bad)
	}
	if a.call("rag_collections", `{}`, &list); len(list.Collections) != 0 {
		t.Errorf("got %+v", list)
	}
}

func TestCollectionsGoWithTheirOwner(t *testing.T) {
	a := start(t)
	a.write("a.md", "# A\n\nThe rudder.\n")
	a.ingest(`{"path":"."}`)
	m := a.module.(module.Transferable)
	handed := m.HandOver(t.Context(), func(owner string, _ time.Time) string {
		if owner == "ann/lab" {
			return "eve/lab"
		}
		return ""
	})
	eve := a
	eve.owner = "eve/lab"
	if q := eve.query(`{"question":"rudder"}`); len(handed) != 1 || len(q.Results) != 1 {
		t.Errorf("handed %v, got %+v", handed, q)
	}
	ended := m.EndOwned(t.Context(), func(owner string, _ time.Time) bool { return owner == "eve/lab" })
	var q queryOut
	if bad := eve.call("rag_query", `{"question":"rudder"}`, &q); len(ended) != 1 ||
		!strings.HasPrefix(bad, "not_found") {
		t.Errorf("ended %v, got %q", ended, bad)
	}
}

func TestExport(t *testing.T) {
	a := start(t)
	a.write("boat.md", guide)
	a.ingest(`{"path":"."}`)
	var out exportOut
	if bad := a.call("rag_export", `{"path":"out.jsonl"}`, &out); bad != "" || out.Chunks == 0 {
		t.Fatal(bad, out)
	}
	b, err := os.ReadFile(filepath.Join(a.dir, "out.jsonl"))
	if err != nil || strings.Count(string(b), "\n") != out.Chunks ||
		!strings.Contains(string(b), `"source":"boat.md"`) {
		t.Errorf("got %s, %v", b, err)
	}
	if bad := a.call("rag_export", `{"path":"out.jsonl"}`, &out); !strings.HasPrefix(bad, "exists") {
		t.Errorf("an existing file was overwritten: %q", bad)
	}
	if bad := a.call("rag_export", `{"path":"../out.jsonl"}`, &out); !strings.HasPrefix(bad, "outside_root") {
		t.Errorf("got %q", bad)
	}
}

func TestDocumentsAreRead(t *testing.T) {
	a := start(t)
	a.write("page.html", "<html><body><h1>Tides</h1><p>Spring tides follow the full moon.</p></body></html>")
	a.write("wide.txt", "\xff\xfeT\x00i\x00d\x00e\x00s\x00 \x00e\x00b\x00b\x00.\x00")
	a.write("broken.pdf", "%PDF-1.4 nothing")
	out := a.ingest(`{"path":"."}`)
	if out.Success || out.Added != 2 || out.Failed != 1 || len(out.Problems) != 1 || out.Message == "" {
		t.Errorf("got %+v", out)
	}
	if q := a.query(`{"question":"spring moon","topK":1}`); q.Results[0].Source != "page.html" ||
		!strings.Contains(q.Results[0].Section, "Tides") {
		t.Errorf("got %+v", q)
	}
	if q := a.query(`{"question":"ebb","topK":1}`); q.Results[0].Source != "wide.txt" {
		t.Errorf("got %+v", q)
	}
}
