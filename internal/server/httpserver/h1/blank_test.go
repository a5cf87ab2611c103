package h1

import (
	"bufio"
	"io"
	"strings"
	"testing"
	"time"
)

// Old clients send an empty line after a body. One empty line before a request is ignored.
func TestAnEmptyLineBeforeARequestIsIgnored(t *testing.T) {
	addr, s := serve(t, echo)
	_ = s
	for _, pieces := range [][]string{
		{post("/a", "one") + "\r\n" + post("/a", "two")},
		{post("/a", "one"), "\r\n", post("/a", "two")},
		{post("/a", "one"), "\r", "\n" + post("/a", "two")},
		{"\r\n" + post("/a", "one"), "\r\n" + post("/a", "two")},
	} {
		c := dial(t, addr)
		go func() {
			for _, p := range pieces {
				io.WriteString(c, p)
				time.Sleep(10 * time.Millisecond) // so that it arrives separately
			}
		}()
		in := bufio.NewReader(c)
		for _, want := range []string{"one", "two"} {
			if res, body := answer(t, in); res.StatusCode != 200 || !strings.Contains(body, want) {
				t.Errorf("%q: got %d %q, want %s", pieces, res.StatusCode, body, want)
			}
		}
	}
	c := dial(t, addr)
	io.WriteString(c, "\r\n\r\n"+post("/a", "one"))
	if res, _ := answer(t, bufio.NewReader(c)); res.StatusCode != 400 {
		t.Errorf("two empty lines: got %d, want 400", res.StatusCode)
	}
}
