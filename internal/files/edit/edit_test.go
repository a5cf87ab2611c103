package edit

import (
	"errors"
	"strings"
	"testing"

	"gatehouse/tool"
)

// apply gives the new content, or the code of the refusal after "!".
func apply(t testing.TB, content string, edits ...Edit) (got string, level Level) {
	t.Helper()
	r, err := Apply("f", []byte(content), edits)
	if err != nil {
		refusal, ok := errors.AsType[*tool.Refusal](err)
		if !ok {
			t.Fatalf("%v is no refusal", err)
		}
		return "!" + string(refusal.Code), 0
	}
	got = string(r.Content())
	if int64(len(got)) != r.Size() {
		t.Errorf("size %d, want %d", r.Size(), len(got))
	}
	if got == content {
		t.Error("nothing changed")
	}
	return got, r.Level
}

type change struct {
	file, old, with string
	want            string // "!code" for a refusal
	level           Level
}

func try(t *testing.T, cases map[string]change) {
	t.Helper()
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got, level := apply(t, c.file, Edit{Old: c.old, New: c.with})
			if got != c.want {
				t.Errorf("got  %q\nwant %q", got, c.want)
			} else if level != c.level {
				t.Errorf("at level %v, want %v", level, c.level)
			}
		})
	}
}

func TestLiteral(t *testing.T) {
	try(t, map[string]change{
		"plain":                       {"a b c", "b", "X", "a X c", Exact},
		"deletes":                     {"a\nb\nc\n", "b\n", "", "a\nc\n", Exact},
		"at the start":                {"abc", "a", "X", "Xbc", Exact},
		"at the end":                  {"abc", "c", "X", "abX", Exact},
		"everything":                  {"abc", "abc", "", "", Exact},
		"no final newline stays":      {"a\nb", "a", "X", "X\nb", Exact},
		"several":                     {"a a a", "a", "b", "!ambiguous", 0},
		"several that overlap":        {"}\n}\n}\n", "}\n}\n", "}\n", "!ambiguous", 0},
		"missing":                     {"abc", "x", "y", "!not_found", 0},
		"the same":                    {"abc", "a", "a", "!invalid_arguments", 0},
		"empty":                       {"abc", "", "a", "!invalid_arguments", 0},
		"crlf, one line":              {"a\r\nb\r\nc\r\n", "b", "X", "a\r\nX\r\nc\r\n", Exact},
		"crlf, inserted line":         {"a\r\nb\r\nc\r\n", "b", "b\nX", "a\r\nb\r\nX\r\nc\r\n", Exact},
		"crlf, several lines":         {"a\r\nb\r\nc\r\n", "a\nb\n", "a\nX\nb\n", "a\r\nX\r\nb\r\nc\r\n", Newlines},
		"crlf, old and new as read":   {"a\r\nb\r\n", "a\r\nb", "a\r\nX\r\nb", "a\r\nX\r\nb\r\n", Exact},
		"crlf, only old as read":      {"a\r\nb\r\nc\r\n", "a\r\nb", "a\nX\nb", "a\r\nX\r\nb\r\nc\r\n", Exact},
		"crlf in both, lf file":       {"a\nb\n", "a\r\nb", "a\r\nX\r\nb", "a\nX\nb\n", Newlines},
		"crlf only in new, lf file":   {"a\nb\n", "a", "a\r\nX", "a\nX\nb\n", Exact},
		"crlf taken out on purpose":   {"a\r\nb\r\n", "a\r\nb", "a\nb", "a\nb\r\n", Exact},
		"crlf, a line joined":         {"a\r\nb\r\n", "\nb", "b", "ab\r\n", Newlines},
		"crlf, begins with a newline": {"a\r\nb\r\n", "\nb", "\nX", "a\r\nX\r\n", Newlines},
		"crlf, newline alone, before": {"a\r\nb", "\n", "X\n", "aX\r\nb", Newlines},
		"crlf, newline alone, after":  {"a\r\nb", "\n", "\nX", "a\r\nXb", Newlines},
		"crlf, newline alone, gone":   {"a\r\nb", "\n", "", "ab", Newlines},
		"crlf, blank line":            {"a\r\n\r\nb\r\n", "a\n\nb", "a\nb", "a\r\nb\r\n", Newlines},
		"crlf, several":               {"a\r\nb\r\na\r\nb\r\n", "a\nb", "X\nY", "!ambiguous", 0},
		"crlf, last line":             {"a\r\nb", "b", "b\nc", "a\r\nb\r\nc", Exact},
		"lone return":                 {"a\rb\r", "a\rb", "a\rX", "a\rX\r", Exact},
		"lone return beside crlf":     {"a\rb\r\nc\r\n", "b\nc", "b\nX", "a\rb\r\nX\r\n", Newlines},
		"mixed, untouched lines stay": {
			"a\r\nb\nc\r\nd\n",
			"a\nb\nc\nd",
			"a\nb\nX\nd",
			"a\r\nb\nX\r\nd\n",
			Newlines,
		},
		"mixed, local ending":            {"a\r\nb\nc\n", "b", "b\nX", "a\r\nb\nX\nc\n", Exact},
		"mixed, lf found as it is":       {"a\nb\r\na\r\nb\n", "a\nb", "X\nb", "X\nb\r\na\r\nb\n", Exact},
		"bom stays":                      {bom + "a\nb\n", "a", "X", bom + "X\nb\n", Exact},
		"bom in old":                     {bom + "a\nb\n", bom + "a", "X", bom + "X\nb\n", Exact},
		"bom in both":                    {bom + "a\nb\n", bom + "a\nb", bom + "a\nX", bom + "a\nX\n", Exact},
		"bom in new only":                {bom + "a\nb\n", "a", bom + "X", bom + "X\nb\n", Exact},
		"bom only in old":                {"a\nb\n", bom + "a\nb", bom + "a\nX", "a\nX\n", Newlines},
		"bom alone":                      {bom + "a\n", bom, "x", "!not_found", 0},
		"no last newline":                {"a\nb\nc", "b\nc\n", "b\nX\n", "a\nb\nX", Newlines},
		"no last newline, added to":      {"a\r\nb", "b\n", "b\nc\n", "a\r\nb\r\nc", Newlines},
		"no last newline, deleted":       {"a\nb", "b\n", "", "a\n", Newlines},
		"bytes that are no text stay":    {"caf\xe9 a\n\xff b\n", " a", " X", "caf\xe9 X\n\xff b\n", Exact},
		"dollar and backslash are plain": {"a\n", "a", `$1\0&`, `$1\0&` + "\n", Exact},
		"regular expressions are plain":  {"a.*b\naxxb\n", "a.*b", "[x](y)+", "[x](y)+\naxxb\n", Exact},
	})
}

func TestTrailing(t *testing.T) {
	try(t, map[string]change{
		"in the file":             {"a  \nb\t\nc\n", "a\nb\nc\n", "a\nb\nX\n", "a  \nb\t\nX\n", Trailing},
		"in the file, changed":    {"a\nb  \nc\n", "a\nb\nc\n", "a\nX\nc\n", "a\nX  \nc\n", Trailing},
		"in both texts":           {"a\nb\nc\n", "a \nb \nc \n", "a \nX \nnew \nc \n", "a\nX\nnew\nc\n", Trailing},
		"in old only":             {"a\nb\nc\n", "a \nb \nc \n", "a\nX\nc\n", "a\nX\nc\n", Trailing},
		"blank lines with blanks": {"a\n\t\nb\nc\n", "a\n\nb\nc\n", "a\n\nX\nc\n", "a\n\t\nX\nc\n", Trailing},
		"exact wins":              {"a \nb\na\nb\n", "a\nb\n", "X\nb\n", "a \nb\nX\nb\n", Exact},
		"two places":              {"a \nb\nx\na  \nb\n", "a\nb\n", "X\nb\n", "!ambiguous", 0},
		"crlf too": {
			"a \r\nb\r\nc\r\n",
			"a\nb\nc\n",
			"a\nnew\nb\nX\n",
			"a \r\nnew\r\nb\r\nX\r\n",
			Trailing,
		},
		"mixed endings stay":   {"a \r\nb\nc\r\n", "a\nb\nc\n", "a\nX\nc\n", "a \r\nX\nc\r\n", Trailing},
		"begins inside a line": {"f(a) \nb\nc\n", "(a)\nb", "(a)\nX", "f(a) \nX\nc\n", Trailing},
	})
}

func TestIndent(t *testing.T) {
	try(t, map[string]change{
		"spaces for tabs": {
			"\tif x {\n\t\ty()\n\t}\n",
			"    if x {\n        y()\n    }\n",
			"    if x {\n        z()\n        if w {\n            v()\n        }\n    }\n",
			"\tif x {\n\t\tz()\n\t\tif w {\n\t\t\tv()\n\t\t}\n\t}\n",
			Indent,
		},
		"two spaces for tabs": {
			"\tif x {\n\t\ty()\n\t}\n",
			"  if x {\n    y()\n  }\n",
			"  if x {\n    y()\n    z()\n  }\n",
			"\tif x {\n\t\ty()\n\t\tz()\n\t}\n",
			Indent,
		},
		"eight spaces for tabs": {
			"\tx()\n\ty()\n",
			"        x()\n        y()\n",
			"        x()\n                z()\n        y()\n",
			"\tx()\n\t\tz()\n\ty()\n",
			Indent,
		},
		"tabs for spaces": {
			"    x:\n        y\n",
			"\tx:\n\t\ty\n",
			"\tx:\n\t\ty\n\t\t\tz\n",
			"    x:\n        y\n            z\n",
			Indent,
		},
		"half the spaces": {
			"def f():\n    if x:\n        y\n    z\n",
			"def f():\n  if x:\n    y\n  z\n",
			"def f():\n  if x:\n    w\n    y\n  z\n",
			"def f():\n    if x:\n        w\n        y\n    z\n",
			Indent,
		},
		"shifted left": {
			"\t\ta {\n\t\t\tb\n\t\t}\n",
			"a {\n\tb\n}\n",
			"a {\n\tb\n\tif c {\n\t\td\n\t}\n}\n",
			"\t\ta {\n\t\t\tb\n\t\t\tif c {\n\t\t\t\td\n\t\t\t}\n\t\t}\n",
			Indent,
		},
		"shifted right": {
			"a {\n\tb\n}\n",
			"\t\ta {\n\t\t\tb\n\t\t}\n",
			"\t\ta {\n\t\t\tc\n\t\t}\n\t\td\n",
			"a {\n\tc\n}\nd\n",
			Indent,
		},
		"shifted, wrapped": {"\t\ta()\n\t\tb()\n", "a()\nb()\n", "if x {\n\ta()\n\tb()\n}\n",
			"\t\tif x {\n\t\t\ta()\n\t\t\tb()\n\t\t}\n", Indent},
		"shifted by one, wrapped without an end": {
			"\ta()\n\tb()\nc()\n",
			"a()\nb()\n",
			"if x:\n\ta()\n\tb()\n",
			"\tif x:\n\t\ta()\n\t\tb()\nc()\n",
			Indent,
		},
		"lost, wrapped where brackets say nothing": {
			"# t\n  a()\n  b()\n",
			"a()\nb()\n",
			"if x:\na()\nb()\n",
			"!unclear",
			0,
		},
		"shifted by one, wrapped": {
			"\ta()\n\tb()\n",
			"a()\nb()\n",
			"if x {\n\ta()\n\tb()\n}\n",
			"\tif x {\n\t\ta()\n\t\tb()\n\t}\n",
			Indent,
		},
		"shifted, new in spaces": {
			"\t\ta {\n\t\t\tb\n\t\t}\n",
			"a {\n    b\n}\n",
			"        a {\n            b\n            c\n        }\n",
			"\t\ta {\n\t\t\tb\n\t\t\tc\n\t\t}\n",
			Indent,
		},
		"first line twice": {
			"\ta {\n\t\tb\n\t}\n",
			"a {\n\t\tb\n",
			"\ta {\n\t\tb\n\t\tc\n",
			"\ta {\n\t\tb\n\t\tc\n\t}\n",
			Indent,
		},
		"first line twice, crlf": {
			"\ta {\r\n\t\tb\r\n\t}\r\n",
			"a {\n\t\tb\n",
			"\ta {\n\t\tb\n\t\tc\n",
			"\ta {\r\n\t\tb\r\n\t\tc\r\n\t}\r\n",
			Indent,
		},
		"lost, one of two braces goes": {
			"\ta {\n\t\tb {\n\t\t}\n\t}\n",
			"b {\n}\n}\n",
			"b {\n}\n",
			"!unclear",
			0,
		},
		"new as the file is": {
			"\t\ta()\n\t\tb()\n",
			"a()\nb()\n",
			"\t\ta()\n\t\tc()\n\t\tb()\n",
			"\t\ta()\n\t\tc()\n\t\tb()\n",
			Indent,
		},
		"spaces, new as the file is": {
			"\ta {\n\t\tb\n\t}\n",
			"    a {\n        b\n    }\n",
			"\ta {\n\t\tb\n\t\tc\n\t}\n",
			"\ta {\n\t\tb\n\t\tc\n\t}\n",
			Indent,
		},
		"lost altogether": {
			"\tif x {\n\t\ta()\n\t\tb()\n\t}\n",
			"if x {\na()\nb()\n}\n",
			"if x {\na()\nc()\nb()\n}\n",
			"\tif x {\n\t\ta()\n\t\tc()\n\t\tb()\n\t}\n",
			Indent,
		},
		"lost, a block comes": {
			"\tif x {\n\t\ta()\n\t}\n",
			"if x {\na()\n}\n",
			"if x {\na()\nfor {\nb()\n}\n}\n",
			"\tif x {\n\t\ta()\n\t\tfor {\n\t\t\tb()\n\t\t}\n\t}\n",
			Indent,
		},
		"lost, a changed line": {
			"\tif x {\n\t\ta()\n\t}\n",
			"if x {\na()\n}\n",
			"if y {\na()\n}\n",
			"\tif y {\n\t\ta()\n\t}\n",
			Indent,
		},
		"lost of one depth, a block comes": {
			"\ta()\n\tb()\n",
			"a()\nb()\n",
			"a()\nif x {\nc()\n}\nb()\n",
			"\ta()\n\tif x {\n\t\tc()\n\t}\n\tb()\n",
			Indent,
		},
		"tabs inside only": {
			"//\ta\n//\tb\nfunc f() {\n\tg()\n}\n",
			"//    a\n//    b\n",
			"//    a\n//    b\n//    c\nvar (\n    x\n)\n",
			"//\ta\n//\tb\n//\tc\nvar (\n\tx\n)\nfunc f() {\n\tg()\n}\n",
			Indent,
		},
		"lost, in Python": {
			"def f():\n    if x:\n        a()\n    b()\n    c()\n",
			"if x:\na()\nb()\nc()\n",
			"if x:\na()\nb()\nd()\nc()\n",
			"def f():\n    if x:\n        a()\n    b()\n    d()\n    c()\n",
			Indent,
		},
		"lost, a dedent is a guess": {
			"def f():\n    if x:\n        a()\n    b()\n",
			"if x:\na()\nb()\n",
			"if x:\na()\nd()\nb()\n",
			"!unclear",
			0,
		},
		"first line begins after it": {
			"\t\ta {  \n\t\t\tb\n\t\t}\n",
			"a {\n\t\t\tb\n\t\t}",
			"c {\n\t\t\tb\n\t\t}",
			"\t\tc {  \n\t\t\tb\n\t\t}\n",
			Trailing,
		},
		"in two depths": {
			"\ta\n\tb\n\t\ta\n\t\tb\n",
			"    a\n    b\n",
			"    c\n",
			"!ambiguous",
			0,
		},
		"one line is off": {
			"\ta\n\t\tb\n\tc\n",
			"a\nb\n\tc\n",
			"a\nb\n\td\n",
			"!not_found",
			0,
		},
		"a tab inside": {
			"\tx int\t// one\n\ty int\t// two\n",
			"    x int    // one\n    y int    // two\n",
			"    x int    // one\n    y int    // too\n",
			"\tx int\t// one\n\ty int\t// too\n",
			Indent,
		},
		"spaces inside are not free": {
			"\tx  int\n\ty int\n",
			"    x int\n    y int\n",
			"    x int\n    z int\n",
			"!not_found",
			0,
		},
		"two narrow steps or a wide one": {
			"\t\ta()\n\t\tb()\n",
			"    a()\n    b()\n",
			"    a()\n        c()\n    b()\n",
			"!unclear",
			0,
		},
		"comment stars": {
			"\t/*\n\t * a\n\t */\n",
			"    /*\n     * a\n     */\n",
			"    /*\n     * a\n     * b\n     */\n",
			"\t/*\n\t * a\n\t * b\n\t */\n",
			Indent,
		},
	})
}

func TestLookalikes(t *testing.T) {
	try(t, map[string]change{
		"quotes": {
			"say(\"a\", 'b')\nx\n",
			"say(“a”, ‘b’)\nx\n",
			"say(“a”, ‘b’)\ny(“c”, ’d’)\n",
			"say(\"a\", 'b')\ny(\"c\", 'd')\n",
			Lookalikes,
		},
		"in one line": {"\tsay(\"a\", 1)\n", "say(“a”, 1)", "say(“b”, 2)", "\tsay(\"b\", 2)\n", Lookalikes},
		"old only":    {"say(\"a\", 1)\n", "say(“a”, 1)", "say(\"a\", 2)", "say(\"a\", 2)\n", Lookalikes},
		"of the file": {
			"// it’s “so” – now\nx\n",
			"// it's \"so\" - now\nx\n",
			"// it's \"so\" - then\ny\n",
			"// it’s “so” – then\ny\n",
			Lookalikes,
		},
		"spaces":             {"a b c\nd\n", "a\u00a0b c\nd\n", "a\u00a0b c\ne\n", "a b c\ne\n", Lookalikes},
		"spaces of the file": {"a\u00a0b\nd\n", "a b\nd\n", "a b\ne\n", "a\u00a0b\ne\n", Lookalikes},
		"indented with them": {
			"\tx\n  a\n  b\n",
			"\u00a0\u00a0a\n\u00a0\u00a0b\n",
			"\u00a0\u00a0a\n\u00a0\u00a0c\n",
			"\tx\n  a\n  c\n",
			Lookalikes,
		},
		"ellipsis": {"f(a...)\ng()\n", "f(a…)\ng()\n", "f(b…)\ng()\n", "f(b...)\ng()\n", Lookalikes},
		"composed letters": {
			"// caf\u00e9\nx\n",
			"// cafe\u0301\nx\n",
			"// cafe\u0301\ny\n",
			"// caf\u00e9\ny\n",
			Lookalikes,
		},
		"unseen characters": {"ab\nx\n", "a\u200bb\nx\n", "a\u200bb\ny\n", "ab\ny\n", Lookalikes},
		"the file uses both": {
			"// “a”\ns := \"b\"\nt\n",
			"// \"a\"\ns := “b”\nt\n",
			"// \"a\"\ns := “b”\nu\n",
			"// “a”\ns := \"b\"\nu\n",
			Lookalikes,
		},
		"made on purpose": {"// 'a'\nx \ny\n", "// 'a'\nx\ny\n", "// ‘a’\nx\ny\n", "// ‘a’\nx \ny\n", Trailing},
		"two places":      {"a(\"\")\na('\"')\na(\"\")\n", "a(“”)", "b", "!ambiguous", 0},
	})
}

func TestBlankLines(t *testing.T) {
	try(t, map[string]change{
		"dropped":                    {"a\n\nb\nc\n", "a\nb\nc\n", "a\nb\nX\n", "a\n\nb\nX\n", Blanks},
		"dropped, changed before":    {"a\n\nb\nc\n", "a\nb\nc\n", "X\nb\nc\n", "X\n\nb\nc\n", Blanks},
		"dropped, changed after":     {"a\n\nb\nc\n", "a\nb\nc\n", "a\nX\nc\n", "a\n\nX\nc\n", Blanks},
		"dropped, both changed":      {"a\n\nb\nc\n", "a\nb\nc\n", "X\nY\nc\n", "X\n\nY\nc\n", Blanks},
		"dropped, inserted there":    {"a\n\nb\nc\n", "a\nb\nc\n", "a\nX\nb\nc\n", "!unclear", 0},
		"dropped, inserted after it": {"a\n\nb\nc\n", "a\nb\nc\n", "a\n\nX\nb\nc\n", "a\n\nX\nb\nc\n", Blanks},
		"dropped, inserted before":   {"a\n\nb\nc\n", "a\nb\nc\n", "a\nX\n\nb\nc\n", "a\nX\n\nb\nc\n", Blanks},
		"dropped, inserted between":  {"a\n\nb\nc\n", "a\nb\nc\n", "a\n\nX\n\nb\nc\n", "a\n\nX\n\nb\nc\n", Blanks},
		"dropped in old only":        {"a\n\nb\nc\n", "a\nb\nc\n", "a\n\nb\nX\n", "a\n\nb\nX\n", Blanks},
		"dropped, line deleted":      {"a\n\nb\nc\n", "a\nb\nc\n", "a\nc\n", "a\n\nc\n", Blanks},
		"dropped, all deleted":       {"x\na\n\nb\ny\n", "a\nb\n", "", "x\ny\n", Blanks},
		"dropped, all replaced":      {"x\na\n\nb\ny\n", "a\nb\n", "one long line\n", "x\none long line\ny\n", Blanks},
		"one of two":                 {"a\n\n\nb\nc\n", "a\n\nb\nc\n", "a\n\nb\nX\n", "a\n\n\nb\nX\n", Blanks},
		"too many":                   {"a\nb\nc\n", "a\n\nb\nc\n", "a\n\nb\nX\n", "a\nb\nX\n", Blanks},
		"too many, inserted":         {"a\nb\nc\n", "a\n\nb\nc\n", "a\n\nX\nb\nc\n", "a\nX\nb\nc\n", Blanks},
		"too many at the end":        {"a\nb\nc\n", "a\nb\n\n", "a\nX\n\n", "a\nX\nc\n", Blanks},
		"too many at the start":      {"x\na\nb\n", "\n\na\nb\n", "\n\na\nX\n", "x\na\nX\n", Blanks},
		"crlf": {
			"a\r\n\r\nb\r\nc\r\n",
			"a\nb\nc\n",
			"a\nb\nX\nc\n",
			"a\r\n\r\nb\r\nX\r\nc\r\n",
			Blanks,
		},
		"and indentation": {
			"\ta {\n\n\t\tb\n\t}\n",
			"    a {\n        b\n    }\n",
			"    a {\n        c\n    }\n",
			"\ta {\n\n\t\tc\n\t}\n",
			Blanks,
		},
		"two places": {"a\n\nb\na\n\n\nb\n", "a\nb\n", "X\n", "!ambiguous", 0},
	})
}

func TestEscapes(t *testing.T) {
	try(t, map[string]change{
		"all of it":           {"a\n\tb\nc\n", `a\n\tb\n`, `a\n\tX\n`, "a\n\tX\nc\n", Escapes},
		"quotes":              {"f(\"a\")\n\tb\n", `f(\"a\")\n\tb`, `f(\"c\")\n\tb`, "f(\"c\")\n\tb\n", Escapes},
		"and indentation":     {"\ta\n\t\tb\nc\n", `a\n    b\n`, `a\n    X\n`, "\ta\n\t\tX\nc\n", Escapes},
		"deletes":             {"a\nb\nc\n", `b\nc\n`, "", "a\n", Escapes},
		"not in code":         {"s := \"a\\nb\"\nt\n", `"a\nb"`, `"a\nc"`, "s := \"a\\nc\"\nt\n", Exact},
		"real for written":    {"s := \"a\\nb\"\n", "\"a\nb\"", "\"a\nc\"", "s := \"a\\nc\"\n", Escapes},
		"real, one more":      {"s := \"a\\nb\"\n", "\"a\nb\"", "\"a\nb\nc\"", "s := \"a\\nb\\nc\"\n", Escapes},
		"real in two meaning": {"s := \"a\\nb\"\nt\n", "\"a\nb\"\nt", "\"a\nb\nc\"\nt", "!not_found", 0},
	})
}

func TestNearMiss(t *testing.T) {
	file := "func first(a, b int) int {\n\ttotal := a + b\n\tlog.Println(\"adding\", a, b)\n\treturn total\n}\n"
	old := strings.Replace(file, "adding", "addin", 1)
	try(t, map[string]change{
		"context is off": {
			file,
			old,
			strings.Replace(old, "a + b", "a - b", 1),
			strings.Replace(file, "a + b", "a - b", 1),
			Near,
		},
		"context, line added": {
			file,
			old,
			strings.Replace(old, "\treturn", "\ttotal++\n\treturn", 1),
			strings.Replace(file, "\treturn", "\ttotal++\n\treturn", 1),
			Near,
		},
		"the changed one is": {file, old, strings.Replace(old, "addin", "sum", 1), "!unclear", 0},
		"the first line is": {
			file,
			strings.Replace(file, "first", "frst", 1),
			strings.Replace(file, "a + b", "a - b", 1),
			"!not_found",
			0,
		},
		"another one is alike": {
			file + strings.Replace(file, "adding", "added", 1),
			old,
			strings.Replace(old, "a + b", "a - b", 1),
			"!not_found",
			0,
		},
		"too far": {
			file,
			strings.Replace(file, "log.Println(\"adding\", a, b)", "fmt.Print()", 1),
			strings.Replace(file, "a + b", "a - b", 1),
			"!not_found",
			0,
		},
	})
}

func TestSeveralEdits(t *testing.T) {
	file := "a\n\tb\nc\nd \ne\n"
	for name, c := range map[string]struct {
		edits []Edit
		want  string
	}{
		"two":             {[]Edit{{Old: "d\ne", New: "d\nX"}, {Old: "a", New: "Y"}}, "Y\n\tb\nc\nd \nX\n"},
		"beside":          {[]Edit{{Old: "a\n", New: ""}, {Old: "\tb\n", New: "B\n"}}, "B\nc\nd \ne\n"},
		"overlap":         {[]Edit{{Old: "a\n\tb", New: "x"}, {Old: "b\nc", New: "y"}}, "!overlap"},
		"same place":      {[]Edit{{Old: "c", New: "x"}, {Old: "c", New: "x"}}, "!overlap"},
		"inside":          {[]Edit{{Old: "a\n\tb\nc", New: "x"}, {Old: "b", New: "y"}}, "!overlap"},
		"one is missing":  {[]Edit{{Old: "c", New: "x"}, {Old: "zzz", New: "y"}}, "!not_found"},
		"one needs other": {[]Edit{{Old: "c", New: "new"}, {Old: "new", New: "newer"}}, "!not_found"},
		"all, and another": {[]Edit{{Old: "\n", New: "\n\n", All: true}, {Old: "c", New: "x"}},
			"a\n\n\tb\n\nx\n\nd \n\ne\n\n"},
	} {
		if got, _ := apply(t, file, c.edits...); got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}

func TestWhichOfSeveral(t *testing.T) {
	file := "x\na \ny\nx\na\ny\nx\na\ny\n"
	for name, c := range map[string]struct {
		e    Edit
		want string
	}{
		"all":            {Edit{Old: "a\ny", New: "b\ny", All: true}, "x\na \ny\nx\nb\ny\nx\nb\ny\n"},
		"near the first": {Edit{Old: "x\n", New: "z\n", Near: 2}, "z\na \ny\nx\na\ny\nx\na\ny\n"},
		"near the last":  {Edit{Old: "x\n", New: "z\n", Near: 99}, "x\na \ny\nx\na\ny\nz\na\ny\n"},
		"between two":    {Edit{Old: "y\n", New: "z\n", Near: 3}, "x\na \nz\nx\na\ny\nx\na\ny\n"},
		"as near to two": {Edit{Old: "x\na", New: "z", Near: 0}, "!ambiguous"},
		"tolerantly":     {Edit{Old: "  x\n  a\n", New: "  x\n  b\n", Near: 8}, "x\na \ny\nx\na\ny\nx\nb\ny\n"},
		"all tolerantly": {Edit{Old: "  x\n  a\n", New: "  x\n  b\n", All: true}, "x\nb \ny\nx\nb\ny\nx\nb\ny\n"},
	} {
		if got, _ := apply(t, file, c.e); got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
	if got, _ := apply(t, "a\nb\na\n", Edit{Old: "a", New: "c", Near: 2}); got != "!ambiguous" {
		t.Errorf("two are as near: got %q", got)
	}
}

// What would take long is refused, and what is long is found.
func TestLarge(t *testing.T) {
	many := strings.Repeat("a\n", 2*maxCandidateLines)
	if got, _ := apply(t, many, Edit{Old: " a\n", New: "b\n"}); got != "!ambiguous" {
		t.Errorf("a line that is everywhere: %.40q", got)
	}
	wide := strings.Repeat("“x” ", maxFold)
	if got, _ := apply(t, wide, Edit{Old: strings.Repeat("\"x\" ", maxFold), New: ""}); got != "!not_found" {
		t.Errorf("a very long line: %.40q", got)
	}
	var b strings.Builder
	for i := range 20_000 {
		b.WriteString(strings.Repeat("\t", i%5) + "line " + strings.Repeat("x", i%97) + string(rune('a'+i%26)) + "\n")
	}
	file := b.String()
	old := strings.ReplaceAll(file, "\t", "    ")
	if got, _ := apply(t, file,
		Edit{Old: old, New: strings.Replace(old, "line xxxd\n", "line d\n", 1)}); got != strings.Replace(
		file,
		"line xxxd\n",
		"line d\n",
		1,
	) {
		t.Errorf("a block of 20,000 lines: %.200q", got)
	}
	big := strings.Repeat("0123456789abcdef\n", maxTolerant/16)
	if got, _ := apply(t, big+"end\n", Edit{Old: " end\n", New: "x"}); got != "!not_found" {
		t.Error("a file over the limit is searched tolerantly")
	}
	if got, _ := apply(t, big+"end\r\nof\r\n", Edit{Old: "end\nof\n", New: "x\n"}); got != big+"x\r\n" {
		t.Error("line endings are not ignored in a large file")
	}
}
