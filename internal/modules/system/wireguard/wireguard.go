// Package wireguard runs WireGuard tunnels in this process, from configuration files as wg-quick(8) reads them.
package wireguard

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// MaxConfig is the size of a configuration in bytes.
const MaxConfig = 16 << 10

const (
	maxPeers  = 64
	maxRanges = 1024 // addresses and ranges in a configuration
	maxDNS    = 16   // name servers, and domains
	minMTU    = 576  // that of wireguard(4) for IPv4
	maxMTU    = 65_535
)

// Types of tunnels: whether the other end can begin TCP connections to this machine.
const (
	InboundOutbound = "inbound-outbound"
	OutboundOnly    = "outbound-only"
)

// aliasPrefix begins the alias of a tunnel's interface, before its type. net_interfaces reads it.
const aliasPrefix = "gatehouse wireguard "

// Options are what a tunnel has beside its configuration.
type Options struct {
	All     bool // every packet that has no more specific route goes through it, except the tunnel's own
	Inbound bool // the other end can begin TCP connections
	Log     *slog.Logger
}

// Type returns the type of a tunnel.
func (o Options) Type() string {
	if o.Inbound {
		return InboundOutbound
	}
	return OutboundOnly
}

// Config is the configuration of a tunnel.
type Config struct {
	Addresses []netip.Prefix // of this machine in the tunnel
	DNS       []netip.Addr   // name servers
	Domains   []string       // searched by those
	MTU       int            // bytes; 0 means 1420
	Port      int            // on which to listen; 0 selects one
	Peers     []Peer

	privateKey key
}

// Peer is the other end of a tunnel.
type Peer struct {
	Endpoint string         // host:port; "" until the peer is heard
	Allowed  []netip.Prefix // where packets of the peer come from, and which are sent to it

	publicKey, preshared key
	keepalive            int // seconds; 0 for none
}

// PublicKey is the peer's key in base64.
func (p *Peer) PublicKey() string { return base64.StdEncoding.EncodeToString(p.publicKey[:]) }

type key [32]byte

// State is what passed through a tunnel.
type State struct {
	Received, Sent int64     // bytes
	Handshake      time.Time // the last one of any peer; zero if there was none
}

// Parse reads a configuration: sections [Interface] and [Peer] with the members of wg(8), and Address, DNS and MTU of
// wg-quick(8). Members that run commands or change other tables are refused, because a configuration that comes from a
// provider must not run programs. An error names the line, and never a key.
func Parse(text string) (*Config, error) {
	if len(text) > MaxConfig {
		return nil, fmt.Errorf("the configuration has %d bytes; expected at most %d", len(text), MaxConfig)
	}
	c, section := &Config{}, ""
	interfaces := 0
	for i, line := range strings.Split(text, "\n") {
		line, _, _ = strings.Cut(line, "#")
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		if strings.HasPrefix(line, "[") {
			switch section = strings.ToLower(line); section {
			case "[interface]":
				interfaces++
			case "[peer]":
				c.Peers = append(c.Peers, Peer{})
			default:
				return nil, fmt.Errorf("line %d: expected [Interface] or [Peer]", i+1)
			}
			continue
		}
		name, value, is := strings.Cut(line, "=")
		name, value = strings.ToLower(strings.TrimSpace(name)), strings.TrimSpace(value)
		var err error
		switch {
		case !is:
			err = fmt.Errorf("expected NAME = VALUE")
		case section == "[interface]":
			err = c.set(name, value)
		case section == "[peer]":
			err = c.Peers[len(c.Peers)-1].set(name, value)
		default:
			err = fmt.Errorf("expected [Interface] or [Peer] before it")
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", i+1, err)
		}
	}
	return c, c.check(interfaces)
}

func (c *Config) check(interfaces int) error {
	ranges := len(c.Addresses)
	for i, p := range c.Peers {
		if p.publicKey == (key{}) {
			return fmt.Errorf("peer %d has no PublicKey", i+1)
		}
		ranges += len(p.Allowed)
	}
	switch {
	case interfaces != 1:
		return fmt.Errorf("there are %d sections [Interface]; expected one", interfaces)
	case c.privateKey == (key{}):
		return fmt.Errorf("[Interface] has no PrivateKey")
	case len(c.Addresses) == 0:
		return fmt.Errorf("[Interface] has no Address")
	case len(c.Peers) == 0 || len(c.Peers) > maxPeers:
		return fmt.Errorf("there are %d sections [Peer]; expected 1 to %d", len(c.Peers), maxPeers)
	case ranges > maxRanges:
		return fmt.Errorf("there are %d addresses and ranges; expected at most %d", ranges, maxRanges)
	}
	return nil
}

func (c *Config) set(name, value string) (err error) {
	switch name {
	case "privatekey":
		c.privateKey, err = parseKey(value)
	case "address":
		var more []netip.Prefix
		more, err = parsePrefixes(value, false)
		c.Addresses = append(c.Addresses, more...)
	case "dns":
		err = c.setDNS(value)
	case "mtu":
		c.MTU, err = parseNumber(value, minMTU, maxMTU)
	case "listenport":
		c.Port, err = parseNumber(value, 0, 65535)
	case "fwmark", "table", "preup", "postup", "predown", "postdown", "saveconfig":
		err = fmt.Errorf("%s is not supported: a tunnel runs no commands and has routes of its own; remove the line", name)
	default:
		err = fmt.Errorf("[Interface] has no member %q", name)
	}
	return err
}

func (p *Peer) set(name, value string) (err error) {
	switch name {
	case "publickey":
		p.publicKey, err = parseKey(value)
	case "presharedkey":
		p.preshared, err = parseKey(value)
	case "allowedips":
		var more []netip.Prefix
		more, err = parsePrefixes(value, true)
		p.Allowed = append(p.Allowed, more...)
	case "endpoint":
		if _, port, e := net.SplitHostPort(value); e != nil {
			err = fmt.Errorf("endpoint: expected HOST:PORT")
		} else if _, err = parseNumber(port, 1, 65535); err == nil {
			p.Endpoint = value
		}
	case "persistentkeepalive":
		if value != "off" {
			p.keepalive, err = parseNumber(value, 0, 65535)
		}
	default:
		err = fmt.Errorf("[Peer] has no member %q", name)
	}
	return err
}

var isDomain = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?)*$`)

// setDNS reads addresses of name servers and domains to search, as wg-quick(8) has them in one list.
func (c *Config) setDNS(value string) error {
	for one := range strings.SplitSeq(value, ",") {
		one = strings.TrimSpace(one)
		switch a, err := netip.ParseAddr(one); {
		case err == nil && a.Zone() == "":
			c.DNS = append(c.DNS, a.Unmap())
		case len(one) <= 253 && isDomain.MatchString(one):
			c.Domains = append(c.Domains, strings.ToLower(one))
		default:
			return fmt.Errorf("%q is neither an address nor a domain", one)
		}
	}
	if len(c.DNS) > maxDNS || len(c.Domains) > maxDNS {
		return fmt.Errorf("there are over %d name servers or domains", maxDNS)
	}
	return nil
}

func parseKey(value string) (k key, err error) {
	b, err := base64.StdEncoding.DecodeString(value)
	if err != nil || len(b) != len(k) {
		return k, fmt.Errorf("expected a key: 32 bytes in base64")
	}
	copy(k[:], b)
	return k, nil
}

func parseNumber(value string, least, most int) (int, error) {
	n, err := strconv.Atoi(value)
	if err != nil || n < least || n > most {
		return 0, fmt.Errorf("expected a number from %d to %d", least, most)
	}
	return n, nil
}

// parsePrefixes reads addresses with or without the length of a prefix. masked leaves only the prefix of each.
func parsePrefixes(value string, masked bool) (all []netip.Prefix, err error) {
	for one := range strings.SplitSeq(value, ",") {
		one = strings.TrimSpace(one)
		p, err := netip.ParsePrefix(one)
		if err != nil {
			a, e := netip.ParseAddr(one)
			if e != nil || a.Zone() != "" {
				return nil, fmt.Errorf("%q is no address or range", one)
			}
			p = netip.PrefixFrom(a, a.BitLen())
		}
		if masked {
			p = p.Masked()
		}
		all = append(all, p)
	}
	return all, nil
}

// AllowAll has a single peer be sent everything. It reports whether some peer is.
func (c *Config) AllowAll() bool {
	if len(c.Peers) == 1 {
		for _, everything := range []string{"0.0.0.0/0", "::/0"} {
			c.Peers[0].Allowed = append(c.Peers[0].Allowed, netip.MustParsePrefix(everything))
		}
	}
	return slices.ContainsFunc(c.routes(), func(p netip.Prefix) bool { return p.Bits() == 0 })
}

// routes returns the ranges that are sent through the tunnel.
func (c *Config) routes() (all []netip.Prefix) {
	for _, p := range c.Peers {
		all = append(all, p.Allowed...)
	}
	slices.SortFunc(all, func(a, b netip.Prefix) int { return strings.Compare(a.String(), b.String()) })
	return slices.Compact(all)
}

// device returns the configuration in the form that a device takes. Its endpoints are addresses.
func (c *Config) device(mark uint32, endpoints []string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "private_key=%s\nlisten_port=%d\nreplace_peers=true\n", hex.EncodeToString(c.privateKey[:]), c.Port)
	if mark != 0 {
		fmt.Fprintf(&b, "fwmark=%d\n", mark)
	}
	for i, p := range c.Peers {
		fmt.Fprintf(&b, "public_key=%s\npersistent_keepalive_interval=%d\n", hex.EncodeToString(p.publicKey[:]), p.keepalive)
		if p.preshared != (key{}) {
			fmt.Fprintf(&b, "preshared_key=%s\n", hex.EncodeToString(p.preshared[:]))
		}
		if endpoints[i] != "" {
			fmt.Fprintf(&b, "endpoint=%s\n", endpoints[i])
		}
		for _, a := range p.Allowed {
			fmt.Fprintf(&b, "allowed_ip=%s\n", a)
		}
	}
	return b.String()
}
