package wireguard

import (
	"net/netip"
	"testing"
)

// packet4 is an IPv4 packet with a fragment's offset in units of 8 bytes.
func packet4(protocol byte, fragment byte, body ...byte) []byte {
	p := make([]byte, 20)
	p[0], p[7], p[9] = 0x45, fragment, protocol
	return append(p, body...)
}

func packet6(next byte, body ...byte) []byte {
	p := make([]byte, 40)
	p[0], p[6] = 0x60, next
	return append(p, body...)
}

func tcp(flags byte) []byte {
	b := make([]byte, 20)
	b[13] = flags
	return b
}

func TestPacketsThatBeginConnections(t *testing.T) {
	const syn, ack = 2, 16
	options := []byte{6, 0, 0, 0, 0, 0, 0, 0} // an empty header before TCP
	for name, c := range map[string]struct {
		packet []byte
		begins bool
	}{
		"a beginning":                 {packet4(6, 0, tcp(syn)...), true},
		"one with ECN":                {packet4(6, 0, tcp(syn|0xc0)...), true},
		"an answer":                   {packet4(6, 0, tcp(syn|ack)...), false},
		"data":                        {packet4(6, 0, tcp(ack)...), false},
		"UDP":                         {packet4(17, 0, 0, 53, 0, 53, 0, 8, 0, 0), false},
		"a short first fragment":      {packet4(6, 0, 1, 2, 3, 4, 5, 6, 7, 8), true},
		"a fragment over the flags":   {packet4(6, 1, tcp(syn)...), true},
		"a later fragment":            {packet4(6, 100, 1), false},
		"a fragment of UDP":           {packet4(17, 1, 1), false},
		"a short header":              {[]byte{0x45, 0}, true},
		"a header that is too long":   {[]byte{0x4f, 0, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, true},
		"no version":                  {[]byte{0x10, 0}, true},
		"IPv6":                        {packet6(6, tcp(syn)...), true},
		"an answer by IPv6":           {packet6(6, tcp(syn|ack)...), false},
		"behind options":              {packet6(0, append(options, tcp(syn)...)...), true},
		"an answer behind options":    {packet6(60, append(options, tcp(ack)...)...), false},
		"behind two headers":          {packet6(0, append([]byte{60, 0, 0, 0, 0, 0, 0, 0}, append(options, tcp(syn)...)...)...), true},
		"a first fragment of IPv6":    {packet6(44, append(options, tcp(syn)...)...), true},
		"one over the flags by IPv6":  {packet6(44, append([]byte{6, 0, 0, 8, 0, 0, 0, 0}, tcp(ack)...)...), true},
		"a later fragment by IPv6":    {packet6(44, 6, 0, 4, 0, 0, 0, 0, 0, 1), false},
		"options without an end":      {packet6(0, 6, 200, 0, 0, 0, 0, 0, 0), true},
		"ICMP by IPv6":                {packet6(58, 128, 0, 0, 0), false},
		"a first fragment, too short": {packet6(44, 6, 0, 0, 0, 0, 0, 0, 0, 1), true},
	} {
		if got := beginsTCP(c.packet); got != c.begins {
			t.Errorf("%s: begins a connection: %t", name, got)
		}
	}
}

func FuzzBeginsTCP(f *testing.F) {
	f.Add(packet6(0, 6, 0, 0, 0, 0, 0, 0, 0))
	f.Add(packet4(6, 0, tcp(2)...))
	f.Fuzz(func(t *testing.T, p []byte) {
		if len(p) > 0 && !beginsTCP(p) && p[0]>>4 != 4 && p[0]>>4 != 6 {
			t.Error("what is no packet passes")
		}
	})
}

func TestNameServersOfAConfiguration(t *testing.T) {
	c := &Config{}
	if err := c.set("dns", "10.0.0.53, fd00::53,Corp.Example"); err != nil {
		t.Fatal(err)
	}
	if len(c.DNS) != 2 || c.DNS[1] != netip.MustParseAddr("fd00::53") || len(c.Domains) != 1 || c.Domains[0] != "corp.example" {
		t.Errorf("got %v %v", c.DNS, c.Domains)
	}
	for _, wrong := range []string{"", "a b", "fe80::1%eth0", "~.", "x;y", "-a"} {
		if c.set("dns", wrong) == nil {
			t.Errorf("%q is accepted", wrong)
		}
	}
}
