package network

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"gatehouse/tool"
)

const mostAddresses = 8 // of one name that are tried

type portIn struct {
	Host    string `json:"host" doc:"a name or an address" min:"1" max:"255"`
	Port    int    `json:"port" min:"1" max:"65535"`
	Timeout int    `json:"timeout,omitempty" doc:"seconds for each address" default:"5" min:"1" max:"15"`
}

type portOut struct {
	Host      string   `json:"host"`
	Port      int      `json:"port"`
	Open      bool     `json:"open"`
	Addresses []tryOut `json:"addresses"`
	More      int      `json:"more,omitempty" doc:"addresses that were not tried"`
}

type tryOut struct {
	IP   string `json:"ip"`
	Open bool   `json:"open"`
	MS   int64  `json:"ms"`
	Why  string `json:"why,omitempty" doc:"what kept the connection from being made"`
}

func (n *network) checkPort(ctx context.Context, _ *tool.Call, in portIn) (portOut, error) {
	out := portOut{Host: in.Host, Port: in.Port, Addresses: []tryOut{}}
	wait := time.Duration(in.Timeout) * time.Second
	addrs, err := addresses(ctx, in.Host, wait)
	if err != nil {
		return out, err
	}
	if len(addrs) > mostAddresses {
		addrs, out.More = addrs[:mostAddresses], len(addrs)-mostAddresses
	}
	for _, a := range addrs {
		t := try(ctx, a, in.Port, wait)
		out.Addresses, out.Open = append(out.Addresses, t), out.Open || t.Open
		if ctx.Err() != nil {
			return out, context.Cause(ctx)
		}
	}
	return out, nil
}

// addresses are those of a name, or the address it is.
func addresses(ctx context.Context, host string, wait time.Duration) ([]netip.Addr, error) {
	if a, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil {
		return []netip.Addr{a}, nil
	}
	if strings.ContainsAny(host, ":/ @") {
		return nil, &tool.Refusal{Code: "invalid_arguments", Message: strconv.Quote(host) + " is neither a name nor an address", Next: "Give the host without scheme, port or path."}
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	all, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, &tool.Refusal{Code: "not_found", Message: "the name cannot be resolved: " + why(err), Next: "net_dns_query asks a name server directly."}
	}
	for i := range all {
		all[i] = all[i].Unmap()
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Compact(all), nil
}

func try(ctx context.Context, a netip.Addr, port int, wait time.Duration) tryOut {
	t, begun := tryOut{IP: a.String()}, time.Now()
	c, err := (&net.Dialer{Timeout: wait}).DialContext(ctx, "tcp", netip.AddrPortFrom(a, uint16(port)).String())
	t.MS, t.Why = time.Since(begun).Milliseconds(), why(err)
	if err == nil {
		t.Open = true
		c.Close()
	}
	return t
}
