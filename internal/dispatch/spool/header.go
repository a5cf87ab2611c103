package spool

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime"
	"strings"
	"time"
)

const maxHeader = 16 << 10 // bytes, the line end included

// header is the first line of an item's file. It is written when the item is created and again, with the same
// length, when it is closed.
type header struct {
	Owner   string `json:"owner"`
	MIME    string `json:"mime"`
	Created int64  `json:"created"` // milliseconds since 1970, as the next
	Expires int64  `json:"expires"`
	Dropped int64  `json:"dropped"` // bytes
	Closed  bool   `json:"closed"`
}

// encodeFirst encodes the line with space for larger numbers later.
func (h header) encodeFirst() []byte {
	const space = 40 // digits that expires and dropped may grow by
	b, err := json.Marshal(h)
	if err != nil {
		panic(err) // strings and numbers always encode
	}
	return h.again(int64(len(b)) + space)
}

// again encodes the line with a length of n bytes.
func (h header) again(n int64) []byte {
	b, err := json.Marshal(h)
	if err != nil {
		panic(err)
	}
	b = append(b, bytes.Repeat([]byte(" "), max(0, int(n)-len(b)-1))...)
	return append(b, '\n')
}

// parseHeader reads the line and returns its length.
func parseHeader(r io.Reader) (h header, n int64, err error) {
	line, err := bufio.NewReaderSize(io.LimitReader(r, maxHeader), maxHeader).ReadSlice('\n')
	if err != nil {
		return h, 0, errors.New("no header line")
	}
	d := json.NewDecoder(bytes.NewReader(line))
	d.DisallowUnknownFields()
	if err := d.Decode(&h); err != nil {
		return h, 0, errors.New("not a header line")
	}
	if len(h.Owner) > maxOwner || len(h.MIME) > maxMIME || h.Dropped < 0 {
		return h, 0, errors.New("a header line out of limits")
	}
	return h, int64(len(line)), nil
}

// recover adds the items that an earlier host has left. Files that it cannot read stay, because they may belong to
// another program.
func (s *Spool) recover() error {
	dir, err := s.root.Open(".")
	if err != nil {
		return err
	}
	defer dir.Close()
	for {
		list, err := dir.ReadDir(256)
		for _, e := range list {
			s.recoverOne(e)
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (s *Spool) recoverOne(e fs.DirEntry) {
	handle, ours := strings.CutSuffix(e.Name(), suffix)
	if !ours || !goodHandle(handle) || !e.Type().IsRegular() {
		return
	}
	it, err := s.readItem(handle)
	if err != nil {
		s.o.Log.Warn("a file in the spool is not an item", "file", e.Name(), "error", err)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.items[handle] = it
	s.refundBytes(it, itemCost+it.size) // even above the limits, because it exists
}

func (s *Spool) readItem(handle string) (*item, error) {
	f, err := s.root.Open(handle + suffix)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if m := info.Mode(); !m.IsRegular() || m.Perm()&0o077 != 0 && runtime.GOOS != "windows" {
		return nil, fmt.Errorf("mode %v is not that of an item", m)
	}
	return itemOf(handle, f, info, s.o.Keep)
}

func itemOf(handle string, f *os.File, info fs.FileInfo, keep time.Duration) (*item, error) {
	h, n, err := parseHeader(f)
	if err != nil {
		return nil, err
	}
	it := &item{
		handle: handle, owner: h.Owner, mime: h.MIME, created: time.UnixMilli(h.Created),
		head: n, size: info.Size() - n, dropped: h.Dropped, expires: time.UnixMilli(h.Expires),
	}
	if !h.Closed { // its host ended first; the last write counts as the end
		it.expires = info.ModTime().Add(keep)
	}
	return it, nil
}
