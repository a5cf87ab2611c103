package httpserver

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"mime"
	nethttp "net/http"
	"strconv"
	"strings"
	"time"

	"gatehouse/internal/access/limit"
	"gatehouse/internal/mcp/protocol"
)

// firstRead is how much memory a body gets before anything has arrived.
const firstRead = 64 << 10

// leastBytes of a body, or its end, must arrive in each Options.BodySpan, so that a
// client which sends slowly does not hold the memory for long.
const leastBytes = 64 << 10

// readBody reads one message. The caller owns the result: the
// engine and the handlers of tools may keep it. Its bytes
// are counted as held until the request has been answered.
func (d *Server) readBody(
	w nethttp.ResponseWriter, r *nethttp.Request, who *protocol.Caller,
) ([]byte, limit.Held, *protocol.Fault) {
	most := d.opts.MaxBody
	if r.ContentLength > most {
		return nil, limit.Held{}, d.tooLarge(w)
	}
	held, err := d.opts.Bytes.AcquireWait(r.Context(), &who.Caller, firstSize(r.ContentLength), d.opts.BytesWait)
	if err != nil {
		return nil, held, d.tooBusy(w, err)
	}
	if b, ok := r.Body.(interface{ Whole() []byte }); ok {
		return bytes.Clone(b.Whole()), held, nil // it has arrived already, and is below the limit
	}
	ctl, began := nethttp.NewResponseController(w), time.Now()
	body := &steady{r: r.Body, ctl: ctl, span: d.opts.BodySpan, end: began.Add(d.opts.BodyTime)}
	body.beginSpan()
	msg, err := readAll(body, r.ContentLength, most, func(more int64) error {
		return held.GrowWait(r.Context(), more, d.opts.BytesWait)
	}, held.Shrink)
	ctl.SetReadDeadline(noLimit) // net/http continues to read, to notice that the client closes the connection
	if time.Since(began) > answerTime/2 {
		extend(w, 0) // the write deadline of a server counts from the headers
	}
	if err == nil {
		return msg, held, nil
	}
	held.Release()
	if _, busy := errors.AsType[*limit.Busy](err); busy {
		return nil, held, d.tooBusy(w, err)
	}
	if errors.Is(err, errTooLarge) {
		return nil, held, d.tooLarge(w)
	}
	w.Header().Set("Connection", "close")
	return nil, held, &protocol.Fault{Status: 400, Code: protocol.CodeParse,
		Message: fmt.Sprintf("the body could not be read completely (%d bytes arrived): %v", len(msg), err)}
}

// firstSize is how many bytes are counted before a body of n bytes is read: all of
// them, or the first of a body whose length is not known.
func firstSize(n int64) int64 {
	if n < 0 {
		return unknownSize
	}
	return n
}

// unknownSize is how much memory a body of unknown length gets first.
const unknownSize = 512

// tooBusy refuses a body for which its caller has no bytes left.
func (d *Server) tooBusy(w nethttp.ResponseWriter, err error) *protocol.Fault {
	w.Header().Set("Connection", "close")
	if busy, ok := errors.AsType[*limit.Busy](err); ok {
		w.Header().Set("Retry-After", strconv.Itoa(busy.Seconds()))
	}
	nethttp.NewResponseController(w).EnableFullDuplex() // the answer is sent before the end of the body
	return &protocol.Fault{Status: 429, Code: protocol.CodeInternal, Message: err.Error()}
}

// steady reads a body that must come at the least rate and be whole at the end.
type steady struct {
	r    io.Reader
	ctl  *nethttp.ResponseController
	span time.Duration
	end  time.Time
	came int // bytes in this span
}

func (s *steady) beginSpan() {
	s.came = 0
	deadline := time.Now().Add(s.span)
	if s.end.Before(deadline) {
		deadline = s.end
	}
	s.ctl.SetReadDeadline(deadline)
}

// Read implements io.Reader.
func (s *steady) Read(b []byte) (int, error) {
	n, err := s.r.Read(b)
	if s.came += n; s.came >= leastBytes {
		s.beginSpan()
	}
	return n, err
}

func (d *Server) tooLarge(w nethttp.ResponseWriter) *protocol.Fault {
	w.Header().Set("Connection", "close")
	nethttp.NewResponseController(w).EnableFullDuplex() // the answer comes before the end of the body
	return &protocol.Fault{Status: 413, Code: protocol.CodeInvalidRequest,
		Message: fmt.Sprintf("a message has at most %d bytes", d.opts.MaxBody)}
}

// Limits for reading from a client that sends too much, so that the client can read the refusal.
const (
	lingerTime  = 5 * time.Second
	lingerBytes = 256 << 20
)

// linger sends the answer and then reads what the client still sends, because a connection that is
// closed with unread bytes is reset, and the client would lose the answer. A client that waits for 100
// Continue sends nothing, and in HTTP/2 only the stream ends.
func linger(w nethttp.ResponseWriter, r *nethttp.Request) {
	if r.ProtoMajor != 1 || r.Header.Get("Expect") != "" {
		return
	}
	ctl := nethttp.NewResponseController(w)
	if ctl.Flush() != nil {
		return
	}
	ctl.SetReadDeadline(time.Now().Add(lingerTime))
	io.Copy(io.Discard, io.LimitReader(r.Body, lingerBytes))
}

var errTooLarge = errors.New("too large")

// readAll reads a body of n bytes, or of any number when n is negative. The memory
// for n bytes has been counted; of an unknown number, before and after are called
// with what is taken and given back.
func readAll(
	r io.Reader, n, most int64, before func(more int64) error, after func(less int64),
) ([]byte, error) {
	size := min(n, firstRead)
	if n < 0 {
		size = unknownSize
	}
	buf := make([]byte, 0, size)
	for n < 0 || int64(len(buf)) < n {
		if len(buf) == cap(buf) {
			var err error
			if buf, err = grow(buf, n, most, before, after); err != nil {
				return buf, err
			}
		}
		m, err := r.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+m]
		if int64(len(buf)) > most {
			return buf, errTooLarge
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return buf, err
		}
	}
	if int64(len(buf)) < n {
		return buf, io.ErrUnexpectedEOF
	}
	return buf, drained(r, n)
}

// drained reads the end of the body after its last byte, so that net/http can reuse the connection.
func drained(r io.Reader, n int64) error {
	if n < 0 {
		return nil
	}
	var one [1]byte
	if _, err := r.Read(one[:]); err != nil && err != io.EOF {
		return err
	}
	return nil
}

// grow enlarges a buffer: at once to a length that is known, so that a body is
// copied once, and else twofold.
func grow(
	buf []byte, n, most int64, before func(more int64) error, after func(less int64),
) ([]byte, error) {
	if n >= 0 {
		return append(make([]byte, 0, n), buf...), nil
	}
	size := min(int64(2*cap(buf)+512), most+1)
	if err := before(size); err != nil {
		return buf, err
	}
	bigger := append(make([]byte, 0, size), buf...)
	after(int64(cap(buf)))
	return bigger, nil
}

// wantJSON checks the content type; a missing one counts as JSON.
func wantJSON(h nethttp.Header) *protocol.Fault {
	v := h["Content-Type"]
	if len(v) == 0 || len(v) == 1 && (v[0] == "application/json" || v[0] == "") {
		return nil
	}
	mediaType, params, err := mime.ParseMediaType(v[0])
	charset := strings.ToLower(params["charset"])
	if len(v) == 1 && err == nil && mediaType == "application/json" && (charset == "" || charset == "utf-8") {
		return nil
	}
	return &protocol.Fault{Status: 415, Code: protocol.CodeInvalidRequest,
		Message: "Content-Type must be application/json in UTF-8, not " + clip(strings.Join(v, ", "))}
}

// accept is the parsed Accept header.
type accept struct {
	none   bool // the header is missing
	json   bool // named
	events bool // named
	any    bool // */*
}

// onlyEvents reports whether a client accepts event streams and not JSON.
func (a accept) onlyEvents() bool { return a.events && !a.json && !a.any }

// readAccept parses the Accept headers; a type with weight 0 is not accepted.
func readAccept(values []string) accept {
	if len(values) == 1 && values[0] == usualAccept {
		return accept{json: true, events: true}
	}
	a := accept{none: len(values) == 0}
	for _, v := range values {
		for part := range strings.SplitSeq(v, ",") {
			name, params, _ := strings.Cut(part, ";")
			if refused(params) {
				continue
			}
			switch strings.ToLower(strings.Trim(name, " \t")) {
			case "application/json", "application/*":
				a.json = true
			case "text/event-stream", "text/*":
				a.events = true
			case "*/*":
				a.any = true
			}
		}
	}
	return a
}

// usualAccept is the header of nearly all clients.
const usualAccept = "application/json, text/event-stream"

// refused reports whether the parameters contain a weight of 0.
func refused(params string) bool {
	for p := range strings.SplitSeq(params, ";") {
		k, v, _ := strings.Cut(strings.Trim(p, " \t"), "=")
		if strings.EqualFold(k, "q") && v != "" && strings.Trim(v, "0.") == "" {
			return true
		}
	}
	return false
}
