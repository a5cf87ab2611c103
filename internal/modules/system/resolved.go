package system

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"

	"github.com/godbus/dbus/v5"

	"gatehouse/tool"
)

const (
	resolvedName = "org.freedesktop.resolve1"
	resolvedPath = dbus.ObjectPath("/org/freedesktop/resolve1")
)

// setResolved sets the name servers of the interfaces that lead out, where systemd-resolved asks them and NetworkManager
// does not run. It holds until the machine or systemd-resolved restarts.
func (s *system) setResolved(ctx context.Context, c *tool.Call, in dnsIn) (out dnsOut, err error) {
	links, err := outward("/proc/net/route")
	if err != nil {
		return out, err
	}
	if len(links) == 0 {
		return out, tool.Refuse(tool.CodeNotFound, "no interface of this machine has a default route, whose name servers could be set")
	}
	servers := serversOfResolved(parseServers(in.Servers))
	var back undo
	for _, l := range links {
		back = append(back, s.undoResolved(ctx, l))
	}
	out.Connections = []string{}
	out.pendingOut, err = s.guarded(ctx, c, back, func() error {
		for _, l := range links {
			call := s.bus.callMethod(ctx, resolvedName, resolvedPath, resolvedName+".Manager.SetLinkDNS", int32(l.Index), servers)
			if len(servers) == 0 {
				call = s.bus.callMethod(ctx, resolvedName, resolvedPath, resolvedName+".Manager.RevertLink", int32(l.Index))
			}
			if call.err != nil {
				return call.err
			}
			out.Connections = append(out.Connections, l.Name)
		}
		return nil
	})
	return out, err
}

// resolvedServer is a name server as systemd-resolved takes it.
type resolvedServer struct {
	Family  int32
	Address []byte
}

func serversOfResolved(servers []netip.Addr) []resolvedServer {
	all := []resolvedServer{}
	for _, a := range servers {
		family := int32(syscall.AF_INET)
		if a.Is6() {
			family = 10 // AF_INET6 of Linux
		}
		all = append(all, resolvedServer{family, a.AsSlice()})
	}
	return all
}

// undoResolved returns the call that gives an interface the name servers back that it has now.
func (s *system) undoResolved(ctx context.Context, l *net.Interface) []string {
	index := fmt.Sprint(l.Index)
	revert := []string{"call", resolvedName, string(resolvedPath), resolvedName + ".Manager", "RevertLink", "i", index}
	var at dbus.ObjectPath
	if s.bus.callMethod(ctx, resolvedName, resolvedPath, resolvedName+".Manager.GetLink", int32(l.Index)).Store(&at) != nil {
		return revert
	}
	p, err := s.bus.all(ctx, resolvedName, at, resolvedName+".Link")
	servers := get[[][]any](p, "DNS")
	if err != nil || len(servers) == 0 {
		return revert
	}
	call := []string{"call", resolvedName, string(resolvedPath), resolvedName + ".Manager", "SetLinkDNS", "ia(iay)", index, fmt.Sprint(len(servers))}
	for _, one := range servers {
		var family int32
		var address []byte
		if dbus.Store(one, &family, &address) != nil {
			return revert
		}
		call = append(call, fmt.Sprint(family), fmt.Sprint(len(address)))
		for _, b := range address {
			call = append(call, fmt.Sprint(b))
		}
	}
	return call
}

// outward returns the interfaces with a default route of IPv4, from a table of routes as the kernel prints it.
func outward(table string) (all []*net.Interface, err error) {
	f, err := os.Open(table)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	seen := map[string]bool{}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		words := strings.Fields(lines.Text())
		if len(words) < 8 || words[1] != "00000000" || words[7] != "00000000" || seen[words[0]] {
			continue
		}
		seen[words[0]] = true
		if l, err := net.InterfaceByName(words[0]); err == nil {
			all = append(all, l)
		}
	}
	return all, nil
}
