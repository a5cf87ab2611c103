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

// maxRequests is how many requests may be in progress at once.
const maxRequests = 256

// A server handles the host's requests.
type server struct {
	in     io.Reader                     // used only by the goroutine that calls run
	reopen func() (io.ReadWriter, error) // returns the channel that replaces one that ended; nil if there never is one

	// sending serializes writes to out. It is separate from mu because a write may block for long. If both are
	// locked, sending comes first.
	sending sync.Mutex
	out     io.Writer

	launchers atomic.Uint32 // launchers started so far

	// mu guards the fields below.
	mu   sync.Mutex
	plan agentprotocol.Plan
	open map[uint32]*request
}

// request is a request in progress. Fields that its kind does not use are nil.
type request struct {
	id             uint32
	server         *server
	stdin          *agentprotocol.Inbox
	stdout         *agentprotocol.Allowance
	stderr         *agentprotocol.Allowance
	survivesClient bool // it continues when its client is gone

	detached bool // its client is gone; guarded by server.sending

	mu       sync.Mutex // guards the fields below
	signal   func(number uint8)
	resize   func(agentprotocol.Size)
	killed   bool
	listener *listener // of a Listen request
}

func newServer(plan agentprotocol.Plan, channel io.ReadWriter, again func() (io.ReadWriter, error)) *server {
	return &server{
		plan:   plan,
		reopen: again,
		in:     bufio.NewReaderSize(channel, chunk),
		out:    channel,
		open:   map[uint32]*request{},
	}
}

// serveLoop returns when the channel ends. The caller then exits the process, and with it the kernel ends everything
// in the sandbox.
func (d *server) serveLoop() error {
	for {
		f, err := agentprotocol.Read(d.in)
		if err == nil {
			err = d.handle(f)
		}
		if err != nil {
			err = d.reconnect(err)
		}
		if err != nil {
			return err
		}
	}
}

func (d *server) handle(f agentprotocol.Frame) error {
	switch f.Kind {
	case agentprotocol.Ping:
		return d.sendFrame(agentprotocol.Pong, f.ID, f.Body)
	case agentprotocol.Start, agentprotocol.File, agentprotocol.Dial, agentprotocol.Listen, agentprotocol.Accept:
		return d.startRequest(f)
	case agentprotocol.Quiesce:
		return d.quiesce(f.ID)
	case agentprotocol.Renew:
		return d.handleRenew(f)
	case agentprotocol.Adjust:
		plan, err := agentprotocol.ParsePlan(f.Body)
		if err != nil {
			return err
		}
		if err := d.adjust(plan); err != nil {
			return d.sendFrame(agentprotocol.Failed, f.ID, failure(err).Body())
		}
		return d.sendFrame(agentprotocol.Ready, f.ID, nil)
	}
	d.mu.Lock()
	r := d.open[f.ID]
	d.mu.Unlock()
	if r == nil {
		return nil // it ended while this frame was in flight
	}
	return r.handle(f)
}

// adjust applies those fields of a plan that can still be changed.
func (d *server) adjust(to agentprotocol.Plan) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	p := d.plan
	p.DiskBytes, p.DiskFiles = to.DiskBytes, to.DiskFiles
	p.Descriptors, p.Processes, p.DataBytes = to.Descriptors, to.Processes, to.DataBytes
	p.Env = to.Env
	p.MemoryBytes, p.VCPUs = to.MemoryBytes, to.VCPUs
	if err := errors.Join(limitGroup(p), limitPids(p)); err != nil {
		return err
	}
	if p.DiskBytes != d.plan.DiskBytes || p.DiskFiles != d.plan.DiskFiles {
		if err := d.resizeWritable(p); err != nil {
			return err
		}
	}
	if p.Proxy = to.Proxy; p.ListenerSocket != 0 && p.Proxy != 0 && p.Proxy != d.plan.Proxy {
		if err := sendListener(p); err != nil {
			return err
		}
	}
	d.plan = p
	return nil
}

func (d *server) currentPlan() agentprotocol.Plan {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.plan
}

// startRequest registers a request and runs it in a goroutine of its own.
func (d *server) startRequest(f agentprotocol.Frame) error {
	r := &request{
		id:     f.ID,
		server: d,
		stdin:  agentprotocol.NewInbox(),
		stdout: agentprotocol.NewAllowance(),
		stderr: agentprotocol.NewAllowance(),
	}
	run, err := r.decodeFrame(f)
	if err != nil {
		return err
	}
	d.mu.Lock()
	_, taken := d.open[f.ID]
	full := len(d.open) >= maxRequests
	if !taken && !full {
		d.open[f.ID] = r
	}
	d.mu.Unlock()
	if taken {
		return fmt.Errorf("%w: request %d was started twice", agentprotocol.ErrBroken, f.ID)
	}
	if full {
		err := fmt.Errorf("%d requests are in progress, which is the most: %w", maxRequests, unix.EAGAIN)
		return d.sendFrame(agentprotocol.Failed, f.ID, failure(err).Body())
	}
	go r.perform(run)
	return nil
}

// decodeFrame decodes a request and returns the function that performs it.
func (r *request) decodeFrame(f agentprotocol.Frame) (run func() error, err error) {
	switch f.Kind {
	case agentprotocol.Start:
		r.survivesClient = true
		program, err := agentprotocol.ParseProgram(f.Body)
		return func() error { return r.runProgram(program) }, err
	case agentprotocol.File:
		work, err := agentprotocol.ParseFileRequest(f.Body)
		return func() error { return r.runFileRequest(work) }, err
	case agentprotocol.Dial:
		port, err := agentprotocol.ParsePort(f.Body)
		return func() error { return r.dial(port) }, err
	case agentprotocol.Listen:
		port, err := agentprotocol.ParsePort(f.Body)
		return func() error { return r.listen(port) }, err
	}
	of, err := agentprotocol.ParseRequestID(f.Body)
	return func() error { return r.accept(of) }, err
}

// perform performs a request and sends its last frame. It frees the request's number first, because the host may
// reuse it as soon as that frame arrives.
func (r *request) perform(run func() error) {
	err := run()
	r.stdin.Discard()
	r.server.mu.Lock()
	if r.server.open[r.id] == r { // after a renewal the number may belong to another request
		delete(r.server.open, r.id)
	}
	r.server.mu.Unlock()
	if end, ok := errors.AsType[ended](err); ok {
		r.sendReply(agentprotocol.Exit, end.Body())
	} else {
		r.sendReply(agentprotocol.Failed, failure(err).Body())
	}
}

// ended is the successful end of a request, as an error value.
type ended struct{ agentprotocol.ExitStatus }

func (ended) Error() string { return "the request ended" }

func (r *request) handle(f agentprotocol.Frame) error {
	switch f.Kind {
	case agentprotocol.Stdin:
		if len(f.Body) == 0 {
			r.stdin.Close()
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
	return fmt.Errorf("%w: unexpected frame of kind %d from the host", agentprotocol.ErrBroken, f.Kind)
}

// sendReply sends a frame of the request, or nothing if its client is gone.
func (r *request) sendReply(k agentprotocol.Kind, body []byte) error {
	r.server.sending.Lock()
	defer r.server.sending.Unlock()
	if r.detached {
		return nil
	}
	return agentprotocol.Write(r.server.out, agentprotocol.Frame{Kind: k, ID: r.id, Body: body})
}

func (d *server) sendFrame(k agentprotocol.Kind, id uint32, body []byte) error {
	d.sending.Lock()
	defer d.sending.Unlock()
	return agentprotocol.Write(d.out, agentprotocol.Frame{Kind: k, ID: id, Body: body})
}

const chunk = 32 << 10 // bytes of a stream in one frame

// sendAll sends the data of from, as it is granted, and then an empty frame for its end.
func (r *request) sendAll(k agentprotocol.Kind, from io.Reader, granted *agentprotocol.Allowance) error {
	buf := make([]byte, chunk)
	for {
		most := granted.Acquire(chunk)
		if most == 0 {
			return nil
		}
		n, err := from.Read(buf[:most])
		granted.Add(most - n)
		if n > 0 {
			if err := r.sendReply(k, buf[:n]); err != nil {
				return err
			}
		}
		if err != nil {
			r.sendReply(k, nil)
			if errors.Is(err, io.EOF) || errors.Is(err, unix.EIO) { // a terminal ends with EIO
				return nil
			}
			return err
		}
	}
}

// receiveAll writes the data of Stdin to to and grants the host as much more.
func (r *request) receiveAll(to io.Writer) error {
	var debt agentprotocol.Consumed
	for {
		b, ok := r.stdin.Receive()
		if !ok {
			return nil
		}
		if _, err := to.Write(b); err != nil {
			r.stdin.Discard()
			return err
		}
		if n := debt.Add(len(b)); n > 0 {
			if err := r.sendReply(agentprotocol.Credit,
				agentprotocol.Grant{Stream: agentprotocol.Stdin, Bytes: n}.Body()); err != nil {
				return err
			}
		}
	}
}
