package network

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
)

// nameServer answers questions as a test says, over UDP and TCP at one port.
func nameServer(t *testing.T, answer func(over string, q dnsmessage.Message) [][]byte) netip.AddrPort {
	t.Helper()
	for range 20 {
		u, err := net.ListenPacket("udp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		l, err := net.Listen("tcp", u.LocalAddr().String())
		if err != nil {
			u.Close() // another process has that port of TCP
			continue
		}
		t.Cleanup(func() { u.Close(); l.Close() })
		go func() {
			b := make([]byte, 65535)
			for {
				n, from, err := u.ReadFrom(b)
				if err != nil {
					return
				}
				var q dnsmessage.Message
				if q.Unpack(b[:n]) == nil {
					for _, a := range answer("udp", q) {
						u.WriteTo(a, from)
					}
				}
			}
		}()
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				var head [2]byte
				io.ReadFull(c, head[:])
				b := make([]byte, binary.BigEndian.Uint16(head[:]))
				io.ReadFull(c, b)
				var q dnsmessage.Message
				if q.Unpack(b) == nil {
					for _, a := range answer("tcp", q) {
						c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(a))), a...))
					}
				}
				c.Close()
			}
		}()
		return u.LocalAddr().(*net.UDPAddr).AddrPort()
	}
	t.Skip("no port is free for both")
	return netip.AddrPort{}
}

func answerWith(q dnsmessage.Message, change func(*dnsmessage.Message), bodies ...dnsmessage.ResourceBody) []byte {
	m := dnsmessage.Message{Header: dnsmessage.Header{ID: q.ID, Response: true}, Questions: slices.Clone(q.Questions)}
	for _, b := range bodies {
		m.Answers = append(
			m.Answers,
			dnsmessage.Resource{
				Header: dnsmessage.ResourceHeader{Name: q.Questions[0].Name, Class: dnsmessage.ClassINET, TTL: 60},
				Body:   b,
			},
		)
	}
	if change != nil {
		change(&m)
	}
	b, err := m.Pack()
	if err != nil {
		panic(err)
	}
	return b
}

func TestRecordsAreAskedFor(t *testing.T) {
	name := dnsmessage.MustNewName("other.example.")
	bodies := map[string]struct {
		body dnsmessage.ResourceBody
		want string
	}{
		"A":     {&dnsmessage.AResource{A: [4]byte{192, 0, 2, 7}}, "192.0.2.7"},
		"AAAA":  {&dnsmessage.AAAAResource{AAAA: netip.MustParseAddr("2001:db8::7").As16()}, "2001:db8::7"},
		"CNAME": {&dnsmessage.CNAMEResource{CNAME: name}, "other.example"},
		"NS":    {&dnsmessage.NSResource{NS: name}, "other.example"},
		"MX":    {&dnsmessage.MXResource{Pref: 10, MX: name}, "10 other.example"},
		"TXT":   {&dnsmessage.TXTResource{TXT: []string{"v=spf1 ", "-all\xff"}}, "v=spf1 -all\uFFFD"},
		"SRV":   {&dnsmessage.SRVResource{Priority: 1, Weight: 2, Port: 443, Target: name}, "1 2 443 other.example"},
		"SOA": {
			&dnsmessage.SOAResource{NS: name, MBox: name, Serial: 1, Refresh: 2, Retry: 3, Expire: 4, MinTTL: 5},
			"other.example other.example 1 2 3 4 5",
		},
		"PTR": {&dnsmessage.PTRResource{PTR: name}, "other.example"},
		"CAA": {
			&dnsmessage.UnknownResource{Type: typeCAA, Data: []byte("\x00\x05issueca.example")}, `0 issue "ca.example"`,
		},
	}
	asked := make(chan string, len(bodies)+1)
	server := nameServer(t, func(_ string, q dnsmessage.Message) [][]byte {
		asked <- q.Questions[0].Name.String()
		return [][]byte{answerWith(q, nil, bodies[typeName(q.Questions[0].Type)].body)}
	})
	v := visit(t, Config{})
	for kind, c := range bodies {
		var out queryOut
		if refused := v.ask("ann", "net_dns_query", &out, "name", "a.example", "type", kind, "server",
			server.String()); refused != "" {
			t.Errorf("%s: %s", kind, refused)
			continue
		}
		if len(out.Records) != 1 || out.Records[0] != (recordOut{"a.example", kind, 60, c.want}) ||
			out.Status != "ok" || out.Name != "a.example" {
			t.Errorf("%s: got %+v, want %s", kind, out, c.want)
		}
		<-asked
	}
	for address, want := range map[string]string{
		"192.0.2.7":   "7.2.0.192.in-addr.arpa.",
		"2001:db8::7": "7.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa.",
	} {
		v.ask("ann", "net_dns_query", nil, "name", address, "type", "PTR", "server", server.String())
		if got := <-asked; got != want {
			t.Errorf("asked for %s, want %s", got, want)
		}
	}
}

// Responses to questions that were not asked are ignored, and what
// does not fit comes over TCP.
func TestOnlyTheAnswerToTheQuestionCounts(t *testing.T) {
	true4 := &dnsmessage.AResource{A: [4]byte{192, 0, 2, 1}}
	false4 := &dnsmessage.AResource{A: [4]byte{203, 0, 113, 66}}
	server := nameServer(t, func(over string, q dnsmessage.Message) [][]byte {
		if over == "tcp" {
			return [][]byte{answerWith(q, nil, true4, true4)}
		}
		return [][]byte{
			[]byte("nonsense"),
			answerWith(q, func(m *dnsmessage.Message) { m.ID++ }, false4),
			answerWith(q, func(m *dnsmessage.Message) { m.Response = false }, false4),
			answerWith(
				q, func(m *dnsmessage.Message) { m.Questions[0].Name = dnsmessage.MustNewName("b.example.") }, false4,
			),
			answerWith(q, func(m *dnsmessage.Message) { m.Truncated = true }),
		}
	})
	v := visit(t, Config{})
	var out queryOut
	if refused := v.ask("ann", "net_dns_query", &out, "name", "a.example", "server", server.String()); refused != "" {
		t.Fatal(refused)
	}
	if len(out.Records) != 2 || out.Records[0].Value != "192.0.2.1" {
		t.Errorf("got %+v", out)
	}
	liar := nameServer(t, func(over string, q dnsmessage.Message) [][]byte {
		if over == "udp" {
			return [][]byte{answerWith(q, func(m *dnsmessage.Message) { m.Truncated = true })}
		}
		return [][]byte{answerWith(q, func(m *dnsmessage.Message) { m.ID++ }, false4)}
	})
	if refused := v.ask("ann", "net_dns_query", nil, "name", "a.example", "server", liar.String()); !strings.Contains(
		refused, "answered another question",
	) {
		t.Errorf("got %q", refused)
	}
}

func TestServersAreAskedInTurn(t *testing.T) {
	server := nameServer(t, func(_ string, q dnsmessage.Message) [][]byte {
		return [][]byte{answerWith(q, func(m *dnsmessage.Message) { m.RCode = dnsmessage.RCodeNameError })}
	})
	v := visit(t, Config{})
	var out queryOut
	if refused := v.ask("ann", "net_dns_query", &out, "name", "a.example", "server", server.String()); refused != "" ||
		out.Status != "nxdomain" ||
		len(out.Records) != 0 {
		t.Errorf("got %+v, %s", out, refused)
	}
	_, closed := listening(t)
	if refused := v.ask("ann", "net_dns_query", nil, "name", "a.example", "server",
		fmt.Sprintf("127.0.0.1:%d", closed)); !strings.HasPrefix(
		refused,
		"unreachable: ",
	) {
		t.Errorf("got %q", refused)
	}
	for want, args := range map[string][]any{
		"is not a domain name": {"name", "a..example"},
		"of 1 to 63":           {"name", strings.Repeat("a", 64) + ".example"},
		"server is \"a.b\"":    {"name", "a.example", "server", "a.b"},
		"server is \"1.2.3.4":  {"name", "a.example", "server", "1.2.3.4:0"},
	} {
		if refused := v.ask("ann", "net_dns_query", nil, args...); !strings.Contains(refused, want) {
			t.Errorf("%v: got %q, want %q", args, refused, want)
		}
	}
}

func TestNameServersOfTheMachineAreTried(t *testing.T) {
	v := visit(t, Config{})
	v.n.files.resolv = filepath.Join(t.TempDir(), "resolv.conf")
	// Port 53 of loopback is whatever this machine has there: either an
	// answer, or a reason why there is none.
	if err := os.WriteFile(v.n.files.resolv, []byte("nameserver 127.0.0.254\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var out checkDNSOut
	if refused := v.ask("ann", "net_dns_check", &out); refused != "" {
		t.Fatal(refused)
	}
	if len(out.Servers) != 1 || out.Servers[0].Server != "127.0.0.254" || out.Good != (out.Servers[0].Why == "") {
		t.Errorf("got %+v", out)
	}
}

func FuzzAnswer(f *testing.F) {
	q := dnsmessage.Message{
		Header: dnsmessage.Header{ID: 7},
		Questions: []dnsmessage.Question{
			{Name: dnsmessage.MustNewName("a.example."), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET},
		},
	}
	f.Add(answerWith(q, nil, &dnsmessage.TXTResource{TXT: []string{"a"}}))
	f.Add(answerWith(q, nil, &dnsmessage.UnknownResource{Type: typeCAA, Data: []byte{0, 200, 1}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		var m dnsmessage.Message
		if m.Unpack(b) != nil {
			return
		}
		var out queryOut
		out.addRecords(m.Answers)
		if len(out.Records) > maxRecords {
			t.Errorf("%d records", len(out.Records))
		}
	})
}
