package edit

import (
	"errors"
	"strings"
	"testing"

	"gatehouse/tool"
)

// A place that differs in less from old wins over one that differs in more.
func TestClosestPlaceWins(t *testing.T) {
	try(t, map[string]change{
		"blanks at ends before indentation": {
			"a \nb\n\tx\n\ta\n\tb\n",
			"a\nb\n",
			"a\nc\n",
			"a \nc\n\tx\n\ta\n\tb\n",
			Trailing,
		},
		"indentation before indentation and quotes": {
			"\ta(\"x\")\n\tb\nz\n\ta(“x”)\n\tb\n", "  a(\"x\")\n  b\n", "  a(\"x\")\n  c\n",
			"\ta(\"x\")\n\tc\nz\n\ta(“x”)\n\tb\n", Indent},
		"indentation and a blank line say nothing of each other": {
			"\ta\n\tb\nz\na\n\nb\n", "a\nb\n", "a\nc\n", "!ambiguous", 0},
	})
}

// What is found tolerantly begins and ends where a word or a line does.
func TestTolerantPlacesAreWholeWords(t *testing.T) {
	try(t, map[string]change{
		"inside a word at the start": {"discount = 1 \nb\n", "count = 1\nb\n", "total = 1\nb\n", "!not_found", 0},
		"inside a word at the end":   {"b \ncount = 10\n", "b\ncount = 1", "b\ncount = 2", "!not_found", 0},
		"after a sign": {
			"(count = 1 \nb\n",
			"count = 1\nb\n",
			"total = 1\nb\n",
			"(total = 1 \nb\n",
			Trailing,
		},
	})
}

func TestBlankLinesThatOldDoesNotHave(t *testing.T) {
	try(t, map[string]change{
		"one of two is known before a changed line": {
			"a\n\n\nb\nc\n",
			"a\nb\nc\n",
			"a\n\nxyz\nc\n",
			"a\n\n\nxyz\nc\n",
			Blanks,
		},
		"one of two is known after a changed line": {
			"a\nb\n\n\nc\n",
			"a\nb\nc\n",
			"a\nxyz\n\nc\n",
			"a\nxyz\n\n\nc\n",
			Blanks,
		},
		"more lines than there were, a blank one among them": {
			"a\n\nb\nc\n", "a\nb\nc\n", "uvw\nxyz\nrst\nc\n", "!unclear", 0},
	})
}

// Indentation of new that fits neither old nor the file is refused.
func TestIndentationThatFitsNothing(t *testing.T) {
	try(t, map[string]change{
		"each line otherwise": {"\t\ta()\n\t\tb()\n", "a()\nb()\n", "   a()\n c()\n  b()\n", "!unclear", 0},
	})
}

// refusal gives the refusal of an edit.
func refusal(t *testing.T, content string, edits ...Edit) *tool.Refusal {
	t.Helper()
	_, err := Apply("f.txt", []byte(content), edits)
	r, ok := errors.AsType[*tool.Refusal](err)
	if !ok {
		t.Fatalf("got %v, want a refusal", err)
	}
	return r
}

// A refusal names the places and the first column that differs.
func TestRefusalsShowWhere(t *testing.T) {
	file := "func a() {\n\tcall(1)\n\treturn x\n}\n\nfunc b() {\n\tcall(2)\n\treturn x\n}\n"
	for _, c := range []struct {
		old, code string
		want      []string
	}{
		{"\tcall(1)\n\treturn y\n}\n", "not_found", []string{
			`line 3 differs at column 9: file "→return·x", old_string "→return·y"`}},
		{"func b() {\n\tcall(3)\n\treturn x\n", "not_found", []string{
			`line 7 differs at column 7: file "→call(2)"`, `old_string "→call(3)"`}},
		{"\treturn x\n", "ambiguous", []string{
			"occurs 2 times in f.txt, on lines 3, 8", `line 3, after "→call(1)"`, `line 8, after "→call(2)"`}},
		{"return  x\n}\n", "not_found", []string{"old_string is not in f.txt"}},
		{"\tcall(2)\n\treturn x\n}\nend\n", "not_found", []string{`line 7 matches, but the file ends before "end"`}},
		{"\tcal(1)\n", "not_found", []string{`nearest is line 2: "→call(1)"`}},
		{"zzz", "not_found", []string{"old_string is not in f.txt"}},
	} {
		r := refusal(t, file, Edit{Old: c.old, New: "new"})
		if string(r.Code) != c.code || r.Next == "" {
			t.Errorf("%q: got %s, %q", c.old, r.Code, r.Next)
		}
		for _, want := range c.want {
			if !strings.Contains(r.Message, want) {
				t.Errorf("%q: got\n%s\nwant %s in it", c.old, r.Message, want)
			}
		}
	}
	many := refusal(t, strings.Repeat("a\n", 30), Edit{Old: "a", New: "b"})
	if !strings.Contains(many.Message, "occurs 30 times") || !strings.Contains(many.Message, "9, 10 and more") {
		t.Errorf("got %s", many.Message)
	}
	two := refusal(t, file, Edit{Old: "call(1)", New: "x"}, Edit{Old: "zzz", New: "y"})
	if !strings.HasPrefix(two.Message, "edit 2 of 2: ") || !strings.HasSuffix(two.Message, "; nothing was written") {
		t.Errorf("got %s", two.Message)
	}
}

// The diff has two lines around each change, joins changes that lie close, and
// says how many lines it leaves out.
func TestDiff(t *testing.T) {
	file := "1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n11\n12\n"
	for name, c := range map[string]struct {
		file  string
		edits []Edit
		most  int
		want  string
	}{
		"one line":      {file, []Edit{{Old: "6\n", New: "six\n"}}, 40, "@@ -4,5 +4,5 @@\n 4\n 5\n-6\n+six\n 7\n 8"},
		"inside a line": {file, []Edit{{Old: "1\n12", New: "1\nx2"}}, 40, "@@ -10,3 +10,3 @@\n 10\n 11\n-12\n+x2"},
		"inserted":      {file, []Edit{{Old: "1\n2\n", New: "1\nnew\n2\n"}}, 40, "@@ -1,3 +1,4 @@\n 1\n+new\n 2\n 3"},
		"deleted":       {file, []Edit{{Old: "12\n", New: ""}}, 40, "@@ -10,3 +10,2 @@\n 10\n 11\n-12"},
		"two that join": {file, []Edit{{Old: "3\n", New: "x\n"}, {Old: "6\n", New: "y\n"}}, 40,
			"@@ -1,8 +1,8 @@\n 1\n 2\n-3\n+x\n 4\n 5\n-6\n+y\n 7\n 8"},
		"two apart": {file, []Edit{{Old: "2\n3\n", New: "2\n"}, {Old: "11\n", New: "x\n"}}, 40,
			"@@ -1,5 +1,4 @@\n 1\n 2\n-3\n 4\n 5\n@@ -9,4 +8,4 @@\n 9\n 10\n-11\n+x\n 12"},
		"cut":             {file, []Edit{{Old: "6\n", New: "six\n"}}, 3, "@@ -4,5 +4,5 @@\n 4\n… 5 more lines"},
		"no last newline": {"a\nb", []Edit{{Old: "b", New: "c"}}, 40, "@@ -1,2 +1,2 @@\n a\n-b\n+c"},
		"to nothing":      {"a\n", []Edit{{Old: "a\n", New: ""}}, 40, "@@ -1 +0,0 @@\n-a"},
		"CRLF":            {"a\r\nb\r\n", []Edit{{Old: "b", New: "c"}}, 40, "@@ -1,2 +1,2 @@\n a\n-b\n+c"},
		"not UTF-8":       {"\xff\nb\n", []Edit{{Old: "b", New: "c"}}, 40, "@@ -1,2 +1,2 @@\n \uFFFD\n-b\n+c"},
	} {
		r, err := Apply("f", []byte(c.file), c.edits)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got := r.Diff(c.most); got != c.want {
			t.Errorf("%s: got\n%s\nwant\n%s", name, got, c.want)
		}
	}
	r, err := Apply("f", []byte("a\n"+strings.Repeat("x", 5000)+"\n"), []Edit{{Old: "a", New: "b"}})
	if err != nil || len(r.Diff(40)) > 300 || !strings.HasSuffix(r.Diff(40), "…") {
		t.Errorf("a long line: %v, %.400s", err, r.Diff(40))
	}
}

// The result says where the first change is, how many there are and how large
// the new content is, without making it.
func TestResult(t *testing.T) {
	r, err := Apply("f", []byte("a\nb\nb\nc\n"), []Edit{{Old: "c", New: "ccc"}, {Old: "b", New: "", All: true}})
	if err != nil {
		t.Fatal(err)
	}
	if r.Line != 2 || r.Replacements != 3 || r.Size() != 8 || string(r.Content()) != "a\n\n\nccc\n" ||
		r.Level != Exact {
		t.Errorf(
			"got line %d, %d replacements, %d bytes, %q at level %v",
			r.Line,
			r.Replacements,
			r.Size(),
			r.Content(),
			r.Level,
		)
	}
	if r := refusal(t, "a\n  b\n", Edit{Old: "a\nb\n", New: "a\n  b\n"}); r.Code != "unchanged" {
		t.Errorf("an edit that is there already: got %s: %s", r.Code, r.Message)
	}
}
