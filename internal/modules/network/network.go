// Package network is the module that inspects the network of the machine, queries
// DNS, checks ports and forwards TCP connections.
//
// It connects to any network that the host's user can reach; the host's rules
// decide which caller may use it, as for every tool. Every wait has a timeout.
package network

import (
	"context"
	"errors"
	"time"

	"gatehouse/internal/access/operator"
	"gatehouse/module"
	"gatehouse/tool"
)

// Config is what the module is given.
type Config struct {
	// decides who may listen beyond loopback, and list and stop the forwards of all callers; nil
	// means no caller
	Rules operator.Func `json:"-"`
	// Claim takes one of the forwards of the host for a principal, or returns why it
	// gets none. nil means that the first principal that asks gets one. release is
	// called when the forward has ended.
	Claim func(principal string, administrator bool) (release func(), err error) `json:"-"`
	// ACME returns the state of the certificates that this host gets by ACME; nil
	// means that it gets none.
	ACME func() ACME `json:"-"`
	// EchoIP returns services outside that are asked how this machine is seen from there; nil means none.
	EchoIP func() []string `json:"-"`
}

type network struct {
	cfg      Config
	deps     module.Deps
	files    paths
	forwards forwards
	offer    module.Offer
}

// paths are the files with the network configuration of the system, and where challenges of DNS are answered. A file
// may be missing.
type paths struct {
	resolv, hosts    string
	routes4, routes6 string
	class            string // has a folder for each interface
	answer           string // host:port
	links            string // has a file of systemd-networkd for each interface, by number
}

var systemPaths = paths{
	resolv: "/etc/resolv.conf", hosts: "/etc/hosts",
	routes4: "/proc/net/route", routes6: "/proc/net/ipv6_route", class: "/sys/class/net",
	links: "/run/systemd/netif/links", answer: ":53",
}

// New returns what makes the module with a configuration.
func New(cfg Config) module.New {
	return func(_ context.Context, d module.Deps) (module.Module, error) {
		n := &network{deps: d, files: systemPaths}
		n.cfg = cfg
		n.forwards.init()
		n.offer.Tools = n.definitions()
		return n, nil
	}
}

// Offer implements module.Module.
func (n *network) Offer(context.Context, module.Audience) (*module.Offer, error) {
	return &n.offer, nil
}

// Close ends all forwards with their connections.
func (n *network) Close(ctx context.Context) error { return n.forwards.closeAll(ctx) }

// HandOver implements module.Transferable.
func (n *network) HandOver(_ context.Context, heir module.Heir) []string {
	return n.forwards.handOver(heir)
}

// EndOwned implements module.Owned.
func (n *network) EndOwned(_ context.Context, match func(owner string, made time.Time) bool) []string {
	return n.forwards.endOwned(match)
}

const (
	interfacesHelp = "deviceType is ethernet, wireless, bridge, wireguard, tunnel or loopback, if known. subnets are the " +
		"addresses with their prefix lengths; lanIp are the default routers, on Linux. type is that of " +
		"system_tunnel_add for its tunnels, outbound-only for others, else inbound-outbound. secure means that all addresses are private. With wan the services of server_set_echo_ip are asked."
	portHelp = "Without host, the port of this machine is checked: openInternally at `gateway`, or its first address that is no " +
		"loopback; openExternally by the first service of server_set_echo_ip that answers; hairpinning means that this machine " +
		"reaches the port at its address outside. Otherwise up to 8 addresses of the name are tried, each for up to `timeout` seconds. open means that " +
		"one of them accepted the connection; nothing is sent over it. If the connection is refused, the machine is " +
		"up and no process listens on the port; if it times out, there was no answer."
	queryHelp = "Queries `server`, or the system's name servers in order; it does not use the hosts file. type " +
		"is A, AAAA, CNAME, MX, NS, TXT, SRV, CAA, SOA or PTR; for PTR, name may be an address. If a response is " +
		"too long for UDP, the query is repeated over TCP. status is the response code: ok, nxdomain, servfail, " +
		"refused ..."
	listenersHelp = "The process of a port is known if it runs as the host's user, or if the host runs as root. " +
		"hidden is the number of ports whose process the host cannot see."
	forwardHelp = "Listens on an address of this machine and forwards each TCP connection to `target`, until " +
		"net_forward_stop, until the host ends, or for `seconds`. listen must be a loopback address unless you are " +
		"an administrator; port 0 selects a free port. An owner can have 20 forwards, a forward 256 " +
		"connections; a connection that is idle for 10 minutes is closed. The port requires no credentials: " +
		"every client that reaches it is forwarded."
)

func (n *network) definitions() []tool.Tool {
	return []tool.Tool{
		tool.New(tool.Def{
			Name: "net_interfaces", Title: "List network interfaces", Effects: tool.Reads, Task: tool.TaskNever,
			Aliases:     []string{"net.gateway.list"},
			Description: "Lists the network interfaces of this machine with their addresses.", Help: interfacesHelp,
		}, n.interfaces),
		tool.New(tool.Def{
			Name: "net_listeners", Title: "List listening ports", Effects: tool.Reads, Task: tool.TaskNever,
			Description: "Lists the listening ports of this machine and their processes.", Help: listenersHelp,
		}, n.listeners),
		tool.New(tool.Def{
			Name: "net_port_check", Title: "Check a port", Effects: tool.Reads | tool.OpenWorld, Task: tool.TaskNever,
			Timeout: 2 * time.Minute, Aliases: []string{"net.gateway.check-port"},
			Description: "Checks whether this machine can open a TCP connection to a port, or whether its own can be reached.",
			Help:        portHelp,
		}, n.checkPort),
		tool.New(tool.Def{
			Name: "net_dns_query", Title: "Query DNS", Effects: tool.Reads | tool.OpenWorld, Task: tool.TaskNever,
			Aliases:     []string{"net.dns.query"},
			Description: "Queries a name server for the records of a name.", Help: queryHelp,
		}, n.query),
		tool.New(tool.Def{
			Name: "net_dns_check", Title: "Check name servers", Effects: tool.Reads | tool.OpenWorld,
			Task: tool.TaskNever, Aliases: []string{"net.gateway.check-dns"},
			Description: "Checks whether each name server of this machine answers.",
			Help: "With challenge, this host answers at UDP port 53 for up to 5 s, and each name server is asked for a record that " +
				"it alone has: reachesHost says that the network's name service leads to this host. It needs the right to open port 53.",
		}, n.checkDNS),
		tool.New(tool.Def{
			Name: "net_dns_dump", Title: "Show name resolution", Effects: tool.Reads, Task: tool.TaskNever,
			Aliases:     []string{"net.dns.dump-table"},
			Description: "Shows how this machine resolves names: its name servers, search domains and hosts file.",
			Help:        "At most 500 names of the hosts file are listed.",
		}, n.dumpDNS),
		tool.New(tool.Def{
			Name: "net_forward_start", Title: "Forward a port", Effects: tool.Writes | tool.OpenWorld,
			Task:        tool.TaskNever,
			Description: "Forwards TCP connections from a port of this machine to another address, until it is stopped.",
			Help:        forwardHelp,
		}, n.startForward),
		tool.New(tool.Def{
			Name: "net_forward_list", Title: "List port forwards", Effects: tool.Reads, Task: tool.TaskNever,
			Aliases:     []string{"net.forward.dump-table"},
			Description: "Lists your port forwards.",
		}, n.listForwards),
		tool.New(tool.Def{
			Name: "net_forward_stop", Title: "Stop a port forward", Effects: tool.Writes | tool.Idempotent,
			Task: tool.TaskNever, Handle: "id",
			Description: "Stops a port forward and closes its connections.",
		}, n.stopForward),
		tool.New(tool.Def{
			Name: "net_acme_status", Title: "Show ACME certificates", Effects: tool.Reads, Task: tool.TaskNever,
			Description: "Shows how this host gets certificates for its public names, and when they expire.",
			Help: "Domains and authority are in the settings, listen.http.tls.acme. To name a domain there " +
				"accepts the authority's terms, so a person must do it.",
		}, n.acme),
	}
}

// ACME is the state of the certificates that a host gets by ACME.
type ACME struct {
	Directory    string // directory URL of the authority
	Email        string
	Domains      []string // none means that ACME is off
	Certificates []Certificate
}

// Certificate is a certificate from the authority.
type Certificate struct {
	Name      string
	Issuer    string
	NotBefore time.Time
	NotAfter  time.Time
}

type acmeOut struct {
	On           bool      `json:"on"`
	Provider     string    `json:"provider,omitempty"`
	Contact      []string  `json:"contact,omitempty"`
	Domains      []string  `json:"domains"`
	Certificates []certOut `json:"certificates"`
}

type certOut struct {
	Name   string `json:"name"`
	Issuer string `json:"issuer,omitempty"`
	From   string `json:"from"`
	Until  string `json:"until"`
	Good   bool   `json:"good" doc:"valid now"`
}

func (n *network) acme(context.Context, *tool.Call, struct{}) (acmeOut, error) {
	out := acmeOut{Domains: []string{}, Certificates: []certOut{}}
	if n.cfg.ACME == nil {
		return out, nil
	}
	a := n.cfg.ACME()
	if len(a.Domains) == 0 {
		return out, nil
	}
	out.On, out.Provider, out.Domains = true, a.Directory, a.Domains
	if a.Email != "" {
		out.Contact = []string{a.Email}
	}
	now := time.Now()
	for _, c := range a.Certificates {
		out.Certificates = append(
			out.Certificates,
			certOut{
				c.Name, c.Issuer, c.NotBefore.UTC().Format(time.RFC3339), c.NotAfter.UTC().Format(time.RFC3339),
				now.After(c.NotBefore) && now.Before(c.NotAfter),
			},
		)
	}
	return out, nil
}

// reason returns, in a few words, why a connection failed.
func reason(err error) string {
	timeout, ok := errors.AsType[interface {
		error
		Timeout() bool
	}](err)
	switch {
	case err == nil:
		return ""
	case ok && timeout.Timeout():
		return "timeout"
	}
	return err.Error()
}
