//go:build linux && (amd64 || arm64)

package firecracker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"
)

const (
	handshake  = 5 * time.Second       // for the machine to take a connection
	retryAfter = 10 * time.Millisecond // while it boots
	longestOK  = 32                    // bytes of the line that answers
)

// errNotTaken is what a connection ends with to whose port nobody listens in the
// machine yet.
var errNotTaken = errors.New("nobody in the machine takes the connection")

// connect asks the socket device for a port of the machine. conn is closed when
// it fails.
func connect(ctx context.Context, conn net.Conn, port uint32) (err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, handshake, errors.New("the machine does not answer the connection"))
	defer cancel()
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	defer func() {
		if !stop() {
			err = context.Cause(ctx)
		}
		if err != nil {
			conn.Close()
		}
	}()
	if _, err := fmt.Fprintf(conn, "CONNECT %d\n", port); err != nil {
		return fmt.Errorf("%w: %w", errNotTaken, err)
	}
	line, err := readLine(conn)
	if err != nil {
		return fmt.Errorf("%w: %w", errNotTaken, err)
	}
	number, ok := strings.CutPrefix(line, "OK ")
	if _, err := strconv.ParseUint(number, 10, 32); err != nil || !ok {
		return fmt.Errorf("the socket device answered %q, where OK and a port were due", line)
	}
	return nil
}

// readLine reads no byte more than the line, since those after it are the
// agent's.
func readLine(r io.Reader) (string, error) {
	var line []byte
	for b := make([]byte, 1); len(line) < longestOK; line = append(line, b[0]) {
		if _, err := io.ReadFull(r, b); err != nil {
			return "", err
		}
		if b[0] == '\n' {
			return string(line), nil
		}
	}
	return "", errors.New("the line is too long")
}
