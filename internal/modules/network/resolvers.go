package network

import (
	"context"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"gatehouse/tool"
)

const (
	maxServers = 8   // name servers of a machine
	maxHosts   = 500 // names of the hosts file in one result
)

// resolverConfig is the content of resolv.conf.
type resolverConfig struct {
	Servers []netip.AddrPort
	Search  []string
	Options []string
}

// parseResolv parses resolv.conf. Like the system, it ignores lines that it does
// not understand.
func parseResolv(text []byte) (r resolverConfig) {
	for _, f := range lines(text) {
		switch f[0] {
		case "nameserver":
			if len(f) < 2 || len(r.Servers) >= maxServers {
				continue
			}
			if a, err := netip.ParseAddr(f[1]); err == nil {
				r.Servers = append(r.Servers, netip.AddrPortFrom(a, 53))
			}
		case "domain", "search":
			r.Search = f[1:] // the last line overrides earlier ones
		case "options":
			r.Options = append(r.Options, f[1:]...)
		}
	}
	return r
}

// parseHosts parses a hosts file: each name with its addresses, in the order of
// the file.
func parseHosts(text []byte) (all []hostOut, more int) {
	at := map[string]int{}
	for _, f := range lines(text) {
		a, err := netip.ParseAddr(f[0])
		if err != nil {
			continue
		}
		for _, name := range f[1:] {
			if strings.HasPrefix(name, "#") {
				break
			}
			name = strings.ToLower(name)
			i, known := at[name]
			switch {
			case known:
				all[i].Addresses = append(all[i].Addresses, a.String())
			case len(all) < maxHosts:
				at[name] = len(all)
				all = append(all, hostOut{name, []string{a.String()}})
			default:
				more++
			}
		}
	}
	return all, more
}

type dumpOut struct {
	Servers []string  `json:"servers"`
	Search  []string  `json:"search,omitempty"`
	Options []string  `json:"options,omitempty"`
	Hosts   []hostOut `json:"hosts"`
	More    int       `json:"more,omitempty" doc:"number of names not listed"`
}

type hostOut struct {
	Name      string   `json:"name"`
	Addresses []string `json:"addresses"`
}

func (n *network) dumpDNS(context.Context, *tool.Call, struct{}) (dumpOut, error) {
	r := parseResolv(readSmall(n.files.resolv))
	out := dumpOut{Servers: []string{}, Search: r.Search, Options: r.Options}
	for _, s := range r.Servers {
		out.Servers = append(out.Servers, s.Addr().String())
	}
	if out.Hosts, out.More = parseHosts(readSmall(n.files.hosts)); out.Hosts == nil {
		out.Hosts = []hostOut{}
	}
	return out, nil
}

type checkDNSIn struct {
	Challenge bool `json:"challenge,omitempty" doc:"check whether each leads queries to this host"`
}

type checkDNSOut struct {
	Servers []serverOut `json:"servers"`
	Good    bool        `json:"good" doc:"at least one answers"`
}

type serverOut struct {
	Server string `json:"server"`
	Status string `json:"status,omitempty" doc:"response code"`
	MS     int64  `json:"ms"`
	Why    string `json:"why,omitempty" doc:"why it did not answer"`
	Here   *bool  `json:"reachesHost,omitempty" doc:"it leads queries to this host; only with challenge"`
}

// checkDNS queries each server for the root name servers, which every working
// server knows.
func (n *network) checkDNS(ctx context.Context, _ *tool.Call, in checkDNSIn) (checkDNSOut, error) {
	out := checkDNSOut{Servers: []serverOut{}}
	servers := parseResolv(readSmall(n.files.resolv)).Servers
	if len(servers) == 0 {
		return out, &tool.Refusal{
			Code:    tool.CodeUnsupported,
			Message: "this machine has no configured name servers",
			Next:    "Use net_dns_query with server.",
		}
	}
	root := dnsmessage.MustNewName(".")
	for _, s := range servers {
		one, begun := serverOut{Server: s.Addr().String()}, time.Now()
		m, err := exchange(
			ctx, s, dnsmessage.Question{Name: root, Type: dnsmessage.TypeNS, Class: dnsmessage.ClassINET},
		)
		if one.MS = time.Since(begun).Milliseconds(); err != nil {
			one.Why = reason(err)
		} else {
			one.Status, out.Good = statusOf(m.RCode), true
		}
		out.Servers = append(out.Servers, one)
		if ctx.Err() != nil {
			return out, context.Cause(ctx)
		}
	}
	if !in.Challenge {
		return out, nil
	}
	reached, err := challenge(ctx, n.files.answer, servers)
	for i := range reached {
		out.Servers[i].Here = &reached[i]
	}
	return out, err
}
