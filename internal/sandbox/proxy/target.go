package proxy

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"unicode/utf8"

	"golang.org/x/net/idna"
)

// target is the destination of a request: a clean name or an address, and a port.
type target struct {
	name string     // "" for an address
	addr netip.Addr // if an address was requested
	port uint16
}

func (t target) host() string {
	if t.name != "" {
		return t.name
	}
	return t.addr.String()
}

func (t target) String() string { return net.JoinHostPort(t.host(), strconv.Itoa(int(t.port))) }

// parseAuthority parses host:port, or a host alone if otherwise is a port. It decodes nothing and refuses
// every form but the plain one, because two parsers may interpret an unusual form differently.
func parseAuthority(text string, otherwise uint16) (target, error) {
	if strings.Contains(text, "@") {
		return target{}, errors.New("a user name or password before the host is not allowed")
	}
	host, port, bracketed := text, "", false
	if rest, ok := strings.CutPrefix(text, "["); ok {
		bracketed = true
		host, rest, ok = strings.Cut(rest, "]")
		if !ok || rest != "" && rest[0] != ':' {
			return target{}, errors.New("the brackets around the address do not match")
		}
		port = rest
	} else if i := strings.IndexByte(text, ':'); i >= 0 {
		host, port = text[:i], text[i:]
	}
	t := target{port: otherwise}
	if port != "" {
		n, err := parsePort(port[1:])
		if err != nil {
			return target{}, err
		}
		t.port = n
	}
	if t.port == 0 {
		return target{}, errors.New("the port is missing")
	}
	return t, t.setHost(host, bracketed)
}

func (t *target) setHost(host string, bracketed bool) error {
	a, err := netip.ParseAddr(host)
	if bracketed && (err != nil || !a.Is6()) {
		return fmt.Errorf("%q is not an IPv6 address", printable(host))
	}
	if err == nil {
		return t.setAddr(a)
	}
	t.name, err = cleanName(host)
	return err
}

func (t *target) setAddr(a netip.Addr) error {
	if a.Zone() != "" {
		return errors.New("an address with a zone cannot be reached")
	}
	t.addr = a.Unmap()
	return nil
}

// cleanName returns the canonical form of a name, which is judged, resolved and dialled: lower case, ASCII,
// without a final dot. A name that some resolver takes for an address (decimal, octal, hexadecimal or
// shortened) is refused.
func cleanName(host string) (string, error) {
	name := host
	if !plainASCII(host) || strings.Contains(strings.ToLower(host), "xn--") {
		ascii, err := idna.Lookup.ToASCII(host)
		again, err2 := idna.Lookup.ToASCII(ascii)
		if err != nil || err2 != nil || again != ascii || !utf8.ValidString(host) {
			return "", fmt.Errorf("%q is not a host name", printable(host))
		}
		name = ascii
	}
	name = strings.TrimSuffix(strings.ToLower(name), ".")
	if name == "" || len(name) > 253 {
		return "", fmt.Errorf("a host name must have 1 to 253 bytes, not %d", len(name))
	}
	last := ""
	for label := range strings.SplitSeq(name, ".") {
		if err := checkLabel(label); err != nil {
			return "", fmt.Errorf("%q is not a host name: %w", printable(host), err)
		}
		last = label
	}
	if _, err := netip.ParseAddr(name); err == nil || numeric(last) {
		return "", fmt.Errorf("%q is an unusual form of an address; expected 192.0.2.7 or [2001:db8::7]",
			printable(host))
	}
	return name, nil
}

func checkLabel(label string) error {
	if label == "" {
		return errors.New("a part between dots is empty")
	}
	if len(label) > 63 {
		return errors.New("a part between dots is longer than 63 bytes")
	}
	for _, c := range []byte(label) {
		if !('a' <= c && c <= 'z' || '0' <= c && c <= '9' || c == '-' || c == '_') {
			return fmt.Errorf("the byte %#02x is not allowed", c)
		}
	}
	if label[0] == '-' || label[len(label)-1] == '-' {
		return errors.New("a part starts or ends with a dash")
	}
	return nil
}

// numeric reports whether some resolver takes a name that ends in this label for a number.
func numeric(label string) bool {
	if strings.Trim(label, "0123456789") == "" {
		return true
	}
	hex, ok := strings.CutPrefix(label, "0x")
	return ok && strings.Trim(hex, "0123456789abcdef") == ""
}

func plainASCII(s string) bool {
	for _, c := range []byte(s) {
		if c >= 0x80 {
			return false
		}
	}
	return true
}

// printable returns s in a form that is safe in logs and in the head of a response.
func printable(s string) string {
	const most = 300
	var b strings.Builder
	for _, c := range []byte(s) {
		if b.Len() >= most {
			b.WriteString("...")
			break
		}
		if c < 0x20 || c >= 0x7f {
			fmt.Fprintf(&b, "%%%02X", c)
			continue
		}
		b.WriteByte(c)
	}
	return b.String()
}
