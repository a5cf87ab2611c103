package proxy

import "net/netip"

// special is a range of addresses that no rule for a name reaches.
type special struct {
	net  netip.Prefix
	what string
}

// specials are the ranges that are not public, smaller ones before those that contain them.
var specials = func() []special {
	var all []special
	for _, s := range []struct{ what, nets string }{
		{"a cloud's metadata service", "169.254.169.254/32"}, {"a cloud's metadata service", "169.254.170.2/32"},
		{"a cloud's metadata service", "169.254.170.23/32"}, {"a cloud's metadata service", "100.100.100.200/32"},
		{"a cloud's metadata service", "168.63.129.16/32"}, {"a cloud's metadata service", "192.0.0.192/32"},
		{"a cloud's metadata service", "fd00:ec2::/32"}, {"a cloud's metadata service", "fd20:ce::254/128"},
		{"this host itself", "0.0.0.0/8"}, {"a private network", "10.0.0.0/8"},
		{"a provider's own network", "100.64.0.0/10"},
		{"this host itself", "127.0.0.0/8"}, {"the local link", "169.254.0.0/16"},
		{"a private network", "172.16.0.0/12"},
		{"reserved", "192.0.0.0/24"}, {"reserved for documentation", "192.0.2.0/24"}, {"reserved", "192.88.99.0/24"},
		{"a private network", "192.168.0.0/16"}, {"reserved for measurements", "198.18.0.0/15"},
		{"reserved for documentation", "198.51.100.0/24"}, {"reserved for documentation", "203.0.113.0/24"},
		{"many receivers at once", "224.0.0.0/4"}, {"reserved", "240.0.0.0/4"},
		{"this host itself", "::/128"}, {"this host itself", "::1/128"}, {"an IPv4 address in disguise", "::/96"},
		{"an IPv4 address in disguise", "::ffff:0:0:0/96"}, {"a translated network", "64:ff9b:1::/48"},
		{"reserved", "100::/64"}, {"an IPv4 address in disguise", "2001::/32"}, {"reserved", "2001::/23"},
		{"reserved for documentation", "2001:db8::/32"}, {"an IPv4 address in disguise", "2002::/16"},
		{"reserved for documentation", "3fff::/20"}, {"reserved", "5f00::/16"}, {"a private network", "fc00::/7"},
		{"the local link", "fe80::/10"}, {"a private network", "fec0::/10"}, {"many receivers at once", "ff00::/8"},
	} {
		all = append(all, special{netip.MustParsePrefix(s.nets), s.what})
	}
	return all
}()

// translated is the NAT64 prefix: the IPv4 address inside counts.
var translated = netip.MustParsePrefix("64:ff9b::/96")

// effectiveAddr returns the address that counts when a is dialled.
func effectiveAddr(a netip.Addr) netip.Addr {
	a = a.Unmap().WithZone("")
	if translated.Contains(a) {
		b := a.As16()
		return netip.AddrFrom4([4]byte(b[12:]))
	}
	return a
}

// specialOf returns the smallest special range of an address. own are the addresses of this host.
func specialOf(a netip.Addr, own []netip.Addr) (special, bool) {
	for _, s := range specials {
		if s.net.Contains(a) {
			return s, true
		}
	}
	for _, o := range own {
		if effectiveAddr(o) == a {
			return special{netip.PrefixFrom(a, a.BitLen()), "an address of this host"}, true
		}
	}
	return special{}, false
}

// within reports whether a network lies in another, so that a rule for all addresses does not include the
// special ones.
func within(inner, outer netip.Prefix) bool {
	return inner.Bits() >= outer.Bits() && outer.Contains(inner.Addr())
}
