package shell

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
	"unicode/utf8"

	"gatehouse/internal/access/displaytext"
)

// capture keeps the beginning and the end of a stream. Safe for concurrent use.
type capture struct {
	half int // bytes of each

	mu    sync.Mutex
	head  []byte
	tail  []byte // up to twice half, of which the last half counts
	total int64
}

func newCapture(most int) *capture { return &capture{half: most / 2} }

// Write takes everything and never fails.
func (c *capture) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := len(b)
	c.total += int64(n)
	if room := c.half - len(c.head); room > 0 {
		room = min(room, len(b))
		c.head, b = append(c.head, b[:room]...), b[room:]
	}
	if over := len(b) - c.half; over > 0 {
		c.tail, b = c.tail[:0], b[over:]
	}
	if len(c.tail)+len(b) > 2*c.half {
		c.tail = c.tail[:copy(c.tail, c.tail[len(c.tail)-c.half:])]
	}
	c.tail = append(c.tail, b...)
	return n, nil
}

// cut reports whether something between the beginning and the end is missing.
func (c *capture) cut() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.total > int64(len(c.head)+min(len(c.tail), c.half))
}

// text is what was kept, with a line that says what is missing.
func (c *capture) text() string {
	missing := c.cut()
	c.mu.Lock()
	defer c.mu.Unlock()
	head, tail := c.head, c.tail[max(0, len(c.tail)-c.half):]
	if !missing {
		return visible(append(head[:len(head):len(head)], tail...))
	}
	head, tail = wholeLines(head, tail)
	gap := c.total - int64(len(head)+len(tail))
	return visible(head) + fmt.Sprintf("\n[%d bytes are left out here; the linked resource has the whole output, as far as it is kept]\n", gap) + visible(tail)
}

// wholeLines cuts at the ends of lines where those are near, and otherwise
// between characters.
func wholeLines(head, tail []byte) (begin, end []byte) {
	const near = 4 << 10
	if i := bytes.LastIndexByte(head, '\n'); i >= 0 && i >= len(head)-near {
		head = head[:i]
	}
	head = head[:displaytext.Whole(head)]
	if i := bytes.IndexByte(tail, '\n'); i >= 0 && i < near && i+1 < len(tail) {
		tail = tail[i+1:]
	}
	for n := 0; n < utf8.UTFMax && len(tail) > 0 && !utf8.RuneStart(tail[0]); n++ {
		tail = tail[1:]
	}
	return head, tail
}

// visible is output as text: what is no UTF-8 is shown as \xNN.
func visible(b []byte) string {
	if utf8.Valid(b) {
		return string(b)
	}
	var s strings.Builder
	for len(b) > 0 {
		r, n := utf8.DecodeRune(b)
		if r == utf8.RuneError && n == 1 {
			fmt.Fprintf(&s, `\x%02x`, b[0])
		} else {
			s.Write(b[:n])
		}
		b = b[n:]
	}
	return s.String()
}
