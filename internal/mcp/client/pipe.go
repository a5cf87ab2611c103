package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"time"
)

// DialUnix connects to a host's Unix socket.
func DialUnix(ctx context.Context, path string, o Options) (*Client, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return nil, &ConnectError{path, err}
	}
	return Over(ctx, path, conn, o)
}

// DialTCP connects to a host's TCP listener, by a URL as the host prints it:
// tcp://127.0.0.1:9100.
func DialTCP(ctx context.Context, address string, o Options) (*Client, error) {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "tcp" || u.Port() == "" || u.Path != "" {
		return nil, &ConnectError{address, errors.New("expected a URL such as tcp://127.0.0.1:9100")}
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", u.Host)
	if err != nil {
		return nil, &ConnectError{address, err}
	}
	return Over(ctx, address, conn, o)
}

// Over speaks newline-framed messages over a connection, which it closes. to
// names the other end in errors.
func Over(ctx context.Context, to string, conn net.Conn, o Options) (*Client, error) {
	return connectWire(ctx, to, &lineWire{conn: conn, in: bufio.NewReaderSize(conn, 64<<10)}, o)
}

// lineWire is a wire of lines.
type lineWire struct {
	conn   net.Conn
	in     *bufio.Reader
	broken bool // the connection is of no more use
}

var _ wire = (*lineWire)(nil)

func (p *lineWire) alive(error) bool { return !p.broken }
func (p *lineWire) closeWire() error { return p.conn.Close() }
func (p *lineWire) headerless() bool { return true }

func (p *lineWire) notify(ctx context.Context, _ string, msg []byte) error {
	return p.send(ctx, msg)
}

// send writes one line. It fails when ctx is done or the peer does not read.
func (p *lineWire) send(ctx context.Context, msg []byte) error {
	p.conn.SetWriteDeadline(time.Now().Add(time.Minute))
	stop := context.AfterFunc(ctx, func() { p.conn.SetWriteDeadline(time.Now()) })
	defer stop()
	_, err := p.conn.Write(append(bytes.Clone(msg), '\n'))
	if err != nil {
		p.broken = true
	}
	return err
}

func (p *lineWire) exchange(ctx context.Context, r request, aside func(message) []byte) (message, error) {
	if err := p.send(ctx, r.body); err != nil {
		return message{}, err
	}
	p.conn.SetReadDeadline(time.Time{})
	stop := context.AfterFunc(ctx, func() { p.conn.SetReadDeadline(time.Now()) })
	defer stop()
	for {
		m, err := p.receive()
		if err != nil {
			if ctx.Err() != nil {
				p.cancel(ctx, r)
				return message{}, context.Cause(ctx)
			}
			p.broken = true
			return message{}, err
		}
		if m.answers(r.id) {
			return m, nil
		}
		if reply := aside(m); reply != nil {
			if err := p.send(ctx, reply); err != nil {
				return message{}, err
			}
		}
	}
}

// cancel tells the server that the caller no longer waits. What still arrives
// for the request is passed over by id.
func (p *lineWire) cancel(ctx context.Context, r request) {
	ctx, done := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer done()
	p.send(
		ctx,
		fmt.Appendf(nil, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%d}}`, r.id),
	)
}

// receive reads the next message.
func (p *lineWire) receive() (m message, err error) {
	line, err := readLine(p.in, answerLimit)
	if err != nil {
		if errors.Is(err, io.EOF) {
			err = errors.New("the server closed the connection")
		}
		return m, err
	}
	if err := json.Unmarshal(line, &m); err != nil {
		return m, fmt.Errorf("the server sent something that is no message: %w", err)
	}
	return m, nil
}

// readLine reads up to a newline, at most limit bytes.
func readLine(in *bufio.Reader, limit int) ([]byte, error) {
	var line []byte
	for {
		part, err := in.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case len(line) > limit:
			return nil, fmt.Errorf("the server sent a message of more than %d bytes", limit)
		case err == nil:
			return bytes.TrimRight(line, "\r\n"), nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, err
		}
	}
}
