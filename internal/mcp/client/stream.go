package client

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
)

// stream reads server-sent events.
type stream struct {
	in    *bufio.Reader
	limit int           // bytes of one event
	last  string        // ID of the last event that had one
	kind  string        // of the last event; "" means a message
	retry time.Duration // the pause before resuming
}

func newStream(r io.Reader, limit int) *stream {
	return &stream{in: bufio.NewReaderSize(r, 64<<10), limit: limit, retry: time.Second}
}

// reset continues the stream on another connection.
func (s *stream) reset(r io.Reader) { s.in.Reset(r) }

// nextEvent returns the data of the next event, which may be empty. It returns io.EOF at the end.
func (s *stream) nextEvent() ([]byte, error) {
	var data []byte
	id, kind, seen := "", "", false
	for {
		line, err := readLine(s.in, s.limit)
		if err != nil {
			return nil, err
		}
		if len(line) == 0 {
			if id != "" {
				s.last = id
			}
			if s.kind = kind; seen {
				return data, nil
			}
			kind = ""
			continue
		}
		field, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(field) {
		case "data":
			if seen {
				data = append(data, '\n')
			}
			seen = true
			if data = append(data, value...); len(data) > s.limit {
				return nil, fmt.Errorf("the server sent an event of more than %d bytes", s.limit)
			}
		case "event":
			kind = string(value)
		case "id":
			id = string(value)
		case "retry":
			if ms, err := strconv.ParseUint(string(value), 10, 16); err == nil {
				s.retry = time.Duration(ms) * time.Millisecond
			}
		}
	}
}

// headerValue encodes a text for a header: unchanged if the header can carry it, otherwise in base64.
func headerValue(s string) string {
	plain := s == strings.TrimSpace(s) && !strings.HasPrefix(s, "=?base64?")
	for i := 0; plain && i < len(s); i++ {
		plain = s[i] >= 0x20 && s[i] < 0x7f
	}
	if plain {
		return s
	}
	return "=?base64?" + base64.StdEncoding.EncodeToString([]byte(s)) + "?="
}

// readLine reads up to a newline, at most limit bytes.
func readLine(in *bufio.Reader, limit int) ([]byte, error) {
	var line []byte
	for {
		part, err := in.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case len(line) > limit:
			return nil, fmt.Errorf("the server sent a line of more than %d bytes", limit)
		case err == nil:
			return bytes.TrimRight(line, "\r\n"), nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, err
		}
	}
}
