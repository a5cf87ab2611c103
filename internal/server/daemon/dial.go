package daemon

import (
	"context"
	"fmt"
	"net"
	"os"
	"time"

	"gatehouse/internal/files/filelock"
	"gatehouse/internal/server/socket"
)

// greetTime is how long a daemon may take to answer a greeting.
const greetTime = 5 * time.Second

// turnMost is how long Turn waits. After it the caller continues without the turn, because the PID file
// still lets only one daemon run.
const turnMost = time.Minute

// Ask returns the description of the daemon at a socket.
func Ask(ctx context.Context, path string) (About, error) {
	c, err := dialSocket(ctx, path)
	if err != nil {
		return About{}, err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	return Greet(c, "", false, Work{}, greetTime)
}

// Dial connects to the daemon at a socket, for a program of that build whose client works in these
// folders. If the error is ErrRefused, About describes the daemon that refused.
func Dial(ctx context.Context, path, build string, work Work) (net.Conn, About, error) {
	return openLink(ctx, path, greeting{Build: build, Talk: true, Work: work})
}

// DialPlain is Dial for a command of any build that exchanges a few messages and uses no further line
// of the link.
func DialPlain(ctx context.Context, path string, work Work) (net.Conn, About, error) {
	return openLink(ctx, path, greeting{Talk: true, Plain: true, Work: work})
}

func openLink(ctx context.Context, path string, g greeting) (net.Conn, About, error) {
	c, err := dialSocket(ctx, path)
	if err != nil {
		return nil, About{}, err
	}
	stop := context.AfterFunc(ctx, func() { c.Close() })
	about, err := greet(c, g, greetTime)
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		c.Close()
		return nil, about, err
	}
	return c, about, nil
}

// dialSocket connects to a socket, unless it belongs to another user.
func dialSocket(ctx context.Context, path string) (net.Conn, error) {
	d := net.Dialer{Timeout: greetTime}
	c, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	if uid, known := socket.PeerUID(c); known && uid != 0 && int64(uid) != int64(os.Getuid()) {
		c.Close()
		return nil, fmt.Errorf(
			"user %d listens at %s, not this one; set GATEHOUSE_RUNTIME_DIR to a folder of your own",
			uid,
			path,
		)
	}
	return c, nil
}

// Turn waits until no other process starts a daemon, so that several processes that find none start
// only one. release ends the turn.
func Turn(ctx context.Context, path string) (release func(), err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("wait for the turn to start a daemon: %w", err)
	}
	late, cancel := context.WithTimeout(ctx, turnMost)
	defer cancel()
	err = filelock.WaitOpen(late, f, filelock.Exclusive)
	if err != nil && (ctx.Err() != nil || late.Err() == nil) {
		f.Close()
		return nil, fmt.Errorf("wait for the turn to start a daemon: %w", err)
	}
	return func() { f.Close() }, nil
}
