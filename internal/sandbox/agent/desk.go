//go:build linux && (amd64 || arm64)

package agent

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	"gatehouse/internal/sandbox/agentprotocol"

	"golang.org/x/sys/unix"
)

// mostRequests is how many requests may be under way. The host numbers them.
const mostRequests = 256

// A desk takes the host's requests and answers them.
type desk struct {
	in    io.Reader                     // of the goroutine that runs it
	again func() (io.ReadWriter, error) // the channel after one that ended; nil where none follows

	// sending keeps frames apart. It is another lock than mu, because a write may wait for the
	// host.
	sending sync.Mutex
	out     io.Writer

	stages atomic.Uint32 // that were started

	// mu guards what follows.
	mu   sync.Mutex
	plan agentprotocol.Plan
	open map[uint32]*request
}

// request is what is under way under one number. What it does not use is nil.
type request struct {
	id     uint32
	desk   *desk
	stdin  *agentprotocol.Inbox
	stdout *agentprotocol.Allowance
	stderr *agentprotocol.Allowance
	stays  bool // it runs on when nobody waits for it any more

	detached bool // nobody waits; guarded by the desk's sending

	mu      sync.Mutex // of what comes to be while it is under way
	signal  func(number uint8)
	resize  func(agentprotocol.Size)
	killed  bool
	listens *listener // of a Listen
}

func newDesk(plan agentprotocol.Plan, channel io.ReadWriter, again func() (io.ReadWriter, error)) *desk {
	return &desk{plan: plan, again: again, in: bufio.NewReaderSize(channel, chunk), out: channel, open: map[uint32]*request{}}
}

// run ends with the channel. Whoever called it then ends this process, and the
// kernel everything in the sandbox.
func (d *desk) run() error {
	for {
		f, err := agentprotocol.Read(d.in)
		if err == nil {
			err = d.take(f)
		}
		if err != nil {
			err = d.cutOff(err)
		}
		if err != nil {
			return err
		}
	}
}

func (d *desk) take(f agentprotocol.Frame) error {
	switch f.Kind {
	case agentprotocol.Ping:
		return d.send(agentprotocol.Pong, f.ID, f.Body)
	case agentprotocol.Start, agentprotocol.File, agentprotocol.Dial, agentprotocol.Listen, agentprotocol.Accept:
		return d.begin(f)
	case agentprotocol.Still:
		return d.still(f.ID)
	case agentprotocol.Renew:
		return d.renewed(f)
	case agentprotocol.Adjust:
		plan, err := agentprotocol.ParsePlan(f.Body)
		if err != nil {
			return err
		}
		if err := d.adjust(plan); err != nil {
			return d.send(agentprotocol.Failed, f.ID, failure(err).Body())
		}
		return d.send(agentprotocol.Ready, f.ID, nil)
	}
	d.mu.Lock()
	r := d.open[f.ID]
	d.mu.Unlock()
	if r == nil {
		return nil // it ended while this was on its way
	}
	return r.take(f)
}

// adjust takes over what can still be changed of the plan.
func (d *desk) adjust(to agentprotocol.Plan) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	p := d.plan
	p.DiskBytes, p.DiskFiles, p.Descriptors, p.Processes, p.DataBytes, p.Env = to.DiskBytes, to.DiskFiles, to.Descriptors, to.Processes, to.DataBytes, to.Env
	p.MemoryBytes, p.VCPUs = to.MemoryBytes, to.VCPUs
	if err := errors.Join(limitGroup(p), sizePids(p)); err != nil {
		return err
	}
	if p.DiskBytes != d.plan.DiskBytes || p.DiskFiles != d.plan.DiskFiles {
		if err := d.resizeWork(p); err != nil {
			return err
		}
	}
	if p.Proxy = to.Proxy; p.Side != 0 && p.Proxy != 0 && p.Proxy != d.plan.Proxy {
		if err := handOver(p); err != nil {
			return err
		}
	}
	d.plan = p
	return nil
}

func (d *desk) current() agentprotocol.Plan {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.plan
}

// begin opens a request and lets it run by itself.
func (d *desk) begin(f agentprotocol.Frame) error {
	r := &request{id: f.ID, desk: d, stdin: agentprotocol.NewInbox(), stdout: agentprotocol.NewAllowance(), stderr: agentprotocol.NewAllowance()}
	run, err := r.plan(f)
	if err != nil {
		return err
	}
	d.mu.Lock()
	_, taken := d.open[f.ID]
	full := len(d.open) >= mostRequests
	if !taken && !full {
		d.open[f.ID] = r
	}
	d.mu.Unlock()
	if taken {
		return fmt.Errorf("%w: request %d began twice", agentprotocol.ErrBroken, f.ID)
	}
	if full {
		return d.send(agentprotocol.Failed, f.ID, failure(fmt.Errorf("%d requests are under way, which is the most: %w", mostRequests, unix.EAGAIN)).Body())
	}
	go r.whole(run)
	return nil
}

// plan reads what is asked for.
func (r *request) plan(f agentprotocol.Frame) (run func() error, err error) {
	switch f.Kind {
	case agentprotocol.Start:
		r.stays = true
		program, err := agentprotocol.ParseProgram(f.Body)
		return func() error { return r.runProgram(program) }, err
	case agentprotocol.File:
		work, err := agentprotocol.ParseFileWork(f.Body)
		return func() error { return r.onFiles(work) }, err
	case agentprotocol.Dial:
		port, err := agentprotocol.ParsePort(f.Body)
		return func() error { return r.dial(port) }, err
	case agentprotocol.Listen:
		port, err := agentprotocol.ParsePort(f.Body)
		return func() error { return r.listen(port) }, err
	}
	of, err := agentprotocol.ParseNumber(f.Body)
	return func() error { return r.accept(of) }, err
}

// whole is a request from beginning to end. The number is free before the last
// frame says so.
func (r *request) whole(run func() error) {
	err := run()
	r.stdin.Drop()
	r.desk.mu.Lock()
	if r.desk.open[r.id] == r { // after a renewal the number may be another one's
		delete(r.desk.open, r.id)
	}
	r.desk.mu.Unlock()
	if end, ok := errors.AsType[ended](err); ok {
		r.send(agentprotocol.Exit, end.Body())
	} else {
		r.send(agentprotocol.Failed, failure(err).Body())
	}
}

// ended is the good end of a request.
type ended struct{ agentprotocol.Ended }

func (ended) Error() string { return "it ended" }

func (r *request) take(f agentprotocol.Frame) error {
	switch f.Kind {
	case agentprotocol.Stdin:
		if len(f.Body) == 0 {
			r.stdin.End()
			return nil
		}
		return r.stdin.Put(f.Body)
	case agentprotocol.Credit:
		g, err := agentprotocol.ParseGrant(f.Body)
		switch {
		case err != nil:
			return err
		case g.Stream == agentprotocol.Stdout:
			return r.stdout.Add(int(g.Bytes))
		case g.Stream == agentprotocol.Stderr:
			return r.stderr.Add(int(g.Bytes))
		}
	case agentprotocol.Signal:
		r.mu.Lock()
		defer r.mu.Unlock()
		r.killed = r.killed || unix.Signal(f.Body[0]) == unix.SIGKILL
		if r.signal != nil {
			r.signal(f.Body[0])
		}
		return nil
	case agentprotocol.Resize:
		size, err := agentprotocol.ParseSize(f.Body)
		if err != nil {
			return err
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.resize != nil {
			r.resize(size)
		}
		return nil
	}
	return fmt.Errorf("%w: a frame of kind %d from the host", agentprotocol.ErrBroken, f.Kind)
}

// send says nothing when nobody waits for it any more.
func (r *request) send(k agentprotocol.Kind, body []byte) error {
	r.desk.sending.Lock()
	defer r.desk.sending.Unlock()
	if r.detached {
		return nil
	}
	return agentprotocol.Write(r.desk.out, agentprotocol.Frame{Kind: k, ID: r.id, Body: body})
}

func (d *desk) send(k agentprotocol.Kind, id uint32, body []byte) error {
	d.sending.Lock()
	defer d.sending.Unlock()
	return agentprotocol.Write(d.out, agentprotocol.Frame{Kind: k, ID: id, Body: body})
}

const chunk = 32 << 10 // bytes of a stream in one frame

// sendAll passes on what r brings, as it is granted, and tells the end.
func (r *request) sendAll(k agentprotocol.Kind, from io.Reader, granted *agentprotocol.Allowance) error {
	buf := make([]byte, chunk)
	for {
		most := granted.Take(chunk)
		if most == 0 {
			return nil
		}
		n, err := from.Read(buf[:most])
		granted.Add(most - n)
		if n > 0 {
			if err := r.send(k, buf[:n]); err != nil {
				return err
			}
		}
		if err != nil {
			r.send(k, nil)
			if errors.Is(err, io.EOF) || errors.Is(err, unix.EIO) { // EIO is how a terminal ends
				return nil
			}
			return err
		}
	}
}

// receiveAll writes what came of Stdin and lets the host send as much more.
func (r *request) receiveAll(to io.Writer) error {
	var debt agentprotocol.Debt
	for {
		b, ok := r.stdin.Take()
		if !ok {
			return nil
		}
		if _, err := to.Write(b); err != nil {
			r.stdin.Drop()
			return err
		}
		if n := debt.Took(len(b)); n > 0 {
			if err := r.send(agentprotocol.Credit, agentprotocol.Grant{Stream: agentprotocol.Stdin, Bytes: n}.Body()); err != nil {
				return err
			}
		}
	}
}
