package search

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"gatehouse/internal/files/walk"
)

func put(t testing.TB, dir, name, content string) {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func compile(t testing.TB, text string, how How) *Pattern {
	t.Helper()
	p, err := Compile(text, how)
	if err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	return p
}

func search(t testing.TB, dir string, q Query) Result {
	t.Helper()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	q.Tree.Root = root
	res, err := Run(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// resultLines writes a result as path:line:text.
func resultLines(res Result) (lines []string) {
	for _, f := range res.Files {
		if len(f.Hits) == 0 {
			lines = append(lines, fmt.Sprintf("%s:%d", f.Path, f.Count))
		}
		for _, h := range f.Hits {
			lines = append(lines, fmt.Sprintf("%s:%d:%s", f.Path, h.Line, h.Text))
		}
	}
	return lines
}

// naive is the same search in the plainest way.
func naive(dir string, re *regexp.Regexp) (lines []string) {
	filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return nil
		}
		b, _ := os.ReadFile(path)
		if bytes.IndexByte(b[:min(len(b), sniffed)], 0) >= 0 {
			return nil
		}
		rel, _ := filepath.Rel(dir, path)
		n := 0
		for line := range bytes.Lines(b) {
			n++
			line = bytes.TrimSuffix(line, []byte("\n"))
			shown := bytes.TrimSuffix(line, []byte("\r"))
			if !asksPlainly(re) {
				line = shown
			}
			if re.Match(line) {
				lines = append(lines, fmt.Sprintf("%s:%d:%s", rel, n, shown))
			}
		}
		return nil
	})
	slices.Sort(lines)
	return lines
}

// asksPlainly reports whether a pattern of these tests asks for a carriage return.
func asksPlainly(re *regexp.Regexp) bool {
	return strings.Contains(re.String(), `\r`) && !strings.Contains(re.String(), `\\r`)
}

var patterns = []string{
	`func`, `func \w+\(`, `^func`, `\)$`, `^\s*$`, `^$`, ``, `\berr\b`, `err != nil|return nil`, `[A-Z]{3,}_[A-Z]+`,
	`(?i)todo`, `(?i)kelvin|task`,
	`a.*z`, `ä`, `[^\x00-\x7F]`, `\p{Lu}\p{Ll}+`, `.`, `\S+@\S+`, `"[^"]*"`, `x{2,3}y?`, `\bx\b`, `\Bx\B`,
	`(foo|bar|baz)+q`, `\d+\.\d+`, `(?i)straße`,
	`^\t+if .* \{$`, `[[:upper:]]\w*Error\b`, `z$|^a`, `\Aa`, `z\z`, `�`, `.$`, `^.{3}$`, `(?s)a.b`, `s|k`, `(?i)s$`,
	`\r`, `\r$`, `a\r`, `[\r\t]`, `q\b`, `\b`, `\B`, `(a|b|c|d|e|f|g|h)z`,
}

var texts = []string{
	"package a\n\nfunc main() {\n\tif err != nil {\n\t\treturn nil\n\t}\n}\n",
	"TODO: tidy\ntodo\nToDo\nnothing\r\nKELVIN \u212A elvin\nta\u017Fk TASK tasK\nSTRASSE stra\u00dfe STRA\u1E9EE\n",
	"a\nb\n\n\nz", "", "\n", "\r\n\r\n", "no newline at the end x", "x\nxx\nxxx\nxxxy\nxy x\n x \n",
	"MAX_VALUE = 3.14\nfoo@bar.example\n\"quoted\" \"\"\nMyError yourError\nfoobarq bazq\n",
	"caf\xe9 latin\n\xff\xfe\xfd\na\xffb\n\xc3\xa4\xc3\n\u00e4\u00f6\nfoo\xef\xbf\xbdbar\n",
	"a\rb\r\nz\r\n\ra\r\r\nq\r\n", "az\nbz\nhz\niz\na---z\nzzz\nabc\nABC\n",
}

// Every pattern finds on every text what the plainest way finds.
func TestAgreesWithNaive(t *testing.T) {
	dir := t.TempDir()
	for i, text := range texts {
		put(t, dir, fmt.Sprintf("%02d", i), text)
	}
	for _, text := range patterns {
		for _, how := range []How{{}, {IgnoreCase: true}, {Literal: true}} {
			source := text
			if how.Literal {
				source = regexp.QuoteMeta(text)
			}
			if how.IgnoreCase {
				source = "(?i)" + source
			}
			want := naive(dir, regexp.MustCompile(source))
			got := resultLines(search(t, dir, Query{Pattern: compile(t, text, how), PerFile: 1000}))
			slices.Sort(got)
			if !slices.Equal(got, want) {
				t.Errorf("%q %+v:\ngot  %q\nwant %q", text, how, got, want)
			}
		}
	}
}

// Each way of finding lines agrees with Go's regular expressions, on lines made
// to be close to matching.
func TestAutomatonAgrees(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	alphabet := []string{
		"a",
		"b",
		"x",
		"z",
		"A",
		"K",
		"\u212a",
		"s",
		"\u017f",
		"_",
		" ",
		"\t",
		"1",
		".",
		"\"",
		"ä",
		"€",
		"😀",
		"\xff",
		"\xc3",
		"\r",
		"foo",
		"bar",
		"err",
		"func ",
		"\ufffd",
		"(",
	}
	for _, text := range patterns {
		for _, prefix := range []string{"", "(?i)"} {
			p := compile(t, prefix+text, How{})
			m := p.matcher()
			if p.program == nil && !p.plain && !p.returns {
				t.Errorf("%q has no automaton", prefix+text)
			}
			for range 300 {
				var b strings.Builder
				for range random.IntN(12) {
					b.WriteString(alphabet[random.IntN(len(alphabet))])
				}
				line := b.String()
				m.reset()
				_, _, _, got := m.matchLine([]byte(line+"\n"), 0)
				if !p.returns {
					line = strings.TrimSuffix(line, "\r")
				}
				if want := p.re.MatchString(line); got != want {
					t.Fatalf("%q on %q: got %v, want %v", prefix+text, line, got, want)
				}
			}
		}
	}
}

func FuzzLines(f *testing.F) {
	for i, p := range patterns {
		f.Add(p, []byte(texts[i%len(texts)]), i%2 == 0)
	}
	f.Fuzz(func(t *testing.T, text string, b []byte, fold bool) {
		if len(text) > 200 || len(b) > 4000 {
			t.Skip()
		}
		p, err := Compile(text, How{IgnoreCase: fold})
		if err != nil {
			t.Skip()
		}
		m := p.matcher()
		var got []int
		for from := 0; from < len(b); {
			begin, _, next, ok := m.matchLine(b, from)
			if !ok {
				break
			}
			got = append(got, begin)
			from = next
		}
		var want []int
		at := 0
		for line := range bytes.Lines(b) {
			cut := bytes.TrimSuffix(line, []byte("\n"))
			if !p.returns {
				cut = bytes.TrimSuffix(cut, []byte("\r"))
			}
			if p.re.Match(cut) {
				want = append(want, at)
			}
			at += len(line)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%q on %q: lines at %v, want %v", text, b, got, want)
		}
	})
}

func TestModes(t *testing.T) {
	dir := t.TempDir()
	put(t, dir, "a/one.go", "package a\n\n// Open opens.\nfunc Open() {}\n\nvar x = Open\n")
	put(t, dir, "a/two.go", "package a\n\nvar y = Open // Open\n")
	put(t, dir, "b.md", "Open the door.\n")
	put(t, dir, "skip.log", "Open\n")
	put(t, dir, ".gitignore", "*.log\n")
	put(t, dir, "bin", "Open\x00")
	put(t, dir, "wide.txt", "\xff\xfeO\x00p\x00e\x00n\x00\n\x00")
	globs, _ := walk.ParseGlobs([]string{"*.go"})
	open := compile(t, "Open", How{Literal: true})
	for _, c := range []struct {
		what string
		q    Query
		want string
	}{
		{"definitions first", Query{Pattern: open},
			"a/one.go:3:// Open opens. a/one.go:4:func Open() {} a/one.go:6:var x = Open a/two.go:3:var y = Open // " +
				"Open b.md:1:Open the door. wide.txt:1:Open"},
		{"globs", Query{Pattern: open, Globs: globs, PerFile: 1},
			"a/one.go:3:// Open opens. a/two.go:3:var y = Open // Open"},
		{"files", Query{Mode: Files, Pattern: open}, "a/one.go:1 a/two.go:1 b.md:1 wide.txt:1"},
		{"count", Query{Mode: Count, Pattern: open}, "a/one.go:3 a/two.go:1 b.md:1 wide.txt:1"},
		{"names", Query{Mode: Names, Globs: globs}, "a/one.go:0 a/two.go:0"},
		{"only", Query{Mode: Names, Only: func(p, n string) bool { return strings.HasPrefix(p, "b") }}, "b.md:0 bin:0"},
		{"below", Query{Mode: Files, Pattern: open, Tree: walk.Options{Start: "a"}}, "one.go:1 two.go:1"},
		{"limit", Query{Mode: Files, Pattern: open, Limit: 2}, "a/one.go:1 a/two.go:1"},
		{"after", Query{Mode: Files, Pattern: open, Limit: 2, After: Key{Path: "a/one.go"}}, "a/two.go:1 b.md:1"},
		{"after a line", Query{Pattern: open, Limit: 2, After: Key{Rank: 1, Path: "a/one.go", Line: 4}},
			"a/one.go:6:var x = Open a/two.go:3:var y = Open // Open"},
		{"all", Query{Mode: Files, Pattern: open, Tree: walk.Options{All: true}},
			"a/one.go:1 a/two.go:1 b.md:1 skip.log:1 wide.txt:1"},
	} {
		if got := strings.Join(resultLines(search(t, dir, c.q)), " "); got != c.want {
			t.Errorf("%s: got  %s\nwant %s", c.what, got, c.want)
		}
	}
	res := search(t, dir, Query{Pattern: open, Limit: 1, PerFile: 2})
	if res.Matched != 4 || res.Binary != 1 || res.Searched != 6 || !res.More || !res.Files[0].More ||
		res.Tree.Ignored != 1 ||
		len(res.Files[0].ETag) != 12 {
		t.Errorf("%+v", res)
	}
}

// Following the key gives everything once, whatever the sizes of the pages.
func TestPagesMakeTheWhole(t *testing.T) {
	dir := t.TempDir()
	for i := range 40 {
		put(t, dir, fmt.Sprintf("%d/f", i*7%40), strings.Repeat("hit\nmiss\n", i%5)+strings.Repeat("func hit\n", i%3))
	}
	hit := compile(t, "hit", How{})
	want := resultLines(search(t, dir, Query{Pattern: hit, Limit: 1000}))
	for _, limit := range []int{1, 3, 7} {
		var got []string
		var after Key
		for range 200 {
			res := search(t, dir, Query{Pattern: hit, Limit: limit, After: after})
			if len(res.Files) == 0 {
				break
			}
			f := res.Files[len(res.Files)-1]
			res.Files[len(res.Files)-1].Hits = f.Hits[:(len(f.Hits)+1)/2] // the page ends within the file
			got = append(got, resultLines(res)...)
			f = res.Files[len(res.Files)-1]
			after = Key{f.Rank, f.Path, f.Hits[len(f.Hits)-1].Line}
		}
		if !slices.Equal(got, want) {
			t.Errorf("limit %d:\ngot  %q\nwant %q", limit, got, want)
		}
	}
}

func TestContext(t *testing.T) {
	dir := t.TempDir()
	put(t, dir, "f", "1\n2\n3 hit\r\n4\r\n5\n6 hit")
	res := search(t, dir, Query{Pattern: compile(t, "hit", How{}), Context: 2})
	h := res.Files[0].Hits
	if fmt.Sprint(h[0].Before, h[0].After, h[1].Before, h[1].After) != "[1 2] [4 5] [4 5] []" || h[0].Text != "3 hit" {
		t.Errorf("%+v", h)
	}
}

func TestMultiline(t *testing.T) {
	dir := t.TempDir()
	put(t, dir, "f", "a {\n  b\n}\nc\na {\n}\n"+strings.Repeat("x\n", 20)+"end\n")
	var got []string
	for _, f := range search(t, dir, Query{Pattern: compile(t, `a \{\n[^}]*\}`, How{Multiline: true})}).Files {
		for _, h := range f.Hits {
			got = append(got, fmt.Sprintf("%d %q", h.Line, h.Text))
		}
	}
	if want := `1 "a {\n  b\n}"|5 "a {\n}"`; strings.Join(got, "|") != want {
		t.Errorf("got %s, want %s", strings.Join(got, "|"), want)
	}
	res := search(t, dir, Query{Pattern: compile(t, `^c$(?s).*end`, How{Multiline: true})})
	if h := res.Files[0].Hits[0]; h.Line != 4 || strings.Count(h.Text, "\n") != spanMost ||
		!strings.HasSuffix(h.Text, "...") {
		t.Errorf("%+v", h)
	}
	if res := search(t, dir, Query{Mode: Count,
		Pattern: compile(t, `x\nx`, How{Multiline: true})}); res.Files[0].Count != 10 {
		t.Errorf("%+v", res)
	}
	if _, err := Compile(`a\nb`, How{}); err == nil || !strings.Contains(err.Error(), "multiline") {
		t.Errorf("a newline in a line: %v", err)
	}
}

// A file larger than the window gives the same as a small one, and a line
// larger than that does not take more memory.
func TestLargeFiles(t *testing.T) {
	dir := t.TempDir()
	var b strings.Builder
	var want []string
	for i := 1; b.Len() < 5*windowSize; i++ {
		if i%9973 == 0 {
			fmt.Fprintf(&b, "line %d is it\n", i)
			want = append(want, fmt.Sprintf("%d [line %d] [line %d line %d]", i, i-1, i+1, i+2)[0:])
		} else {
			fmt.Fprintf(&b, "line %d\n", i)
		}
	}
	put(t, dir, "many", b.String())
	for _, text := range []string{"is it", `is\s\w+$`} {
		res := search(t, dir, Query{Pattern: compile(t, text, How{}), Context: 2, PerFile: 1000})
		var got []string
		for _, h := range res.Files[0].Hits {
			got = append(got, fmt.Sprint(h.Line, h.Before[1:], h.After))
		}
		for i := range want {
			want[i] = strings.ReplaceAll(want[i], " [", " [")
		}
		if len(got) != len(want) || got[0] != "9973[line 9972][line 9974 line 9975]" && got[0] != want[0] {
			t.Errorf("%q: %d hits of %d, the first %s, want %s", text, len(got), len(want), got[0], want[0])
		}
		for i, h := range res.Files[0].Hits {
			if h.Line != 9973*(i+1) || h.Text != fmt.Sprintf("line %d is it", h.Line) || len(h.Before) != 2 ||
				len(h.After) != 2 {
				t.Errorf("%q: hit %d is %+v", text, i, h)
			}
		}
	}
	put(
		t,
		dir,
		"many",
		strings.Repeat("x", 3*windowSize-2)+"needle"+strings.Repeat("y", 2*windowSize)+"needle\nnext needle\n",
	)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	res := search(t, dir, Query{Pattern: compile(t, "needle", How{})})
	runtime.ReadMemStats(&after)
	if h := res.Files[0].Hits; len(h) != 2 || h[0].Line != 1 || h[1].Line != 2 || h[1].Text != "next needle" ||
		!strings.Contains(h[0].Text, "needle") {
		t.Errorf("%+v", h)
	}
	if used := after.TotalAlloc - before.TotalAlloc; used > 4<<20 {
		t.Errorf("a long line took %d bytes", used)
	}
}

func TestLongLineIsCut(t *testing.T) {
	line := strings.Repeat("ä", 500) + "needle" + strings.Repeat("ö", 500)
	got := excerpt([]byte(line), strings.Index(line, "needle"))
	if !strings.Contains(got, "needle") || len(got) > longLine+6 || !utf8.ValidString(got) {
		t.Errorf("got %q", got)
	}
}

// A NUL byte ends what is searched.
func TestBinary(t *testing.T) {
	dir := t.TempDir()
	put(t, dir, "early", "needle\n\x00")
	put(t, dir, "late", "needle\n"+strings.Repeat("text\n", 3000)+"\x00\nneedle\n")
	put(t, dir, "never", strings.Repeat("text\n", 3000)+"\x00\nneedle\n")
	res := search(t, dir, Query{Pattern: compile(t, "needle", How{})})
	if got := resultLines(res); len(got) != 1 || got[0] != "late:1:needle" || res.Binary != 2 {
		t.Errorf("%q, %+v", got, res)
	}
}

func TestSparse(t *testing.T) {
	dir := t.TempDir()
	put(t, dir, "holes", "text")
	if err := os.Truncate(filepath.Join(dir, "holes"), 5<<30); err != nil {
		t.Skip(err)
	}
	if res := search(t, dir, Query{Pattern: compile(t, "needle", How{})}); res.Binary != 1 {
		t.Errorf("%+v", res)
	}
}

func TestCancel(t *testing.T) {
	dir := t.TempDir()
	for i := range 2000 {
		put(t, dir, fmt.Sprintf("%d", i), "needle\n")
	}
	root, _ := os.OpenRoot(dir)
	defer root.Close()
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("enough")
	res, err := Run(
		ctx,
		Query{
			Pattern:  compile(t, "needle", How{}),
			Tree:     walk.Options{Root: root},
			Progress: func(int64) { cancel(stop) },
		},
	)
	if !errors.Is(err, stop) || res.Matched == 0 || res.Matched == 2000 {
		t.Errorf("%v, %d of 2000", err, res.Matched)
	}
}

func TestAdvice(t *testing.T) {
	for text, want := range map[string]string{
		`a(?=b)`: "lookahead", `(?<!a)b`: "lookbehind", `(a)\1`: "backreference", `*a`: "literal", `foo(`: "literal",
		`a)`: "literal", `[a`: "literal", `\q`: "escape",
		strings.Repeat("a", maxPattern+1): "bytes",
	} {
		if _, err := Compile(text, How{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.20q: %v, want something about %q", text, err, want)
		}
	}
}

func TestRequiredLiterals(t *testing.T) {
	for text, want := range map[string]string{
		`func \w+Handler\(`: "[Handler(] false", `foo|barbaz`: "[foo barbaz] false", `(?i)ERRor`: "[error] true",
		`(?i)task`: "[ta] true",
		`a?bc+`:    "[b] false", `(foo){2,}`: "[foo] false", `x*`: "[] false", `(?i:abc)|def`: "[abc def] true",
		`foo|.`: "[] false", `[a-z]+_\d`: "[_] false",
	} {
		re := compile(t, text, How{}).re
		tree, err := parsePattern(re.String())
		if err != nil {
			t.Fatal(err)
		}
		l := required(tree)
		if got := fmt.Sprint(l.any, l.fold); got != want && !(l.any == nil && want == "[] false") {
			t.Errorf("%s: got %s, want %s", text, got, want)
		}
	}
}
