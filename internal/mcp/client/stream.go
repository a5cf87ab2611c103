package client

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
)

// stream reads server-sent events.
type stream struct {
	in    *bufio.Reader
	last  string        // id of the last event that had one
	retry time.Duration // the pause before asking again
}

func newStream(r io.Reader) *stream {
	return &stream{in: bufio.NewReaderSize(r, 64<<10), retry: time.Second}
}

// reset continues with the same events on another connection.
func (s *stream) reset(r io.Reader) { s.in.Reset(r) }

// nextEvent is the data of the next event; it may be empty. io.EOF is the end.
func (s *stream) nextEvent() ([]byte, error) {
	var data []byte
	id, seen := "", false
	for {
		line, err := readLine(s.in, answerLimit)
		if err != nil {
			return nil, err
		}
		if len(line) == 0 {
			if id != "" {
				s.last = id
			}
			if seen {
				return data, nil
			}
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
			if data = append(data, value...); len(data) > answerLimit {
				return nil, fmt.Errorf("the server sent an event of more than %d bytes", answerLimit)
			}
		case "id":
			id = string(value)
		case "retry":
			if ms, err := strconv.ParseUint(string(value), 10, 16); err == nil {
				s.retry = time.Duration(ms) * time.Millisecond
			}
		}
	}
}

// headerValue puts a text into a header: as it is when it survives that, and
// in base64 otherwise.
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
