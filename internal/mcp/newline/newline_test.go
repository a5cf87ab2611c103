package newline

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
)

// received records the frames.
type received []string

func (t *received) ReceiveAsync(frame []byte) func() { *t = append(*t, string(frame)); return nil }
func (t *received) Oversized(limit int, _ []byte) {
	*t = append(*t, fmt.Sprintf("too long for %d", limit))
}

func TestFrames(t *testing.T) {
	long := strings.Repeat("x", 3*window)
	for _, c := range []struct {
		name, in string
		limit    int
		want     []string
	}{
		{"lines", "a\nb\n", 0, []string{"a", "b"}},
		{"carriage returns", "a\r\nb\r\n", 0, []string{"a", "b"}},
		{"blank lines", "\n \t\n\r\na\n\n", 0, []string{"a"}},
		{"blanks of another kind", "\u00a0\n", 0, []string{"\u00a0"}},
		{"no end", "a\nb", 0, []string{"a", "b"}},
		{"nothing", "", 0, nil},
		{"only blanks", "  ", 0, nil},
		{"at the limit", "abcd\nabcd\r\n", 4, []string{"abcd", "abcd"}},
		{"past the limit", "abcde\nok\n", 4, []string{"too long for 4", "ok"}},
		{"past it by a carriage return in the line", "abcd\r\r\nok\n", 4, []string{"too long for 4", "ok"}},
		{"past it without an end", "abcdefgh", 4, []string{"too long for 4"}},
		{"longer than the window", long + "\nok\n", 0, []string{long, "ok"}},
		{"far past the limit", long + "\nok\n", 100, []string{"too long for 100", "ok"}},
		{"twice", long + "\n" + long + "\nok\n", 100, []string{"too long for 100", "too long for 100", "ok"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			for name, in := range map[string]io.Reader{
				"at once":      strings.NewReader(c.in),
				"byte by byte": iotest.OneByteReader(strings.NewReader(c.in)),
				"with its end": iotest.DataErrReader(strings.NewReader(c.in)),
			} {
				var got received
				if err := NewReader(in, c.limit).Feed(&got); err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				if !slices.Equal(got, c.want) {
					t.Errorf("%s: got %.80q, want %.80q", name, got, c.want)
				}
			}
		})
	}
}

func TestFailureIsReported(t *testing.T) {
	broken := errors.New("reset by peer")
	var got received
	err := NewReader(io.MultiReader(strings.NewReader("a\nhalf a li"), iotest.ErrReader(broken)), 0).Feed(&got)
	if !errors.Is(err, broken) || !slices.Equal(got, received{"a"}) {
		t.Errorf("got %q and %v, want the whole line and the failure", got, err)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = '0'
	}
	return len(p), nil
}

// counting counts calls of Write.
type counting struct {
	bytes.Buffer
	calls int
}

func (c *counting) Write(p []byte) (int, error) {
	c.calls++
	return c.Buffer.Write(p)
}

func TestWriter(t *testing.T) {
	var out counting
	w := NewWriter(&out)
	msg := []byte("{\n\t\"a\":\r\n 1}")
	for _, m := range [][]byte{[]byte(`{"b":2}`), msg, bytes.Repeat([]byte("x"), 1<<20)} {
		if err := w.Write(m); err != nil {
			t.Fatal(err)
		}
	}
	if out.calls != 3 {
		t.Errorf("three frames took %d writes, want 3", out.calls)
	}
	if got := out.String(); !strings.HasPrefix(got, "{\"b\":2}\n{ \t\"a\":   1}\nxxx") ||
		!strings.HasSuffix(got, "x\n") {
		t.Errorf("wrote %.60q", got)
	}
	if string(msg) != "{\n\t\"a\":\r\n 1}" {
		t.Error("the message was changed")
	}
}

func FuzzReader(f *testing.F) {
	f.Add([]byte("a\nb\r\n\nc"), 4)
	f.Add([]byte("\r\r\n"), 1)
	f.Add(bytes.Repeat([]byte("x"), window+1), window)
	f.Fuzz(func(t *testing.T, in []byte, limit int) {
		limit = 1 + limit&0xffff
		var whole, pieces received
		if err := NewReader(bytes.NewReader(in), limit).Feed(&whole); err != nil {
			t.Fatal(err)
		}
		NewReader(iotest.HalfReader(bytes.NewReader(in)), limit).Feed(&pieces)
		if !slices.Equal(whole, pieces) {
			t.Fatalf("%q read in pieces gives %q, want %q", in, pieces, whole)
		}
		var want received
		for line := range strings.SplitSeq(string(in), "\n") {
			line = strings.TrimSuffix(line, "\r")
			switch {
			case len(line) > limit:
				want = append(want, fmt.Sprintf("too long for %d", limit))
			case strings.Trim(line, " \t\r") != "":
				want = append(want, line)
			}
		}
		if !slices.Equal(whole, want) {
			t.Fatalf("%q with limit %d gives %q, want %q", in, limit, whole, want)
		}
	})
}

// slow works on its first frame until the second has arrived.
type slow struct {
	frames chan string
	second chan struct{}
}

func (s slow) Oversized(int, []byte) {}
func (s slow) ReceiveAsync(frame []byte) func() {
	return func() {
		s.frames <- string(frame)
		if string(frame) == "first" {
			<-s.second
		}
	}
}

func TestASlowFrameDelaysNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in, out := io.Pipe()
		s := slow{make(chan string), make(chan struct{})}
		ended := make(chan error)
		go func() { ended <- NewReader(in, 0).Feed(s) }()
		for _, frame := range []string{"first", "second", "third"} {
			fmt.Fprintln(out, frame)
			if got := <-s.frames; got != frame {
				t.Fatalf("got %q, want %q", got, frame)
			}
		}
		out.Close()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		close(s.second)
		synctest.Wait() // the bubble ends only after the goroutine of the slow frame
	})
}

// budget is a Memory of so many bytes.
type budget struct {
	received
	left, used int64
	refused    []string
}

func (b *budget) Reserve(n int64) error {
	if n > b.left {
		return errors.New("no bytes")
	}
	b.left, b.used = b.left-n, b.used+n
	return nil
}

func (b *budget) Unreserve() { b.left, b.used = b.left+b.used, 0 }
func (b *budget) Refused(why error, id []byte) {
	b.refused = append(b.refused, why.Error()+" "+string(id))
}

// A long frame is counted while it arrives; one that there are no bytes for is
// discarded and reported with its id, and the next one is read.
func TestLongFramesAreCounted(t *testing.T) {
	long := func(id, n int) string {
		return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"m","params":"%s"}`, id, strings.Repeat("x", n)) + "\n"
	}
	b := &budget{left: 64 << 10}
	in := long(1, 100) + long(2, 20<<10) + long(3, 100<<10) + long(4, 20<<10) + long(5, 1000)
	if err := NewReader(strings.NewReader(in), 1<<20).Feed(b); err != nil {
		t.Fatal(err)
	}
	if len(b.received) != 4 || len(b.received[1]) < 20<<10 || !slices.Equal(b.refused, []string{"no bytes 3"}) {
		t.Errorf("%d frames were received, %q were refused", len(b.received), b.refused)
	}
	if b.used != 0 {
		t.Errorf("%d bytes are counted after the end", b.used)
	}
}
