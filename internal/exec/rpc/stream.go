package rpc

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
)

// Write sends bytes to the other side. It ends when ctx does.
type Write func(ctx context.Context, b []byte) error

// Headers returns a stream of messages that begin with a Content-Length header, as language servers use. A message has
// at most limit bytes. Close calls end.
func Headers(r io.Reader, w Write, limit int, end func() error) Stream {
	return &headers{framed{r: bufio.NewReaderSize(r, 64<<10), w: w, limit: limit, end: end}}
}

// Lines returns a stream of messages of one line each, of at most limit bytes. Close calls end.
func Lines(r io.Reader, w Write, limit int, end func() error) Stream {
	return &lines{framed{r: bufio.NewReaderSize(r, 64<<10), w: w, limit: limit, end: end}}
}

var errTooLong = errors.New("a message is longer than the limit")

type framed struct {
	r     *bufio.Reader
	w     Write
	limit int
	end   func() error
	mu    sync.Mutex // held while a message is written
}

func (f *framed) Close() error { return f.end() }

func (f *framed) write(ctx context.Context, b []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.w(ctx, b)
}

type headers struct{ framed }

func (s *headers) Write(ctx context.Context, b []byte) error {
	return s.write(ctx, append(fmt.Appendf(nil, "Content-Length: %d\r\n\r\n", len(b)), b...))
}

func (s *headers) Read() ([]byte, error) {
	size := -1
	for {
		line, err := s.r.ReadSlice('\n')
		if err != nil {
			return nil, err
		}
		text := strings.TrimRight(string(line), "\r\n")
		if text == "" {
			break
		}
		name, value, _ := strings.Cut(text, ":")
		if strings.EqualFold(name, "Content-Length") {
			if size, err = strconv.Atoi(strings.TrimSpace(value)); err != nil || size < 0 {
				return nil, fmt.Errorf("Content-Length is %q, expected a number of bytes", value)
			}
		}
	}
	switch {
	case size < 0:
		return nil, errors.New("a message has no Content-Length")
	case size > s.limit:
		return nil, fmt.Errorf("%w: %d bytes", errTooLong, size)
	}
	b := make([]byte, size)
	_, err := io.ReadFull(s.r, b)
	return b, err
}

type lines struct{ framed }

func (s *lines) Write(ctx context.Context, b []byte) error {
	return s.write(ctx, append(b[:len(b):len(b)], '\n'))
}

func (s *lines) Read() ([]byte, error) {
	for {
		var line []byte
		for {
			part, err := s.r.ReadSlice('\n')
			if line = append(line, part...); len(line) > s.limit {
				return nil, errTooLong
			}
			if err == nil {
				break
			}
			if !errors.Is(err, bufio.ErrBufferFull) {
				return nil, err
			}
		}
		if line = bytes.TrimSpace(line); len(line) > 0 {
			return line, nil
		}
	}
}
