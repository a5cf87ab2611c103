package system

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	proxyproto "github.com/pires/go-proxyproto"

	"gatehouse/tool"
)

const (
	maxVhosts   = 100
	maxOpen     = 512              // connections of one port
	helloTime   = 10 * time.Second // for the first message of TLS
	maxHello    = 64 << 10
	backendDial = 10 * time.Second
	vhostIdle   = 10 * time.Minute
)

// vhosts are the ports that pass TLS connections on by the name that the client asks for.
// What is passed on stays encrypted. It is safe for concurrent use.
type vhosts struct {
	// ctx ends with the module. Ports outlive the calls that opened them.
	ctx       context.Context
	wg        sync.WaitGroup
	terminate func(ctx context.Context, c net.Conn, p *passthrough, hello []byte)

	mu    sync.Mutex
	ports map[uint16]*vhostPort
}

// vhostPort is one listener with its names.
type vhostPort struct {
	listener net.Listener
	stop     context.CancelFunc

	names map[string]*passthrough // guarded by vhosts.mu

	open atomic.Int64
}

// passthrough is where the connections for one name go.
type passthrough struct {
	passthroughOut
	served atomic.Int64
}

func (s *system) vhostTools() []daemonTool {
	return []daemonTool{
		changing(s, "", tool.Def{
			Name: "system_vhost_add_passthrough", Title: "Pass TLS on by name",
			Aliases: []string{"net.vhost.add-passthrough"},
			Description: "Listens on a port of the machine and passes TLS connections for a name on to another " +
				"address, after the user has agreed.",
			Help: changeHelp + " The connection stays encrypted from the client to the backend, " +
				"which has the certificate. " +
				"With proxy the backend is told the client's address. The next start of this host does it again.",
			Effects: tool.Writes | tool.OpenWorld,
		}, askVhost, s.addVhost),
		changing(s, "", tool.Def{
			Name: "system_vhost_add", Title: "Serve a name with TLS", Timeout: 2 * acmeTime,
			Description: "Serves a name with a certificate of an ACME authority, and passes what clients send on to " +
				"another address without TLS, " +
				"such as the port of a package, after the user has agreed.",
			Help: changeHelp + " system_acme_init agrees with the authority first. The certificate is fetched at " +
				"the first connection, and " +
				"again before it expires. The next start of this host serves the name again.",
			Effects: tool.Writes | tool.OpenWorld,
		}, s.askServe, s.serveName),
		changing(s, "", tool.Def{
			Name: "system_vhost_remove_passthrough", Title: "Stop passing TLS on",
			Aliases: []string{"net.vhost.remove-passthrough"},
			Description: "Stops passing on or serving the TLS connections for a name, after the user has agreed. " +
				"Open connections go on.",
		}, func(_ context.Context, in vhostNameIn) (change, error) {
			return change{
				in.Hostname,
				fmt.Sprintf("Stop passing on TLS connections for %s at port %d?", in.Hostname, in.ListenPort),
			}, nil
		}, s.removeVhost),
		reading(s, "", tool.Def{
			Name: "system_vhost_list_passthrough", Title: "List names that are passed on",
			Aliases:     []string{"net.vhost.list-passthrough"},
			Description: "Lists the names whose TLS connections this host passes on.",
		}, func(context.Context, *tool.Call, struct{}) (vhostsOut, error) {
			return vhostsOut{s.vhosts.listPassthroughs()}, nil
		}),
		reading(s, "", tool.Def{
			Name: "system_vhost_dump_table", Title: "Show the table of names",
			Aliases:     []string{"net.vhost.dump-table"},
			Description: "Shows by port and name where this host passes TLS connections on to.",
		}, func(context.Context, *tool.Call, struct{}) (vhostTableOut, error) {
			out := vhostTableOut{map[string]map[string]string{}}
			for _, p := range s.vhosts.listPassthroughs() {
				port := fmt.Sprint(p.ListenPort)
				if out.Ports[port] == nil {
					out.Ports[port] = map[string]string{}
				}
				out.Ports[port][p.Hostname] = p.Backend
			}
			return out, nil
		}),
	}
}

type vhostNameIn struct {
	Hostname   string `json:"hostname" doc:"the name that clients ask for" min:"1" max:"253"`
	ListenPort int    `json:"listenPort" min:"0" max:"65535"`
	agreed
}

type vhostIn struct {
	Hostname   string   `json:"hostname" doc:"the name that clients ask for" min:"1" max:"253"`
	ListenPort int      `json:"listenPort" doc:"0 selects a free port" min:"0" max:"65535"`
	Backend    string   `json:"backend" doc:"address:port" min:"3" max:"300"`
	PrivateIP  []string `json:"privateIp,omitempty" doc:"only connections to these addresses of the machine" max:"20"`
	Proxy      bool     `json:"proxy,omitempty" doc:"tell the backend the client's address by the PROXY protocol"`
	agreed
}

type serveIn struct {
	Hostname   string `json:"hostname" doc:"the name that clients ask for" min:"1" max:"253"`
	ListenPort int    `json:"listenPort,omitempty" doc:"the authority proves the name at port 443 alone" default:"443" min:"0" max:"65535"`
	Backend    string `json:"backend" doc:"address:port" min:"3" max:"300"`
	Provider   string `json:"provider,omitempty" doc:"the authority" default:"letsencrypt" max:"300"`
	agreed
}

func (s *system) askServe(ctx context.Context, in serveIn) (change, error) {
	at, err := directory(in.Provider)
	if err != nil {
		return change{}, err
	}
	if _, err := askVhost(ctx, vhostIn{Hostname: in.Hostname, Backend: in.Backend}); err != nil {
		return change{}, err
	}
	if s.manager(at) == nil {
		return change{}, &tool.Refusal{Code: tool.CodeNotFound, Message: "this host has no agreement with " + at,
			Next: "Agree with it first with system_acme_init."}
	}
	return change{
		in.Hostname,
		fmt.Sprintf("Serve %s at port %d of this machine with a certificate of %s, and pass requests on to %s?",
			in.Hostname, in.ListenPort, at, in.Backend),
	}, nil
}

func (s *system) serveName(ctx context.Context, _ *tool.Call, in serveIn) (passthroughOut, error) {
	at, err := directory(in.Provider)
	if err != nil {
		return passthroughOut{}, err
	}
	return s.addName(ctx, passthroughOut{Hostname: strings.ToLower(in.Hostname), ListenPort: uint16(in.ListenPort),
		Backend: in.Backend, PrivateIPs: []string{}, ACME: at})
}

// addName serves a name now and after the next start.
func (s *system) addName(ctx context.Context, p passthroughOut) (passthroughOut, error) {
	if err := s.vhosts.addPassthrough(ctx, &p); err != nil {
		return p, err
	}
	s.acme.mu.Lock()
	defer s.acme.mu.Unlock()
	return p, s.saveAuthorities()
}

type vhostsOut struct {
	Passthrough []passthroughOut `json:"passthrough"`
}

type vhostTableOut struct {
	Ports map[string]map[string]string `json:"ports" doc:"by port and name: the backend"`
}

type passthroughOut struct {
	Hostname   string   `json:"hostname"`
	ListenPort uint16   `json:"listenPort"`
	Backend    string   `json:"backend"`
	Proxy      bool     `json:"proxy" doc:"the backend gets a header of the PROXY protocol, version 2"`
	PrivateIPs []string `json:"privateIps" doc:"only connections to these addresses of the machine; none means all"`
	Served     int64    `json:"served" doc:"connections since it was added"`
	ACME       string   `json:"acme,omitempty" doc:"the authority of the certificate with which this host ends TLS; without it TLS is passed on"`
}

var isDNSName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*$`)

func askVhost(_ context.Context, in vhostIn) (change, error) {
	if !isDNSName.MatchString(strings.ToLower(in.Hostname)) {
		return change{}, invalid("hostname", in.Hostname, "a host name in ASCII")
	}
	if a, err := netip.ParseAddrPort(in.Backend); err != nil || a.Port() == 0 {
		return change{}, invalid("backend", in.Backend, "address:port, such as 127.0.0.1:8443")
	}
	for _, ip := range in.PrivateIP {
		if _, err := netip.ParseAddr(ip); err != nil {
			return change{}, invalid("privateIp", ip, "an address of this machine")
		}
	}
	return change{
		in.Hostname,
		fmt.Sprintf("Listen on port %d of this machine, and pass TLS connections for %s on to %s?",
			in.ListenPort, in.Hostname, in.Backend),
	}, nil
}

func (s *system) addVhost(ctx context.Context, _ *tool.Call, in vhostIn) (passthroughOut, error) {
	return s.addName(ctx, passthroughOut{Hostname: strings.ToLower(in.Hostname), ListenPort: uint16(in.ListenPort),
		Backend: in.Backend, Proxy: in.Proxy, PrivateIPs: append([]string{}, in.PrivateIP...)})
}

func (s *system) removeVhost(_ context.Context, _ *tool.Call, in vhostNameIn) (passthroughOut, error) {
	p, err := s.vhosts.remove(uint16(in.ListenPort), strings.ToLower(in.Hostname))
	if err != nil {
		return p, err
	}
	s.acme.mu.Lock()
	defer s.acme.mu.Unlock()
	return p, s.saveAuthorities()
}

func (v *vhosts) listPassthroughs() []passthroughOut {
	v.mu.Lock()
	defer v.mu.Unlock()
	all := []passthroughOut{}
	for _, port := range v.ports {
		for _, p := range port.names {
			all = append(all, p.out())
		}
	}
	slices.SortFunc(all, func(a, b passthroughOut) int {
		if a.ListenPort != b.ListenPort {
			return int(a.ListenPort) - int(b.ListenPort)
		}
		return strings.Compare(a.Hostname, b.Hostname)
	})
	return all
}

// addPassthrough adds a name, and listens on its port if no other name does. It sets the port
// where one was to be selected.
func (v *vhosts) addPassthrough(ctx context.Context, p *passthroughOut) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	n := 0
	for _, port := range v.ports {
		n += len(port.names)
	}
	if n >= maxVhosts {
		return tool.Refuse(tool.CodeTooMany, "this host passes on %d names, which is the limit", n)
	}
	port := v.ports[p.ListenPort]
	if port == nil || p.ListenPort == 0 {
		l, err := new(net.ListenConfig).Listen(ctx, "tcp", fmt.Sprintf(":%d", p.ListenPort))
		if err != nil {
			return tool.Refuse(tool.CodeUnsupported, "%v", err)
		}
		run, stop := context.WithCancel(v.ctx)
		port = &vhostPort{listener: l, stop: stop, names: map[string]*passthrough{}}
		p.ListenPort = uint16(l.Addr().(*net.TCPAddr).Port)
		v.ports[p.ListenPort] = port
		v.wg.Go(func() { v.servePort(run, port) })
	}
	if port.names[p.Hostname] != nil {
		return &tool.Refusal{
			Code:    tool.CodeExists,
			Message: fmt.Sprintf("%s is passed on at port %d", p.Hostname, p.ListenPort),
			Next:    "Remove it first with system_vhost_remove_passthrough.",
		}
	}
	port.names[p.Hostname] = &passthrough{passthroughOut: *p}
	return nil
}

func (v *vhosts) remove(number uint16, name string) (passthroughOut, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	port := v.ports[number]
	if port == nil || port.names[name] == nil {
		return passthroughOut{}, &tool.Refusal{
			Code:    tool.CodeNotFound,
			Message: fmt.Sprintf("%s is not passed on at port %d", name, number),
			Next:    "system_vhost_list_passthrough lists the names.",
		}
	}
	out := port.names[name].out()
	delete(port.names, name)
	if len(port.names) == 0 {
		delete(v.ports, number)
		port.listener.Close()
	}
	return out, nil
}

// close ends all ports and connections.
func (v *vhosts) close() {
	v.mu.Lock()
	for _, port := range v.ports {
		port.stop()
		port.listener.Close()
	}
	v.mu.Unlock()
	v.wg.Wait()
}

// servePort accepts connections until the listener is closed, and returns when all have ended.
func (v *vhosts) servePort(ctx context.Context, port *vhostPort) {
	var all sync.WaitGroup
	defer all.Wait()
	for {
		c, err := port.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			select { // too many open files, or the like
			case <-ctx.Done():
				return
			case <-time.After(100 * time.Millisecond):
				continue
			}
		}
		if port.open.Add(1) > maxOpen {
			port.open.Add(-1)
			c.Close()
			continue
		}
		all.Go(func() {
			defer port.open.Add(-1)
			defer c.Close()
			defer context.AfterFunc(ctx, func() { c.Close() })()
			v.pass(ctx, port, c)
		})
	}
}

// pass passes one connection on. A client that asks for no known name is told by an
// alert of TLS, as RFC 6066 has it.
func (v *vhosts) pass(ctx context.Context, port *vhostPort, c net.Conn) {
	c.SetDeadline(time.Now().Add(helloTime))
	name, hello, err := readHello(c)
	if err != nil {
		return // it speaks no TLS, or went away
	}
	v.mu.Lock()
	p := port.names[strings.ToLower(strings.TrimSuffix(name, "."))]
	v.mu.Unlock()
	if p == nil || !p.reachedAt(c.LocalAddr()) {
		c.Write([]byte{21, 3, 3, 0, 2, 2, 112}) // fatal: unrecognized_name
		return
	}
	if p.ACME != "" {
		v.terminate(ctx, c, p, hello)
		return
	}
	c.SetDeadline(time.Time{})
	v.connect(ctx, p, c, c, hello)
}

// connect connects to the backend of a name and copies both ways. first was read from the client already; raw is the
// client's connection below TLS.
func (v *vhosts) connect(ctx context.Context, p *passthrough, c, raw net.Conn, first []byte) {
	to, err := (&net.Dialer{Timeout: backendDial}).DialContext(ctx, "tcp", p.Backend)
	if err != nil {
		if c == raw {
			c.Write([]byte{21, 3, 3, 0, 2, 2, 80}) // fatal: internal_error
		}
		return
	}
	defer to.Close()
	defer context.AfterFunc(ctx, func() { to.Close() })()
	p.served.Add(1)
	if p.Proxy {
		if _, err := proxyproto.HeaderProxyFromAddrs(2, raw.RemoteAddr(), raw.LocalAddr()).WriteTo(to); err != nil {
			return
		}
	}
	if _, err := to.Write(first); err != nil {
		return
	}
	relay(c, to)
}

func (p *passthrough) reachedAt(a net.Addr) bool {
	if len(p.PrivateIPs) == 0 {
		return true
	}
	at, err := netip.ParseAddrPort(a.String())
	return err == nil && slices.ContainsFunc(p.PrivateIPs, func(ip string) bool {
		want, err := netip.ParseAddr(ip)
		return err == nil && want.Unmap() == at.Addr().Unmap()
	})
}

func (p *passthrough) out() passthroughOut {
	o := p.passthroughOut
	o.Served = p.served.Load()
	return o
}

// relay copies both ways until both ends have closed, or nothing came for vhostIdle.
func relay(a, b net.Conn) {
	var both sync.WaitGroup
	oneWay := func(to, from net.Conn) {
		buf := make([]byte, 16<<10)
		for {
			from.SetReadDeadline(time.Now().Add(vhostIdle))
			n, err := from.Read(buf)
			if n > 0 {
				to.SetWriteDeadline(time.Now().Add(vhostIdle))
				if _, e := to.Write(buf[:n]); e != nil {
					err = e
				}
			}
			if err == nil {
				continue
			}
			if half, can := to.(interface{ CloseWrite() error }); can && errors.Is(err, io.EOF) {
				half.CloseWrite() // of TCP and of TLS
				return
			}
			to.Close()
			from.Close()
			return
		}
	}
	both.Go(func() { oneWay(a, b) })
	both.Go(func() { oneWay(b, a) })
	both.Wait()
}

// errHello ends the reading of a first message.
var errHello = errors.New("the first message was read")

// readHello reads the first message of a TLS client, and returns the name that it asks
// for and the bytes that were read.
func readHello(c net.Conn) (name string, read []byte, err error) {
	var seen bytes.Buffer
	from := helloConn{c, io.TeeReader(io.LimitReader(c, maxHello), &seen)}
	got := false
	err = tls.Server(from, &tls.Config{GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) {
		name, got = h.ServerName, true
		return nil, errHello
	}}).Handshake()
	if !got {
		return "", nil, err
	}
	return name, seen.Bytes(), nil
}

// helloConn lets package tls read a first message, and answer nothing.
type helloConn struct {
	net.Conn
	from io.Reader
}

func (h helloConn) Read(b []byte) (int, error)  { return h.from.Read(b) }
func (h helloConn) Write(b []byte) (int, error) { return len(b), nil }
