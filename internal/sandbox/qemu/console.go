//go:build linux && amd64

package qemu

import (
	"strings"
	"sync"
	"unicode"
)

const maxConsole = 4000 // bytes kept of a machine's console

// console keeps the end of what QEMU and the machine's kernel print. It is safe for concurrent use.
type console struct {
	mu   sync.Mutex
	last []byte
}

// Write appends b.
func (c *console) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = append(c.last, b[max(0, len(b)-maxConsole):]...)
	c.last = append(c.last[:0], c.last[max(0, len(c.last)-maxConsole):]...)
	return len(b), nil
}

// String returns the kept text on one line, without control characters.
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
