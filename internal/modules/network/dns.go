package network

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"gatehouse/tool"
)

const (
	dnsWait     = 4 * time.Second // for one server, by UDP and by TCP each
	dnsTries    = 3               // servers that are asked in turn
	mostRecords = 200             // in one answer
	typeCAA     = dnsmessage.Type(257)
)

var recordTypes = map[string]dnsmessage.Type{
	"A": dnsmessage.TypeA, "AAAA": dnsmessage.TypeAAAA, "CNAME": dnsmessage.TypeCNAME, "MX": dnsmessage.TypeMX, "NS": dnsmessage.TypeNS,
	"TXT": dnsmessage.TypeTXT, "SRV": dnsmessage.TypeSRV, "SOA": dnsmessage.TypeSOA, "PTR": dnsmessage.TypePTR, "CAA": typeCAA,
}

type queryIn struct {
	Name   string `json:"name" doc:"the name, from the top; for PTR also an address" min:"1" max:"255"`
	Type   string `json:"type,omitempty" default:"A" enum:"A,AAAA,CNAME,MX,NS,TXT,SRV,CAA,SOA,PTR"`
	Server string `json:"server,omitempty" doc:"address of the name server, with :port unless it is 53" max:"100"`
}

type queryOut struct {
	Name    string      `json:"name"`
	Type    string      `json:"type"`
	Server  string      `json:"server" doc:"that answered"`
	Status  string      `json:"status"`
	Records []recordOut `json:"records"`
	More    int         `json:"more,omitempty" doc:"records that are not listed"`
}

type recordOut struct {
	Name  string `json:"name"`
	Type  string `json:"type"`
	TTL   uint32 `json:"ttl" doc:"seconds it may be remembered"`
	Value string `json:"value"`
}

func (n *network) query(ctx context.Context, _ *tool.Call, in queryIn) (queryOut, error) {
	out := queryOut{Type: in.Type, Records: []recordOut{}}
	q, err := question(in.Name, recordTypes[in.Type])
	if err != nil {
		return out, err
	}
	servers, err := n.serversFor(in.Server)
	if err != nil {
		return out, err
	}
	out.Name = strings.TrimSuffix(q.Name.String(), ".")
	var failed error
	for _, s := range servers[:min(dnsTries, len(servers))] {
		m, err := exchange(ctx, s, q)
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s: %s", s, why(err)))
			continue
		}
		out.Server, out.Status = s.Addr().String(), statusOf(m.RCode)
		out.take(m.Answers)
		return out, nil
	}
	return out, &tool.Refusal{Code: "unreachable", Message: "no name server answers: " + strings.ReplaceAll(failed.Error(), "\n", "; "), Next: "net_dns_check tries the machine's own; server names another."}
}

// question makes a question of what somebody wants to know.
func question(name string, t dnsmessage.Type) (q dnsmessage.Question, err error) {
	if a, e := netip.ParseAddr(name); e == nil && t == dnsmessage.TypePTR {
		name = reverse(a)
	}
	if !strings.HasSuffix(name, ".") {
		name += "."
	}
	q = dnsmessage.Question{Type: t, Class: dnsmessage.ClassINET}
	if q.Name, err = dnsmessage.NewName(name); err == nil {
		for label := range strings.SplitSeq(strings.TrimSuffix(name, "."), ".") {
			if len(label) > 63 || label == "" && name != "." || strings.ContainsFunc(label, func(r rune) bool { return r <= ' ' || r > '~' }) {
				err = errors.New("not a name")
			}
		}
	}
	if err != nil {
		return q, &tool.Refusal{Code: "invalid_arguments", Message: strconv.Quote(name) + " is no name: expected labels of 1 to 63 characters with a dot between", Next: "Write international names in their xn-- form."}
	}
	return q, nil
}

// reverse is the name under which an address is looked up.
func reverse(a netip.Addr) string {
	a = a.Unmap()
	if a.Is4() {
		b := a.As4()
		return fmt.Sprintf("%d.%d.%d.%d.in-addr.arpa.", b[3], b[2], b[1], b[0])
	}
	var s strings.Builder
	b := a.As16()
	for i := len(b) - 1; i >= 0; i-- {
		fmt.Fprintf(&s, "%x.%x.", b[i]&15, b[i]>>4)
	}
	return s.String() + "ip6.arpa."
}

// serversFor are the one that was named, or the machine's own.
func (n *network) serversFor(named string) ([]netip.AddrPort, error) {
	if named == "" {
		if all := parseResolv(small(n.files.resolv)).Servers; len(all) > 0 {
			return all, nil
		}
		return nil, &tool.Refusal{Code: "unsupported", Message: "this machine does not say which name servers it asks", Next: "Give server."}
	}
	if a, err := netip.ParseAddr(strings.Trim(named, "[]")); err == nil {
		return []netip.AddrPort{netip.AddrPortFrom(a, 53)}, nil
	}
	if a, err := netip.ParseAddrPort(named); err == nil && a.Port() != 0 {
		return []netip.AddrPort{a}, nil
	}
	return nil, tool.Refuse("invalid_arguments", "server is %q; expected an address, such as 192.0.2.53 or [2001:db8::53]:5353", named)
}

// exchange asks one server by UDP, and by TCP what does not fit.
func exchange(ctx context.Context, server netip.AddrPort, q dnsmessage.Question) (*dnsmessage.Message, error) {
	m, err := ask(ctx, "udp", server, q)
	if err == nil && m.Truncated {
		return ask(ctx, "tcp", server, q)
	}
	return m, err
}

func ask(ctx context.Context, over string, server netip.AddrPort, q dnsmessage.Question) (*dnsmessage.Message, error) {
	ctx, cancel := context.WithTimeout(ctx, dnsWait)
	defer cancel()
	var id [2]byte
	rand.Read(id[:])
	send := dnsmessage.Message{Header: dnsmessage.Header{ID: binary.BigEndian.Uint16(id[:]), RecursionDesired: true}, Questions: []dnsmessage.Question{q}}
	packed, err := send.Pack()
	if err != nil {
		return nil, err
	}
	c, err := new(net.Dialer).DialContext(ctx, over, server.String())
	if err != nil {
		return nil, err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.SetDeadline(time.Unix(1, 0)) })()
	if over == "tcp" {
		packed = append(binary.BigEndian.AppendUint16(nil, uint16(len(packed))), packed...)
	}
	if _, err := c.Write(packed); err != nil {
		return nil, err
	}
	for {
		answer, err := receive(c, over)
		if err != nil {
			return nil, err
		}
		var m dnsmessage.Message
		err = m.Unpack(answer)
		ours := err == nil && m.ID == send.ID && m.Response && len(m.Questions) == 1 && same(m.Questions[0], q)
		switch {
		case ours:
			return &m, nil
		case over == "tcp" && err == nil:
			return nil, errors.New("the server answers another question")
		case over == "tcp":
			return nil, fmt.Errorf("the server's answer cannot be read: %w", err)
		} // over UDP anybody may send something: wait on
	}
}

func same(a, b dnsmessage.Question) bool {
	return a.Type == b.Type && a.Class == b.Class && strings.EqualFold(a.Name.String(), b.Name.String())
}

func receive(c net.Conn, over string) ([]byte, error) {
	size := 65535
	if over == "tcp" {
		var head [2]byte
		if _, err := io.ReadFull(c, head[:]); err != nil {
			return nil, err
		}
		b := make([]byte, binary.BigEndian.Uint16(head[:]))
		_, err := io.ReadFull(c, b)
		return b, err
	}
	b := make([]byte, size)
	n, err := c.Read(b)
	return b[:n], err
}

func statusOf(c dnsmessage.RCode) string {
	switch c {
	case dnsmessage.RCodeSuccess:
		return "ok"
	case dnsmessage.RCodeNameError:
		return "nxdomain"
	case dnsmessage.RCodeServerFailure:
		return "servfail"
	case dnsmessage.RCodeRefused:
		return "refused"
	case dnsmessage.RCodeFormatError:
		return "formerr"
	case dnsmessage.RCodeNotImplemented:
		return "notimp"
	}
	return "rcode " + strconv.Itoa(int(c))
}

func (o *queryOut) take(answers []dnsmessage.Resource) {
	for _, r := range answers {
		if len(o.Records) == mostRecords {
			o.More++
			continue
		}
		o.Records = append(o.Records, recordOut{strings.TrimSuffix(r.Header.Name.String(), "."), typeName(r.Header.Type), r.Header.TTL, valueOf(r.Body)})
	}
}

func typeName(t dnsmessage.Type) string {
	for name, known := range recordTypes {
		if known == t {
			return name
		}
	}
	return "TYPE" + strconv.Itoa(int(t))
}

// valueOf writes a record as zone files do; what a stranger put into it is
// quoted.
func valueOf(body dnsmessage.ResourceBody) string {
	bare := func(n dnsmessage.Name) string { return strings.TrimSuffix(n.String(), ".") }
	switch b := body.(type) {
	case *dnsmessage.AResource:
		return netip.AddrFrom4(b.A).String()
	case *dnsmessage.AAAAResource:
		return netip.AddrFrom16(b.AAAA).String()
	case *dnsmessage.CNAMEResource:
		return bare(b.CNAME)
	case *dnsmessage.NSResource:
		return bare(b.NS)
	case *dnsmessage.PTRResource:
		return bare(b.PTR)
	case *dnsmessage.MXResource:
		return fmt.Sprintf("%d %s", b.Pref, bare(b.MX))
	case *dnsmessage.SRVResource:
		return fmt.Sprintf("%d %d %d %s", b.Priority, b.Weight, b.Port, bare(b.Target))
	case *dnsmessage.SOAResource:
		return fmt.Sprintf("%s %s %d %d %d %d %d", bare(b.NS), bare(b.MBox), b.Serial, b.Refresh, b.Retry, b.Expire, b.MinTTL)
	case *dnsmessage.TXTResource:
		return strings.ToValidUTF8(strings.Join(b.TXT, ""), "\uFFFD")
	case *dnsmessage.UnknownResource:
		if b.Type == typeCAA {
			return caa(b.Data)
		}
		return fmt.Sprintf("\\# %d %x", len(b.Data), b.Data)
	}
	return ""
}

// caa reads which authority may make certificates.
func caa(data []byte) string {
	if len(data) < 2 || len(data) < 2+int(data[1]) {
		return fmt.Sprintf("\\# %d %x", len(data), data)
	}
	tag, value := data[2:2+int(data[1])], data[2+int(data[1]):]
	return fmt.Sprintf("%d %s %s", data[0], strings.ToValidUTF8(string(tag), "\uFFFD"), strconv.Quote(string(value)))
}
