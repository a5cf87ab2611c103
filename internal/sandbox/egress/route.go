//go:build linux

package egress

import (
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/proxy"

	"golang.org/x/sys/unix"
)

// Resolver is the address of the resolver that a sandbox with a route has. Queries to any other address reach it too.
const Resolver = "127.0.0.1"

// routeSockets are the sockets of a route that precede its listeners: the resolver's and the one that sees attempts.
const routeSockets = 2

// Route receives the sockets of a sandbox's route from its agent, and serves them until Close. It may be called once,
// for a Server that receives listeners.
func (d *Server) Route(r sandbox.Route) error {
	if err := proxy.Check(r.Network); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return sandbox.ErrClosed
	}
	files, err := d.receiveFiles(routeSockets + len(r.Ports))
	defer func() {
		for _, f := range files {
			f.Close()
		}
	}()
	if err != nil {
		return err
	}
	o := d.options
	if r.Network.Interface != "" {
		o.Dial = proxy.DialBy(r.Network.Interface)
	}
	p := proxy.New(o)
	if err := p.Set(r.Network); err != nil {
		return errors.Join(err, p.Close())
	}
	d.routed = p
	c, err := net.FilePacketConn(files[0])
	if err != nil {
		return err
	}
	udp, ok := c.(*net.UDPConn)
	if !ok {
		c.Close()
		return errors.New("the agent sent a file that is no socket of UDP")
	}
	d.route = append(d.route, udp)
	d.serving.Go(func() { p.ServeDNS(udp) })
	if err := d.watch(p, files[1], r.Ports); err != nil {
		return err
	}
	for _, f := range files[routeSockets:] {
		l, err := listener(f)
		if err != nil {
			return err
		}
		d.route = append(d.route, l)
		d.serving.Go(func() { p.ServeRouted(l) })
	}
	return nil
}

// watch reports what the sandbox tries to reach that no socket of the host receives.
func (d *Server) watch(p *proxy.Proxy, f *os.File, ports []uint16) error {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err == nil {
		err = unix.SetNonblock(fd, true)
	}
	if err != nil {
		return fmt.Errorf("the socket of attempts: %w", err)
	}
	own := os.NewFile(uintptr(fd), "attempts")
	d.route = append(d.route, own)
	d.serving.Go(func() { p.WatchAttempts(own, ports) })
	return nil
}

// receiveFiles receives files from the agent, in one message.
func (d *Server) receiveFiles(count int) ([]*os.File, error) {
	d.side.SetReadDeadline(time.Now().Add(listenerWait))
	oob := make([]byte, unix.CmsgSpace(4*(routeSockets+sandbox.MaxRoutePorts)))
	_, n, _, _, err := d.side.ReadMsgUnix(make([]byte, 1), oob)
	if err != nil {
		return nil, fmt.Errorf("the agent sent no sockets: %w", err)
	}
	files, err := filesIn(oob[:n])
	if err == nil && len(files) != count {
		err = fmt.Errorf("the agent sent %d sockets; expected %d", len(files), count)
	}
	return files, err
}

// endRoute closes the sockets of a route and waits for what served them.
func (d *Server) endRoute() {
	for _, c := range d.route {
		c.Close()
	}
	d.serving.Wait() // before Close, so that nothing new begins
	if d.routed != nil {
		d.routed.Close()
	}
}
