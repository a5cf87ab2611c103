package shell

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
	"unicode/utf8"

	"gatehouse/internal/access/displaytext"
)

// capture is a writer that keeps the beginning and the end of a stream. It is
// safe for concurrent use.
type capture struct {
	half int // bytes of the beginning, and of the end

	mu    sync.Mutex
	head  []byte
	tail  []byte // up to 2*half bytes, of which only the last half is used
	total int64
}

func newCapture(most int) *capture { return &capture{half: most / 2} }

// Write never fails.
func (c *capture) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := len(b)
	c.total += int64(n)
	if space := c.half - len(c.head); space > 0 {
		space = min(space, len(b))
		c.head, b = append(c.head, b[:space]...), b[space:]
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

// cut reports whether a part between the beginning and the end is missing.
func (c *capture) cut() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.total > int64(len(c.head)+min(len(c.tail), c.half))
}

// captured returns what was kept, with a line in place of the missing part.
func (c *capture) captured() string {
	missing := c.cut()
	c.mu.Lock()
	defer c.mu.Unlock()
	head, tail := c.head, c.tail[max(0, len(c.tail)-c.half):]
	if !missing {
		return visible(append(head[:len(head):len(head)], tail...))
	}
	head, tail = wholeLines(head, tail)
	gap := c.total - int64(len(head)+len(tail))
	return visible(head) + fmt.Sprintf("\n[%d bytes are missing here; the linked resource has the output, as far as "+
		"it is kept]\n", gap) + visible(tail)
}

// wholeLines cuts head and tail at the ends of lines if those are near, and
// otherwise between characters.
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

// visible returns output as text, with each byte that is not UTF-8 as \xNN.
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
