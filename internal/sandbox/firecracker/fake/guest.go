//go:build linux && (amd64 || arm64)

package fake

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/agentprotocol"
	"gatehouse/internal/sandbox/rootfs"
)

// AgentPort is where the agent listens in the machine.
const AgentPort = 52

// firstHostPort is the number that the first connection gets on the host's side.
const firstHostPort = 1 << 30

// guest is what runs in a machine: the agent, and the socket device between it
// and the host. The disks it would have are the host's own programs.
type guest struct {
	agent  io.ReadWriteCloser
	end    func()
	boots  int // connections that still come before the agent listens
	closed chan struct{}

	mu     sync.Mutex // of what follows
	wake   *sync.Cond // something of it changed
	device net.Listener
	host   net.Conn // the host's connection to the agent; nil if there is none
	ports  int
	held   bool   // the processors stand
	reset  bool   // connections end when they go on
	gone   bool   // the machine ended
	plan   []byte // of the place
}

// newGuest starts an agent. One that had a place gets it again.
func newGuest(plan []byte) (*guest, error) {
	agent, end, err := startAgent()
	if err != nil {
		return nil, err
	}
	g := &guest{agent: agent, end: end, plan: plan, closed: make(chan struct{})}
	g.wake = sync.NewCond(&g.mu)
	if plan == nil {
		g.boots = 1
	} else if err := g.replant(); err != nil {
		g.close()
		return nil, err
	}
	go g.toHost()
	return g, nil
}

// replant makes the place of an agent that was kept.
func (g *guest) replant() error {
	if err := agentprotocol.Write(g.agent,
		agentprotocol.Frame{Kind: agentprotocol.Setup, ID: 1, Body: g.plan}); err != nil {
		return err
	}
	f, err := agentprotocol.Read(g.agent)
	if err == nil && f.Kind != agentprotocol.Ready {
		err = fmt.Errorf("the agent answered its plan with a frame of kind %d: %s", f.Kind, f.Body)
	}
	return err
}

// placed is the plan of the agent's place.
func (g *guest) placed() []byte {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.plan
}

// hold stops the processors, or lets them go on.
func (g *guest) hold(held bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.held = held; !held && g.reset {
		g.reset = false
		if g.host != nil {
			g.host.Close()
			g.host = nil
		}
	}
	g.wake.Broadcast()
}

func (g *guest) resetOnResume() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.reset = true
}

// until waits until the machine runs and more is true. It is false when the
// machine ended.
func (g *guest) until(more func() bool) bool {
	for !g.gone && (g.held || !more()) {
		g.wake.Wait()
	}
	return !g.gone
}

// toHost passes frames on to the connected host.
func (g *guest) toHost() {
	for {
		f, err := agentprotocol.Read(g.agent)
		if err != nil {
			g.close()
			return
		}
		g.mu.Lock()
		ok := g.until(func() bool { return g.host != nil })
		host := g.host
		g.mu.Unlock()
		if !ok {
			return
		}
		agentprotocol.Write(host, f) // what does not arrive was on its way when the connection ended
	}
}

// listen makes the socket device.
func (g *guest) listen(path string) error {
	l, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.device = l
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go g.serve(c)
		}
	}()
	return nil
}

// serve is one connection of the host's: which port it wants, and then frames.
func (g *guest) serve(c net.Conn) {
	defer c.Close()
	in := bufio.NewReader(c)
	if !g.accept(c, in) {
		return
	}
	for {
		f, err := agentprotocol.Read(in)
		if err == nil {
			f, err = g.adapt(f)
		}
		g.mu.Lock()
		ok := g.until(func() bool { return true }) && g.host == c
		g.mu.Unlock()
		if !ok || err != nil || agentprotocol.Write(g.agent, f) != nil {
			break
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.host == c {
		g.host = nil
		g.wake.Broadcast()
	}
}

// accept answers the one line that a connection begins with. If no process listens
// at the port, the connection ends without an answer.
func (g *guest) accept(c net.Conn, in *bufio.Reader) bool {
	const longest = 32 // bytes of the line
	c.SetReadDeadline(time.Now().Add(time.Minute))
	line, err := in.ReadString('\n')
	number, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "CONNECT ")
	port, e := strconv.ParseUint(number, 10, 32)
	if err != nil || e != nil || !ok || len(line) > longest || port != AgentPort {
		return false
	}
	c.SetReadDeadline(time.Time{})
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.boots > 0 {
		g.boots--
		return false
	}
	g.ports++
	if !g.until(func() bool { return true }) {
		return false
	}
	if _, err := fmt.Fprintf(c, "OK %d\n", firstHostPort+g.ports-1); err != nil {
		return false
	}
	// The machine has taken it; the agent does when it is done with the one
	// before.
	if !g.until(func() bool { return g.host == nil }) {
		return false
	}
	g.host = c
	g.wake.Broadcast()
	return true
}

// adapt makes a plan for a machine into one for namespaces: what would be on the
// machine's disks is shown of the host, and its control groups are left out.
func (g *guest) adapt(f agentprotocol.Frame) (agentprotocol.Frame, error) {
	if f.Kind != agentprotocol.Setup && f.Kind != agentprotocol.Adjust {
		return f, nil
	}
	p, err := agentprotocol.ParsePlan(f.Body)
	if err != nil {
		return f, err
	}
	look, err := rootfs.Of(sandbox.Spec{})
	if err != nil {
		return f, err
	}
	p.Prebuilt, p.SingleUser, p.MemoryBytes, p.VCPUs = false, users().Single, 0, 0
	p.Files, p.Links, p.Trees = look.Files, look.Links, nil
	for _, t := range look.Trees {
		p.Trees = append(p.Trees, agentprotocol.Tree{From: t.From, To: t.To})
	}
	if p.SingleUser {
		p.UID, p.GID = 0, 0
	}
	f.Body = p.Body()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.plan = f.Body
	return f, nil
}

// close ends the machine.
func (g *guest) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.gone {
		return
	}
	g.gone = true
	g.wake.Broadcast()
	g.end()
	if g.host != nil {
		g.host.Close()
	}
	if g.device != nil {
		g.device.Close()
	}
	close(g.closed)
}

// ErrNoAgent is why a machine does not start on a host that has no namespaces
// for its agent.
var ErrNoAgent = errors.New("the stand-in has no namespaces for an agent")

// null is for the standard streams of what has none.
func null() (*os.File, error) { return os.OpenFile(os.DevNull, os.O_RDWR, 0) }
