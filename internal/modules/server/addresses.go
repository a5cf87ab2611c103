package server

import (
	"context"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"gatehouse/tool"
)

// Binding is a listener of the host.
type Binding struct {
	Kind    string   // stdio, HTTP, HTTPS, TCP or Unix
	Address string   // what clients are told; "" if there is none
	Bind    string   // host:port, or the path of a socket; "" for stdio
	Names   []string // for which it has certificates of an authority
	ACME    string   // that authority
}

type bindingsOut struct {
	Bindings []bindingOut `json:"bindings"`
}

type bindingOut struct {
	Kind    string   `json:"kind"`
	Address string   `json:"address,omitempty" doc:"what clients are told"`
	Bind    string   `json:"bind,omitempty" doc:"host:port or path"`
	Port    int      `json:"port,omitempty"`
	Secure  bool     `json:"secure" doc:"encrypted, or never leaves this machine"`
	Names   []string `json:"names,omitempty" doc:"for which it has certificates"`
}

// port returns the address and port of a binding; ok is false for a socket and stdio.
func (b Binding) port() (host netip.Addr, port int, ok bool) {
	a, err := netip.ParseAddrPort(b.Bind)
	return a.Addr().Unmap(), int(a.Port()), err == nil
}

func (s *server) listBindings(context.Context, *tool.Call, struct{}) (bindingsOut, error) {
	out := bindingsOut{Bindings: []bindingOut{}}
	for _, b := range s.cfg.Host.Bindings() {
		one := bindingOut{Kind: b.Kind, Address: b.Address, Bind: b.Bind, Names: b.Names}
		host, port, ok := b.port()
		one.Port, one.Secure = port, !ok || host.IsLoopback() || b.Kind == "HTTPS"
		out.Bindings = append(out.Bindings, one)
	}
	return out, nil
}

type addressesOut struct {
	Addresses []addressOut `json:"addresses"`
}

type addressOut struct {
	Address string `json:"address" doc:"URL or host:port"`
	Kind    string `json:"kind"`
	Public  bool   `json:"public" doc:"its address or name may be reached from the internet"`
	Gateway string `json:"gateway,omitempty" doc:"the interface"`
	ACME    string `json:"acme,omitempty" doc:"the authority of its certificate"`
}

func (s *server) listAddresses(context.Context, *tool.Call, struct{}) (addressesOut, error) {
	out := addressesOut{Addresses: []addressOut{}}
	interfaces, err := interfaceAddresses()
	if err != nil {
		return out, err
	}
	for _, b := range s.cfg.Host.Bindings() {
		for _, name := range b.Names {
			out.Addresses = append(out.Addresses, addressOut{"https://" + name + "/mcp", b.Kind, true, "", b.ACME})
		}
		host, port, ok := b.port()
		if !ok {
			if b.Bind != "" {
				out.Addresses = append(out.Addresses, addressOut{Address: b.Bind, Kind: b.Kind})
			}
			continue
		}
		for a, name := range interfaces {
			any := host.IsUnspecified() && (host.Is6() || a.Is4())
			if a != host && !any || a.IsLinkLocalUnicast() {
				continue
			}
			at := netip.AddrPortFrom(a, uint16(port)).String()
			if u, err := url.Parse(b.Address); err == nil && u.Host != "" {
				u.Host = at
				at = u.String()
			}
			out.Addresses = append(out.Addresses, addressOut{at, b.Kind, !a.IsPrivate() && !a.IsLoopback(), name, ""})
		}
	}
	return out, nil
}

// outboundOnly reports whether an interface is a tunnel of system_tunnel_add through which no other machine connects to
// this one. Its alias says so.
func outboundOnly(name string) bool {
	b, err := os.ReadFile(filepath.Join("/sys/class/net", filepath.Base(name), "ifalias"))
	return err == nil && strings.TrimSpace(string(b)) == "gatehouse wireguard outbound-only"
}

// interfaceAddresses returns the addresses at which this machine is reached, with their interfaces.
func interfaceAddresses() (map[netip.Addr]string, error) {
	all, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	found := map[netip.Addr]string{}
	for _, i := range all {
		if outboundOnly(i.Name) {
			continue
		}
		addrs, err := i.Addrs()
		if err != nil {
			continue // it was removed meanwhile
		}
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil {
				found[p.Addr().Unmap()] = i.Name
			}
		}
	}
	return found, nil
}

type echoIPIn struct {
	URLs []string `json:"urls" doc:"https addresses; none turns it off" max:"8"`
}

type echoIPOut struct {
	URLs []string `json:"urls"`
}

func (s *server) setEchoIP(ctx context.Context, c *tool.Call, in echoIPIn) (echoIPOut, error) {
	if err := s.rules.Check(c, "choose services outside"); err != nil {
		return echoIPOut{}, err
	}
	for i, at := range in.URLs {
		u, err := url.Parse(at)
		local := err == nil && u.Scheme == "http" && (u.Hostname() == "127.0.0.1" || u.Hostname() == "::1")
		if err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Scheme != "https" && !local || len(at) > 300 {
			return echoIPOut{}, tool.Refuse(tool.CodeInvalidArguments, "urls[%d] is %q; expected an https address", i, at)
		}
		in.URLs[i] = strings.TrimSuffix(at, "/")
	}
	return echoIPOut{append([]string{}, in.URLs...)}, s.cfg.Host.SetEchoIP(ctx, in.URLs)
}
