package rag

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"gatehouse/internal/files/index"
	"gatehouse/module"
	"gatehouse/tool"
)

func TestACollectionFollowsItsFolder(t *testing.T) {
	store := index.Open(filepath.Join(t.TempDir(), "index.db"), index.Options{})
	defer store.Close()
	job, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	m, err := New(Config{Store: store})(t.Context(), module.Deps{
		Job: func(c *tool.Call, _ string, run tool.Handler) (string, error) {
			go func() {
				_, err := run(job, c)
				ended <- err
			}()
			return "j1", nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close(context.Background())
	a := agent{t: t, module: m, owner: "ann/lab"}.in(t.TempDir())
	a.write("guide.md", guide)
	if got := a.ingest(`{"path":".","watch":true}`); got.Job != "j1" {
		t.Fatalf("got %+v", got)
	}
	// wait waits until the best passage for a question is in a file; "" means that there is none.
	wait := func(question, file string) {
		t.Helper()
		var out queryOut
		for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
			out = queryOut{}
			bad := a.call("rag_query", `{"question":"`+question+`","mode":"lexical"}`, &out)
			got := ""
			if len(out.Results) > 0 {
				got = filepath.Base(out.Results[0].Source)
			}
			if bad == "" && got == file {
				return
			}
		}
		t.Fatalf("%q does not find %q: got %+v", question, file, out)
	}
	wait("diesel engine oil", "guide.md")
	a.write("deep/new/anchor.md", "# Anchoring\n\nLet out fathoms of chain.\n")
	wait("fathoms of chain", "anchor.md")
	a.write("guide.md", guide+"\n## Signals\n\nHoist the yellow quarantine flag.\n")
	wait("yellow quarantine flag", "guide.md")
	if err := os.Rename(filepath.Join(a.dir, "deep/new/anchor.md"), filepath.Join(a.dir, "moved.md")); err != nil {
		t.Fatal(err)
	}
	wait("fathoms of chain", "moved.md")
	if err := os.Remove(filepath.Join(a.dir, "moved.md")); err != nil {
		t.Fatal(err)
	}
	wait("fathoms of chain", "")
	cancel()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Fatal("the job does not end when it is cancelled")
	}
}

// A host without jobs says so, and a module that closes ends its jobs.
func TestFollowingEndsWithTheModule(t *testing.T) {
	a := start(t)
	a.write("guide.md", guide)
	if bad := a.call("rag_ingest", `{"path":".","watch":true}`, nil); bad == "" {
		t.Error("a host without jobs follows a folder")
	}
	ended := make(chan error, 1)
	m, err := New(Config{})(t.Context(), module.Deps{
		Job: func(c *tool.Call, _ string, run tool.Handler) (string, error) {
			go func() {
				_, err := run(context.Background(), c)
				ended <- err
			}()
			return "j1", nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	a.module = m
	a.ingest(`{"path":".","watch":true}`)
	if err := m.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Fatal("the job does not end with its module")
	}
}
