package socket

import (
	"context"
	"net"
	"strconv"
	"time"

	"gatehouse/internal/mcp/newline"
)

// screen refuses connections with another protocol. A page can make its browser send a request to any
// port of this machine, and without this check the lines of its body would be read as messages after
// other lines are rejected. So a connection that begins with anything else is closed.
type screen struct {
	receiver
	refuseForeign func()
	known         bool // a message has arrived: the client uses this protocol
	stranger      bool
}

// receiver is what a screen is before.
type receiver interface {
	newline.Receiver
	newline.Memory
}

// ReceiveAsync implements newline.Taker.
func (s *screen) ReceiveAsync(frame []byte) (work func()) {
	switch {
	case s.known:
	case s.stranger:
		return nil
	case foreign(frame):
		s.stranger = true
		s.refuseForeign()
		return nil
	case frame[0] == '{' || frame[0] == '[':
		s.known = true
	}
	return s.receiver.ReceiveAsync(frame)
}

// Oversized implements newline.Taker.
func (s *screen) Oversized(limit int, id []byte) {
	if !s.stranger {
		s.receiver.Oversized(limit, id)
	}
}

// foreign reports whether a line begins another protocol: the methods and headers of HTTP begin with a
// capital letter, TLS with the byte of a handshake. JSON begins with neither.
func foreign(line []byte) bool {
	return line[0] >= 'A' && line[0] <= 'Z' || line[0] == 0x16
}

const wrongProtocol = "This port serves JSON-RPC, one message per line, and not HTTP.\n"

// refuseForeign reports to a client of another protocol, in HTTP because most are HTTP clients, which
// protocol is served here, and closes the connection.
func (d *server) refuseForeign(ctx context.Context, conn net.Conn) {
	d.o.Log.WarnContext(
		ctx,
		"connection closed: the client uses another protocol, such as HTTP",
		"listener",
		conn.LocalAddr().String(),
		"from",
		conn.RemoteAddr().String(),
	)
	conn.SetWriteDeadline(time.Now().Add(refuseTime))
	conn.Write([]byte("HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\nContent-Length: " +
		strconv.Itoa(len(wrongProtocol)) + "\r\n\r\n" + wrongProtocol))
	conn.Close()
}
