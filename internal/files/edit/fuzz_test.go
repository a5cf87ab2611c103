package edit

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"
)

// Whatever comes in, a change stays inside the place that was found, leaves the
// bytes around it alone, and says in a diff what it did.
func FuzzApply(f *testing.F) {
	f.Add([]byte("a\r\nb\nc\r\n"), "b\nc", "b\nX\nc", "a", "z")
	f.Add([]byte(bom+"a\r\n\r\n"), "\n\n", "\n", "", "")
	f.Add([]byte("\r\r\n\n\r"), "\n", "\r\n\n", "", "")
	f.Add(
		[]byte("\tif x {  \n\n\t\ty()\n\t}\n\ty()"),
		"    if x {\n        y()\n    }\n",
		"    if x {\n        z()\n        “q”\n    }\n",
		"y()",
		"n",
	)
	f.Add([]byte("aXaXa"), "aXa", "", "", "")
	f.Add([]byte("\ta\u00a0b\n\t\tc…\n\td\n"), "a b\n\tc...\nd", "\n\na b\nc...\n\n\nd", "d\n", "")
	f.Add([]byte("x\n  a\n\n\n  b\n  c"), "a\nb\n", "a\n\nnew\nb\nlast\n", "c\n", "d\n")
	f.Add([]byte("s := \"a\\nb\"\n\\t\n"), "\"a\nb\"", "\"a\nc\"", `\\t`, "")
	f.Add(
		[]byte("begin of it\n0123456789012345678901234567890\n  end\n"),
		"begin of it\n012345678901234567890123456789\nend\n",
		"begin of it\n012345678901234567890123456789\n\nend\nx",
		"",
		"",
	)
	f.Add([]byte("\n00y0Dy00\n00\n\n0"), "D", "F", "\n", "") // the last line is joined by the one before
	f.Fuzz(func(t *testing.T, content []byte, old, with, old2, with2 string) {
		edits := []Edit{{Old: old, New: with, Near: len(with) % 3}}
		if old2 != "" {
			edits = append(edits, Edit{Old: old2, New: with2, All: len(with2)%2 == 0})
		}
		was := bytes.Clone(content)
		r, err := Apply("f", content, edits)
		if !bytes.Equal(was, content) {
			t.Fatal("the content was changed in place")
		}
		if err != nil {
			return
		}
		got := r.Content()
		if int64(len(got)) != r.Size() {
			t.Errorf("size %d, want %d", r.Size(), len(got))
		}
		if bytes.Equal(got, content) {
			t.Error("nothing changed and that was no refusal")
		}
		at, shift := 0, 0
		for _, c := range r.changes {
			if c.from < at || c.to < c.from || c.to > len(content) {
				t.Fatalf("change %+v after %d in %d bytes", c, at, len(content))
			}
			if !bytes.Equal(got[at+shift:c.from+shift], content[at:c.from]) {
				t.Errorf("bytes %d to %d are not those of the file", at, c.from)
			}
			shift += len(c.with) - (c.to - c.from)
			at = c.to
		}
		if !bytes.Equal(got[at+shift:], content[at:]) {
			t.Error("the end is not that of the file")
		}
		patched(t, r, got)
	})
}

// patched applies the diff to what was there.
func patched(t *testing.T, r *Result, want []byte) {
	t.Helper()
	if !utf8.Valid(r.before) || !utf8.Valid(want) || bytes.IndexByte(r.before, '\r') >= 0 ||
		bytes.IndexByte(want, '\r') >= 0 ||
		len(want) > 150 ||
		len(r.before) > 150 {
		return // lines are shown without returns, whole characters and up to a width
	}
	before := strings.Split(strings.TrimSuffix(string(r.before), "\n"), "\n")
	if len(r.before) == 0 {
		before = nil
	}
	var got []string
	at := 0
	for l := range strings.SplitSeq(r.Diff(1<<20), "\n") {
		if strings.HasPrefix(l, "@@ ") {
			span := strings.Fields(l)[1]
			from, _, some := strings.Cut(span[1:], ",")
			n, err := strconv.Atoi(from)
			if err != nil {
				t.Fatalf("header %q", l)
			}
			if !some || !strings.HasSuffix(span, ",0") {
				n--
			}
			for ; at < n; at++ {
				got = append(got, before[at])
			}
			continue
		}
		if l == "" {
			t.Fatalf("a line without a sign in\n%s", r.Diff(1<<20))
		}
		if l[0] != '+' {
			if at >= len(before) || before[at] != l[1:] {
				t.Fatalf("line %d is not %q:\n%s", at+1, l[1:], r.Diff(1<<20))
			}
			at++
		}
		if l[0] != '-' {
			got = append(got, l[1:])
		}
	}
	got = append(got, before[at:]...)
	if g, w := strings.Join(got, "\n"), strings.TrimSuffix(string(want), "\n"); g != w && g+"\n" != string(want) {
		t.Errorf("%q became %q, but its diff makes %q:\n%s", r.before, want, g, r.Diff(1<<20))
	}
}

// FuzzDisturbed spoils edits of a text in several ways at once. What comes of
// one has the lines the edit was to leave, in order and to the byte.
func FuzzDisturbed(f *testing.F) {
	for seed := range uint64(50) {
		f.Add(seed, uint8(seed), uint8(seed/7))
	}
	names := slices.Sorted(maps.Keys(disturbances))
	f.Fuzz(func(t *testing.T, seed uint64, a, b uint8) {
		r := rand.New(rand.NewPCG(seed, 1))
		x, ok := draw(r, invented(r))
		if !ok {
			return
		}
		for _, n := range []uint8{a, b} {
			kind := disturbances[names[int(n)%len(names)]]
			if y, ok := kind[r.IntN(len(kind))](r, x); ok && y.want != "" {
				x = y
			}
		}
		if x.old == x.new {
			return
		}
		res, err := Apply("f", []byte(x.file), []Edit{{Old: x.old, New: x.new}})
		if err != nil {
			return
		}
		// Every line of the file outside of the place is there, and every line
		// of the place is either there to the byte or shown as changed.
		got := string(res.Content())
		was, is := strings.SplitAfter(x.file, "\n"), strings.SplitAfter(got, "\n")
		gone := strings.Count(res.Diff(1<<20), "\n-")
		of := pairSequences(len(was), len(is), func(i, j int) int {
			if was[i] == is[j] {
				return 1
			}
			return 0
		})
		kept := 0
		for _, i := range of {
			if i >= 0 {
				kept++
			}
		}
		if len(was)-kept > gone+1 {
			t.Errorf("%d lines of %d are gone, the diff has %d:\n%s", len(was)-kept, len(was), gone, res.Diff(1<<20))
		}
	})
}

// invented is a text of nested blocks whose lines are all different.
func invented(r *rand.Rand) string {
	var b strings.Builder
	deep := 0
	for i := range 60 {
		switch n := r.IntN(8); {
		case n == 0 && i > 0:
			b.WriteString("\n")
			continue
		case n < 3 && deep < 4:
			fmt.Fprintf(&b, "%sif check%d(\"%d\") {\n", strings.Repeat("\t", deep), i, r.IntN(9))
			deep++
			continue
		case n < 5 && deep > 0:
			deep--
			fmt.Fprintf(&b, "%s} // %d\n", strings.Repeat("\t", deep), i)
			continue
		}
		fmt.Fprintf(&b, "%scall%d('x', %d)\n", strings.Repeat("\t", deep), i, r.IntN(99))
	}
	b.WriteString("end\n")
	return b.String()
}

// What a broken syntax check is given comes from models too.
func FuzzBroken(f *testing.F) {
	for _, name := range []string{"a.go", "a.json", "a.yaml", "a.toml", "a.xml"} {
		f.Add(name, []byte("a: 1\n"), []byte("a: [1\n"))
		f.Add(name, []byte("<a></a>"), []byte("<a>"))
		f.Add(name, []byte("package a\n"), []byte("package a {\n"))
	}
	f.Fuzz(func(t *testing.T, name string, before, after []byte) {
		if len(before)+len(after) > 1<<12 {
			return
		}
		if s := Broken(name, before, after); strings.Contains(s, "\n") {
			t.Errorf("%q has several lines", s)
		}
	})
}
