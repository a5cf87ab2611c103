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
	handshake  = 5 * time.Second       // for the machine to accept a connection
	retryAfter = 10 * time.Millisecond // while it boots
	longestOK  = 32                    // bytes of the answer's line
)

// errNotAccepted is the error of a connection to a port on which nothing in the machine listens yet.
var errNotAccepted = errors.New("nothing in the machine accepts the connection")

// connectVsock requests a port of the machine from the vsock device. It closes conn on an error.
func connectVsock(ctx context.Context, conn net.Conn, port uint32) (err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, handshake,
		errors.New("the machine did not accept the connection in time"))
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
		return fmt.Errorf("%w: %w", errNotAccepted, err)
	}
	line, err := readLine(conn)
	if err != nil {
		return fmt.Errorf("%w: %w", errNotAccepted, err)
	}
	number, ok := strings.CutPrefix(line, "OK ")
	if _, err := strconv.ParseUint(number, 10, 32); err != nil || !ok {
		return fmt.Errorf("the vsock device answered %q; expected OK and a port", line)
	}
	return nil
}

// readLine reads no byte beyond the line, because the following bytes are the agent's.
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
