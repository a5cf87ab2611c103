package wireguard

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/tun"
)

const (
	defaultMTU = 1420
	firstTable = 0x6768_0000 // of routes, and of marks; the number of the tunnel is added
	lookupTime = 15 * time.Second
)

// Tunnel is a tunnel that is up. It ends with this process, because its interface does. Safe for concurrent use.
type Tunnel struct {
	name   string
	dev    *device.Device
	rules  []*netlink.Rule
	number uint32
}

// Available reports whether tunnels can be made: the kernel has TUN, and this process may open it.
func Available() bool {
	return unix.Access("/dev/net/tun", unix.R_OK|unix.W_OK) == nil
}

// Up makes the interface wgN with the configuration's addresses and routes.
func Up(ctx context.Context, number int, c *Config, o Options) (t *Tunnel, err error) {
	t = &Tunnel{name: "wg" + strconv.Itoa(number), number: firstTable + uint32(number)}
	endpoints, err := resolve(ctx, c.Peers)
	if err != nil {
		return nil, err
	}
	mtu := c.MTU
	if mtu == 0 {
		mtu = defaultMTU
	}
	link, err := tun.CreateTUN(t.name, mtu)
	if err != nil {
		return nil, fmt.Errorf("make the interface %s: %w", t.name, err)
	}
	if !o.Inbound {
		link = &outboundOnly{link}
	}
	t.dev = device.NewDevice(link, conn.NewDefaultBind(), &device.Logger{
		Verbosef: func(string, ...any) {},
		Errorf:   func(format string, args ...any) { o.Log.Warn(fmt.Sprintf(format, args...), "tunnel", t.name) },
	})
	defer func() {
		if err != nil {
			t.Close()
			t = nil
		}
	}()
	mark := uint32(0)
	if o.All {
		mark = t.number
	}
	if err := t.dev.IpcSet(c.device(mark, endpoints)); err != nil {
		return t, errors.New("the configuration is refused") // the error may hold a key
	}
	if err := t.dev.Up(); err != nil {
		return t, err
	}
	return t, t.route(c, o)
}

// resolve returns the endpoints of peers as addresses.
func resolve(ctx context.Context, peers []Peer) (all []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, lookupTime)
	defer cancel()
	for _, p := range peers {
		if p.Endpoint == "" {
			all = append(all, "")
			continue
		}
		host, port, err := net.SplitHostPort(p.Endpoint)
		if err != nil {
			return nil, err
		}
		found, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		if err != nil || len(found) == 0 {
			return nil, fmt.Errorf("the endpoint %s cannot be resolved: %w", p.Endpoint, err)
		}
		all = append(all, net.JoinHostPort(found[0].Unmap().String(), port))
	}
	return all, nil
}

// route sets the addresses and routes of the interface.
func (t *Tunnel) route(c *Config, o Options) error {
	link, err := netlink.LinkByName(t.name)
	if err != nil {
		return err
	}
	if err := netlink.LinkSetAlias(link, aliasPrefix+o.Type()); err != nil {
		return err
	}
	for _, a := range c.Addresses {
		if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: ipNet(a)}); err != nil {
			return fmt.Errorf("add the address %s: %w", a, err)
		}
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return err
	}
	for _, r := range c.routes() {
		if r.Bits() == 0 {
			continue // see sendAll
		}
		err := netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: ipNet(r), Scope: netlink.SCOPE_LINK})
		if err != nil && !errors.Is(err, unix.EEXIST) { // the address has made it
			return fmt.Errorf("add the route to %s: %w", r, err)
		}
	}
	if !o.All {
		return nil
	}
	return t.sendAll(link, c)
}

// sendAll sends what no more specific route takes through the tunnel. The tunnel's own packets have a mark, by which
// they go the old way. The rules stay if this process is killed; their table is empty then, so that they change nothing.
func (t *Tunnel) sendAll(link netlink.Link, c *Config) error {
	done := map[int]bool{}
	for _, a := range c.Addresses {
		family, everything := unix.AF_INET, netip.MustParsePrefix("0.0.0.0/0")
		if a.Addr().Is6() {
			family, everything = unix.AF_INET6, netip.MustParsePrefix("::/0")
		}
		if done[family] {
			continue
		}
		done[family] = true
		err := netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: ipNet(everything), Table: int(t.number)})
		if err != nil {
			return fmt.Errorf("add the default route: %w", err)
		}
		unmarked := netlink.NewRule()
		unmarked.Family, unmarked.Mark, unmarked.Invert, unmarked.Table = family, t.number, true, int(t.number)
		specific := netlink.NewRule()
		specific.Family, specific.Table, specific.SuppressPrefixlen = family, unix.RT_TABLE_MAIN, 0
		for _, r := range []*netlink.Rule{unmarked, specific} { // the later one is looked at first
			netlink.RuleDel(r) // of a process that was killed
			if err := netlink.RuleAdd(r); err != nil {
				return fmt.Errorf("add a rule of routing: %w", err)
			}
			t.rules = append(t.rules, r)
		}
	}
	return nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// Close takes the tunnel down.
func (t *Tunnel) Close() {
	for _, r := range t.rules {
		netlink.RuleDel(r) // it may be gone
	}
	t.dev.Close()
}

// State returns what passed through the tunnel.
func (t *Tunnel) State() (s State) {
	text, err := t.dev.IpcGet()
	if err != nil {
		return s // it is being closed
	}
	lines := bufio.NewScanner(strings.NewReader(text))
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), "=")
		n, _ := strconv.ParseInt(value, 10, 64) // 0 for what is no number
		switch name {
		case "rx_bytes":
			s.Received += n
		case "tx_bytes":
			s.Sent += n
		case "last_handshake_time_sec":
			if at := time.Unix(n, 0); n > 0 && at.After(s.Handshake) {
				s.Handshake = at
			}
		}
	}
	return s
}

// Free returns the lowest number below limit of which there is no interface.
func Free(limit int) (int, error) {
	for n := range limit {
		if _, err := os.Stat("/sys/class/net/wg" + strconv.Itoa(n)); errors.Is(err, os.ErrNotExist) {
			return n, nil
		}
	}
	return 0, fmt.Errorf("there are %d tunnels, which is the limit", limit)
}
