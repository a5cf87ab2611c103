//go:build linux && (amd64 || arm64)

package agent

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"time"
	"unsafe"

	"gatehouse/internal/sandbox/agentprotocol"

	"golang.org/x/sys/unix"
)

// still says nothing, whatever runs in the sandbox, until the host lets it go
// on. A snapshot that is taken meanwhile holds no half of a frame, since the
// host says nothing either.
func (d *desk) still(id uint32) error {
	d.sending.Lock()
	defer d.sending.Unlock()
	if err := agentprotocol.Write(d.out, agentprotocol.Frame{Kind: agentprotocol.Ready, ID: id}); err != nil {
		return err
	}
	return d.untilTold(true)
}

// cutOff is what becomes of a channel that ended for this reason. Where another
// one follows, what was under way on the old one is nobody's any more.
func (d *desk) cutOff(why error) error {
	if d.again == nil || errors.Is(why, agentprotocol.ErrBroken) {
		return why
	}
	d.sending.Lock()
	defer d.sending.Unlock()
	d.detach()
	if err := d.next(); err != nil {
		return err
	}
	return d.untilTold(false)
}

// next takes the channel that follows. The caller holds sending.
func (d *desk) next() error {
	channel, err := d.again()
	if err == nil {
		d.in, d.out = bufio.NewReaderSize(channel, chunk), channel
	}
	return err
}

// untilTold waits for the frame after which the agent may speak again: a
// Renew, or a Go where nothing was lost. The caller holds sending.
func (d *desk) untilTold(whole bool) error {
	for {
		f, err := agentprotocol.Read(d.in)
		switch {
		case err != nil && d.again != nil && !errors.Is(err, agentprotocol.ErrBroken):
			if err := d.next(); err != nil {
				return err
			}
		case err != nil:
			return err
		case f.Kind == agentprotocol.Go && whole:
			return catchUp(f)
		case f.Kind == agentprotocol.Renew:
			return d.renew(f)
		default:
			return fmt.Errorf("%w: a frame of kind %d to an agent that is still", agentprotocol.ErrBroken, f.Kind)
		}
	}
}

// renewed is a Renew to an agent that was not still.
func (d *desk) renewed(f agentprotocol.Frame) error {
	d.sending.Lock()
	defer d.sending.Unlock()
	return d.renew(f)
}

// renew makes this another place than it was. The caller holds sending.
func (d *desk) renew(f agentprotocol.Frame) error {
	n, err := agentprotocol.ParseRenewal(f.Body)
	if err != nil {
		return err
	}
	d.detach()
	if err := errors.Join(setClock(n.Clock), stir(n.Entropy)); err != nil {
		return agentprotocol.Write(d.out, agentprotocol.Frame{Kind: agentprotocol.Failed, ID: f.ID, Body: failure(err).Body()})
	}
	return agentprotocol.Write(d.out, agentprotocol.Frame{Kind: agentprotocol.Ready, ID: f.ID, Body: []byte(n.Epoch)})
}

// detach lets programs run on by themselves, and ends everything else. The
// caller holds sending.
func (d *desk) detach() {
	d.mu.Lock()
	left := d.open
	d.open = map[uint32]*request{}
	d.mu.Unlock()
	for _, r := range left {
		r.detached = true
		r.stdout.Free()
		r.stderr.Free()
		r.stdin.End()
		if !r.stays {
			r.kill()
		}
	}
}

// kill is as if the host had sent the signal.
func (r *request) kill() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.killed = true
	if r.signal != nil {
		r.signal(uint8(unix.SIGKILL))
	}
}

// lag is how far a clock may be off when its sandbox goes on. What is less may
// be the time that the frame took, and a clock is better off than set back.
const lag = 100 * time.Millisecond

// catchUp sets the clock of a sandbox that goes on, if it stood still meanwhile.
func catchUp(f agentprotocol.Frame) error {
	now, err := agentprotocol.ParseInstant(f.Body)
	if err == nil && time.Since(now.Time).Abs() > lag {
		setClock(now.Time) // nobody waits for an answer; and a sandbox with another time goes on all the same
	}
	return err
}

// setClock sets the clock where that is the sandbox's own.
func setClock(now time.Time) error {
	ts := unix.NsecToTimespec(now.UnixNano())
	err := unix.ClockSettime(unix.CLOCK_REALTIME, &ts)
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSYS) {
		return nil // the clock is the host's
	}
	return call("clock_settime", "CLOCK_REALTIME", err)
}

// stir gives the kernel random bytes it did not have before. Where they may not
// count as such they are only mixed in.
func stir(entropy string) error {
	if entropy == "" {
		return nil
	}
	fd, err := unix.Open("/dev/urandom", unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return call("open", "/dev/urandom", err)
	}
	defer unix.Close(fd)
	// The bits, the bytes, and then the bytes themselves.
	b := binary.NativeEndian.AppendUint32(nil, uint32(len(entropy)*8))
	b = binary.NativeEndian.AppendUint32(b, uint32(len(entropy)))
	b = append(b, entropy...)
	if ioctl(fd, unix.RNDADDENTROPY, unsafe.Pointer(&b[0])) == nil {
		// It takes effect at once, and not when the kernel next thinks of it.
		return ignoring(ioctl(fd, unix.RNDRESEEDCRNG, nil), unix.EPERM, unix.EINVAL, unix.ENOTTY)
	}
	_, err = unix.Write(fd, []byte(entropy))
	return call("write", "/dev/urandom", err)
}

// ignoring is nil for these errors.
func ignoring(err error, these ...error) error {
	for _, e := range these {
		if errors.Is(err, e) {
			return nil
		}
	}
	return err
}
