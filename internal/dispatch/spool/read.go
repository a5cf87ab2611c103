package spool

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"gatehouse/internal/access/displaytext"
)

const (
	defaultRead = 64 << 10
	maxRead     = 8 << 20
)

// Chunk is a part of an item. The next part begins at Next.
type Chunk struct {
	Data    []byte
	Offset  int64 // of Data's first byte
	Next    int64 // of the byte after Data
	Size    int64 // of the item, so far
	MIME    string
	Done    bool  // the writer is closed and Next is the end
	Dropped int64 // bytes that were printed but not kept
}

// Read returns up to limit bytes from offset: 0 means 64 KiB, and 8 MiB is the most. A negative offset counts from
// the end; one past the end means the end. Text ends after a line if more follows, otherwise between runes, unless
// limit is too small for that; a negative offset moves forward to the start of a rune. While the writer is open,
// an empty chunk means that there is no new data.
func (s *Spool) Read(owner, handle string, offset int64, limit int) (Chunk, error) {
	it := s.findItem(owner, handle)
	if it == nil {
		return Chunk{}, ErrNotFound
	}
	size, dropped, open := it.extent()
	c := Chunk{MIME: it.mime, Size: size, Dropped: dropped, Offset: place(offset, size)}
	if limit <= 0 {
		limit = defaultRead
	}
	data, err := s.data(it, c.Offset, min(int64(limit), maxRead, size-c.Offset))
	if err != nil {
		return Chunk{}, err
	}
	if isText(it.mime) {
		skip := 0
		if offset < 0 && c.Offset > 0 {
			skip = toRune(data)
		}
		data = data[skip:]
		c.Offset += int64(skip)
		data = data[:cut(data, c.Offset+int64(len(data)) < size, open)]
	}
	c.Data, c.Next = data, c.Offset+int64(len(data))
	c.Done = !open && c.Next == size
	return c, nil
}

// place converts a caller's offset into one that exists.
func place(offset, size int64) int64 {
	if offset < 0 {
		offset = max(0, size+offset)
	}
	return min(offset, size)
}

// data reads n bytes that are known to be in the file.
func (s *Spool) data(it *item, at, n int64) ([]byte, error) {
	if n == 0 {
		return nil, nil
	}
	f, err := s.root.Open(it.handle + suffix)
	if err != nil {
		if s.findItem(it.owner, it.handle) == nil {
			return nil, ErrNotFound // removed between the lookup and the read
		}
		return nil, fmt.Errorf("read spool: %w", err)
	}
	defer f.Close()
	b := make([]byte, n)
	if k, err := f.ReadAt(b, it.head+at); err != nil && !(errors.Is(err, io.EOF) && int64(k) == n) {
		return nil, fmt.Errorf("read spool: %w", err)
	}
	return b, nil
}

func isText(mime string) bool {
	kind, _, _ := strings.Cut(strings.ToLower(mime), ";")
	kind = strings.TrimSpace(kind)
	switch kind {
	case "application/json", "application/xml", "application/yaml", "application/javascript", "application/x-ndjson":
		return true
	}
	return strings.HasPrefix(kind, "text/") || strings.HasSuffix(kind, "+json") || strings.HasSuffix(kind, "+xml")
}

// cut returns where a chunk of text ends. A chunk at the end of an open item may end within a line, such as a
// prompt, but not within a rune.
func cut(b []byte, more, open bool) int {
	if more {
		if i := bytes.LastIndexByte(b, '\n'); i >= 0 {
			return i + 1
		}
	}
	if !more && !open {
		return len(b)
	}
	n := displaytext.Whole(b)
	if n == 0 && more {
		return len(b) // the reader must make progress
	}
	return n
}

// toRune returns how many bytes at the start of b belong to the previous rune.
func toRune(b []byte) int {
	for i := range min(len(b), utf8.UTFMax) {
		if utf8.RuneStart(b[i]) {
			return i
		}
	}
	return 0
}
