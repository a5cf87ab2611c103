package toolsearch

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// animals is an embedder for which words of one animal are the same.
type animals struct {
	name    string
	texts   atomic.Int64 // that were embedded, without queries
	failing atomic.Bool
	dims    int           // of what it returns, if it is not what it says
	hold    chan struct{} // until it is closed, texts are not embedded
}

func (a *animals) Space() (string, int) { return a.name, 2 }

func (a *animals) Embed(ctx context.Context, texts []string, query bool) (all [][]float32, err error) {
	if a.failing.Load() {
		return nil, errors.New("no model")
	}
	if a.hold != nil {
		select {
		case <-a.hold:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	for _, text := range texts {
		if !query {
			a.texts.Add(1)
		}
		v := []float32{0.6, 0.8}
		if strings.Contains(text, "hound") || strings.Contains(text, "poodle") {
			v = []float32{1, 0}
		}
		all = append(all, v[:2-a.dims])
	}
	return all, nil
}

var pets = []Document{
	{Name: "cat_feed", Package: "cat", Description: "Feeds it."},
	{Name: "hound_walk", Package: "hound", Description: "Goes out with it."},
	{Name: "fish_count", Package: "fish", Description: "Counts them."},
}

// embedded returns an index of pets once its vectors are there.
func embedded(t *testing.T, m *Model) *Index {
	t.Helper()
	x := New(pets)
	m.Add(x, pets)
	for end := time.Now().Add(2 * time.Minute); x.model.Load() == nil; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the index has no vectors")
		}
	}
	return x
}

func first(x *Index, m *Model, query string) string {
	for _, h := range x.SearchWith(context.Background(), m, query, 1, nil) {
		return pets[h.Document].Name
	}
	return ""
}

// A model finds what shares no word with the query. What it has read once is read from its file, and is made anew for
// another model.
func TestAModelFindsWhatWordsDoNot(t *testing.T) {
	const query = "qwxz poodle qwxz"
	path := filepath.Join(t.TempDir(), "vectors")
	for _, c := range []struct {
		name string
		made int64
	}{{"one", 3}, {"one", 0}, {"other", 3}} {
		e := &animals{name: c.name}
		m := NewModel(ModelOptions{
			Open: func() (Embedder, error) { return e, nil }, Path: path, Log: slog.New(slog.DiscardHandler),
		})
		x := embedded(t, m)
		if got := first(x, m, query); got != "hound_walk" {
			t.Errorf("found %q", got)
		}
		if got := first(x, m, "feed the cat"); got != "cat_feed" {
			t.Errorf("found %q by its words", got)
		}
		embedded(t, m) // the same texts again
		m.Close()
		if n := e.texts.Load(); n != c.made {
			t.Errorf("it made vectors of %d texts; expected %d", n, c.made)
		}
		if got := first(New(pets), nil, query); got == "hound_walk" {
			t.Error("words alone find it too, so the test shows nothing")
		}
	}
}

// A model that is not there, or fails, changes nothing; the search waits for none.
func TestWithoutItsModelTheSearchGoesOn(t *testing.T) {
	x := New(pets)
	want := first(x, nil, "count the fish")
	logged := slog.New(slog.DiscardHandler)
	missing := NewModel(ModelOptions{Open: func() (Embedder, error) { return nil, errors.New("no folder") }, Log: logged})
	missing.Add(x, pets)
	if got := first(x, missing, "count the fish"); got != want {
		t.Errorf("found %q", got)
	}
	missing.Close() // although it would try again
	missing.Add(x, pets)

	e := &animals{name: "slow", hold: make(chan struct{})}
	slow := NewModel(ModelOptions{Open: func() (Embedder, error) { return e, nil }, Log: logged})
	slow.Add(x, pets)
	if got := first(x, slow, "count the fish"); got != want {
		t.Errorf("found %q", got)
	}
	slow.Close() // although it embeds
	if x.model.Load() != nil {
		t.Error("an index has vectors that were not made")
	}

	e = &animals{name: "fails"}
	failing := NewModel(ModelOptions{Open: func() (Embedder, error) { return e, nil }, Log: logged})
	defer failing.Close()
	x = embedded(t, failing)
	for _, bad := range []func(){func() { e.failing.Store(true) }, func() { e.failing.Store(false); e.dims = 1 }} {
		bad()
		failing.pause = time.Time{}
		if got := first(x, failing, "count the fish"); got != want {
			t.Errorf("found %q", got)
		}
		if failing.pause.IsZero() {
			t.Error("it is asked again at once")
		}
	}
}
