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

// quiesce sends nothing, whatever runs in the sandbox, until the host sends Resume or Renew. A snapshot taken
// meanwhile contains no partial frame, because the host sends nothing else either.
func (d *server) quiesce(id uint32) error {
	d.sending.Lock()
	defer d.sending.Unlock()
	if err := agentprotocol.Write(d.out, agentprotocol.Frame{Kind: agentprotocol.Ready, ID: id}); err != nil {
		return err
	}
	return d.waitUntilReleased(true)
}

// reconnect handles the end of the channel. If another channel follows, the requests of the old one have lost
// their client.
func (d *server) reconnect(why error) error {
	if d.reopen == nil || errors.Is(why, agentprotocol.ErrBroken) {
		return why
	}
	d.sending.Lock()
	defer d.sending.Unlock()
	d.detach()
	if err := d.reopenChannel(); err != nil {
		return err
	}
	return d.waitUntilReleased(false)
}

// reopenChannel opens the channel that follows. The caller holds sending.
func (d *server) reopenChannel() error {
	channel, err := d.reopen()
	if err == nil {
		d.in, d.out = bufio.NewReaderSize(channel, chunk), channel
	}
	return err
}

// waitUntilReleased waits for the frame after which the agent may send again: a Renew, or a Resume if resumable is
// set. The caller holds sending.
func (d *server) waitUntilReleased(whole bool) error {
	for {
		f, err := agentprotocol.Read(d.in)
		switch {
		case err != nil && d.reopen != nil && !errors.Is(err, agentprotocol.ErrBroken):
			if err := d.reopenChannel(); err != nil {
				return err
			}
		case err != nil:
			return err
		case f.Kind == agentprotocol.Resume && whole:
			return correctClock(f)
		case f.Kind == agentprotocol.Renew:
			return d.renew(f)
		default:
			return fmt.Errorf("%w: unexpected frame of kind %d to a quiesced agent", agentprotocol.ErrBroken, f.Kind)
		}
	}
}

// handleRenew handles a Renew sent to an agent that was not quiesced.
func (d *server) handleRenew(f agentprotocol.Frame) error {
	d.sending.Lock()
	defer d.sending.Unlock()
	return d.renew(f)
}

// renew resets the sandbox's clock, randomness and requests. The caller holds sending.
func (d *server) renew(f agentprotocol.Frame) error {
	n, err := agentprotocol.ParseRenewal(f.Body)
	if err != nil {
		return err
	}
	d.detach()
	if err := errors.Join(setClock(n.Clock), addEntropy(n.Entropy)); err != nil {
		return agentprotocol.Write(d.out,
			agentprotocol.Frame{Kind: agentprotocol.Failed, ID: f.ID, Body: failure(err).Body()})
	}
	return agentprotocol.Write(d.out, agentprotocol.Frame{Kind: agentprotocol.Ready, ID: f.ID, Body: []byte(n.Epoch)})
}

// detach lets programs run on without a client, and cancels all other requests. The caller holds sending.
func (d *server) detach() {
	d.mu.Lock()
	left := d.open
	d.open = map[uint32]*request{}
	d.mu.Unlock()
	for _, r := range left {
		r.detached = true
		r.stdout.Unlimit()
		r.stderr.Unlimit()
		r.stdin.Close()
		if !r.survivesClient {
			r.killProcess()
		}
	}
}

// killProcess acts as if the host had sent SIGKILL.
func (r *request) killProcess() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.killed = true
	if r.signal != nil {
		r.signal(uint8(unix.SIGKILL))
	}
}

// clockTolerance is how far the clock may be off when its sandbox continues. A smaller difference may be the time that
// the frame took, and a clock that is a little late does less harm than one that is set back.
const clockTolerance = 100 * time.Millisecond

// correctClock sets the clock of a sandbox that continues, if it was stopped meanwhile.
func correctClock(f agentprotocol.Frame) error {
	now, err := agentprotocol.ParseInstant(f.Body)
	if err == nil && time.Since(now.Time).Abs() > clockTolerance {
		setClock(now.Time) // no answer is expected, and a sandbox with a wrong clock still works
	}
	return err
}

// setClock sets the clock if it is the sandbox's own.
func setClock(now time.Time) error {
	ts := unix.NsecToTimespec(now.UnixNano())
	err := unix.ClockSettime(unix.CLOCK_REALTIME, &ts)
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSYS) {
		return nil // the clock is the host's
	}
	return sysErr("clock_settime", "CLOCK_REALTIME", err)
}

// addEntropy adds random bytes to the kernel's generator. If the agent may not credit them as entropy, they are only
// mixed in.
func addEntropy(entropy string) error {
	if entropy == "" {
		return nil
	}
	fd, err := unix.Open("/dev/urandom", unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return sysErr("open", "/dev/urandom", err)
	}
	defer unix.Close(fd)
	// The structure rand_pool_info: the number of bits, the number of bytes, the bytes.
	b := binary.NativeEndian.AppendUint32(nil, uint32(len(entropy)*8))
	b = binary.NativeEndian.AppendUint32(b, uint32(len(entropy)))
	b = append(b, entropy...)
	if ioctl(fd, unix.RNDADDENTROPY, unsafe.Pointer(&b[0])) == nil {
		// Without this the kernel would reseed its generator minutes later.
		return ignore(ioctl(fd, unix.RNDRESEEDCRNG, nil), unix.EPERM, unix.EINVAL, unix.ENOTTY)
	}
	_, err = unix.Write(fd, []byte(entropy))
	return sysErr("write", "/dev/urandom", err)
}

// ignore returns nil if err is one of these errors.
func ignore(err error, these ...error) error {
	for _, e := range these {
		if errors.Is(err, e) {
			return nil
		}
	}
	return err
}
