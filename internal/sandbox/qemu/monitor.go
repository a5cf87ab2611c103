//go:build linux && amd64

package qemu

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	longestMessage = 1 << 20 // bytes of one message of QEMU's
	longestState   = 4 << 20 // bytes of what a machine is but for its memory: a hundred times what it takes
	fastest        = 1 << 40 // bytes a second that QEMU may write, which by itself would take its time
	monitorWait    = 30 * time.Second
	callOffWait    = 10 * time.Second // for QEMU to stop writing what nobody waits for any more
)

// monitor is the host's end of the line on which QEMU takes orders. Nothing in
// the machine can reach it. It is safe for concurrent use.
type monitor struct {
	conn *net.UnixConn

	// ordering lets one order at a time wait for its answer.
	ordering sync.Mutex
	answers  chan message

	// mu guards what follows.
	mu     sync.Mutex
	moved  chan struct{} // closed, and made anew, when an event has come
	events map[string]string
	err    error // why it broke; set before gone is closed
	gone   chan struct{}
}

// message is one line of QEMU's.
type message struct {
	Greeting *json.RawMessage `json:"QMP"`
	Return   *json.RawMessage `json:"return"`
	Error    *orderError      `json:"error"`
	Event    string           `json:"event"`
	Data     struct {
		Status string `json:"status"` // of MIGRATION
	} `json:"data"`
}

// orderError is why QEMU did not do something.
type orderError struct {
	Class string `json:"class"`
	Desc  string `json:"desc"`
}

func (e *orderError) Error() string { return e.Desc }

// parseMessage reads a line. What is neither of the kinds there are is an
// error.
func parseMessage(line []byte) (message, error) {
	var m message
	if err := json.Unmarshal(line, &m); err != nil {
		return message{}, fmt.Errorf("QEMU said something that is no message: %w", err)
	}
	if m.Greeting == nil && m.Return == nil && m.Error == nil && m.Event == "" {
		return message{}, errors.New("QEMU sent a message of a kind that is not known")
	}
	return m, nil
}

// newMonitor takes the host's end of the line, and greets. Whoever makes it
// calls close.
func newMonitor(ctx context.Context, ours *os.File) (*monitor, error) {
	defer ours.Close()
	c, err := net.FileConn(ours)
	if err != nil {
		return nil, err
	}
	m := &monitor{conn: c.(*net.UnixConn), answers: make(chan message, 1), moved: make(chan struct{}), events: map[string]string{}, gone: make(chan struct{})}
	go m.read()
	if _, err := m.answer(ctx); err != nil { // the greeting
		m.close()
		return nil, err
	}
	if err := m.order(ctx, "qmp_capabilities", nil); err != nil {
		m.close()
		return nil, err
	}
	return m, nil
}

func (m *monitor) close() {
	m.conn.Close()
	<-m.gone
}

// read hands out what comes until the line breaks.
func (m *monitor) read() {
	err := m.readAll(bufio.NewReader(io.Reader(m.conn)))
	m.mu.Lock()
	m.err = fmt.Errorf("QEMU's line for orders broke: %w", err)
	m.mu.Unlock()
	m.conn.Close()
	close(m.gone)
}

func (m *monitor) readAll(in *bufio.Reader) error {
	for {
		line, err := readLine(in)
		if err != nil {
			return err
		}
		got, err := parseMessage(line)
		switch {
		case err != nil:
			return err
		case got.Event != "":
			m.mu.Lock()
			m.events[got.Event] = got.Data.Status
			close(m.moved)
			m.moved = make(chan struct{})
			m.mu.Unlock()
		default:
			select {
			case m.answers <- got:
			default:
				return errors.New("QEMU answered what nobody asked")
			}
		}
	}
}

// readLine reads up to the end of a line, and no more than a message may have.
func readLine(in *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := in.ReadSlice('\n')
		line = append(line, part...)
		if len(line) > longestMessage {
			return nil, errors.New("QEMU sent a message without end")
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return bytes.TrimSpace(line), err
		}
	}
}

// answer waits for the answer to what was ordered.
func (m *monitor) answer(ctx context.Context) (message, error) {
	late := time.NewTimer(monitorWait)
	defer late.Stop()
	select {
	case a := <-m.answers:
		if a.Error != nil {
			return a, a.Error
		}
		return a, nil
	case <-m.gone:
		return message{}, m.err
	case <-late.C:
		m.conn.Close()
		return message{}, errors.New("QEMU did not answer in time")
	case <-ctx.Done():
		m.conn.Close() // the answer would be taken for that to the next order
		return message{}, context.Cause(ctx)
	}
}

// order has QEMU do something and waits until it has. Files go along. An order
// that is given up breaks the line, and with it the machine.
func (m *monitor) order(ctx context.Context, what string, arguments any, files ...*os.File) error {
	line, err := json.Marshal(struct {
		Execute   string `json:"execute"`
		Arguments any    `json:"arguments,omitempty"`
	}{what, arguments})
	if err != nil {
		return err
	}
	m.ordering.Lock()
	defer m.ordering.Unlock()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	var fds []int
	for _, f := range files {
		fds = append(fds, int(f.Fd()))
	}
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	m.conn.SetWriteDeadline(time.Now().Add(monitorWait))
	if _, _, err := m.conn.WriteMsgUnix(append(line, '\n'), rights, nil); err != nil {
		m.conn.Close() // part of it may be on the line
		return fmt.Errorf("QEMU takes no orders: %w", err)
	}
	if _, err := m.answer(ctx); err != nil {
		return fmt.Errorf("QEMU, asked to %s: %w", what, err)
	}
	return nil
}

// forget lets go of the last event of a name, before one is waited for.
func (m *monitor) forget(event string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.events, event)
}

// await waits until an event has come with one of these states, and gives it.
func (m *monitor) await(ctx context.Context, event string, states ...string) (string, error) {
	for {
		m.mu.Lock()
		got, came := m.events[event]
		moved := m.moved
		m.mu.Unlock()
		for _, s := range states {
			if came && got == s {
				return got, nil
			}
		}
		select {
		case <-moved:
		case <-m.gone:
			return "", m.err
		case <-ctx.Done():
			return "", context.Cause(ctx)
		}
	}
}

// stateSet names the file that save has QEMU write to.
const stateSet = 1

// save has QEMU write what the machine is but for its memory, which is little.
// The machine is stopped and stays so. Despite its name the order has nothing to
// do with Xen but that it was made for it. The file is one in memory, so that a
// QEMU that code broke into takes of its own with it; nobody changes it any more.
func (m *monitor) save(ctx context.Context) (_ *os.File, err error) {
	state, err := memoryFile("state", 0)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			state.Close()
		}
	}()
	written, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", state.Fd()), os.O_WRONLY, 0)
	if err != nil {
		return nil, err
	}
	defer written.Close()
	set := map[string]any{"fdset-id": stateSet}
	if err := m.order(ctx, "add-fd", set, written); err != nil {
		return nil, err
	}
	err = m.order(ctx, "xen-save-devices-state", map[string]any{"filename": fmt.Sprintf("/dev/fdset/%d", stateSet), "live": false})
	if err = errors.Join(err, m.order(ctx, "remove-fd", set), seal(state)); err != nil {
		return nil, err
	}
	if info, err := state.Stat(); err != nil {
		return nil, err
	} else if info.Size() > longestState {
		return nil, fmt.Errorf("QEMU says more of a machine than the %d MiB it may", longestState>>20)
	}
	return state, nil
}

// send has QEMU write to a file what the machine is with all of its memory.
func (m *monitor) send(ctx context.Context, file *os.File) error {
	if err := m.order(ctx, "migrate-set-parameters", map[string]any{"max-bandwidth": fastest}); err != nil {
		return err
	}
	return m.move(ctx, "migrate", file)
}

// receive has QEMU be what save or send wrote.
func (m *monitor) receive(ctx context.Context, file *os.File) error {
	return m.move(ctx, "migrate-incoming", file)
}

// move has QEMU write or read a file by an order of that name. What is given up
// is over when this returns, or the line is broken.
func (m *monitor) move(ctx context.Context, order string, file *os.File) error {
	type capability struct {
		Capability string `json:"capability"`
		State      bool   `json:"state"`
	}
	if err := m.order(ctx, "migrate-set-capabilities", map[string]any{"capabilities": []capability{{"events", true}}}); err != nil {
		return err
	}
	if err := m.order(ctx, "getfd", map[string]any{"fdname": "state"}, file); err != nil {
		return err
	}
	m.forget("MIGRATION")
	if err := m.order(ctx, order, map[string]any{"uri": "fd:state"}); err != nil {
		return err
	}
	end, err := m.await(ctx, "MIGRATION", "completed", "failed", "cancelled")
	if err != nil {
		return errors.Join(err, m.callOff(ctx))
	}
	if end != "completed" {
		err = fmt.Errorf("QEMU, asked to %s: it %s", order, end)
	}
	return err
}

// callOff has QEMU stop writing what the machine is. The machine must not go on
// before that, so where it fails the line is broken.
func (m *monitor) callOff(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callOffWait)
	defer cancel()
	err := m.order(ctx, "migrate_cancel", nil)
	if err == nil {
		_, err = m.await(ctx, "MIGRATION", "completed", "failed", "cancelled")
	}
	if err != nil {
		m.conn.Close()
	}
	return err
}
