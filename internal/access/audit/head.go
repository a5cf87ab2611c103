package audit

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
)

// head is the file that stores where the chain ends. Every process that has written lines appends
// "number hash" to it, so that none can set it back; the highest number counts. It is written after the
// lines are durable and is not flushed separately: after a power failure it may lag behind the chain,
// but it is never ahead of it.
type head struct{ path string }

const longestHead = 64 << 10 // bytes after which the file is shortened

// addLink appends a position.
func (h head) addLink(at link) error {
	if h.path == "" {
		return nil
	}
	f, err := os.OpenFile(h.path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(record(at))
	return errors.Join(err, f.Close())
}

// createFile creates an empty head.
func (h head) createFile() error {
	f, err := os.OpenFile(h.path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	return f.Close()
}

func record(at link) []byte {
	return fmt.Appendf(nil, "%d %x\n", at.seq, at.hash)
}

// shorten replaces a long head by its last position, at, which is the end of the chain. The caller must
// keep all others from adding lines to the chain.
func (h head) shorten(at link) error {
	info, err := os.Stat(h.path)
	if h.path == "" || errors.Is(err, fs.ErrNotExist) || err == nil && info.Size() < longestHead {
		return nil
	}
	if err != nil {
		return err
	}
	next := h.path + ".new"
	if err := os.WriteFile(next, record(at), 0o600); err != nil {
		return err
	}
	return os.Rename(next, h.path)
}

// lastLink returns the last position of the head; the zero link if there is no head.
func (h head) lastLink() (last link, err error) {
	if h.path == "" {
		return last, nil
	}
	text, err := os.ReadFile(h.path)
	if errors.Is(err, fs.ErrNotExist) {
		return last, nil
	}
	if err != nil {
		return last, err
	}
	bad := 0
	for line := range bytes.Lines(text) {
		at, ok := parseRecord(line)
		switch {
		case !ok:
			bad++
		case at.seq >= last.seq:
			last = at
		}
	}
	if bad > 0 {
		return last, fmt.Errorf("%d lines of %s are damaged", bad, h.path)
	}
	return last, nil
}

func parseRecord(line []byte) (at link, ok bool) {
	digits, rest, ok := bytes.Cut(line, []byte(" "))
	if !ok || len(rest) != 2*len(at.hash)+1 || rest[len(rest)-1] != '\n' {
		return at, false
	}
	var err error
	if at.seq, err = strconv.ParseInt(string(digits), 10, 64); err != nil {
		return at, false
	}
	_, err = hex.Decode(at.hash[:], rest[:len(rest)-1])
	return at, err == nil && at.seq > 0
}
