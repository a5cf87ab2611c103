package nodebus

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"time"

	"gatehouse/internal/cluster"
	"gatehouse/internal/dispatch/bus"
	"gatehouse/tool"
)

// FrameService is the name of the streams that carry calls as frames: the length of the rest in four bytes, a kind, and
// a body. A stream carries one call at a time: a frame with the request, and then frames with notes, of which the last
// has the outcome. What most calls have is encoded as lengths and bytes, because JSON takes longer than all else; the
// rest is JSON, so that a field that is added here or there is carried without a change. If what is encoded as bytes
// changes, the name must: nodes that do not know it get calls over HTTP.
const FrameService = "frames1"

// Kinds of frames.
const (
	frameCall    = 'c'
	frameNote    = 'n' // the body is a line, as over HTTP
	frameOutcome = 'o'
	frameError   = 'e' // the body is an end
	frameFormat  = 'f' // the call has a newer format, which the body says; it was not run
)

const (
	frameHead  = 5
	largeFrame = 64 << 10 // the buffer of a longer one is not kept
	// mostFrame bounds a frame. Longer calls are sent over HTTP; a longer outcome is an error.
	mostFrame = 256 << 20
)

var errFrame = errors.New("a frame is not whole")

// beginFrame appends the head of a frame to b, which must be empty. endFrame sets its length.
func beginFrame(b []byte, kind byte) []byte { return append(b, 0, 0, 0, 0, kind) }

func endFrame(b []byte) []byte {
	binary.BigEndian.PutUint32(b, uint32(len(b)-4))
	return b
}

// readFrame returns the next frame. The caller owns its body.
func readFrame(r *bufio.Reader) (kind byte, body []byte, err error) {
	head, err := r.Peek(frameHead)
	if err != nil {
		return 0, nil, err
	}
	size := binary.BigEndian.Uint32(head)
	if size < 1 || size > mostFrame {
		return 0, nil, fmt.Errorf("a frame of %d bytes", size)
	}
	kind = head[4]
	r.Discard(frameHead)
	if size <= largeFrame {
		body = make([]byte, size-1)
		_, err = io.ReadFull(r, body)
		return kind, body, err
	}
	body, err = io.ReadAll(io.LimitReader(r, int64(size)-1)) // which grows with what has come
	if err == nil && len(body) < int(size)-1 {
		err = io.ErrUnexpectedEOF
	}
	return kind, body, err
}

func appendText[T string | []byte](b []byte, s T) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

func appendTexts(b []byte, all []string) []byte {
	b = binary.AppendUvarint(b, uint64(len(all)))
	for _, s := range all {
		b = appendText(b, s)
	}
	return b
}

// appendRest appends a value as JSON, or nothing if it is zero.
func appendRest[T any](b []byte, v *T) ([]byte, error) {
	if reflect.ValueOf(v).Elem().IsZero() {
		return appendText(b, ""), nil
	}
	raw, err := encode(v)
	return appendText(b, raw), err
}

// cutter reads what was appended. After an error all it reads is zero.
type cutter struct {
	b   []byte
	err error
}

func (c *cutter) number() uint64 {
	v, n := binary.Uvarint(c.b)
	if n <= 0 {
		c.b, c.err = nil, errFrame
		return 0
	}
	c.b = c.b[n:]
	return v
}

// bytes returns a part of the frame; nil if it is empty.
func (c *cutter) bytes() []byte {
	n := c.number()
	if n > uint64(len(c.b)) {
		c.b, c.err = nil, errFrame
		return nil
	}
	if n == 0 {
		return nil
	}
	s := c.b[:n:n]
	c.b = c.b[n:]
	return s
}

func (c *cutter) text() string { return string(c.bytes()) }

func (c *cutter) texts() (all []string) {
	n := c.number()
	if n > uint64(len(c.b)) { // each has a length
		c.b, c.err = nil, errFrame
		return nil
	}
	for range n {
		all = append(all, c.text())
	}
	return all
}

func (c *cutter) rest(v any) {
	if raw := c.bytes(); raw != nil && c.err == nil {
		c.err = json.Unmarshal(raw, v)
	}
}

// requestTexts returns the fields of a request that are encoded as text.
func requestTexts(r *bus.Request) [8]*string {
	return [...]*string{&r.Call, &r.Module, &r.Node, &r.Method, &r.Name, &r.Entry, &r.Logs, &r.Task}
}

func callerTexts(c *tool.Caller) [10]*string {
	return [...]*string{
		&c.Principal, &c.ID, &c.Context, &c.Owner, &c.Session, &c.Connection, &c.Wire, &c.Client, &c.Credential, &c.Trace,
	}
}

func requestBytes(r *bus.Request) [3]*[]byte {
	return [...]*[]byte{(*[]byte)(&r.Args), (*[]byte)(&r.Params), &r.State}
}

func callerLists(c *tool.Caller) [3]*[]string { return [...]*[]string{&c.Roles, &c.Scopes, &c.Folders} }

// appendCall appends a request and its caller: first as JSON what is not encoded as bytes.
func appendCall(b []byte, r *bus.Request, who *tool.Caller) ([]byte, error) {
	b = binary.AppendUvarint(b, cluster.Format)
	rest, restWho := *r, *who
	for _, s := range requestTexts(&rest) {
		*s = ""
	}
	for _, s := range callerTexts(&restWho) {
		*s = ""
	}
	for _, s := range requestBytes(&rest) {
		*s = nil
	}
	for _, s := range callerLists(&restWho) {
		*s = nil
	}
	rest.Caller, rest.Left, restWho.Can, restWho.Local = nil, 0, 0, false
	b, err := appendRest(b, &rest)
	if err == nil {
		b, err = appendRest(b, &restWho)
	}
	if err != nil {
		return nil, err
	}
	for _, s := range requestTexts(r) {
		b = appendText(b, *s)
	}
	for _, s := range callerTexts(who) {
		b = appendText(b, *s)
	}
	for _, s := range requestBytes(r) {
		b = appendText(b, *s)
	}
	for _, s := range callerLists(who) {
		b = appendTexts(b, *s)
	}
	local := uint64(0)
	if who.Local {
		local = 1
	}
	b = binary.AppendUvarint(b, local)
	b = binary.AppendUvarint(b, uint64(who.Can))
	return binary.AppendUvarint(b, uint64(max(r.Left, 0))), nil
}

// readCall returns the request of a frame, and the format that it says.
func readCall(body []byte) (r *bus.Request, format int, err error) {
	c := &cutter{b: body}
	if format = int(c.number()); c.err == nil && format > cluster.Format {
		return nil, format, nil
	}
	r, who := &bus.Request{}, &tool.Caller{}
	c.rest(r)
	c.rest(who)
	r.Caller = who
	for _, s := range requestTexts(r) {
		*s = c.text()
	}
	for _, s := range callerTexts(who) {
		*s = c.text()
	}
	for _, s := range requestBytes(r) {
		*s = c.bytes()
	}
	for _, s := range callerLists(who) {
		*s = c.texts()
	}
	who.Local = c.number() == 1
	who.Can = tool.Abilities(c.number())
	r.Left = time.Duration(c.number())
	return r, format, c.err
}

// appendOutcome appends an outcome.
func appendOutcome(b []byte, out bus.Outcome) ([]byte, error) {
	var structured []byte
	switch v := out.Result.Structured.(type) {
	case nil:
	case json.RawMessage:
		structured = v
	default:
		var err error
		if structured, err = encode(v); err != nil {
			return nil, err
		}
	}
	b = appendText(b, structured)
	out.Result.Structured = nil
	if plainTexts(out.Result.Content) {
		b = binary.AppendUvarint(b, uint64(len(out.Result.Content)))
		for i := range out.Result.Content {
			b = appendText(b, out.Result.Content[i].Text)
		}
		out.Result.Content = nil
	} else {
		b = binary.AppendUvarint(b, 0)
	}
	return appendRest(b, &out)
}

// plainTexts reports whether blocks are texts without anything else.
func plainTexts(blocks []tool.Content) bool {
	for _, c := range blocks {
		text := c.Type == "text"
		c.Type, c.Text = "", ""
		if !text || !reflect.ValueOf(&c).Elem().IsZero() {
			return false
		}
	}
	return true
}

func readOutcome(body []byte) (out bus.Outcome, err error) {
	c := &cutter{b: body}
	structured := c.bytes()
	for _, text := range c.texts() {
		out.Result.Content = append(out.Result.Content, tool.Text(text))
	}
	c.rest(&out)
	if structured != nil {
		out.Result.Structured = json.RawMessage(structured)
	}
	return out, c.err
}
