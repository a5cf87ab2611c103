package proxy

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"gatehouse/internal/sandbox"
)

const (
	mostRules = 1000
	longRule  = 512 // bytes
)

// A rule matches targets. It is a host and, after a colon, its ports:
//
//	example.org             that name, at ports 80 and 443
//	*.example.org           every name below it, but not itself
//	.example.org            itself and every name below it
//	*                       every name
//	example.org:22,8000-8010  those ports
//	example.org:*           every port
//	example.org:443/tcp     any protocol; at ports 80 and 443 a tunnel
//	                        otherwise carries only HTTP and TLS
//	192.0.2.7  192.0.2.0/24  [2001:db8::/32]:443   addresses
//
// An allowed name reaches only public addresses, unless the settings allow others. A rule that denies and
// gives no ports means all of them.
type rule struct {
	text  string
	name  string       // lower case, without dots at the ends; "" for every name or an address
	self  bool         // the name itself
	below bool         // every name below it
	net   netip.Prefix // valid for addresses
	ports []ports
	raw   bool // a tunnel may carry other protocols than HTTP and TLS at ports 80 and 443 too
}

type ports struct{ first, last uint16 }

var (
	webPorts = []ports{{80, 80}, {443, 443}}
	allPorts = []ports{{0, 65535}}
)

// parseRules parses a list of rules. otherwise are the ports of rules without any.
func parseRules(texts []string, otherwise []ports) ([]rule, error) {
	if len(texts) > mostRules {
		return nil, fmt.Errorf("%d rules are too many; at most %d are allowed", len(texts), mostRules)
	}
	var all []rule
	for _, t := range texts {
		r, err := parseRule(t, otherwise)
		if err != nil {
			return nil, fmt.Errorf("rule %q: %w", printable(t), err)
		}
		all = append(all, r)
	}
	return all, nil
}

func parseRule(text string, otherwise []ports) (rule, error) {
	text = strings.TrimSpace(text)
	if text == "" || len(text) > longRule {
		return rule{}, fmt.Errorf("the rule has %d bytes; 1 to %d are allowed", len(text), longRule)
	}
	host, port, err := splitRule(text)
	if err != nil {
		return rule{}, err
	}
	r := rule{text: printable(text), ports: otherwise}
	port, r.raw = strings.CutSuffix(port, "/tcp")
	if port != "" || r.raw {
		if r.ports, err = parsePorts(port); err != nil {
			return rule{}, err
		}
	}
	return r, r.setHost(host)
}

// splitRule separates the host from the ports. An IPv6 address without brackets has no ports.
func splitRule(text string) (host, port string, err error) {
	if rest, ok := strings.CutPrefix(text, "["); ok {
		host, rest, ok = strings.Cut(rest, "]")
		if !ok {
			return "", "", fmt.Errorf("the ] is missing")
		}
		if rest == "" {
			return host, "", nil
		}
		port, ok = strings.CutPrefix(rest, ":")
		if !ok || port == "" {
			return "", "", fmt.Errorf("expected a colon and ports, or nothing, after the ]")
		}
		return host, port, nil
	}
	if strings.Count(text, ":") > 1 {
		return text, "", nil
	}
	host, port, ok := strings.Cut(text, ":")
	if ok && port == "" {
		return "", "", fmt.Errorf("expected ports after the colon, such as 443, 8000-8010 or *")
	}
	return host, port, nil
}

func parsePorts(text string) ([]ports, error) {
	if text == "*" {
		return allPorts, nil
	}
	var all []ports
	for part := range strings.SplitSeq(text, ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		a, err1 := parsePort(first)
		b, err2 := parsePort(last)
		if err1 != nil || err2 != nil || a > b {
			return nil, fmt.Errorf("%q is not a list of ports; expected 443, 8000-8010, a list with commas, or *",
				printable(part))
		}
		all = append(all, ports{a, b})
	}
	return all, nil
}

// parsePort parses digits and nothing else.
func parsePort(text string) (uint16, error) {
	if text == "" || len(text) > 5 || strings.Trim(text, "0123456789") != "" {
		return 0, fmt.Errorf("%q is not a port", printable(text))
	}
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("%q is not a port; expected 1 to 65535", text)
	}
	return uint16(n), nil
}

func (r *rule) setHost(host string) error {
	if host == "*" {
		r.below = true
		return nil
	}
	if strings.Contains(host, "/") {
		return r.setNet(host)
	}
	if a, err := netip.ParseAddr(host); err == nil {
		if a.Zone() != "" {
			return fmt.Errorf("an address with a zone is not allowed")
		}
		a = a.Unmap()
		r.net = netip.PrefixFrom(a, a.BitLen())
		return nil
	}
	r.self = true
	if rest, ok := strings.CutPrefix(host, "*."); ok {
		host, r.self, r.below = rest, false, true
	} else if rest, ok := strings.CutPrefix(host, "."); ok {
		host, r.below = rest, true
	}
	if strings.Contains(host, "*") {
		return fmt.Errorf("a * is allowed alone or at the start, as in *.example.org")
	}
	name, err := cleanName(host)
	r.name = name
	return err
}

func (r *rule) setNet(text string) error {
	p, err := netip.ParsePrefix(text)
	if err != nil || p.Addr().Is4In6() {
		return fmt.Errorf("%q is not a network; expected 192.0.2.0/24 or [2001:db8::/32]", printable(text))
	}
	if p.Masked() != p {
		return fmt.Errorf("%s has bits below its mask; the network is %s", p, p.Masked())
	}
	r.net = p
	return nil
}

// at reports whether the rule includes a port.
func (r *rule) at(port uint16) bool {
	for _, p := range r.ports {
		if p.first <= port && port <= p.last {
			return true
		}
	}
	return false
}

// hasName reports whether the rule matches a clean name.
func (r *rule) hasName(name string) bool {
	switch {
	case r.net.IsValid() || name == "":
		return false
	case r.name == "":
		return true
	case r.self && name == r.name:
		return true
	}
	return r.below && strings.HasSuffix(name, "."+r.name)
}

// hasAddress reports whether the rule matches an address.
func (r *rule) hasAddress(a netip.Addr) bool { return r.net.IsValid() && r.net.Contains(a) }

// Ports returns the TCP ports of rules for a Route, each once. The error names the rule that is malformed or has too
// many.
func Ports(rules []string) (all []uint16, err error) {
	parsed, err := parseRules(rules, webPorts)
	if err != nil {
		return nil, err
	}
	for _, r := range parsed {
		for _, p := range r.ports {
			if int(p.last)-int(p.first) >= sandbox.MaxRoutePorts {
				return nil, fmt.Errorf("rule %q: name its ports; there may be %d", r.text, sandbox.MaxRoutePorts)
			}
			for port := p.first; port <= p.last && port != 0; port++ {
				if !slices.Contains(all, port) {
					all = append(all, port)
				}
			}
		}
	}
	if len(all) > sandbox.MaxRoutePorts {
		return nil, fmt.Errorf("the rules have %d ports; there may be %d", len(all), sandbox.MaxRoutePorts)
	}
	return all, nil
}

// Addresses returns those of some rules that are for addresses and not for names.
func Addresses(rules []string) (all []string) {
	for _, text := range rules {
		if r, err := parseRule(text, webPorts); err == nil && r.net.IsValid() {
			all = append(all, text)
		}
	}
	return all
}
