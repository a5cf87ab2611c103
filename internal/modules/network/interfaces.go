package network

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/hex"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"gatehouse/tool"
)

type interfacesOut struct {
	Interfaces []interfaceOut `json:"interfaces"`
}

type interfacesIn struct {
	WAN bool `json:"wan,omitempty" doc:"ask services outside for the address seen from there"`
}

type interfaceOut struct {
	Name       string   `json:"name"`
	DeviceType string   `json:"deviceType,omitempty"`
	Type       string   `json:"type" enum:"inbound-outbound,outbound-only"`
	Secure     bool     `json:"secure" doc:"all its addresses are private"`
	Up         bool     `json:"up"`
	MAC        string   `json:"mac,omitempty"`
	MTU        int      `json:"mtu"`
	Subnets    []string `json:"subnets"`
	LanIP      []string `json:"lanIp,omitempty"`
	WanIP      string   `json:"wanIp,omitempty"`
	DNSServers []string `json:"dnsServers,omitempty"`
	NTPServers []string `json:"ntpServers,omitempty" doc:"that the network has named to systemd-networkd"`
}

func (n *network) interfaces(ctx context.Context, _ *tool.Call, in interfacesIn) (interfacesOut, error) {
	out := interfacesOut{Interfaces: []interfaceOut{}}
	all, err := net.Interfaces()
	if err != nil {
		return out, err
	}
	routers := parseRoutes(readSmall(n.files.routes4))
	for name, more := range parseRoutes6(readSmall(n.files.routes6)) {
		routers[name] = append(routers[name], more...)
	}
	for _, i := range all {
		one := interfaceOut{
			Name:       i.Name,
			DeviceType: n.typeOf(i),
			Type:       "inbound-outbound",
			Secure:     true,
			Up:         i.Flags&net.FlagUp != 0,
			MAC:        i.HardwareAddr.String(),
			MTU:        i.MTU,
			Subnets:    []string{},
		}
		if one.DeviceType == "wireguard" || one.DeviceType == "tunnel" {
			one.Type = cmp.Or(n.tunnelType(i.Name), "outbound-only")
		}
		addrs, err := i.Addrs()
		if err != nil {
			continue // removed since the list was read
		}
		for _, a := range addrs {
			one.Subnets = append(one.Subnets, a.String())
			p, err := netip.ParsePrefix(a.String())
			at := p.Addr()
			one.Secure = one.Secure && err == nil && (at.IsPrivate() || at.IsLoopback() || at.IsLinkLocalUnicast())
			if in.WAN && one.WanIP == "" && len(routers[i.Name]) > 0 {
				one.WanIP, _ = n.seenAs(ctx, at) // "" if no service answers
			}
		}
		for _, r := range routers[i.Name] {
			one.LanIP = append(one.LanIP, r.String())
		}
		one.DNSServers, one.NTPServers = n.lease(i.Index)
		if one.DNSServers == nil && len(one.LanIP) > 0 {
			for _, s := range parseResolv(readSmall(n.files.resolv)).Servers {
				one.DNSServers = append(one.DNSServers, s.Addr().String())
			}
		}
		out.Interfaces = append(out.Interfaces, one)
	}
	return out, nil
}

// lease returns the servers that the network of an interface has named to systemd-networkd, which keeps them as
// NAME=VALUE VALUE in a file for each interface.
func (n *network) lease(index int) (dns, ntp []string) {
	for line := range strings.Lines(string(readSmall(filepath.Join(n.files.links, strconv.Itoa(index))))) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		switch name {
		case "DNS":
			dns = strings.Fields(value)
		case "NTP":
			ntp = strings.Fields(value)
		}
	}
	return dns, ntp
}

// tunnelType returns the type of a tunnel that system_tunnel_add has made, which is in the alias of its interface; "" for
// any other interface.
func (n *network) tunnelType(name string) string {
	kind, is := strings.CutPrefix(string(readSmall(filepath.Join(n.files.class, filepath.Base(name), "ifalias"))), "gatehouse wireguard ")
	if !is {
		return ""
	}
	return strings.TrimSpace(kind)
}

// typeOf returns the type of an interface, from Linux's files or else from its
// flags.
func (n *network) typeOf(i net.Interface) string {
	at := filepath.Join(n.files.class, filepath.Base(i.Name))
	there := func(name string) bool {
		_, err := os.Stat(filepath.Join(at, name))
		return err == nil
	}
	kind := strings.TrimSpace(string(readSmall(filepath.Join(at, "type"))))
	switch {
	case i.Flags&net.FlagLoopback != 0:
		return "loopback"
	case there("wireless") || there("phy80211"):
		return "wireless"
	case there("bridge"):
		return "bridge"
	case bytes.Contains(readSmall(filepath.Join(at, "uevent")), []byte("DEVTYPE=wireguard")), n.tunnelType(i.Name) != "":
		return "wireguard"
	case i.Flags&net.FlagPointToPoint != 0:
		return "tunnel"
	case kind == "1":
		return "ethernet"
	}
	return ""
}

// readSmall reads a small file of the system. It returns nil if there is none.
func readSmall(path string) []byte {
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	b, _ := io.ReadAll(io.LimitReader(f, 1<<20))
	return b
}

// lines returns the fields of each line of a text.
func lines(text []byte) (all [][]string) {
	s := bufio.NewScanner(bytes.NewReader(text))
	s.Buffer(nil, 64<<10)
	for s.Scan() {
		if f := strings.Fields(s.Text()); len(f) > 0 {
			all = append(all, f)
		}
	}
	return all
}

// parseRoutes returns the default routers in Linux's routing table, by interface.
// The table has addresses as numbers in the machine's byte order; parseRoutes
// assumes little-endian, which holds on all supported machines.
func parseRoutes(text []byte) map[string][]netip.Addr {
	all := map[string][]netip.Addr{}
	for _, f := range lines(text) {
		if len(f) < 3 || f[1] != "00000000" {
			continue // not a default route
		}
		b, err := hex.DecodeString(f[2])
		if err != nil || len(b) != 4 {
			continue
		}
		slices.Reverse(b)
		addRouter(all, f[0], b)
	}
	return all
}

// parseRoutes6 is parseRoutes for IPv6.
func parseRoutes6(text []byte) map[string][]netip.Addr {
	all := map[string][]netip.Addr{}
	for _, f := range lines(text) {
		if len(f) < 10 || f[1] != "00" || strings.Trim(f[0], "0") != "" {
			continue
		}
		b, err := hex.DecodeString(f[4])
		if err != nil || len(b) != 16 {
			continue
		}
		addRouter(all, f[9], b)
	}
	return all
}

func addRouter(all map[string][]netip.Addr, name string, raw []byte) {
	a, ok := netip.AddrFromSlice(raw)
	if ok && !a.IsUnspecified() && !slices.Contains(all[name], a) {
		all[name] = append(all[name], a)
	}
}
