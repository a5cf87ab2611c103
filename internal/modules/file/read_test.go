package file

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
)

func numbered(n int) string {
	var s strings.Builder
	for i := range n {
		fmt.Fprintf(&s, "line %d\n", i+1)
	}
	return s.String()
}

// readCase is one call of file_read, and members of its result.
type readCase struct {
	args []any
	want map[string]any
}

func (h *fixture) reads(t *testing.T, cases []readCase) {
	for _, c := range cases {
		t.Run(fmt.Sprint(c.args...), func(t *testing.T) {
			h.t = t
			h.want(h.call("file_read", c.args...), c.want)
		})
	}
	h.t = t
}

func TestRead(t *testing.T) {
	h := newFixture(t)
	h.put("main.go", "package main\n\nfunc main() {}\n")
	h.put("ten", numbered(10))
	h.put("open", "a\nb\nc")
	h.put("empty", "")
	h.reads(t, []readCase{
		{
			[]any{"path", "main.go"},
			map[string]any{
				"content": "package main\n\nfunc main() {}\n", "language": "go", "path": "main.go", "size": 29,
				"first_line": 1, "total_lines": 3, "next_offset": nil, "truncated": nil, "note": nil,
			},
		},
		{
			[]any{"path", "ten", "offset", 3, "limit", 2},
			map[string]any{
				"content": "line 3\nline 4\n", "first_line": 3, "total_lines": 10, "next_offset": 5, "truncated": nil,
			},
		},
		{
			[]any{"path", "ten", "offset", 10},
			map[string]any{"content": "line 10\n", "next_offset": nil, "total_lines": 10},
		},
		{
			[]any{"path", "ten", "offset", 11},
			map[string]any{
				"error":   "!invalid_arguments",
				"message": "invalid_arguments: offset 11 is past the end of the file, which has 10 lines",
			},
		},
		{
			[]any{"path", "ten", "offset", -2},
			map[string]any{"content": "line 9\nline 10\n", "first_line": 9, "total_lines": 10},
		},
		{[]any{"path", "ten", "offset", -4, "limit", 1}, map[string]any{"content": "line 7\n", "next_offset": 8}},
		{
			[]any{"path", "ten", "offset", -100, "limit", 1},
			map[string]any{"content": "line 1\n", "first_line": 1, "next_offset": 2},
		},
		{[]any{"path", "open", "offset", -1}, map[string]any{"content": "c", "first_line": 3, "total_lines": 3}},
		{[]any{"path", "open", "offset", 3}, map[string]any{"content": "c", "total_lines": 3}},
		{
			[]any{"path", "open", "offset", 4},
			map[string]any{"message": "invalid_arguments: offset 4 is past the end of the file, which has 3 lines"},
		},
		{[]any{"path", "empty"}, map[string]any{"content": "", "size": 0, "error": nil}},
		{[]any{"path", "empty", "offset", -3}, map[string]any{"content": "", "error": nil}},
		{
			[]any{"path", "empty", "offset", 2},
			map[string]any{"message": "invalid_arguments: offset 2 is past the end of the file, which has 0 lines"},
		},
	})
}

func TestReadUnusualFiles(t *testing.T) {
	h := newFixture(t)
	h.put("ten", numbered(10))
	h.put("dos", "a\r\nb\r\n")
	h.put("mixed", "a\r\nb\n")
	h.put("bom", "\xEF\xBB\xBFa\n")
	h.put("latin", "na\xefve caf\xe9\n")
	h.put("holes", strings.Repeat("text ", 2000)+"\x00\n")
	h.put("wide", strings.Repeat("ä", 400)+"\nnext\n")
	h.reads(t, []readCase{
		{[]any{"path", "dos"}, map[string]any{"content": "a\r\nb\r\n", "note": "CRLF line endings", "total_lines": 2}},
		{[]any{"path", "mixed"}, map[string]any{"content": "a\r\nb\n", "note": "mixed line endings"}},
		{[]any{"path", "bom"}, map[string]any{"content": "\uFEFFa\n", "note": "begins with a byte order mark"}},
		{
			[]any{"path", "latin"},
			map[string]any{
				"content": `na\xefve caf\xe9` + "\n", "note": `2 bytes that are not UTF-8 text are shown as \xNN`,
			},
		},
		{[]any{"path", "holes", "from_byte", 9995}, map[string]any{"content": `text \x00` + "\n"}},
		{
			[]any{"path", "wide", "max_bytes", 257},
			map[string]any{
				"content": strings.Repeat("ä", 128), "next_byte": 256, "next_offset": 2, "truncated": true,
				"total_lines": 2,
			},
		},
		{
			[]any{"path", "wide", "from_byte", 257, "max_bytes", 256},
			map[string]any{"content": strings.Repeat("ä", 128), "next_byte": 512, "first_line": nil},
		},
		{[]any{"path", "wide", "from_byte", 900}, map[string]any{"error": "!invalid_arguments"}},
		{[]any{"path", "wide", "from_byte", 9, "offset", 2}, map[string]any{"error": "!invalid_arguments"}},
		{[]any{"path", "ten", "max_bytes", 5}, map[string]any{"error": "!invalid_arguments"}},
		{[]any{"path", "missing"}, map[string]any{"error": "!not_found"}},
		{[]any{"path", "."}, map[string]any{"error": "!is_a_directory"}},
		{[]any{"path", "ten/"}, map[string]any{"error": "!is_a_directory"}},
	})
}

// Following next_offset and next_byte gives the whole file, byte for byte.
func TestPagesMakeTheFile(t *testing.T) {
	h := newFixture(t)
	long := strings.Repeat("0123456789", 120) + "\n"
	for name, content := range map[string]string{
		"short": numbered(300), "open": numbered(200) + "no newline", "long": "a\n" + long + "b\n" + long + long + "c",
		"huge": numbered(20_000), "blank": strings.Repeat("\n", 5000), "runes": strings.Repeat("äöü€😀", 400),
	} {
		h.put(name, content)
		var got strings.Builder
		args := []any{}
		for range 3000 {
			out := h.call("file_read", append([]any{"path", name, "max_bytes", 300}, args...)...)
			if out["error"] != nil {
				t.Fatalf("%s after %d bytes: %v", name, got.Len(), out)
			}
			got.WriteString(out["content"].(string))
			if b, ok := out["next_byte"]; ok {
				args = []any{"from_byte", b}
			} else if o, ok := out["next_offset"]; ok {
				args = []any{"offset", o}
			} else {
				break
			}
		}
		if got.String() != content {
			t.Errorf("%s: %d bytes came back of %d", name, got.Len(), len(content))
		}
	}
}

// Pages counted from the end arrive at the end too.
func TestTailPages(t *testing.T) {
	h := newFixture(t)
	content := numbered(400)
	h.put("f", content)
	var got strings.Builder
	offset := any(-150)
	for range 100 {
		out := h.call("file_read", "path", "f", "offset", offset, "limit", 40)
		got.WriteString(out["content"].(string))
		if offset = out["next_offset"]; offset == nil {
			break
		}
	}
	if want := content[strings.Index(content, "line 251\n"):]; got.String() != want {
		t.Errorf("got %d bytes, want %d", got.Len(), len(want))
	}
}

func TestReadRefusesBinary(t *testing.T) {
	h := newFixture(t)
	h.put("archive", "PK\x03\x04\x00\x00")
	h.put("bare", "\x01\x02\x03\x04abcdef")
	h.put("BMW.txt", "BM is how a bitmap begins, and this text\n")
	h.put("icon.bmp", "BM\x00\x00\x00\x00")
	for path, want := range map[string]string{"archive": "zip", "bare": "octet-stream", "icon.bmp": "image/bmp"} {
		out := h.call("file_read", "path", path)
		if out["error"] != "!binary" || !strings.Contains(out["message"].(string), want) ||
			!strings.Contains(out["message"].(string), "begins") {
			t.Errorf("%s: %v", path, out)
		}
	}
	h.want(h.call("file_read", "path", "BMW.txt"), map[string]any{"error": nil, "language": "plaintext"})
}

// What a model has to know is also in the text, for clients that show no
// structured output.
func TestReadFooter(t *testing.T) {
	h := newFixture(t)
	h.put("f", numbered(10))
	h.put("g", "x")
	h.put("tabs.go", "package a\r\n\r\nfunc f() {\r\n\tx()\r\n}\r\n")
	h.put("spaces.py", "def f():\n    if x:\n        y\n")
	for _, c := range []struct {
		args []any
		want string
	}{
		{[]any{"path", "f", "limit", 4}, "[lines 1-4 of 10; to read on, call again with offset=5; LF; etag="},
		{[]any{"path", "f", "offset", 9}, "[lines 9-10 of 10; etag="},
		{[]any{"path", "g"}, "[lines 1-1 of 1; etag="},
		{[]any{"path", "tabs.go"}, "[lines 1-5 of 5; CRLF, tabs; CRLF line endings; etag="},
		{[]any{"path", "spaces.py"}, "[lines 1-3 of 3; LF, 4 spaces; etag="},
	} {
		res, err := h.result("file_read", c.args...)
		if err != nil || len(res.Content) != 0 || !strings.HasPrefix(res.Facts, c.want) {
			t.Errorf("%v: %+v, %v", c.args, res, err)
		}
	}
}

func TestReadParts(t *testing.T) {
	h := newFixture(t)
	h.put("f", numbered(100))
	h.put("short", "a\nb")
	for _, c := range []struct {
		args []any
		want map[string]any
	}{
		{[]any{"path", "f", "head", 2}, map[string]any{"content": "line 1\nline 2\n", "next_offset": 3}},
		{[]any{"path", "f", "tail", 2}, map[string]any{"content": "line 99\nline 100\n", "first_line": 99}},
		{
			[]any{"path", "f", "around", "50", "limit", 3},
			map[string]any{"content": "line 49\nline 50\nline 51\n", "first_line": 49},
		},
		{[]any{"path", "f", "around", "1", "limit", 3}, map[string]any{"content": "line 1\nline 2\nline 3\n"}},
		{[]any{"path", "f", "around", "[5]5$", "limit", 1}, map[string]any{"content": "line 55\n"}},
		{[]any{"path", "f", "around", "nowhere"}, map[string]any{"error": "!not_found"}},
		{[]any{"path", "f", "around", "(", "limit", 1}, map[string]any{"error": "!invalid_arguments"}},
		{
			[]any{"path", "f", "ranges", "1-2, 50,99-"},
			map[string]any{
				"content":     "[lines 1-2]\nline 1\nline 2\n[lines 50-50]\nline 50\n[lines 99-100]\nline 99\nline 100\n",
				"total_lines": 100, "first_line": nil,
			},
		},
		{
			[]any{"path", "f", "ranges", "99-100", "line_numbers", true},
			map[string]any{"content": "[lines 99-100]\n99: line 99\n100: line 100\n"},
		},
		{[]any{"path", "f", "ranges", "1-60,90-91", "max_bytes", 256},
			map[string]any{"truncated": true,
				"note": "ended at max_bytes; to read on, call again with ranges=34-60,90-91"}},
		{[]any{"path", "f", "ranges", "101-102"}, map[string]any{"error": "!invalid_arguments"}},
		{[]any{"path", "f", "ranges", "3-1"}, map[string]any{"error": "!invalid_arguments"}},
		{[]any{"path", "f", "ranges", "1-2", "head", 3}, map[string]any{"error": "!invalid_arguments"}},
		{[]any{"path", "f", "offset", 2, "tail", 3}, map[string]any{"error": "!invalid_arguments"}},
		{[]any{"path", "short", "line_numbers", true}, map[string]any{"content": "1: a\n2: b"}},
		{
			[]any{"path", "short", "from_byte", 2, "line_numbers", true},
			map[string]any{"content": "b", "note": "the line numbers of this page are not known"},
		},
		{[]any{}, map[string]any{"error": "!invalid_arguments"}},
		{[]any{"path", "f", "paths", []string{"f"}}, map[string]any{"error": "!invalid_arguments"}},
	} {
		t.Run(fmt.Sprint(c.args...), func(t *testing.T) {
			h.t = t
			h.want(h.call("file_read", c.args...), c.want)
		})
	}
}

// One file that cannot be read does not stop the others, and all share a budget.
func TestReadMany(t *testing.T) {
	h := newFixture(t)
	h.put("a", "one\n")
	h.put("b", "two")
	h.put("big", strings.Repeat("0123456789\n", 100))
	h.put("pic.png", "\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR")
	tag := func(name string) any { return h.call("file_read", "path", name)["etag"] }
	out := h.call("file_read", "paths", []string{"a", "missing", "b", "../out"})
	want := "==> a <==\none\n\n==> missing <==\n[not_found: missing does not exist]\n\n==> b <==\ntwo\n\n" +
		"==> ../out <==\n[outside_root: ../out is outside the folders this server may touch]\n" +
		fmt.Sprintf(
			"a: [lines 1-1 of 1; LF; etag=%v]\nmissing: [not_found: missing does not exist]\nb: [lines 1-1 of 1; "+
				"etag=%v]\n"+
				"../out: [outside_root: ../out is outside the folders this server may touch]",
			tag("a"),
			tag("b"),
		)
	if got := h.text("file_read", "paths", []string{"a", "missing", "b", "../out"}); got != want {
		t.Errorf("got\n%v\nwant\n%s", got, want)
	}
	files := out["files"].([]any)
	if first := files[0].(map[string]any); len(files) != 4 || first["etag"] != tag("a") ||
		first["total_lines"] != 1.0 ||
		files[1].(map[string]any)["error"] == nil {
		t.Errorf("%v", files)
	}
	out = h.call("file_read", "paths", []string{"big", "a", "big"}, "max_bytes", 1200)
	if files := out["files"].([]any); len(files) != 1 || out["truncated"] != true ||
		out["note"] != "ended at max_bytes; 2 files not read, beginning with a" {
		t.Errorf("%v", out)
	}
	res, err := h.result("file_read", "paths", []string{"pic.png", "a"})
	if err != nil || len(res.Content) != 1 || res.Content[0].Type != "image" {
		t.Errorf("%+v, %v", res.Content, err)
	}
	many := make([]string, 201)
	h.want(h.call("file_read", "paths", many), map[string]any{"error": "!invalid_arguments"})
}

func TestReadAs(t *testing.T) {
	h := newFixture(t)
	h.put("a.go", "package a\n\nfunc F() {\n}\n")
	h.put("p.html", "<h1>T</h1><p>x <b>y</b>")
	h.put("n.ipynb", `{"cells":[{"cell_type":"code","source":["x = 1\n"]}]}`)
	h.put("d.docx", "PK\x03\x04 broken")
	h.put("d.pdf", "%PDF-1.4 broken")
	h.put("wide.txt", "\xFF\xFEa\x00\n\x00\xe4\x00")
	h.put("notes", "words\n")
	h.put("s.wav", "RIFF\x00\x00\x00\x00WAVEfmt \x00")
	for _, c := range []struct {
		args []any
		want map[string]any
	}{
		{[]any{"path", "a.go", "as", "outline"}, map[string]any{"content": "3-4: func F()\n", "language": "go"}},
		{[]any{"path", "notes", "as", "outline"}, map[string]any{"content": "[no definitions found]\n"}},
		{
			[]any{"path", "p.html"},
			map[string]any{"content": "<h1>T</h1><p>x <b>y</b>", "note": "as=text removes the markup"},
		},
		{[]any{"path", "p.html", "as", "raw"}, map[string]any{"content": "<h1>T</h1><p>x <b>y</b>", "note": nil}},
		{
			[]any{"path", "p.html", "as", "text"},
			map[string]any{"content": "# T\n\nx y\n", "note": "HTML shown as text"},
		},
		{
			[]any{"path", "n.ipynb"},
			map[string]any{"content": "[cell 1, code]\n```\nx = 1\n```\n", "note": "notebook shown as text"},
		},
		{
			[]any{"path", "n.ipynb", "as", "raw"},
			map[string]any{"content": `{"cells":[{"cell_type":"code","source":["x = 1\n"]}]}`},
		},
		{[]any{"path", "n.ipynb", "offset", 3, "limit", 1}, map[string]any{"content": "x = 1\n", "total_lines": 4}},
		{[]any{"path", "d.docx"}, map[string]any{"error": "!unsupported"}},
		{[]any{"path", "d.pdf"}, map[string]any{"error": "!unsupported"}},
		{[]any{"path", "d.docx", "as", "raw"}, map[string]any{"error": "!binary"}},
		{[]any{"path", "wide.txt"}, map[string]any{"content": "a\nä", "note": "UTF-16, shown as UTF-8"}},
		{[]any{"path", "s.wav"}, map[string]any{"content": "audio/wav, 17 bytes"}},
	} {
		t.Run(fmt.Sprint(c.args...), func(t *testing.T) {
			h.t = t
			h.want(h.call("file_read", c.args...), c.want)
		})
	}
	res, err := h.result("file_read", "path", "s.wav")
	if err != nil || len(res.Content) != 1 || res.Content[0].Type != "audio" || res.Content[0].MIME != "audio/wav" ||
		len(res.Content[0].Data) != 17 {
		t.Errorf("%+v, %v", res.Content, err)
	}
}

func TestReadProtected(t *testing.T) {
	h := newFixture(t)
	h.put(".env", "SECRET=1\n")
	os.Symlink(".env", h.at("innocent"))
	for _, path := range []string{".env", "innocent"} {
		h.want(h.call("file_read", "path", path), map[string]any{"error": "!denied"})
		h.want(h.call("file_read", "paths", []string{path}), map[string]any{"error": nil, "size": 0})
	}
}

// Files far larger than memory should ever hold are read in bounded memory.
func TestReadHugeFiles(t *testing.T) {
	h := newFixture(t)
	tail := numbered(1000)
	const hole = 300 << 20
	f, err := os.Create(h.at("log"))
	if err != nil {
		t.Fatal(err)
	}
	f.WriteString(numbered(5000))
	f.Truncate(hole)
	f.Seek(hole, 0)
	f.WriteString("\n" + tail)
	f.Close()
	h.put("line", strings.Repeat("x", 50<<20))

	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	h.want(
		h.call("file_read", "path", "log", "offset", -3), map[string]any{"content": "line 998\nline 999\nline 1000\n"},
	)
	h.want(
		h.call("file_read", "path", "log", "limit", 1),
		map[string]any{"content": "line 1\n", "next_offset": 2, "total_lines": nil},
	)
	h.want(
		h.call("file_read", "path", "log", "offset", 5002, "limit", 1),
		map[string]any{"content": "line 1\n", "next_offset": 5003},
	)
	h.want(
		h.call("file_read", "path", "line"),
		map[string]any{"content": strings.Repeat("x", 32<<10), "next_byte": 32 << 10, "truncated": true},
	)
	h.want(
		h.call("file_read", "path", "line", "offset", -1, "limit", 5),
		map[string]any{"content": strings.Repeat("x", 32<<10), "next_byte": 32 << 10},
	)
	h.want(
		h.call("file_read", "path", "line", "from_byte", 50<<20-2), map[string]any{"content": "xx", "next_byte": nil},
	)
	runtime.ReadMemStats(&after)
	if used := after.TotalAlloc - before.TotalAlloc; used > 8<<20 {
		t.Errorf("six reads took %d bytes of memory", used)
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte("a\nb\r\nc"), 1, 1, int64(0), 256)
	f.Add([]byte("\xEF\xBB\xBF\xff\n"), -1, 0, int64(2), 300)
	f.Add([]byte(""), -5, 3, int64(0), 256)
	h := newFixture(f)
	f.Fuzz(func(t *testing.T, content []byte, offset, limit int, from int64, most int) {
		h.t = t
		if os.WriteFile(h.at("f"), content, 0o644) != nil {
			t.Skip()
		}
		args := []any{"path", "f", "offset", offset}
		if limit > 0 {
			args = append(args, "limit", limit)
		}
		if from > 0 {
			args = append(args, "from_byte", from)
		}
		if most >= 256 && most <= 1<<20 {
			args = append(args, "max_bytes", most)
		}
		h.call("file_read", args...)
	})
}
