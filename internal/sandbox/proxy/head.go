package proxy

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"strings"
)

const mostFields = 200 // fields in a request's head

// head is the head of a request. It is parsed so strictly that no later reader can interpret it differently.
type head struct {
	method, target string
	minor          int    // of HTTP/1.minor
	host           string // the Host field
	hasHost        bool
	body           bool // a body is announced
}

// malformed is the error for a request that cannot be parsed, with its HTTP status.
type malformed struct {
	status int
	reason string
}

func (u *malformed) Error() string { return u.reason }

func badRequest(format string, args ...any) error {
	return &malformed{http.StatusBadRequest, fmt.Sprintf(format, args...)}
}

// peekHead waits for a whole head without consuming it.
func peekHead(in *bufio.Reader, most int) ([]byte, error) {
	for n := 1; ; n = in.Buffered() + 1 {
		if n > most {
			return nil, &malformed{http.StatusRequestHeaderFieldsTooLarge,
				fmt.Sprintf("the head of the request is longer than %d bytes", most)}
		}
		if _, err := in.Peek(n); err != nil {
			return nil, err
		}
		b, err := in.Peek(in.Buffered())
		if err != nil {
			return nil, err
		}
		if i := bytes.Index(b, []byte("\r\n\r\n")); i >= 0 {
			return b[:i+4], nil
		}
		if i := bytes.IndexByte(b, '\n'); i == 0 || i > 0 && b[i-1] != '\r' {
			return nil, badRequest("a line of the request does not end in CR LF")
		}
	}
}

// parseHead parses a head that ends in an empty line.
func parseHead(b []byte) (head, error) {
	text := strings.TrimSuffix(string(b), "\r\n\r\n")
	for i, c := range []byte(text) {
		switch {
		case c == '\r' && i+1 < len(text) && text[i+1] == '\n', c == '\n' && i > 0 && text[i-1] == '\r', c == '\t':
		case c < 0x20 || c == 0x7f:
			return head{}, badRequest("the head of the request has the control byte %#02x", c)
		}
	}
	first, rest, more := strings.Cut(text, "\r\n")
	h, err := parseLine(first)
	if err != nil || !more {
		return h, errors.Join(err, h.needHost())
	}
	seen := fields{}
	for n := range strings.SplitSeq(rest, "\r\n") {
		if err := seen.addField(n); err != nil {
			return h, err
		}
	}
	h.host, h.hasHost = seen.host, seen.hosts == 1
	h.body = seen.lengths+seen.codings > 0
	return h, errors.Join(seen.checkFraming(h.minor), h.needHost())
}

func (h head) needHost() error {
	if h.minor >= 1 && !h.hasHost {
		return badRequest("the request has no Host")
	}
	return nil
}

func parseLine(line string) (h head, err error) {
	parts := strings.Split(line, " ")
	if len(parts) != 3 {
		return h, badRequest("the first line of the request is malformed: expected a method, a target and a " +
			"version, separated by single spaces")
	}
	h.method, h.target = parts[0], parts[1]
	switch parts[2] {
	case "HTTP/1.1":
		h.minor = 1
	case "HTTP/1.0":
	default:
		return h, &malformed{http.StatusHTTPVersionNotSupported, "the proxy supports only HTTP/1.1 and HTTP/1.0"}
	}
	if !isToken(h.method) {
		return h, badRequest("%q is not a method", printable(h.method))
	}
	if h.target == "" || !visible(h.target) {
		return h, badRequest("the target of the request has bytes that are not allowed")
	}
	return h, nil
}

// fields counts the fields of a head that matter.
type fields struct {
	count, hosts, lengths, codings int
	host, coding                   string
}

func (f *fields) addField(line string) error {
	if f.count++; f.count > mostFields {
		return &malformed{http.StatusRequestHeaderFieldsTooLarge,
			fmt.Sprintf("the request has more than %d fields", mostFields)}
	}
	name, value, ok := strings.Cut(line, ":")
	if !ok || !isToken(name) {
		return badRequest("a line of the head is not a field, or is a continuation line")
	}
	value = strings.Trim(value, " \t")
	switch strings.ToLower(name) {
	case "host":
		f.hosts++
		f.host = value
	case "content-length":
		f.lengths++
		if value == "" || len(value) > 18 || strings.Trim(value, "0123456789") != "" {
			return badRequest("the Content-Length is not a number")
		}
	case "transfer-encoding":
		f.codings++
		f.coding = strings.ToLower(value)
	}
	return nil
}

func (f *fields) checkFraming(minor int) error {
	switch {
	case f.hosts > 1:
		return badRequest("the request has more than one Host")
	case f.lengths > 1 || f.codings > 1 || f.lengths+f.codings > 1:
		return badRequest("the length of the request is given more than once")
	case f.codings == 1 && (f.coding != "chunked" || minor == 0):
		return badRequest("the only supported Transfer-Encoding is chunked")
	}
	return nil
}

func isToken(s string) bool {
	if s == "" {
		return false
	}
	for _, c := range []byte(s) {
		if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' ||
			strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0) {
			return false
		}
	}
	return true
}

func visible(s string) bool {
	for _, c := range []byte(s) {
		if c <= 0x20 || c >= 0x7f {
			return false
		}
	}
	return true
}
