package stage

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"unicode/utf8"

	"github.com/aymanbagabas/go-udiff"
)

const (
	diffMost  = 1 << 20 // bytes of a file that is compared line by line
	diffLines = 400     // of one file
)

// Modes describes the change of type and mode, such as "file 0644 → 0755"; "" if neither changed.
func (c *Change) Modes() string {
	is := func(s State) string {
		switch s.Type {
		case None:
			return ""
		case Link:
			return "link to " + s.Target
		}
		return fmt.Sprintf("%s %04o", s.Type, s.Mode)
	}
	was, now := is(c.Was), is(c.Now)
	switch {
	case was == now:
		return ""
	case was == "":
		return now
	case now == "":
		return was
	}
	return was + " -> " + now
}

// Diff returns the change of a file's content as a unified diff, or what is known of a content that is no text.
func (t *Task) Diff(c Change) string {
	if c.Was.Type != File && c.Now.Type != File {
		return ""
	}
	was, text := t.text(t.Layers[c.Layer].Lower, c.name, c.Was)
	now, alsoText := t.text(t.upper(c.Layer), c.name, c.Now)
	if !text || !alsoText {
		if c.Was.Hash != "" && c.Was.Hash == c.Now.Hash {
			return ""
		}
		return fmt.Sprintf("content of %d bytes -> %d bytes", c.Was.Size, c.Now.Size)
	}
	from, to := c.Path, c.Path
	if c.Was.Type == None {
		from = "/dev/null"
	}
	if c.Now.Type == None {
		to = "/dev/null"
	}
	lines := strings.Split(strings.TrimSuffix(udiff.Unified(from, to, was, now), "\n"), "\n")
	if len(lines) > diffLines {
		lines = append(lines[:diffLines], fmt.Sprintf("... %d more lines", len(lines)-diffLines))
	}
	return strings.Join(lines, "\n")
}

func (t *Task) text(folder, name string, s State) (string, bool) {
	if s.Type != File {
		return "", true
	}
	if s.Size > diffMost {
		return "", false
	}
	root, err := os.OpenRoot(folder)
	if err != nil {
		return "", false
	}
	defer root.Close()
	f, err := root.Open(name)
	if err != nil {
		return "", false
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, diffMost))
	return string(b), err == nil && utf8.Valid(b) && !bytes.ContainsRune(b, 0)
}
