//go:build linux && amd64

package qemu

import (
	"strings"
	"sync"
	"unicode"
)

const lastWords = 4000 // bytes kept of what a machine printed

// console keeps the last of what QEMU and the kernel in it print. It is safe
// for concurrent use.
type console struct {
	mu   sync.Mutex
	last []byte
}

// Write takes it in.
func (c *console) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = append(c.last, b[max(0, len(b)-lastWords):]...)
	c.last = append(c.last[:0], c.last[max(0, len(c.last)-lastWords):]...)
	return len(b), nil
}

// String is that on one line, with nothing in it that moves a cursor.
func (c *console) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	text := strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, strings.ToValidUTF8(strings.ReplaceAll(string(c.last), "\n", " | "), "?"))
	return strings.Trim(strings.Join(strings.Fields(text), " "), "| ")
}
