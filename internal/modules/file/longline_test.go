package file

import (
	"io"
	"strings"
	"testing"
)

// vast is a text that begins with a line of many x and ends with end, and
// counts what is read of it.
type vast struct {
	size int64
	end  string
	read int64
}

var xs = strings.Repeat("x", chunkSize)

func (v *vast) ReadAt(b []byte, off int64) (int, error) {
	n := int(min(int64(len(b)), v.size-off))
	for at := 0; at < n; {
		at += copy(b[at:n], xs)
	}
	if from := v.size - int64(len(v.end)); off+int64(n) > from {
		copy(b[max(from-off, 0):n], v.end[max(off-from, 0):])
	}
	v.read += int64(n)
	if off+int64(n) == v.size {
		return n, io.EOF
	}
	return n, nil
}

// The beginning of a line of 5 GB is not looked for: its end is shown, and
// what comes behind it as ever. A page begins up to three bytes late, so as not
// to begin inside a character.
func TestTheEndOfAVastLine(t *testing.T) {
	const size, most = 5 << 30, 4 << 10
	x := strings.Repeat("x", 2*most)
	many := numbered(2000) // more than a page
	for name, c := range map[string]struct {
		end        string
		offset     int
		limit      int
		want       string
		nextOffset int
		bounded    bool // the beginning was not found
	}{
		"that line alone":        {"", -1, 0, x[:most-3], 0, true},
		"an ended line":          {"\n", -1, 0, x[:most-4] + "\n", 0, true},
		"lines behind it":        {"\none\ntwo\n", -3, 0, x[:most-12] + "\none\ntwo\n", 0, true},
		"limited":                {"\none\ntwo\n", -3, 2, x[:most-12] + "\none\n", -1, true},
		"fewer lines than there": {"\none\ntwo\n", -2, 0, "one\ntwo\n", 0, false},
		"more lines than a page": {
			"\n" + many, -2001, 0, x[:most/2-3] + "\n" + many[:strings.LastIndex(many[:most/2+2], "\n")+1], -1761, true,
		},
		"in the middle of a rune": {"ä" + x[:most-4], -1, 0, "ä" + x[:most-4], 0, true},
		"where a rune begins":     {"ä" + x[:most-5], -1, 0, "ä" + x[:most-5], 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			v := &vast{size: size, end: c.end}
			s, err := newSource(t.Context(), v, v.size)
			if err != nil {
				t.Fatal(err)
			}
			pg, err := s.page(readIn{Offset: c.offset, Limit: c.limit, MaxBytes: most})
			if err != nil {
				t.Fatal(err)
			}
			if string(pg.text) != c.want || pg.nextOffset != c.nextOffset || pg.firstLine != 0 || pg.nextByte != 0 {
				t.Errorf(
					"got %.40q ... %.60q (%d bytes), next offset %d, next byte %d, line %d; want %d bytes, %d", pg.text,
					pg.text[max(len(pg.text)-60, 0):], len(pg.text), pg.nextOffset, pg.nextByte, pg.firstLine,
					len(c.want), c.nextOffset,
				)
			}
			if told := strings.Contains(pg.note, "from_byte"); told != c.bounded {
				t.Errorf("the note is %q", pg.note)
			}
			if v.read > maxLineScan+1<<20 {
				t.Errorf("%d bytes were read", v.read)
			}
		})
	}
}
