package state_test

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"gatehouse/internal/state"
)

func TestPointers(t *testing.T) {
	for s, want := range map[string][]string{
		"": nil, "/": {""}, "/a": {"a"}, "/a/": {"a", ""}, "//": {"", ""}, "/~0~1": {"~/"}, "/~01": {"~1"},
		"/a%2Fb": {"a%2Fb"}, "/..": {".."},
	} {
		p, err := state.ParsePointer(s)
		if err != nil || !slices.Equal(p, want) {
			t.Errorf("%q is %q, %v", s, p, err)
		}
	}
	for _, s := range []string{"a", "a/b", "/~", "/~2", "/a~", "/~ 0", "#/a", "/\xff",
		string(bytes.Repeat([]byte("/a"), state.MaxDepth+1))} {
		if p, err := state.ParsePointer(s); !errors.Is(err, state.ErrPointer) {
			t.Errorf("%q is %q, %v", s, p, err)
		}
	}
}

func FuzzPointer(f *testing.F) {
	for _, s := range []string{"", "/", "/a/b", "/~0~1/~01", "a", "/~", "/\xff", "//"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		p, err := state.ParsePointer(s)
		if err != nil {
			if !errors.Is(err, state.ErrPointer) {
				t.Fatal(err)
			}
			return
		}
		if p.String() != s {
			t.Fatalf("%q is written %q", s, p.String())
		}
	})
}

func TestPatchesThatAreNone(t *testing.T) {
	for _, s := range []string{
		``, `{}`, `[1]`, `[{"op":"add","value":1}]`, `[{"op":"add","path":"/a"}]`,
		`[{"op":"move","path":"/a","from":"/b"}]`,
		`[{"op":"test","path":"/a","value":1}]`, `[{"op":"remove","path":""}]`, `[{"op":"remove","path":"a"}]`,
		`[{"path":"/a","value":1}]`,
		`[{"op":"add","path":"/~","value":1}]`,
	} {
		if p, err := state.DecodePatch([]byte(s)); !errors.Is(err, state.ErrPatch) {
			t.Errorf("%s is %v, %v", s, p, err)
		}
	}
	for _, c := range []struct{ value, patch string }{
		{`{}`, `[{"op":"replace","path":"/a","value":1}]`},
		{`{}`, `[{"op":"remove","path":"/a"}]`},
		{`{}`, `[{"op":"add","path":"/a/b","value":1}]`},
		{`{"a":1}`, `[{"op":"add","path":"/a/b","value":1}]`},
		{`[1]`, `[{"op":"add","path":"/2","value":1}]`},
		{`[1]`, `[{"op":"replace","path":"/1","value":1}]`},
		{`[1]`, `[{"op":"replace","path":"/-","value":1}]`},
		{`[1]`, `[{"op":"remove","path":"/-"}]`},
		{`[1]`, `[{"op":"remove","path":"/00"}]`},
		{`[1]`, `[{"op":"add","path":"/a","value":1}]`},
		{`null`, `[{"op":"add","path":"/a","value":1}]`},
	} {
		p, err := state.DecodePatch([]byte(c.patch))
		if err != nil {
			t.Fatal(err)
		}
		if v, err := state.Apply(decode(t, c.value), p); !errors.Is(err, state.ErrPatch) {
			t.Errorf("%s by %s is %v, %v", c.value, c.patch, v, err)
		}
	}
}

func decode(t testing.TB, s string) any {
	t.Helper()
	p, err := state.DecodePatch([]byte(`[{"op":"replace","path":"","value":` + s + `}]`))
	if err != nil {
		t.Fatal(err)
	}
	return p[0].Value
}

// What is read as a patch is written and read as the same one, and applying it
// either does all of it or leaves no trace.
func FuzzPatch(f *testing.F) {
	for _, s := range []string{
		`[]`, `[{"op":"add","path":"/a","value":{"b":[1,2.5e10,null]}},{"op":"remove","path":"/a/b/0"}]`,
		`[{"op":"replace","path":"","value":[]},{"op":"add","path":"/-","value":"x"},{"op":"add","path":"/0","value":"y"}]`,
		`[{"op":"remove","path":""}]`, `[{"op":"add","path":"/~1~0","value":false}]`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := state.DecodePatch(b)
		if err != nil {
			if !errors.Is(err, state.ErrPatch) {
				t.Fatal(err)
			}
			return
		}
		written, err := p.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		q, err := state.DecodePatch(written)
		if err != nil {
			t.Fatalf("%s: %v", written, err)
		}
		for _, s := range []string{`null`, `{"a":{"b":[1,2]},"c":"d"}`, `[1,[2],{"a":3}]`} {
			v := decode(t, s)
			before, _ := state.View{Value: v}.JSON()
			x, err := state.Apply(v, p)
			if after, _ := (state.View{Value: v}).JSON(); !bytes.Equal(before, after) {
				t.Fatalf("%s became %s by %s", before, after, b)
			}
			y, err2 := state.Apply(v, q)
			if (err == nil) != (err2 == nil) {
				t.Fatalf("%v, but when written %v", err, err2)
			}
			if err != nil {
				continue
			}
			if d := state.Diff(x, y); len(d) != 0 {
				t.Fatalf("%s does something else when it is written: %v", b, d)
			}
			z, err := state.Apply(v, state.Diff(v, x))
			if err != nil || len(state.Diff(z, x)) != 0 {
				t.Fatalf("the difference of %v and %v leads to %v, %v", v, x, z, err)
			}
		}
	})
}
