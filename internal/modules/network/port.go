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

const maxAddresses = 8 // addresses of one name that are tried

type portIn struct {
	Host    string `json:"host,omitempty" doc:"a name or an address; default: this machine" max:"255"`
	Port    int    `json:"port" min:"1" max:"65535"`
	Gateway string `json:"gateway,omitempty" doc:"interface of this machine, without host" max:"64"`
	Timeout int    `json:"timeout,omitempty" doc:"seconds for each address" default:"5" min:"1" max:"15"`
}

type portOut struct {
	Host      string       `json:"host"`
	Port      int          `json:"port"`
	Open      bool         `json:"open"`
	Addresses []addressOut `json:"addresses"`
	More      int          `json:"more,omitempty" doc:"number of addresses not tried"`

	// Of a port of this machine.
	IP             string `json:"ip,omitempty" doc:"of this machine, seen from outside"`
	OpenExternally *bool  `json:"openExternally,omitempty" doc:"missing if no service outside could say"`
	OpenInternally *bool  `json:"openInternally,omitempty"`
	Hairpinning    *bool  `json:"hairpinning,omitempty"`
	Why            string `json:"why,omitempty" doc:"why no service outside could say"`
}

type addressOut struct {
	IP   string `json:"ip"`
	Open bool   `json:"open"`
	MS   int64  `json:"ms"`
	Why  string `json:"why,omitempty" doc:"why the connection failed"`
}

func (n *network) checkPort(ctx context.Context, _ *tool.Call, in portIn) (portOut, error) {
	out := portOut{Host: in.Host, Port: in.Port, Addresses: []addressOut{}}
	wait := time.Duration(in.Timeout) * time.Second
	switch {
	case in.Host == "":
		return n.checkOwn(ctx, in, wait)
	case in.Gateway != "":
		return out, tool.Refuse(tool.CodeInvalidArguments,
			"host and gateway exclude each other: gateway is for a port of this machine")
	}
	addrs, err := addresses(ctx, in.Host, wait)
	if err != nil {
		return out, err
	}
	if len(addrs) > maxAddresses {
		addrs, out.More = addrs[:maxAddresses], len(addrs)-maxAddresses
	}
	for _, a := range addrs {
		t := dialAddress(ctx, a, in.Port, wait)
		out.Addresses, out.Open = append(out.Addresses, t), out.Open || t.Open
		if ctx.Err() != nil {
			return out, context.Cause(ctx)
		}
	}
	return out, nil
}

// addresses returns the addresses of a name, or the address that it is.
func addresses(ctx context.Context, host string, wait time.Duration) ([]netip.Addr, error) {
	if a, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil {
		return []netip.Addr{a}, nil
	}
	if strings.ContainsAny(host, ":/ @") {
		return nil, &tool.Refusal{
			Code:    tool.CodeInvalidArguments,
			Message: strconv.Quote(host) + " is neither a name nor an address",
			Next:    "Give only the name or the address, without scheme, port or path.",
		}
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	all, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, &tool.Refusal{
			Code:    tool.CodeNotFound,
			Message: "the name cannot be resolved: " + reason(err),
			Next:    "Query a name server directly with net_dns_query.",
		}
	}
	for i := range all {
		all[i] = all[i].Unmap()
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Compact(all), nil
}

func dialAddress(ctx context.Context, a netip.Addr, port int, wait time.Duration) addressOut {
	t, begun := addressOut{IP: a.String()}, time.Now()
	c, err := (&net.Dialer{Timeout: wait}).DialContext(ctx, "tcp", netip.AddrPortFrom(a, uint16(port)).String())
	t.MS, t.Why = time.Since(begun).Milliseconds(), reason(err)
	if err == nil {
		t.Open = true
		c.Close()
	}
	return t
}
