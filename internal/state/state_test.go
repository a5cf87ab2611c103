package state_test

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"gatehouse/internal/access/secret"
	"gatehouse/internal/state"
)

func attach[T any](t testing.TB, tr *state.Tree, at string, d state.Durability) *state.Mount[T] {
	t.Helper()
	m, err := state.Attach[T](t.Context(), tr, at, d)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func setTo[T any](t testing.TB, m *state.Mount[T], v T) {
	t.Helper()
	if _, err := m.Set(t.Context(), v); err != nil {
		t.Fatal(err)
	}
}

func pointer(t testing.TB, s string) state.Pointer {
	t.Helper()
	p, err := state.ParsePointer(s)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func read(t testing.TB, tr *state.Tree, at string) string {
	t.Helper()
	v := tr.Read(pointer(t, at))
	if !v.Found {
		return "nothing"
	}
	b, err := v.JSON()
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

type info struct {
	Name  string         `json:"name"`
	Since time.Time      `json:"since,omitzero"`
	Count int            `json:"count"`
	More  map[string]any `json:"more,omitempty"`
}

func TestMountsMakeOneTree(t *testing.T) {
	tr := state.New(state.Options{})
	if got := read(t, tr, ""); got != `{"private":{},"public":{}}` {
		t.Fatalf("an empty tree is %s", got)
	}
	a := attach[info](t, tr, "/public/info", state.Live)
	b := attach[[]string](t, tr, "/public/deep/list", state.Live)
	if got := read(t, tr, "/public"); got != `{}` {
		t.Fatalf("before the first change: %s", got)
	}
	setTo(t, a, info{Name: "<gate>", Count: 1})
	setTo(t, b, []string{"x", "y"})
	for at, want := range map[string]string{
		"/public":              `{"deep":{"list":["x","y"]},"info":{"count":1,"name":"<gate>"}}`,
		"/public/info/name":    `"<gate>"`,
		"/public/deep/list/1":  `"y"`,
		"/public/deep/list/2":  "nothing",
		"/public/deep/list/01": "nothing",
		"/public/deep/list/-":  "nothing",
		"/public/info/name/x":  "nothing",
		"/publicX":             "nothing",
		"/private":             `{}`,
	} {
		if got := read(t, tr, at); got != want {
			t.Errorf("%s is %s, want %s", at, got, want)
		}
	}
}

func TestRevisionsCountWhatChanged(t *testing.T) {
	tr := state.New(state.Options{})
	m := attach[info](t, tr, "/public/info", state.Live)
	other := attach[int](t, tr, "/public/other", state.Live)
	setTo(t, m, info{Count: 1})
	was := tr.Read(pointer(t, "/public/info")).Revision
	setTo(t, m, info{Count: 1}) // no difference
	setTo(t, other, 5)
	if _, r, _ := m.Get(); r != 1 || tr.Read(pointer(t, "/public/info/count")).Revision != was {
		t.Fatalf("revision %d", r)
	}
	whole := tr.Read(pointer(t, "/public")).Revision
	r, err := m.Update(t.Context(), 1, func(v *info) error { v.Count++; return nil })
	if err != nil || r != 2 || tr.Read(pointer(t, "/public")).Revision == whole {
		t.Fatalf("revision %d, %v", r, err)
	}
}

func TestOptimisticTransactions(t *testing.T) {
	for name, d := range map[string]state.Durability{"live": state.Live, "durable": state.Durable} {
		t.Run(name, func(t *testing.T) {
			tr := state.New(state.Options{})
			m := attach[info](t, tr, "/private/info", d)
			setTo(t, m, info{Count: 1})
			_, err := m.Update(t.Context(), 7, func(*info) error { t.Error("it ran"); return nil })
			if c, ok := errors.AsType[*state.Conflict](err); !ok || c.Revision != 1 {
				t.Fatalf("got %v", err)
			}
			no := errors.New("no")
			if _, err := m.Update(t.Context(), 1, func(v *info) error { v.Count = 9; return no }); err != no {
				t.Fatalf("got %v", err)
			}
			if v, r, _ := m.Get(); v.Count != 1 || r != 1 {
				t.Fatalf("a transaction that failed left %v at %d", v, r)
			}
			r, err := tr.Update(t.Context(), "/private/info", 1, func(old any) (any, error) {
				return map[string]any{"name": "n", "count": 3}, nil
			})
			if v, _, _ := m.Get(); err != nil || r != 2 || v.Count != 3 {
				t.Fatalf("%v at %d, %v", v, r, err)
			}
			if _, err := m.Apply(t.Context(), 2,
				state.Patch{{Kind: state.Replace, Path: state.Pointer{"count"}, Value: "four"}}); !errors.Is(
				err,
				state.ErrPatch,
			) {
				t.Fatalf("what is no info was taken: %v", err)
			}
		})
	}
}

// What a reader holds does not change under its hands.
func TestReadersKeepWhatTheyHave(t *testing.T) {
	tr := state.New(state.Options{})
	m := attach[map[string][]int](t, tr, "/public/m", state.Live)
	setTo(t, m, map[string][]int{"a": {1, 2, 3}, "b": {1}})
	seen := tr.Read(nil)
	before, _ := seen.JSON()
	setTo(t, m, map[string][]int{"a": {1, 3, 3, 4}, "c": {}})
	if err := state.Drop(t.Context(), m, "a"); err != nil {
		t.Fatal(err)
	}
	if after, _ := seen.JSON(); string(after) != string(before) {
		t.Fatalf("%s became %s", before, after)
	}
}

func TestMountsOfMany(t *testing.T) {
	tr := state.New(state.Options{})
	m := attach[map[string]info](t, tr, "/public/m", state.Live)
	for range 2 {
		if err := state.Put(t.Context(), m, "a/b", info{Name: "x"}); err != nil {
			t.Fatal(err)
		}
	}
	if err := state.Put(t.Context(), m, "c", info{}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := state.Drop(t.Context(), m, "c"); err != nil {
			t.Fatal(err)
		}
	}
	v, r, err := m.Get()
	if want := map[string]info{"a/b": {Name: "x"}}; err != nil || r != 3 || !reflect.DeepEqual(v, want) {
		t.Fatalf("%v at %d, %v", v, r, err)
	}
	if err := state.Put(t.Context(), m, strings.Repeat("x", state.MaxKey+1), info{}); !errors.Is(err, state.ErrValue) {
		t.Fatalf("a long name: %v", err)
	}
}

func TestPlacesForMounts(t *testing.T) {
	tr := state.New(state.Options{})
	attach[int](t, tr, "/public/a/b", state.Live)
	for at, want := range map[string]error{
		"/public/a/b": state.ErrMounted, "/public/a": state.ErrMounted, "/public/a/b/c": state.ErrMounted,
		"/public": state.ErrMount, "": state.ErrMount, "/other/x": state.ErrMount, "public": state.ErrPointer,
		"/public/~2": state.ErrPointer,
	} {
		if _, err := state.Attach[int](t.Context(), tr, at, state.Live); !errors.Is(err, want) {
			t.Errorf("%q: %v, want %v", at, err, want)
		}
	}
	if _, err := tr.Update(t.Context(), "/public/z", state.Any, nil); !errors.Is(err, state.ErrNoMount) {
		t.Errorf("no mount: %v", err)
	}
	tr.Close()
	if _, err := state.Attach[int](t.Context(), tr, "/public/z", state.Live); !errors.Is(err, state.ErrClosed) {
		t.Errorf("after close: %v", err)
	}
}

func TestSecretsCannotEnter(t *testing.T) {
	type deep struct {
		Settings map[string][]*struct{ Password secret.Text }
	}
	type hidden struct {
		Password secret.Text `json:"-"`
	}
	tr := state.New(state.Options{})
	for _, err := range []error{
		second(state.Attach[secret.Text](t.Context(), tr, "/public/a", state.Live)),
		second(state.Attach[deep](t.Context(), tr, "/public/b", state.Live)),
		second(state.Attach[hidden](t.Context(), tr, "/public/c", state.Durable)),
		second(state.Attach[map[string]secret.Text](t.Context(), tr, "/public/d", state.Live)),
	} {
		if !errors.Is(err, state.ErrSecret) {
			t.Errorf("got %v", err)
		}
	}
	// Where the type does not tell, the value does, and nowhere else is a
	// secret written either.
	for _, at := range []string{"/public/any", "/private/any"} {
		m := attach[any](t, tr, at, state.Live)
		if _, err := m.Set(t.Context(), map[string]any{"p": secret.New("hunter2")}); !errors.Is(err, state.ErrSecret) {
			t.Errorf("%s: %v", at, err)
		}
		if _, err := tr.Update(t.Context(), at, state.Any,
			func(any) (any, error) { return []any{secret.New("hunter2")}, nil }); !errors.Is(
			err,
			state.ErrSecret,
		) {
			t.Errorf("%s: %v", at, err)
		}
	}
	if got := read(t, tr, ""); strings.Contains(got, "hunter2") {
		t.Fatalf("the tree is %s", got)
	}
}

func second[T any](_ T, err error) error { return err }

func TestLimitsOfValues(t *testing.T) {
	tr := state.New(state.Options{})
	m := attach[any](t, tr, "/public/m", state.Live)
	var deep any = "x"
	for range state.MaxDepth {
		deep = []any{deep}
	}
	setTo(t, m, deep)
	for name, v := range map[string]any{"deep": []any{deep},
		"long name": map[string]int{strings.Repeat("x", state.MaxKey+1): 1}} {
		if _, err := m.Set(t.Context(), v); !errors.Is(err, state.ErrValue) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := m.Set(t.Context(), func() {}); err == nil {
		t.Error("a function was taken")
	}
	big := json.Number("123456789012345678901234567890.5")
	setTo[any](t, m, big)
	if got := read(t, tr, "/public/m"); got != string(big) {
		t.Errorf("a number became %s", got)
	}
}

// Trees of one cluster with the same content name its revision alike, whatever happened in each before.
func TestSharedRevisions(t *testing.T) {
	at := state.Pointer{"public", "a"}
	var all []state.Revision
	for changes := range 3 {
		tree := state.New(state.Options{Shared: "work"})
		m, err := state.Attach[map[string]int](t.Context(), tree, "/public/a", state.Live)
		if err != nil {
			t.Fatal(err)
		}
		for n := range changes + 1 {
			if _, err := m.Set(t.Context(), map[string]int{"n": n - changes}); err != nil {
				t.Fatal(err)
			}
		}
		all = append(all, tree.Read(at).Revision)
		sub, _, err := tree.Subscribe(at, all[0])
		if err != nil {
			t.Fatal(err)
		}
		if u, ok := sub.Take(); ok {
			t.Errorf("a reader of the same content is told %+v", u)
		}
		if _, err := m.Set(t.Context(), map[string]int{"n": 7}); err != nil {
			t.Fatal(err)
		}
		sub.Flush(false)
		if u, ok := sub.Take(); !ok || u.From != all[0] || u.Revision == all[0] || u.Again {
			t.Errorf("it is told of a change with %+v, %v", u, ok)
		}
	}
	if all[0] != all[1] || all[1] != all[2] {
		t.Errorf("the revisions are %q", all)
	}
}
