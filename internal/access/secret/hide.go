package secret

import (
	"bytes"
	"encoding/json"
	"io"
	"slices"
	"sync"
)

// shortest is how long, in bytes, a secret is that cannot match by chance.
const shortest = 6

// Hider removes secrets from the output of a program or a server, as they are and
// as JSON writes them. It guards against accidents: a holder of a secret can
// say it in other words. The zero value finds nothing.
type Hider struct{ forms [][]byte }

// NewHider makes a Hider; secrets of fewer than six bytes are passed on.
func NewHider(texts ...Text) (h Hider) {
	for _, t := range texts {
		value := t.Reveal()
		if len(value) < shortest {
			continue
		}
		quoted, _ := json.Marshal(value) // a string
		h.forms = append(h.forms, []byte(value))
		if inner := quoted[1 : len(quoted)-1]; string(inner) != value {
			h.forms = append(h.forms, inner)
		}
	}
	// The longest first: one may begin like another.
	slices.SortStableFunc(h.forms, func(a, b []byte) int { return len(b) - len(a) })
	return h
}

// Hide takes the secrets out of what is all there.
func (h Hider) Hide(said []byte) []byte {
	for _, form := range h.forms {
		said = bytes.ReplaceAll(said, form, []byte(Mask))
	}
	return said
}

// Writer passes on without the secrets what is written to it. What could be the
// beginning of a secret waits for what comes next, or for Flush.
func (h Hider) Writer(to io.Writer) *HidingWriter { return &HidingWriter{to: to, hider: h} }

// HidingWriter is safe for concurrent use.
type HidingWriter struct {
	to    io.Writer
	hider Hider

	mu   sync.Mutex
	held []byte // shorter than the longest secret
}

// Write implements io.Writer; the error is that of the Writer behind.
func (w *HidingWriter) Write(b []byte) (int, error) {
	if len(w.hider.forms) == 0 {
		return w.to.Write(b)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	all := w.hider.Hide(slices.Concat(w.held, b))
	held := w.hider.begun(all)
	w.held = slices.Clone(all[len(all)-held:])
	if all = all[:len(all)-held]; len(all) > 0 {
		if _, err := w.to.Write(all); err != nil {
			return 0, err
		}
	}
	return len(b), nil
}

// Flush passes on what waits.
func (w *HidingWriter) Flush() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	held := w.held
	if w.held = nil; len(held) == 0 {
		return nil
	}
	_, err := w.to.Write(held)
	return err
}

// begun is how many bytes at the end begin a secret.
func (h Hider) begun(said []byte) (n int) {
	for _, form := range h.forms {
		for k := min(len(form)-1, len(said)); k > n; k-- {
			if bytes.HasSuffix(said, form[:k]) {
				n = k
			}
		}
	}
	return n
}
