package secret

import (
	"bytes"
	"encoding/json"
	"io"
	"slices"
	"sync"
)

// shortest is the length, in bytes, from which a secret does not match by chance.
const shortest = 6

// Hider removes secrets from the output of a program or a server, in their plain form and in the form
// of a JSON string. It guards against accidents only: a program with a secret can print it in another
// encoding. The zero value removes nothing.
type Hider struct{ forms [][]byte }

// NewHider returns a Hider. It ignores secrets of fewer than six bytes.
func NewHider(texts ...Text) (h Hider) {
	for _, t := range texts {
		value := t.Reveal()
		if len(value) < shortest {
			continue
		}
		quoted, _ := json.Marshal(value) // cannot fail for a string
		h.forms = append(h.forms, []byte(value))
		if inner := quoted[1 : len(quoted)-1]; string(inner) != value {
			h.forms = append(h.forms, inner)
		}
	}
	// The longest come first, because one secret may be the beginning of another.
	slices.SortStableFunc(h.forms, func(a, b []byte) int { return len(b) - len(a) })
	return h
}

// Hide removes the secrets from a complete text.
func (h Hider) Hide(said []byte) []byte {
	for _, form := range h.forms {
		said = bytes.ReplaceAll(said, form, []byte(Mask))
	}
	return said
}

// Writer returns a writer that removes the secrets and passes the rest to the writer to. Bytes that
// could be the beginning of a secret are held until the next Write or Flush.
func (h Hider) Writer(to io.Writer) *HidingWriter { return &HidingWriter{to: to, hider: h} }

// HidingWriter is safe for concurrent use.
type HidingWriter struct {
	to    io.Writer
	hider Hider

	mu   sync.Mutex
	held []byte // shorter than the longest secret
}

// Write implements io.Writer; the error is that of the underlying writer.
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

// Flush writes the bytes that are held.
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

// begun returns the number of bytes at the end of said that are the beginning of a secret.
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
