package terminal

import (
	"strings"
	"testing"
)

func show(cols, rows int, text string) *Screen {
	s := New(cols, rows)
	s.Write([]byte(text))
	return s
}

func TestShowsWhatATerminalShows(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"text":                      {"hello", "hello"},
		"lines":                     {"a\r\nb\nc", "a\nb\n c"},
		"overwriting a line":        {"10%\r20%\r30% done\r99", "99% done"},
		"backspace":                 {"abc\b\bX", "aXc"},
		"tabs":                      {"a\tb\x1b[3g\x1b[1;5H\x1bH\r\tX", "a   X   b"},
		"wrapping":                  {"0123456789ab", "0123456789\nab"},
		"the last column waits":     {"0123456789\r\nx", "0123456789\nx"},
		"no wrapping":               {"\x1b[?7l0123456789abc", "012345678c"},
		"scrolling":                 {"1\r\n2\r\n3\r\n4\r\n5\r\n6", "3\n4\n5\n6"},
		"a region scrolls":          {"1\r\n2\r\n3\r\n4\x1b[2;3r\x1b[3;1H\n5", "1\n3\n5\n4"},
		"scrolling back":            {"1\r\n2\x1b[H\x1bM0", "0\n1\n2"},
		"moving":                    {"\x1b[2;3Hx\x1b[Ay\x1b[2Dz\x1b[1Bw\x1b[Gv\x1b[9Cu", "  zy\nv xw     u"},
		"moving by column and line": {"\x1b[3dabc\x1b[2Gx\x1b[E1\x1b[F2", "\n\n2xc\n1"},
		"erasing a line":            {"abcdef\x1b[4D\x1b[K", "ab"},
		"erasing its beginning":     {"abcdef\x1b[3D\x1b[1K", "    ef"},
		"erasing all":               {"abc\r\ndef\x1b[2Jx", "\n   x"},
		"erasing below":             {"abc\r\ndef\r\nghi\x1b[2;2H\x1b[J", "abc\nd"},
		"erasing above":             {"abc\r\ndef\r\nghi\x1b[2;2H\x1b[1J", "\n  f\nghi"},
		"characters out and in":     {"abcdef\x1b[3G\x1b[2P\x1b[2@X", "abX ef"},
		"erasing characters":        {"abcdef\x1b[2G\x1b[3X", "a   ef"},
		"lines out and in":          {"1\r\n2\r\n3\r\n4\x1b[2;1H\x1b[M\x1b[Lx", "1\nx\n3\n4"},
		"insert mode":               {"abc\x1b[G\x1b[4hX\x1b[4lY", "XYbc"},
		"repeating":                 {"-\x1b[4b", "-----"},
		"colours are forgotten": {"\x1b[1;31mred\x1b[0m \x1b[38;5;200mpink\x1b[38:2::1:2:3mx\x1b[m",
			"red pinkx"},
		"the alternate screen":           {"shell\x1b[?1049h\x1b[Hvim", "vim"},
		"and back":                       {"shell\x1b[?1049h\x1b[2J\x1b[3;3Hvim\x1b[?1049l$", "shell$"},
		"saving the cursor":              {"ab\x1b7\x1b[4;4Hx\x1b8c", "abc\n\n\n   x"},
		"line drawing":                   {"\x1b(0lqk\x1b(B lqk\x0e", "┌─┐ lqk"},
		"line drawing by shift":          {"\x1b)0\x0ex\x0fx", "│x"},
		"wide characters":                {"日本語\x1b[4GX", "日 X語"},
		"a wide character wraps":         {"123456789日", "123456789\n日"},
		"half of one overwritten":        {"日本\x1b[2Gx", " x本"},
		"accents combine":                {"e\u0301a", "e\u0301a"},
		"accents at the end of the line": {"123456789e\u0301", "123456789e\u0301"},
		"emoji":                          {"🙂x\x1b[3Gy", "🙂y"},
		"broken UTF-8":                   {"a\xffb\xe2\x82c\xe2\xe2\x82\xac", "a\uFFFDb\uFFFDc\uFFFD€"},
		"a title is not text":            {"\x1b]0;title\aa\x1b]2;t\x1b\\b", "ab"},
		"other strings are not text":     {"\x1bPqsixel\x1b\\a\x1b_apc\x1b\\b\x1bXsos\x1b\\c", "abc"},
		"a broken off sequence":          {"\x1b[12\x18a\x1b[1\x1b[2Gb", "ab"},
		"controls within a sequence":     {"ab\x1b[\r2Cc", "abc"},
		"unknown sequences":              {"\x1b[?9999h\x1b[>4;2m\x1b[99z\x1b%Ga\x1b#8\x1b[2J\x1bcb", "b"},
		"origin mode":                    {"\x1b[2;3r\x1b[?6h\x1b[Hx\x1b[9;1Hy", "\nx\ny"},
	} {
		t.Run(name, func(t *testing.T) {
			s := show(10, 4, c.text)
			if got := s.String(); got != c.want {
				t.Errorf("got\n%q, want\n%q", got, c.want)
			}
			for i := range c.text { // however it is cut
				s := show(10, 4, c.text[:i])
				s.Write([]byte(c.text[i:]))
				if got := s.String(); got != c.want {
					t.Fatalf("cut at %d: got\n%q, want\n%q", i, got, c.want)
				}
			}
		})
	}
}

// A prompt ends with a blank, which is there as far as the cursor is.
func TestBlanksBeforeTheCursorAreShown(t *testing.T) {
	s := New(20, 4)
	s.Write([]byte("cost $\r\n漢 $ "))
	for text, want := range map[string]bool{"漢 $ ": true, "$\n漢 $ ": true, "cost": true, "cost $ ": false, "$  ": false,
		"\n\n\n": false, "": true} {
		if got := s.Shows(text); got != want {
			t.Errorf("it shows %q: %v, want %v", text, got, want)
		}
	}
	s.Write([]byte("typed\x1b[1;1H"))
	if s.Shows("$  ") || !s.Shows("漢 $ typed") {
		t.Errorf("the screen is %q", s)
	}
}

func TestTellsAboutItself(t *testing.T) {
	s := New(20, 5)
	var replies strings.Builder
	s.Reply = func(b []byte) { replies.Write(b) }
	s.Write([]byte("\x1b]0;A \x01title\a\x1b[3;4H\x1b[6n\x1b[c\x1b[5n\x1b[18t\x1b[?25l\x1b[?1h\x1b[?1049h\a"))
	if x, y, shown := s.Cursor(); x != 3 || y != 2 || shown {
		t.Errorf("the cursor is at %d, %d, %v", x, y, shown)
	}
	if s.Title() != "A title" || !s.AppKeys() || !s.Alternate() || s.Bells() != 1 {
		t.Errorf("%q %v %v %d", s.Title(), s.AppKeys(), s.Alternate(), s.Bells())
	}
	if want := "\x1b[3;4R\x1b[?62c\x1b[0n\x1b[8;5;20t"; replies.String() != want {
		t.Errorf("it replied %q, want %q", replies.String(), want)
	}
}

func TestResizingKeepsTheCursorsLine(t *testing.T) {
	s := show(10, 4, "1\r\n2\r\n3\r\n日本4")
	s.Resize(3, 2)
	if got := s.String(); got != "3\n日" {
		t.Errorf("smaller: %q", got)
	}
	if x, y, _ := s.Cursor(); x != 2 || y != 1 {
		t.Errorf("the cursor is at %d, %d", x, y)
	}
	s.Resize(12, 6)
	s.Write([]byte("\x1b[6;12Hx"))
	if got := s.Lines(); len(got) != 6 || got[0] != "3" || got[5] != strings.Repeat(" ", 11)+"x" {
		t.Errorf("larger: %q", got)
	}
	if cols, rows := New(0, 1<<30).Size(); cols != 1 || rows != MaxSide {
		t.Errorf("%d by %d", cols, rows)
	}
}

func FuzzScreen(f *testing.F) {
	f.Add([]byte("a\x1b[2;3r\x1b[?1049h日\x1b[5@\x1b[P\x1b[L\x1b[M\x1b[b"), uint8(10), uint8(4))
	f.Add([]byte("\x1b[?6h\x1b[4h\x1b[?7l\t\x1bM\x1bE\x1b8\x1b#8\x1bc\x1b[!p"), uint8(1), uint8(1))
	f.Fuzz(func(t *testing.T, b []byte, cols, rows uint8) {
		s := New(int(cols)%40, int(rows)%20)
		s.Write(b)
		check(t, s)
		s.Resize(int(rows)%40, int(cols)%20)
		s.Write(b)
		check(t, s)
	})
}

func check(t *testing.T, s *Screen) {
	cols, rows := s.Size()
	if x, y, _ := s.Cursor(); x < 0 || x >= cols || y < 0 || y >= rows {
		t.Fatalf("the cursor is at %d, %d of %d, %d", x, y, cols, rows)
	}
	if lines := s.Lines(); len(lines) != rows {
		t.Fatalf("%d lines of %d", len(lines), rows)
	}
	for _, l := range s.main.lines {
		if len(l) != cols {
			t.Fatalf("%d columns of %d", len(l), cols)
		}
		for x, c := range l {
			two := runeWidth(c.r) == 2
			if two != (x+1 < cols && l[x+1].r == wide) || x == 0 && c.r == wide {
				t.Fatalf("a broken wide character at %d: %q", x, l)
			}
		}
	}
}

func BenchmarkWrite(b *testing.B) {
	text := []byte(strings.Repeat("The quick brown fox jumps over the lazy dog.\r\n\x1b[31mred\x1b[0m\r\n", 100))
	s := New(80, 24)
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		s.Write(text)
	}
}
