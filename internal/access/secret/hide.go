package secret

import (
	"bytes"
	"encoding/json"
	"io"
	"slices"
	"strings"
	"sync"
	"time"
)

// shortest is the length, in bytes, from which a secret does not match by chance.
const shortest = 6

// Hider removes secrets from the output of a program or a server, in their plain form and in the form
// of a JSON string. Of a secret of several lines it removes each line of six bytes or more, because a terminal
// or a log changes what is between lines. It guards against accidents only: a program with a secret can print it in
// another encoding. The zero value removes nothing.
type Hider struct {
	search Search
	forms  []string
}

// NewHider returns a Hider. It ignores secrets of fewer than six bytes.
func NewHider(texts ...Text) Hider {
	h := Hider{search: NewSearch()}
	for _, t := range texts {
		value := t.Reveal()
		if len(value) < shortest {
			continue
		}
		quoted, _ := json.Marshal(value) // cannot fail for a string
		h.forms = append(h.forms, string(quoted[1:len(quoted)-1]))
		h.forms = append(h.forms, strings.FieldsFunc(value, func(r rune) bool {
			return strings.ContainsRune(LineEnds, r)
		})...)
	}
	h.forms = slices.DeleteFunc(h.forms, func(form string) bool { return len(form) < shortest })
	// The longest come first, because one secret may be the beginning of another.
	slices.SortStableFunc(h.forms, func(a, b string) int { return len(b) - len(a) })
	for _, form := range h.forms {
		h.search.Add([]byte(form), []byte(Mask))
	}
	return h
}

// Hide removes the secrets from a complete text.
func (h Hider) Hide(said []byte) []byte {
	if len(h.forms) == 0 {
		return said
	}
	out, _ := h.search.Replace(said, true)
	return out
}

// Writer returns a writer that removes the secrets and passes the rest to the writer to, whole lines at once. The end
// of an unfinished line, of 63 bytes or about as many as the longest secret has, is held until the next Write, Flush,
// or until nothing was written for a fifth of a second, so that a prompt is shown.
func (h Hider) Writer(to io.Writer) *HidingWriter { return &HidingWriter{to: to, hider: h} }

const (
	// quiet is the time without a Write after which an unfinished line is passed on.
	quiet = 200 * time.Millisecond
	// longBeginning is the number of bytes from which the beginning of a secret is held longer than that. A caller
	// that guesses a secret by what is held has to guess so many at once.
	longBeginning = 12
)

// HidingWriter is safe for concurrent use. It writes to the writer behind it from a goroutine of its own too, but
// makes one call at a time, and none after Flush.
type HidingWriter struct {
	to    io.Writer
	hider Hider

	mu    sync.Mutex
	held  []byte
	err   error       // of a write that followed no Write
	timer *time.Timer // nil before anything was held
}

// Write implements io.Writer; the error is that of the underlying writer.
func (w *HidingWriter) Write(b []byte) (int, error) {
	if len(w.hider.forms) == 0 {
		return w.to.Write(b)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		return 0, w.err
	}
	out, rest := w.hider.search.Replace(slices.Concat(w.held, b), false)
	w.held = slices.Clone(rest)
	if len(out) > 0 {
		if _, err := w.to.Write(out); err != nil {
			return 0, err
		}
	}
	switch {
	case len(w.held) == 0:
	case w.timer == nil:
		w.timer = time.AfterFunc(quiet, w.passOn)
	default:
		w.timer.Reset(quiet)
	}
	return len(b), nil
}

// passOn writes what is held, except the beginning of a secret if it is long.
func (w *HidingWriter) passOn() {
	w.mu.Lock()
	defer w.mu.Unlock()
	end := len(w.held) - w.hider.begun(w.held)
	out, _ := w.hider.search.Replace(w.held[:end], true)
	w.held = slices.Clone(w.held[end:])
	if len(out) > 0 {
		_, w.err = w.to.Write(out)
	}
}

// Flush writes the bytes that are held.
func (w *HidingWriter) Flush() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.timer != nil {
		w.timer.Stop()
	}
	held := w.held
	if w.held = nil; len(held) == 0 || w.err != nil {
		return w.err
	}
	_, err := w.to.Write(w.hider.Hide(held))
	return err
}

// begun returns the number of bytes at the end of said that are the long beginning of a secret.
func (h Hider) begun(said []byte) (n int) {
	for _, form := range h.forms {
		for k := min(len(form)-1, len(said)); k >= max(longBeginning, n+1); k-- {
			if bytes.HasSuffix(said, []byte(form[:k])) {
				n = k
			}
		}
	}
	return n
}
