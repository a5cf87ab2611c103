package h1

import (
	"bytes"
	nethttp "net/http"
	"net/textproto"
)

// verdict is the classification of the bytes in the buffer.
type verdict uint8

const (
	more  verdict = iota // not yet a complete request
	plain                // a complete request that this package serves
	other                // a request for net/http
)

// head is the head of a plain request.
type head struct {
	size   int // bytes, including the blank line
	length int // bytes of the body
	closes bool
	path   string
	host   string
	header nethttp.Header // without Host and Content-Length; shared with the next request if their heads are equal
}

// reader parses heads and remembers the last one, because a client repeats its head except for the
// length of the body, and the clients of a shared connection send similar heads. Its zero value is
// ready.
type reader struct {
	last     head
	raw      []byte // the last head; empty if there is none to compare with
	from, to int    // position of its Content-Length in raw
	lines    []line // its fields
	first    int    // start of the fields
}

var blankLine = []byte("\r\n\r\n")

// readRequestHead classifies the request at the beginning of b.
func (r *reader) readRequestHead(b []byte) (head, verdict) {
	h, ok := r.repeated(b)
	if !ok {
		h, ok = r.varied(b)
	}
	if !ok {
		end := bytes.Index(b[:min(len(b), largestHead)], blankLine)
		switch {
		case end < 0 && len(b) >= largestHead, !couldBePost(b):
			return head{}, other
		case end < 0:
			return head{}, more
		}
		if h, ok = r.parseHead(b[:end+len(blankLine)]); !ok {
			return head{}, other
		}
	}
	switch whole := h.size + h.length; {
	case whole > largestBytes:
		return head{}, other
	case whole > len(b):
		return head{}, more
	}
	return h, plain
}

// repeated reports whether b begins with the last head, with any length of the body.
func (r *reader) repeated(b []byte) (head, bool) {
	if len(r.raw) == 0 || len(b) < r.from || !bytes.Equal(b[:r.from], r.raw[:r.from]) {
		return head{}, false
	}
	n, digits := parseDigits(b[r.from:])
	rest := r.raw[r.to:]
	if digits == 0 || !bytes.HasPrefix(b[r.from+digits:], rest) {
		return head{}, false
	}
	h := r.last
	h.size, h.length = r.from+digits+len(rest), n
	return h, true
}

// parseDigits parses up to six digits at the beginning of b.
func parseDigits(b []byte) (n, digits int) {
	for digits < len(b) && digits < 6 && b[digits] >= '0' && b[digits] <= '9' {
		n = 10*n + int(b[digits]-'0')
		digits++
	}
	return n, digits
}

const verb = "POST "

func couldBePost(b []byte) bool {
	n := min(len(b), len(verb))
	return string(b[:n]) == verb[:n]
}

// parseHead parses a head that ends with a blank line. It returns false if the request is not plain.
func (r *reader) parseHead(raw []byte) (head, bool) {
	line, rest, _ := bytes.Cut(raw, blankLine[:2])
	path, ok := bytes.CutSuffix(line[len(verb):], []byte(" HTTP/1.1"))
	if !ok || !isPlainPath(path) {
		return head{}, false
	}
	f := fields{header: make(nethttp.Header, 12), lines: r.lines[:0]}
	first := len(raw) - len(rest)
	for {
		f.at = len(raw) - len(rest)
		line, rest, _ = bytes.Cut(rest, blankLine[:2])
		if len(line) == 0 {
			break
		}
		if !f.addField(line) {
			return head{}, false
		}
	}
	if len(rest) > 0 || f.hosts != 1 || f.length == nil {
		return head{}, false
	}
	n, digits := parseDigits(f.length)
	if digits != len(f.length) {
		return head{}, false
	}
	h := head{size: len(raw), length: n, closes: f.closes, path: string(path), host: f.host, header: f.header}
	*r = reader{
		last:  h,
		raw:   append(r.raw[:0], raw...),
		from:  f.lengthAt,
		to:    f.lengthAt + digits,
		lines: f.lines,
		first: first,
	}
	return h, true
}

// isPlainPath reports whether a path has neither escapes nor a query, so that it has only one meaning.
func isPlainPath(path []byte) bool {
	if len(path) == 0 || path[0] != '/' {
		return false
	}
	for _, c := range path {
		if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '/' || c == '-' || c == '_' ||
			c == '.') {
			return false
		}
	}
	return true
}

// fields collects the header.
type fields struct {
	header   nethttp.Header
	at       int // position of the next line in the head
	count    int
	hosts    int
	host     string
	length   []byte // the value of the only Content-Length
	lengthAt int    // its position in the head
	closes   bool
	talked   bool // a Connection field was present
	lines    []line
}

// addField adds one line and reports whether a plain request may have it.
func (f *fields) addField(text []byte) bool {
	name, value, ok := bytes.Cut(text, []byte(":"))
	value = bytes.Trim(value, " \t")
	if f.count++; !ok || f.count > mostFields || !token(name) || !printable(value) {
		return false
	}
	key := textproto.CanonicalMIMEHeaderKey(string(name))
	f.lines = append(f.lines, line{end: f.at + len(text) + len("\r\n"), colon: len(name), key: key})
	switch key {
	case "Transfer-Encoding", "Expect", "Upgrade", "Trailer", "Pragma", "Http2-Settings":
		return false // these fields change the meaning of the rest
	case "Content-Length":
		ok = f.length == nil && len(value) > 0
		f.length, f.lengthAt = value, f.at+bytes.LastIndex(text, value)
		return ok
	case "Host":
		f.hosts++
		f.host = string(value)
		return validHost(value)
	case "Connection":
		ok = !f.talked && f.persistence(value)
		f.talked = true
		f.header[key] = []string{string(value)}
		return ok
	default:
		f.header[key] = append(f.header[key], string(value))
		return true
	}
}

func (f *fields) persistence(value []byte) bool {
	f.closes = bytes.EqualFold(value, []byte("close"))
	return f.closes || bytes.EqualFold(value, []byte("keep-alive"))
}

func validHost(b []byte) bool {
	for _, c := range b {
		if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' ||
			bytes.IndexByte([]byte("-._:[]"), c) >= 0) {
			return false
		}
	}
	return len(b) > 0
}

// token reports whether b is a field name of RFC 9110, section 5.6.2.
func token(b []byte) bool {
	for _, c := range b {
		if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' ||
			bytes.IndexByte([]byte("!#$%&'*+-.^_`|~"), c) >= 0) {
			return false
		}
	}
	return len(b) > 0
}

func printable(b []byte) bool {
	for _, c := range b {
		if c != '\t' && (c < ' ' || c > '~') {
			return false
		}
	}
	return true
}
