// Package load speaks to the subjects with as little effort as can be: one
// request at a time on a connection of its own, answers read in place and
// looked at, nothing allocated per call.
package load

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"
)

// patience is how long any one answer may take.
const patience = 30 * time.Second

// Client is one keep-alive connection. Not safe for concurrent use.
type Client struct {
	conn net.Conn
	buf  []byte
	r, w int // what has been read and not yet used is buf[r:w]
	long int // answers until the deadline is moved
}

// Dial connects to host:port.
func Dial(addr string) (*Client, error) { return dial("tcp", addr) }

func dial(network, addr string) (*Client, error) {
	conn, err := net.DialTimeout(network, addr, patience)
	if err != nil {
		return nil, err
	}
	return &Client{conn: conn, buf: make([]byte, 4<<10)}, nil
}

// Close closes the connection.
func (c *Client) Close() error { return c.conn.Close() }

// Answer is a response; it belongs to the client and is overwritten by the
// next one.
type Answer struct {
	Status int
	Head   []byte // status line and headers
	Body   []byte
}

// Header is the value of a response header, spelled as net/http does or in lower case.
func (a Answer) Header(name string) string {
	_, rest, ok := bytes.Cut(a.Head, []byte("\r\n"+name+": "))
	if !ok {
		_, rest, ok = bytes.Cut(a.Head, []byte("\r\n"+strings.ToLower(name)+": "))
	}
	if !ok {
		return ""
	}
	value, _, _ := bytes.Cut(rest, []byte("\r\n"))
	return string(value)
}

// Do sends a request and reads its whole answer.
func (c *Client) Do(request []byte) (Answer, error) {
	if err := c.send(request); err != nil {
		return Answer{}, err
	}
	a, length, err := c.head()
	if err != nil {
		return a, err
	}
	if length >= 0 {
		return c.sized(a, length)
	}
	return c.chunked(a)
}

// send writes a request. The deadline is moved now and then: setting it costs
// as much as a small write.
func (c *Client) send(request []byte) error {
	if c.long--; c.long <= 0 {
		c.long = 256
		c.conn.SetDeadline(time.Now().Add(patience))
	}
	_, err := c.conn.Write(request)
	return err
}

var (
	headEnd  = []byte("\r\n\r\n")
	lengthIs = []byte("\r\nContent-Length: ")
	isChunks = []byte("\r\nTransfer-Encoding: chunked")

	// As servers that are not written in Go spell them.
	lengthIsLow = bytes.ToLower(lengthIs)
	isChunksLow = bytes.ToLower(isChunks)
)

// head reads up to the end of the headers. length is -1 when the body comes in
// chunks.
func (c *Client) head() (a Answer, length int, err error) {
	from := 0
	for {
		if i := bytes.Index(c.buf[c.r+from:c.w], headEnd); i >= 0 {
			a.Head = c.buf[c.r : c.r+from+i+2]
			c.r += from + i + 4
			break
		}
		from = max(0, c.w-c.r-3)
		if err := c.fill(); err != nil {
			return a, 0, err
		}
	}
	if len(a.Head) < 12 {
		return a, 0, fmt.Errorf("no status line: %q", a.Head)
	}
	a.Status, _ = strconv.Atoi(string(a.Head[9:12]))
	i := bytes.Index(a.Head, lengthIs)
	if i < 0 {
		i = bytes.Index(a.Head, lengthIsLow)
	}
	if i >= 0 {
		for _, d := range a.Head[i+len(lengthIs):] {
			if d < '0' || d > '9' {
				break
			}
			length = 10*length + int(d-'0')
		}
		return a, length, nil
	}
	if bytes.Contains(a.Head, isChunks) || bytes.Contains(a.Head, isChunksLow) {
		return a, -1, nil
	}
	return a, 0, nil // such as 202
}

// fill reads more. Positions relative to c.r stay what they were, and so does
// what was handed out: a full buffer is replaced, not moved.
func (c *Client) fill() error {
	if c.w == len(c.buf) {
		size := len(c.buf)
		if c.w-c.r > size/2 {
			size *= 2
		}
		fresh := make([]byte, size)
		c.w = copy(fresh, c.buf[c.r:c.w])
		c.buf, c.r = fresh, 0
	}
	n, err := c.conn.Read(c.buf[c.w:])
	c.w += n
	if n > 0 {
		return nil
	}
	return err
}

func (c *Client) sized(a Answer, length int) (Answer, error) {
	for c.w-c.r < length {
		if err := c.fill(); err != nil {
			return a, err
		}
	}
	a.Body = c.buf[c.r : c.r+length]
	c.r += length
	c.rewind()
	return a, nil
}

// rewind starts the buffer again when nothing is left in it. What was handed
// out stays until the next answer is read.
func (c *Client) rewind() {
	if c.r == c.w {
		c.r, c.w = 0, 0
	}
}

var errChunk = errors.New("malformed chunk")

// chunked joins the chunks of a body.
func (c *Client) chunked(a Answer) (Answer, error) {
	err := c.chunks(func(part []byte) error {
		a.Body = append(a.Body, part...)
		return nil
	})
	return a, err
}

// chunks hands over one chunk after the other.
func (c *Client) chunks(take func([]byte) error) error {
	for {
		part, err := c.chunk()
		if err != nil {
			return err
		}
		if part == nil {
			c.rewind()
			return nil
		}
		if err := take(part); err != nil {
			return err
		}
	}
}

// Follow sends a request and hands over its answer piece by piece as it
// comes. wait is called when the headers are there and before anything else
// is read.
func (c *Client) Follow(request []byte, wait func(), take func(part []byte) error) error {
	if err := c.send(request); err != nil {
		return err
	}
	a, length, err := c.head()
	if err != nil {
		return err
	}
	if a.Status != 200 || length >= 0 {
		return fmt.Errorf("no stream: %s", a.Head)
	}
	wait()
	c.conn.SetDeadline(time.Now().Add(2 * patience))
	c.long = 0
	return c.chunks(take)
}

// chunk reads one chunk; nil is the last.
func (c *Client) chunk() ([]byte, error) {
	for {
		i := bytes.IndexByte(c.buf[c.r:c.w], '\n')
		if i < 1 {
			if err := c.fill(); err != nil {
				return nil, err
			}
			continue
		}
		n, err := strconv.ParseUint(string(c.buf[c.r:c.r+i-1]), 16, 31)
		if err != nil {
			return nil, errChunk
		}
		size := int(n)
		for c.w-c.r < i+1+size+2 {
			if err := c.fill(); err != nil {
				return nil, err
			}
		}
		part := c.buf[c.r+i+1 : c.r+i+1+size]
		c.r += i + 1 + size + 2
		if size == 0 {
			return nil, nil
		}
		return part, nil
	}
}
