//go:build linux && (amd64 || arm64)

package firecracker

import (
	"strings"
	"sync"
)

// tail keeps the end of what is written to it.
type tail struct {
	mu   sync.Mutex
	last []byte
}

const maxTail = 4 << 10 // bytes of a tail

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last = append(t.last, b[max(0, len(b)-maxTail):]...)
	if over := len(t.last) - maxTail; over > 0 {
		t.last = append(t.last[:0], t.last[over:]...)
	}
	return len(b), nil
}

// lines returns the last lines, at most most, without control characters.
func (t *tail) lines(most int) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	text := strings.Map(func(r rune) rune {
		if r < ' ' && r != '\n' || r == 0x7f {
			return -1
		}
		return r
	}, strings.ToValidUTF8(string(t.last), "?"))
	all := strings.FieldsFunc(text, func(r rune) bool { return r == '\n' })
	return strings.Join(all[max(0, len(all)-most):], "; ")
}
