package proxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"gatehouse/internal/sandbox"
)

// policy is a parsed Network. It is immutable.
type policy struct {
	allow, deny []rule
	special     []rule // allowed by the settings; allow does not reach other special addresses
	secrets     []hidden
	hint        string // what allows special addresses
	resolve     sandbox.Resolver
	decided     func(sandbox.Decision)
}

func newPolicy(n sandbox.Network) (*policy, error) {
	deny, err := parseRules(n.Deny, allPorts)
	if err != nil {
		return nil, err
	}
	allow, err := parseRules(n.Allow, webPorts)
	if err != nil {
		return nil, err
	}
	special, err := parseRules(n.Special, webPorts)
	if err != nil {
		return nil, err
	}
	for i := range special {
		if !special[i].net.IsValid() {
			return nil, fmt.Errorf("rule %q: expected an address or a network, such as 10.1.2.3:443 or "+
				"10.1.0.0/16", special[i].text)
		}
	}
	secrets, err := parseSecrets(n.Secrets)
	if err != nil {
		return nil, err
	}
	p := &policy{allow: allow, deny: deny, special: special, secrets: secrets, resolve: n.Resolve, decided: n.Decided}
	p.hint = cmp.Or(n.SpecialHint, "modules.sandbox.network_special in the host's settings")
	if p.resolve == nil {
		p.resolve = net.DefaultResolver
	}
	if p.decided == nil {
		p.decided = func(sandbox.Decision) {}
	}
	return p, nil
}

// A refusal is the reason why a target is not allowed.
type refusal struct{ rule, reason string }

func (r *refusal) Error() string { return r.reason }

func refusef(rule, format string, args ...any) error {
	return &refusal{rule, fmt.Sprintf(format, args...)}
}

// byName judges a name before it is resolved, so that names that are not allowed do not even reach a name
// server. It returns the rule that allows it.
func (p *policy) byName(t target) (string, error) {
	for i := range p.deny {
		if r := &p.deny[i]; r.hasName(t.name) && r.at(t.port) {
			return "", refusef(r.text, "%s is denied by the rule %s", t, r.text)
		}
	}
	for i := range p.allow {
		if r := &p.allow[i]; r.hasName(t.name) && r.at(t.port) {
			return r.text, nil
		}
	}
	return "", p.noRule(t)
}

func (p *policy) noRule(t target) error {
	if len(p.allow) == 0 {
		return refusef("", "%s is not allowed: this sandbox has no network", t)
	}
	const most = 10
	var texts []string
	for _, r := range p.allow[:min(most, len(p.allow))] {
		texts = append(texts, r.text)
	}
	if more := len(p.allow) - most; more > 0 {
		texts = append(texts, fmt.Sprintf("and %d more", more))
	}
	return refusef("", "%s is not allowed: no rule matches it; allowed are %s", t, strings.Join(texts, ", "))
}

// byAddress judges an address of a target. named is the rule that allows the target by its name, or "".
func (p *policy) byAddress(t target, a netip.Addr, named string, own []netip.Addr) (string, error) {
	a = effectiveAddr(a)
	for i := range p.deny {
		if r := &p.deny[i]; r.hasAddress(a) && r.at(t.port) {
			return "", refusef(r.text, "%s leads to %s, which is denied by the rule %s", t, a, r.text)
		}
	}
	s, isSpecial := specialOf(a, own)
	if isSpecial && !p.opened(a, t.port, s) {
		return "", refusef("",
			"%s leads to %s, which is %s; such addresses are allowed only by %s", t, a, s.what, p.hint)
	}
	if named != "" {
		return named, nil
	}
	for i := range p.allow {
		r := &p.allow[i]
		if r.hasAddress(a) && r.at(t.port) && (!isSpecial || within(r.net, s.net)) {
			return r.text, nil
		}
	}
	return "", p.noRule(t)
}

// opened reports whether the settings allow a special address and port. A rule counts only if it lies within
// the special range, so that a rule for all addresses allows none of these.
func (p *policy) opened(a netip.Addr, port uint16, s special) bool {
	for i := range p.special {
		if r := &p.special[i]; r.hasAddress(a) && r.at(port) && within(r.net, s.net) {
			return true
		}
	}
	return false
}

// raw reports whether a tunnel to a target may carry protocols other than HTTP and TLS. At ports 80 and 443 a
// rule must say so, because a server there that parses more leniently than this proxy may find a request for
// another host in the data.
func (p *policy) raw(t target, a netip.Addr) bool {
	if t.port != httpPort && t.port != httpsPort {
		return true
	}
	for i := range p.allow {
		r := &p.allow[i]
		if r.raw && r.at(t.port) && (r.hasName(t.name) || r.hasAddress(effectiveAddr(a))) {
			return true
		}
	}
	return false
}

// verdict is the addresses at which a target may be dialled.
type verdict struct {
	at   []netip.AddrPort
	rule string
}

// judge decides where a target may be dialled. It resolves the name once, and only the addresses judged here
// are dialled.
func (p *policy) judge(ctx context.Context, t target, own []netip.Addr) (verdict, error) {
	named, found := "", []netip.Addr{t.addr}
	if t.name != "" {
		var err error
		if named, err = p.byName(t); err != nil {
			return verdict{}, err
		}
		if found, err = p.resolve.LookupNetIP(ctx, "ip", t.name+"."); err != nil || len(found) == 0 {
			return verdict{}, refusef(named, "%s is allowed, but its name cannot be resolved: %s", t, unresolved(err))
		}
	}
	var v verdict
	var firstNo error
	for _, a := range found {
		rule, err := p.byAddress(t, a, named, own)
		if err != nil {
			firstNo = errors.Join(firstNo, err)
			continue
		}
		v.rule = rule
		v.at = append(v.at, netip.AddrPortFrom(a.Unmap().WithZone(""), t.port))
	}
	if len(v.at) == 0 {
		no, _ := errors.AsType[*refusal](firstNo)
		return verdict{}, no
	}
	return v, nil
}

// allows reports whether a target that was allowed before is allowed now.
func (p *policy) allows(t target, a netip.Addr, own []netip.Addr) error {
	named := ""
	if t.name != "" {
		var err error
		if named, err = p.byName(t); err != nil {
			return err
		}
	}
	_, err := p.byAddress(t, a, named, own)
	return err
}

func unresolved(err error) string {
	if dns, ok := errors.AsType[*net.DNSError](err); ok {
		if dns.IsNotFound {
			return "the host does not exist"
		}
		return printable(dns.Err)
	}
	if err == nil {
		return "it has no address"
	}
	return printable(err.Error())
}
