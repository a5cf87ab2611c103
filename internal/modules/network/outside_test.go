package network

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
)

// echo is a service outside, with the interface of echoip.
func echo(t *testing.T) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, _ := net.SplitHostPort(r.RemoteAddr)
		port, is := strings.CutPrefix(r.URL.Path, "/port/")
		if !is {
			fmt.Fprintln(w, host)
			return
		}
		n, _ := strconv.Atoi(port)
		conn, err := net.Dial("tcp", net.JoinHostPort(host, port))
		if err == nil {
			conn.Close()
		}
		fmt.Fprintf(w, `{"ip":%q,"port":%d,"reachable":%t}`, host, n, err == nil)
	}))
	t.Cleanup(s.Close)
	return s
}

func TestAPortIsCheckedFromOutside(t *testing.T) {
	l, closed := listening(t)
	broken := httptest.NewServer(
		http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, `{"port":"x"`) }),
	)
	defer broken.Close()
	v := visit(t, Config{EchoIP: func() []string { return []string{broken.URL, echo(t).URL} }})
	for port, open := range map[int]bool{portOf(l): true, closed: false} {
		var out portOut
		if refused := v.ask("ann", "net_port_check", &out, "port", port, "gateway", "lo"); refused != "" {
			t.Fatal(refused)
		}
		if out.IP != "127.0.0.1" || *out.OpenInternally != open || *out.OpenExternally != open ||
			*out.Hairpinning != open {
			t.Errorf("port %d: got %+v, %v %v %v, want %v", port, out, *out.OpenInternally, *out.OpenExternally,
				*out.Hairpinning, open)
		}
	}
	if refused := v.ask("ann", "net_port_check", nil, "port", 1, "gateway", "nothing0"); !strings.HasPrefix(
		refused,
		"not_found:",
	) {
		t.Errorf("refused with %q", refused)
	}
	if refused := v.ask("ann", "net_port_check", nil, "port", 1, "gateway", "lo", "host",
		"localhost"); !strings.HasPrefix(
		refused,
		"invalid_arguments:",
	) {
		t.Errorf("refused with %q", refused)
	}
	var out portOut
	if refused := visit(t, Config{}).ask("ann", "net_port_check", &out, "port", portOf(l),
		"gateway", "lo"); refused != "" ||
		out.OpenExternally != nil ||
		!strings.Contains(out.Why, "server_set_echo_ip") {
		t.Errorf("without a service: %q, %+v", refused, out)
	}
}

func TestTheAddressOutsideIsAskedFor(t *testing.T) {
	v := visit(t, Config{EchoIP: func() []string { return []string{echo(t).URL} }})
	if got, err := v.n.seenAs(t.Context(), netip.MustParseAddr("127.0.0.1")); err != nil || got != "127.0.0.1" {
		t.Errorf("got %s, %v", got, err)
	}
	v.n.files.links = t.TempDir()
	text := "# This is private data. Do not parse.\nDNS=192.0.2.53 2001:db8::53\nNTP=192.0.2.123\n"
	if err := os.WriteFile(filepath.Join(v.n.files.links, "7"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if dns, ntp := v.n.lease(7); len(dns) != 2 || len(ntp) != 1 || ntp[0] != "192.0.2.123" {
		t.Errorf("got %q, %q", dns, ntp)
	}
	var out interfacesOut
	if refused := v.ask("ann", "net_interfaces", &out, "wan", true); refused != "" {
		t.Fatal(refused)
	}
	for _, i := range out.Interfaces {
		if i.Name == "lo" && (!i.Secure || i.Type != "inbound-outbound" || i.DeviceType != "loopback") {
			t.Errorf("got %+v", i)
		}
	}
}

// A name server that forwards to this host returns the answer that it alone has; one that answers by itself does not.
func TestNameServersThatLeadHereAreFound(t *testing.T) {
	packets := func() net.PacketConn {
		t.Helper()
		c, err := net.ListenPacket("udp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	here := packets()
	listen := here.LocalAddr().String()
	here.Close()
	forwarder, other := packets(), packets()
	go func() {
		b := make([]byte, 1500)
		for {
			n, from, err := forwarder.ReadFrom(b)
			if err != nil {
				return
			}
			up, err := net.Dial("udp", listen)
			if err != nil {
				return
			}
			up.Write(b[:n])
			if n, err = up.Read(b); err == nil {
				forwarder.WriteTo(b[:n], from)
			}
			up.Close()
		}
	}()
	go answerChallenge(other, dnsmessage.MustNewName("other.example."), "wrong")
	reached, err := challenge(t.Context(), listen, []netip.AddrPort{
		netip.MustParseAddrPort(forwarder.LocalAddr().String()), netip.MustParseAddrPort(other.LocalAddr().String()),
	})
	if err != nil || len(reached) != 2 || !reached[0] || reached[1] {
		t.Errorf("got %v, %v", reached, err)
	}
}
