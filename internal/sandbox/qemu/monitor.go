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
	longestMessage = 1 << 20 // bytes of one message from QEMU
	longestState   = 4 << 20 // bytes of a machine's state without its memory: a hundred times the usual size
	fastest        = 1 << 40 // bytes per second that QEMU may write; its default is slow
	monitorWait    = 30 * time.Second
	cancelWait     = 10 * time.Second // for QEMU to stop a cancelled write
)

// monitor is the host's end of QEMU's monitor connection (QMP). The machine cannot access it. It is safe for
// concurrent use.
type monitor struct {
	conn *net.UnixConn

	commanding sync.Mutex // serializes commands; locked before mu
	answers    chan message

	// mu guards the fields below.
	mu     sync.Mutex
	moved  chan struct{} // closed and replaced when an event arrives
	events map[string]string
	err    error // why the connection broke; set before gone is closed
	gone   chan struct{}
}

// message is one line from QEMU.
type message struct {
	Greeting *json.RawMessage `json:"QMP"`
	Return   *json.RawMessage `json:"return"`
	Error    *commandError    `json:"error"`
	Event    string           `json:"event"`
	Data     struct {
		Status string `json:"status"` // of MIGRATION
	} `json:"data"`
}

// commandError is the error of a command.
type commandError struct {
	Class string `json:"class"`
	Desc  string `json:"desc"`
}

func (e *commandError) Error() string { return e.Desc }

// parseMessage decodes a line. Unknown kinds of messages are an error.
func parseMessage(line []byte) (message, error) {
	var m message
	if err := json.Unmarshal(line, &m); err != nil {
		return message{}, fmt.Errorf("QEMU sent a malformed message: %w", err)
	}
	if m.Greeting == nil && m.Return == nil && m.Error == nil && m.Event == "" {
		return message{}, errors.New("QEMU sent a message of an unknown kind")
	}
	return m, nil
}

// newMonitor takes ownership of the host's end of the connection and negotiates capabilities. The caller must
// call close.
func newMonitor(ctx context.Context, ours *os.File) (*monitor, error) {
	defer ours.Close()
	c, err := net.FileConn(ours)
	if err != nil {
		return nil, err
	}
	m := &monitor{
		conn:    c.(*net.UnixConn),
		answers: make(chan message, 1),
		moved:   make(chan struct{}),
		events:  map[string]string{},
		gone:    make(chan struct{}),
	}
	go m.readLoop()
	if _, err := m.readAnswer(ctx); err != nil { // the greeting
		m.closeMonitor()
		return nil, err
	}
	if err := m.command(ctx, "qmp_capabilities", nil); err != nil {
		m.closeMonitor()
		return nil, err
	}
	return m, nil
}

func (m *monitor) closeMonitor() {
	m.conn.Close()
	<-m.gone
}

// readLoop dispatches messages until the connection breaks.
func (m *monitor) readLoop() {
	err := m.readAll(bufio.NewReader(io.Reader(m.conn)))
	m.mu.Lock()
	m.err = fmt.Errorf("the monitor connection to QEMU broke: %w", err)
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
				return errors.New("QEMU sent an answer without a command")
			}
		}
	}
}

// readLine reads a line of at most longestMessage bytes.
func readLine(in *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := in.ReadSlice('\n')
		line = append(line, part...)
		if len(line) > longestMessage {
			return nil, fmt.Errorf("QEMU sent a message of more than %d bytes", longestMessage)
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return bytes.TrimSpace(line), err
		}
	}
}

// readAnswer waits for the readAnswer to a command.
func (m *monitor) readAnswer(ctx context.Context) (message, error) {
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
		m.conn.Close() // a late answer would be taken for that to the next command
		return message{}, context.Cause(ctx)
	}
}

// command sends a command, with files, and waits for its answer. A command that is abandoned breaks the
// connection, and with it the machine.
func (m *monitor) command(ctx context.Context, what string, arguments any, files ...*os.File) error {
	line, err := json.Marshal(struct {
		Execute   string `json:"execute"`
		Arguments any    `json:"arguments,omitempty"`
	}{what, arguments})
	if err != nil {
		return err
	}
	m.commanding.Lock()
	defer m.commanding.Unlock()
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
		m.conn.Close() // a part of the command may have been sent
		return fmt.Errorf("send a command to QEMU: %w", err)
	}
	if _, err := m.readAnswer(ctx); err != nil {
		return fmt.Errorf("QEMU command %s: %w", what, err)
	}
	return nil
}

// dropEvent drops the last event of a name, before a new one is awaited.
func (m *monitor) dropEvent(event string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.events, event)
}

// awaitEvent waits until an event has arrived with one of these states, and returns the state.
func (m *monitor) awaitEvent(ctx context.Context, event string, states ...string) (string, error) {
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

// stateSet is the id of the fdset to which save makes QEMU write.
const stateSet = 1

// saveDevices makes QEMU write the machine's state without its memory, which is small. The machine is paused and
// stays so. The command was introduced for Xen, hence its name, but works without it. The file is in memory
// and charged to QEMU's control group, so that a QEMU that the code has broken into cannot exhaust the host's
// memory; it is sealed afterwards.
func (m *monitor) saveDevices(ctx context.Context) (_ *os.File, err error) {
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
	if err := m.command(ctx, "add-fd", set, written); err != nil {
		return nil, err
	}
	err = m.command(ctx, "xen-save-devices-state",
		map[string]any{"filename": fmt.Sprintf("/dev/fdset/%d", stateSet), "live": false})
	if err = errors.Join(err, m.command(ctx, "remove-fd", set), seal(state)); err != nil {
		return nil, err
	}
	if info, err := state.Stat(); err != nil {
		return nil, err
	} else if info.Size() > longestState {
		return nil, fmt.Errorf("QEMU wrote more than %d MiB for the state of a machine", longestState>>20)
	}
	return state, nil
}

// saveAll makes QEMU write the machine's state with all of its memory to a file.
func (m *monitor) saveAll(ctx context.Context, file *os.File) error {
	if err := m.command(ctx, "migrate-set-parameters", map[string]any{"max-bandwidth": fastest}); err != nil {
		return err
	}
	return m.migrate(ctx, "migrate", file)
}

// load makes QEMU load what save or send wrote.
func (m *monitor) load(ctx context.Context, file *os.File) error {
	return m.migrate(ctx, "migrate-incoming", file)
}

// migrate runs a migration command with a file. When it returns, the migration has ended or the connection is
// broken.
func (m *monitor) migrate(ctx context.Context, order string, file *os.File) error {
	type capability struct {
		Capability string `json:"capability"`
		State      bool   `json:"state"`
	}
	if err := m.command(ctx, "migrate-set-capabilities",
		map[string]any{"capabilities": []capability{{"events", true}}}); err != nil {
		return err
	}
	if err := m.command(ctx, "getfd", map[string]any{"fdname": "state"}, file); err != nil {
		return err
	}
	m.dropEvent("MIGRATION")
	if err := m.command(ctx, order, map[string]any{"uri": "fd:state"}); err != nil {
		return err
	}
	end, err := m.awaitEvent(ctx, "MIGRATION", "completed", "failed", "cancelled")
	if err != nil {
		return errors.Join(err, m.cancelMigration(ctx))
	}
	if end != "completed" {
		err = fmt.Errorf("QEMU command %s: the migration %s", order, end)
	}
	return err
}

// cancelMigration cancels a migration. The machine must not be resumed before that, so on an error it closes the
// connection.
func (m *monitor) cancelMigration(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cancelWait)
	defer cancel()
	err := m.command(ctx, "migrate_cancel", nil)
	if err == nil {
		_, err = m.awaitEvent(ctx, "MIGRATION", "completed", "failed", "cancelled")
	}
	if err != nil {
		m.conn.Close()
	}
	return err
}
