// Package network is the module that looks at the network of the machine and
// beyond it, and passes connections on.
//
// It looks and connects as the host's user does, in any network: who may ask
// for what is said by the host's rules, as for every tool. Every wait ends by
// itself.
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
	Rules operator.Func `json:"-"` // who may open a port beyond this machine, and list and end forwards of all callers; nil: nobody
	// ACME says how this host comes by certificates for public names; nil
	// means that nobody knows.
	ACME func() ACME `json:"-"`
}

type network struct {
	cfg      Config
	deps     module.Deps
	files    files
	forwards forwards
	offer    module.Offer
}

// files are where a system says how its network is set up. Where there is no
// such file nothing is said.
type files struct {
	resolv, hosts    string
	routes4, routes6 string
	class            string // a folder for each interface
}

var systemFiles = files{
	resolv: "/etc/resolv.conf", hosts: "/etc/hosts",
	routes4: "/proc/net/route", routes6: "/proc/net/ipv6_route", class: "/sys/class/net",
}

// New makes the module.
func New(cfg Config) module.New {
	return func(_ context.Context, d module.Deps) (module.Module, error) {
		n := &network{deps: d, files: systemFiles}
		n.cfg = cfg
		n.forwards.init()
		n.offer.Tools = n.tools()
		return n, nil
	}
}

// Offer implements module.Module.
func (n *network) Offer(context.Context, module.Audience) (*module.Offer, error) {
	return &n.offer, nil
}

// Close ends all forwards with their connections.
func (n *network) Close(ctx context.Context) error { return n.forwards.close(ctx) }

// HandOver implements module.Transferable.
func (n *network) HandOver(_ context.Context, heir module.Heir) []string {
	return n.forwards.handOver(heir)
}

// EndOwned implements module.Owned.
func (n *network) EndOwned(_ context.Context, match func(owner string, made time.Time) bool) []string {
	return n.forwards.endOwned(match)
}

const (
	interfacesHelp = "type is ethernet, wireless, bridge, wireguard, tunnel or loopback, where the system tells. subnets are the addresses with the length of their prefix; lanIp are the routers that lead elsewhere, on Linux."
	portHelp       = "Every address of the name is tried, at most 8, for up to `timeout` seconds each. open says that one of them took the connection; nothing is sent over it. A refusal means that the machine is there and nobody listens; a timeout, that nobody answers."
	queryHelp      = "Asks a name server, not the file of hosts: those of the system in turn, or `server`. type is A, AAAA, CNAME, MX, NS, TXT, SRV, CAA, SOA or PTR; for PTR, name may be an address. What is too long for UDP is asked for over TCP. status is what the server says: ok, nxdomain, servfail, refused ..."
	listenersHelp  = "Which process a port belongs to is known for those of the host's own user, and for all where the host runs as root. hidden counts those whose process the system keeps to itself."
	forwardHelp    = "Listens on an address of this machine and passes each TCP connection on to `target`, until net_forward_stop, the end of the host, or for `seconds`. listen is on loopback unless you rule this host; port 0 takes a free one. At most 20 forwards of an owner, and 256 connections of one; one over which nothing moves for 10 minutes is closed. Whoever reaches the port is passed on: the forward asks nobody who they are."
)

func (n *network) tools() []tool.Tool {
	return []tool.Tool{
		tool.New(tool.Def{
			Name: "net_interfaces", Title: "List network interfaces", Effects: tool.Reads, Task: tool.TaskNever, Aliases: []string{"net.gateway.list", "server.host.address.list"},
			Description: "Lists the network interfaces of this machine with their addresses.", Help: interfacesHelp,
		}, n.interfaces),
		tool.New(tool.Def{
			Name: "net_listeners", Title: "List listening ports", Effects: tool.Reads, Task: tool.TaskNever, Aliases: []string{"server.host.binding.list"},
			Description: "Lists the ports that are listened on, and by which process.", Help: listenersHelp,
		}, n.listeners),
		tool.New(tool.Def{
			Name: "net_port_check", Title: "Check a port", Effects: tool.Reads | tool.OpenWorld, Task: tool.TaskNever, Timeout: 2 * time.Minute, Aliases: []string{"net.gateway.check-port"},
			Description: "Tries whether this machine can open a TCP connection to a port.", Help: portHelp,
		}, n.checkPort),
		tool.New(tool.Def{
			Name: "net_dns_query", Title: "Query DNS", Effects: tool.Reads | tool.OpenWorld, Task: tool.TaskNever, Aliases: []string{"net.dns.query"},
			Description: "Asks a name server for records of a name.", Help: queryHelp,
		}, n.query),
		tool.New(tool.Def{
			Name: "net_dns_check", Title: "Check name servers", Effects: tool.Reads | tool.OpenWorld, Task: tool.TaskNever, Aliases: []string{"net.gateway.check-dns"},
			Description: "Tries whether each name server of this machine answers.",
		}, n.checkDNS),
		tool.New(tool.Def{
			Name: "net_dns_dump", Title: "Show name resolution", Effects: tool.Reads, Task: tool.TaskNever, Aliases: []string{"net.dns.dump-table"},
			Description: "Shows how this machine resolves names: its name servers, search domains and file of hosts.",
			Help:        "Names of the file of hosts are cut after 500.",
		}, n.dumpDNS),
		tool.New(tool.Def{
			Name: "net_forward_start", Title: "Forward a port", Effects: tool.Writes | tool.OpenWorld, Task: tool.TaskNever,
			Description: "Passes TCP connections to a port of this machine on to another address, until it is stopped.", Help: forwardHelp,
		}, n.startForward),
		tool.New(tool.Def{
			Name: "net_forward_list", Title: "List port forwards", Effects: tool.Reads, Task: tool.TaskNever, Aliases: []string{"net.forward.dump-table"},
			Description: "Lists your forwards of TCP connections.",
		}, n.listForwards),
		tool.New(tool.Def{
			Name: "net_forward_stop", Title: "Stop a port forward", Effects: tool.Writes | tool.Idempotent, Task: tool.TaskNever, Handle: "id",
			Description: "Ends a forward, and the connections that go through it.",
		}, n.stopForward),
		tool.New(tool.Def{
			Name: "net_acme_status", Title: "Show ACME certificates", Effects: tool.Reads, Task: tool.TaskNever,
			Description: "Says how this host comes by certificates for its public names, and until when they are good.",
			Help:        "Names and authority are settings, listen.http.tls.acme: naming a domain there agrees to the authority's terms, which is for a person to do.",
		}, n.acme),
	}
}

// ACME says how a host comes by certificates for public names.
type ACME struct {
	Directory    string // of the authority
	Email        string
	Domains      []string // none means that there is no authority
	Certificates []Certificate
}

// Certificate is one that was fetched.
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
	Good   bool   `json:"good" doc:"at this moment"`
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
		out.Certificates = append(out.Certificates, certOut{c.Name, c.Issuer, c.NotBefore.UTC().Format(time.RFC3339), c.NotAfter.UTC().Format(time.RFC3339), now.After(c.NotBefore) && now.Before(c.NotAfter)})
	}
	return out, nil
}

// why says what kept a connection from being made, in a word.
func why(err error) string {
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
