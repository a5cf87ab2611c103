package filesystem_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"gatehouse/internal/access/permit"
	"gatehouse/internal/dispatch/views"
	"gatehouse/internal/files/roots"
	"gatehouse/internal/mcp/rawjson"
	"gatehouse/internal/modules/filesystem"
	"gatehouse/internal/tests/conformance"
	"gatehouse/internal/tests/hosttest"
	"gatehouse/module"
)

// server is a file server that a test talks to, in revision 2025-11-25.
type server struct {
	t    *testing.T
	dir  string
	send func(frame string)
	next func() []byte
	id   int
}

func (s *server) ask(method, params string) json.RawMessage {
	s.t.Helper()
	s.id++
	s.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":%q,"params":%s}`, s.id, method, params))
	for {
		m := s.next()
		if id, _ := rawjson.Get(m, "id"); string(id) == fmt.Sprint(s.id) {
			if r, ok := rawjson.Get(m, "result"); ok {
				return r
			}
			return m
		}
	}
}

func (s *server) greet() {
	s.t.Helper()
	s.ask("initialize", `{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}`)
	s.send(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
}

// answer is a tool's result as a client sees it, with the folder of the server
// taken out.
type answer struct {
	Text       string
	Structured string
	IsError    bool
}

func (s *server) call(name, args string) answer {
	s.t.Helper()
	args = strings.ReplaceAll(args, "$DIR", s.dir)
	raw := s.ask("tools/call", `{"name":"`+name+`","arguments":`+args+`}`)
	var r struct {
		Content           []struct{ Type, Text string }
		StructuredContent json.RawMessage
		IsError           bool
	}
	if err := json.Unmarshal(raw, &r); err != nil || len(r.Content) != 1 {
		s.t.Fatalf("%s %s: %s", name, args, raw)
	}
	hide := func(t string) string { return strings.ReplaceAll(t, s.dir, "$DIR") }
	content, _ := json.Marshal(r.Content[0])
	a := answer{hide(r.Content[0].Text), hide(string(rawjson.Compact(nil, r.StructuredContent))), r.IsError}
	if r.Content[0].Type != "text" {
		a.Text = string(content)
	}
	return a
}

// original starts the official server.
func original(t *testing.T, dir string) *server {
	t.Helper()
	top, err := conformance.ToolsDir()
	if err != nil {
		t.Fatal(err)
	}
	tools, err := conformance.Open(top)
	if err != nil {
		if testing.Short() {
			t.Skip(err)
		}
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	home := t.TempDir()
	cmd := tools.Command(
		ctx, home, tools.Script("node_modules", "@modelcontextprotocol", "server-filesystem", "dist", "index.js"), dir,
	)
	cmd.Env = append(cmd.Env, "TZ=UTC")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.Close(); cancel(); cmd.Wait() })
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 64<<20)
	s := &server{t: t, dir: dir,
		send: func(f string) { io.WriteString(in, f+"\n") },
		next: func() []byte {
			if !lines.Scan() {
				t.Fatalf("the original says nothing more: %v", lines.Err())
			}
			return slices.Clone(lines.Bytes())
		}}
	s.greet()
	return s
}

// ours is the preset of this host.
func ours(t *testing.T, dir string) *server {
	t.Helper()
	set, err := roots.Open([]roots.Dir{{Path: dir}}, roots.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { set.Close() })
	h := hosttest.New(t, hosttest.Options{Roots: set, Modules: map[string]module.New{"filesystem": filesystem.New}})
	h.Views.Set(
		views.Rules{
			Policy: permit.Open(false),
			Specs:  []views.Spec{{Name: "filesystem", Modules: []string{"filesystem"}, Aliases: true}},
		},
	)
	c := h.Dial(t)
	s := &server{t: t, dir: dir, send: c.Send, next: func() []byte { return c.Next() }}
	s.greet()
	return s
}

// furnish fills a folder with files of all kinds.
func furnish(t *testing.T) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	when := time.Date(2024, 5, 17, 8, 9, 10, 0, time.UTC)
	for name, content := range map[string]string{
		"a.txt": "one\ntwo\nthree\n", "B.md": "B", "crlf.txt": "x\r\ny\r\nz\r\n", "empty.txt": "",
		"bad.txt":     "\xff\xfeabc\xe2\x82\n\xed\xa0\x80",
		"many.txt":    strings.Repeat("line\n", 40) + "here\n" + strings.Repeat("line\n", 40) + "there\n",
		"twice.txt":   "x = 1\ny = 1\nx = 1\n",
		"indented.go": "func f() {\n\tif a {\n\t\treturn 1\n\t}\n}\n", ".hidden": "", "pic.png": "png",
		"sound.MP3": "mp3", "blob.bin": "\x00\x01",
		"big.txt": strings.Repeat("0123456789abcde\n", 100_000), "marks.md": "a\n```go\nb\n```\nc\n", "ünï.txt": "ü",
		"sub/y.go": "", "sub/deep/z.go": "package z\n", "sub/deep/z.txt": "z", "ten10.txt": "", "ten9.txt": "",
		"_x": "", "C.txt": "c",
	} {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(content), 0o640); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(p, when, when); err != nil {
			t.Fatal(err)
		}
	}
	for link, to := range map[string]string{"in": "a.txt", "dirlink": "sub", "out": os.TempDir(), "gone": "nowhere"} {
		if err := os.Symlink(to, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "void"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{"sub/deep", "sub", "void"} { // making what is in them changed theirs
		if err := os.Chtimes(filepath.Join(dir, d), when, when); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// alike are calls that must have the same answer, word for word. Those that
// change something come in order.
var alike = []string{
	`read_file {"path":"$DIR/a.txt"}`,
	`read_file {"path":"a.txt"}`,
	`read_text_file {"path":"$DIR/a.txt","head":2}`,
	`read_text_file {"path":"$DIR/a.txt","head":9}`,
	`read_text_file {"path":"$DIR/B.md","tail":1}`,
	`read_text_file {"path":"$DIR/a.txt","tail":9.0}`,
	`read_text_file {"path":"$DIR/bad.txt"}`,
	`read_text_file {"path":"$DIR/crlf.txt","head":2}`,
	`read_text_file {"path":"$DIR/big.txt","head":3}`,
	`read_text_file {"path":"$DIR/empty.txt"}`,
	`read_text_file {"path":"$DIR/in"}`,
	`read_text_file {"path":"$DIR/sub/../a.txt"}`,
	`read_text_file {"path":"$DIR/none"}`,
	`read_text_file {"path":"$DIR/sub"}`,
	`read_text_file {"path":""}`,
	`read_text_file {"path":"$DIR/a.txt","head":1,"tail":1}`,
	`read_text_file {"path":"$DIR/a.txt","colour":"red"}`,
	`read_text_file {"path":"C:\\x"}`,
	`read_media_file {"path":"$DIR/pic.png"}`,
	`read_media_file {"path":"$DIR/sound.MP3"}`,
	`read_media_file {"path":"$DIR/blob.bin"}`,
	`read_media_file {"path":"$DIR/ünï.txt"}`,
	`read_media_file {"path":"$DIR/none.png"}`,
	`read_multiple_files {"paths":["$DIR/a.txt","$DIR/none","$DIR/B.md","$DIR/sub"]}`,
	`list_directory {"path":"$DIR"}`,
	`list_directory {"path":"$DIR/void"}`,
	`list_directory {"path":"$DIR/dirlink"}`,
	`list_directory {"path":"$DIR/a.txt"}`,
	`list_directory {"path":"$DIR/none"}`,
	`list_directory_with_sizes {"path":"$DIR/sub"}`,
	`list_directory_with_sizes {"path":"$DIR/void"}`,
	`directory_tree {"path":"$DIR"}`,
	`directory_tree {"path":"$DIR/void"}`,
	`directory_tree {"path":"$DIR","excludePatterns":["sub"]}`,
	`directory_tree {"path":"$DIR","excludePatterns":["deep","*.txt"]}`,
	`directory_tree {"path":"$DIR","excludePatterns":["**/*.go",".*"]}`,
	`directory_tree {"path":"$DIR","excludePatterns":["y.go"]}`,
	`directory_tree {"path":"$DIR/a.txt"}`,
	`search_files {"path":"$DIR","pattern":"*.txt"}`,
	`search_files {"path":"$DIR","pattern":"**/*.go"}`,
	`search_files {"path":"$DIR","pattern":"**"}`,
	`search_files {"path":"$DIR","pattern":"**/{y,z}.*","excludePatterns":["sub/deep/*.txt"]}`,
	`search_files {"path":"$DIR","pattern":"**/*","excludePatterns":["sub"]}`,
	`search_files {"path":"$DIR","pattern":"sub/*"}`,
	`search_files {"path":"$DIR","pattern":"ten?.txt"}`,
	`search_files {"path":"$DIR","pattern":"[a-c].txt"}`,
	`search_files {"path":"$DIR","pattern":"nothing"}`,
	`search_files {"path":"$DIR/sub","pattern":"deep"}`,
	`search_files {"path":"$DIR/a.txt","pattern":"*"}`,
	`get_file_info {"path":"$DIR/a.txt"}`,
	`get_file_info {"path":"$DIR/in"}`,
	`get_file_info {"path":"$DIR/sub"}`,
	`get_file_info {"path":"$DIR/none"}`,
	`list_allowed_directories {}`,

	`edit_file {"path":"$DIR/a.txt","edits":[{"oldText":"two","newText":"2"}],"dryRun":true}`,
	`edit_file {"path":"$DIR/a.txt","edits":[]}`,
	`edit_file {"path":"$DIR/a.txt","edits":[{"oldText":"two","newText":"two"}]}`,
	`edit_file {"path":"$DIR/a.txt","edits":[{"oldText":"nope","newText":"x"}]}`,
	`edit_file {"path":"$DIR/a.txt","edits":[{"oldText":"one","newText":"eins"},{"oldText":"nope","newText":"x"}]}`,
	`edit_file {"path":"$DIR/a.txt","edits":[{"oldText":"  two  ","newText":"zwei"},{"oldText":"one","newText":"eins"},{"oldText":"eins\nzwei","newText":"both"}]}`,
	`read_text_file {"path":"$DIR/a.txt"}`,
	`edit_file {"path":"$DIR/B.md","edits":[{"oldText":"B","newText":"C\nD"}]}`,
	`edit_file {"path":"$DIR/many.txt","edits":[{"oldText":"here\n","newText":""},{"oldText":"there","newText":"THERE\nmore"}]}`,
	`edit_file {"path":"$DIR/twice.txt","edits":[{"oldText":"x = 1","newText":"x = 2"}]}`,
	`read_text_file {"path":"$DIR/twice.txt"}`,
	`edit_file {"path":"$DIR/twice.txt","edits":[{"oldText":"1","newText":"3"}]}`,
	`edit_file {"path":"$DIR/indented.go","edits":[{"oldText":"if a {\n\treturn 1\n}","newText":"return 2"}],"dryRun":true}`,
	`edit_file {"path":"$DIR/marks.md","edits":[{"oldText":"b","newText":"x"}]}`,
	`edit_file {"path":"$DIR/empty.txt","edits":[{"oldText":"a","newText":"b"}]}`,
	`edit_file {"path":"$DIR/none","edits":[{"oldText":"a","newText":"b"}]}`,
	`edit_file {"path":"$DIR/sub","edits":[{"oldText":"a","newText":"b"}]}`,

	`write_file {"path":"$DIR/new.txt","content":"hé\n"}`,
	`read_text_file {"path":"$DIR/new.txt"}`,
	`write_file {"path":"$DIR/new.txt","content":""}`,
	`write_file {"path":"$DIR/in","content":"through the link"}`,
	`read_text_file {"path":"$DIR/a.txt"}`,
	`write_file {"path":"$DIR/no/dir.txt","content":"x"}`,
	`create_directory {"path":"$DIR/p/q/r"}`,
	`create_directory {"path":"$DIR/p"}`,
	`create_directory {"path":"$DIR/B.md"}`,
	`move_file {"source":"$DIR/new.txt","destination":"$DIR/p/moved.txt"}`,
	`move_file {"source":"$DIR/p/moved.txt","destination":"$DIR/B.md"}`,
	`move_file {"source":"$DIR/p/moved.txt","destination":"$DIR/void"}`,
	`move_file {"source":"$DIR/none","destination":"$DIR/x"}`,
	`move_file {"source":"$DIR/B.md","destination":"$DIR/no/x"}`,
	`move_file {"source":"$DIR/p","destination":"$DIR/p/q/in"}`,
	`move_file {"source":"$DIR/p","destination":"$DIR/moved"}`,
	`directory_tree {"path":"$DIR/moved"}`,
}

// made is the line of a time of birth, which not every system tells Go.
var made = regexp.MustCompile(`created: [^\n]*`)

// lastRead returns when a file was last read, which depends on who was first.
var lastRead = regexp.MustCompile(`accessed: [^\n\\]*`)

func TestLikeTheOriginal(t *testing.T) {
	t.Setenv("TZ", "UTC")
	theirs, mine := original(t, furnish(t)), ours(t, furnish(t))
	for _, line := range alike {
		name, args, _ := strings.Cut(line, " ")
		want, got := theirs.call(name, args), mine.call(name, args)
		for _, a := range []*answer{&want, &got} {
			a.Text, a.Structured = lastRead.ReplaceAllString(
				made.ReplaceAllString(a.Text, ""), "",
			), lastRead.ReplaceAllString(regexp.MustCompile(`created: [^\\]*`).ReplaceAllString(a.Structured, ""), "")
		}
		if got != want {
			t.Errorf("%s\n got %+v\nwant %+v", line, got, want)
		}
	}
}

// Where the original tells too much or loses something, ours is another.
func TestUnlikeTheOriginal(t *testing.T) {
	theirs, mine := original(t, furnish(t)), ours(t, furnish(t))
	for _, c := range []struct{ line, theirs, ours string }{
		// A refusal says which folders are allowed, and where a link leads.
		{
			`read_text_file {"path":"/etc/passwd"}`,
			`Access denied - path outside allowed directories: /etc/passwd not in $DIR`,
			`Access denied - path outside allowed directories: /etc/passwd`,
		},
		{
			`read_text_file {"path":"$DIR/out"}`, `not in $DIR`,
			`Access denied - symlink target outside allowed directories: $DIR/out`,
		},
		{
			`write_file {"path":"$DIR/../x","content":""}`, `not in $DIR`,
			`Access denied - path outside allowed directories: $DIR/../x`,
		},
		{
			`move_file {"source":"$DIR/a.txt","destination":"/etc/x"}`, `not in $DIR`,
			`Access denied - path outside allowed directories: /etc/x`,
		},
		// The nothing after the last newline counts as a line.
		{`read_text_file {"path":"$DIR/a.txt","tail":1}`, ``, "three\n"},
		// A link to nowhere is blamed on the directory it lies in.
		{
			`read_text_file {"path":"$DIR/gone"}`, `Parent directory does not exist: $DIR`,
			"ENOENT: no such file or directory, open '$DIR/gone'",
		},
		// Line endings are lost, also those of lines that stay.
		{`edit_file {"path":"$DIR/crlf.txt","edits":[{"oldText":"y","newText":"Y"}]}`, "+Y", "+Y"},
		{`read_text_file {"path":"$DIR/crlf.txt"}`, "x\nY\nz\n", "x\r\nY\r\nz\r\n"},
		// What is not text is written back damaged.
		{
			`edit_file {"path":"$DIR/bad.txt","edits":[{"oldText":"abc","newText":"x"}],"dryRun":true}`, "-",
			"is not UTF-8 text; it was not changed",
		},
		// Nothing is found everywhere.
		{
			`edit_file {"path":"$DIR/C.txt","edits":[{"oldText":"","newText":"x"}],"dryRun":true}`, "+xc",
			"oldText must not be empty",
		},
		// A link to nowhere is written through here, if that is inside the folders; the original refuses.
		{
			`write_file {"path":"$DIR/gone","content":"x"}`, `Parent directory does not exist`,
			"Successfully wrote to $DIR/gone",
		},
		// Lines found by forgiving their indentation are written as deep as the file has them; the
		// original loses the depth of all but the first.
		{
			`edit_file {"path":"$DIR/indented.go","edits":[{"oldText":"if a {\n  return 1\n}","newText":"if a {\n  return 1\n  return 2\n}"}],"dryRun":true}`,
			"+\treturn 1", "+\t\treturn 2",
		},
		// A path inside the host shows through.
		{
			`write_file {"path":"$DIR/sub","content":""}`, ".tmp' -> '",
			"EISDIR: illegal operation on a directory, open '$DIR/sub'",
		},
	} {
		name, args, _ := strings.Cut(c.line, " ")
		want, got := theirs.call(name, args), mine.call(name, args)
		if !strings.Contains(want.Text, c.theirs) {
			t.Errorf("%s: the original now says %q, want %q in it", c.line, want.Text, c.theirs)
		}
		if !strings.Contains(got.Text, c.ours) || got.IsError && strings.Contains(got.Text, "not in") {
			t.Errorf("%s: got %q, want %q in it", c.line, got.Text, c.ours)
		}
	}
}

// listing is what a tool looks like to a client.
type listing struct {
	Name, Title string
	InputSchema struct {
		Properties map[string]struct {
			Type string
			Enum []string
		}
		Required []string
	}
	OutputSchema struct{ Required []string }
	Annotations  struct {
		ReadOnlyHint, DestructiveHint, IdempotentHint, OpenWorldHint *bool
	}
}

func (s *server) tools() map[string]listing {
	s.t.Helper()
	var r struct{ Tools []listing }
	if err := json.Unmarshal(s.ask("tools/list", "{}"), &r); err != nil {
		s.t.Fatal(err)
	}
	all := map[string]listing{}
	for _, t := range r.Tools {
		all[t.Name] = t
	}
	return all
}

func is(p *bool, otherwise bool) bool {
	if p == nil {
		return otherwise
	}
	return *p
}

// Every tool, argument, type, need and hint of the original is there; what is
// there besides is optional.
func TestListedLikeTheOriginal(t *testing.T) {
	theirs, mine := original(t, t.TempDir()).tools(), ours(t, t.TempDir()).tools()
	if a, b := slices.Sorted(maps.Keys(theirs)), slices.Sorted(maps.Keys(mine)); !slices.Equal(a, b) {
		t.Fatalf("got %v, want %v", b, a)
	}
	for name, want := range theirs {
		got := mine[name]
		for arg, p := range want.InputSchema.Properties {
			if q, ok := got.InputSchema.Properties[arg]; !ok || q.Type != p.Type || !slices.Equal(p.Enum, q.Enum) {
				t.Errorf("%s: argument %s is %+v, want %+v", name, arg, q, p)
			}
		}
		if !slices.Equal(got.InputSchema.Required, want.InputSchema.Required) ||
			!slices.Equal(got.OutputSchema.Required, want.OutputSchema.Required) || got.Title != want.Title {
			t.Errorf("%s: got %+v, want %+v", name, got, want)
		}
		a, b := want.Annotations, got.Annotations
		if is(a.ReadOnlyHint, false) != is(b.ReadOnlyHint, false) ||
			is(a.OpenWorldHint, true) != is(b.OpenWorldHint, true) ||
			!is(a.ReadOnlyHint, false) &&
				(is(a.DestructiveHint, true) != is(b.DestructiveHint, true) ||
					is(a.IdempotentHint, false) != is(b.IdempotentHint, false)) {
			t.Errorf("%s: the hints differ", name)
		}
	}
}
