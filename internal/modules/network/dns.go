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
	dnsTimeout = 4 * time.Second // for one server by UDP, and again by TCP
	maxTries   = 3               // servers that are tried in order
	maxRecords = 200             // in one result
	typeCAA    = dnsmessage.Type(257)
)

var recordTypes = map[string]dnsmessage.Type{
	"A": dnsmessage.TypeA, "AAAA": dnsmessage.TypeAAAA, "CNAME": dnsmessage.TypeCNAME, "MX": dnsmessage.TypeMX,
	"NS":  dnsmessage.TypeNS,
	"TXT": dnsmessage.TypeTXT, "SRV": dnsmessage.TypeSRV, "SOA": dnsmessage.TypeSOA, "PTR": dnsmessage.TypePTR,
	"CAA": typeCAA,
}

type queryIn struct {
	Name   string `json:"name" doc:"fully qualified name; for PTR also an address" min:"1" max:"255"`
	Type   string `json:"type,omitempty" default:"A" enum:"A,AAAA,CNAME,MX,NS,TXT,SRV,CAA,SOA,PTR"`
	Server string `json:"server,omitempty" doc:"address of a name server; :port unless 53" max:"100"`
}

type queryOut struct {
	Name    string      `json:"name"`
	Type    string      `json:"type"`
	Server  string      `json:"server" doc:"the server that answered"`
	Status  string      `json:"status"`
	Records []recordOut `json:"records"`
	More    int         `json:"more,omitempty" doc:"number of records not listed"`
}

type recordOut struct {
	Name  string `json:"name"`
	Type  string `json:"type"`
	TTL   uint32 `json:"ttl" doc:"seconds"`
	Value string `json:"value"`
}

func (n *network) query(ctx context.Context, _ *tool.Call, in queryIn) (queryOut, error) {
	out := queryOut{Type: in.Type, Records: []recordOut{}}
	q, err := newQuestion(in.Name, recordTypes[in.Type])
	if err != nil {
		return out, err
	}
	servers, err := n.serversFor(in.Server)
	if err != nil {
		return out, err
	}
	out.Name = strings.TrimSuffix(q.Name.String(), ".")
	var failed error
	for _, s := range servers[:min(maxTries, len(servers))] {
		m, err := exchange(ctx, s, q)
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s: %s", s, reason(err)))
			continue
		}
		out.Server, out.Status = s.Addr().String(), statusOf(m.RCode)
		out.addRecords(m.Answers)
		return out, nil
	}
	return out, &tool.Refusal{
		Code:    tool.CodeUnreachable,
		Message: "no name server answers: " + strings.ReplaceAll(failed.Error(), "\n", "; "),
		Next:    "Check the machine's name servers with net_dns_check, or give another as server.",
	}
}

// newQuestion returns the DNS question for a name or, for PTR, an address.
func newQuestion(name string, t dnsmessage.Type) (q dnsmessage.Question, err error) {
	if a, e := netip.ParseAddr(name); e == nil && t == dnsmessage.TypePTR {
		name = reverseName(a)
	}
	if !strings.HasSuffix(name, ".") {
		name += "."
	}
	q = dnsmessage.Question{Type: t, Class: dnsmessage.ClassINET}
	if q.Name, err = dnsmessage.NewName(name); err == nil {
		for label := range strings.SplitSeq(strings.TrimSuffix(name, "."), ".") {
			if len(label) > 63 || label == "" && name != "." ||
				strings.ContainsFunc(label, func(r rune) bool { return r <= ' ' || r > '~' }) {
				err = errors.New("not a name")
			}
		}
	}
	if err != nil {
		return q, &tool.Refusal{
			Code: tool.CodeInvalidArguments,
			Message: strconv.Quote(name) + " is not a domain name: expected labels of 1 to 63 characters, separated " +
				"by dots",
			Next: "Give an international name in its xn-- form.",
		}
	}
	return q, nil
}

// reverseName returns the name with which a PTR record of an address is queried.
func reverseName(a netip.Addr) string {
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

// serversFor returns the named server, or the name servers of the machine.
func (n *network) serversFor(named string) ([]netip.AddrPort, error) {
	if named == "" {
		if all := parseResolv(readSmall(n.files.resolv)).Servers; len(all) > 0 {
			return all, nil
		}
		return nil, &tool.Refusal{
			Code:    tool.CodeUnsupported,
			Message: "this machine has no configured name servers",
			Next:    "Give the address of a name server as server.",
		}
	}
	if a, err := netip.ParseAddr(strings.Trim(named, "[]")); err == nil {
		return []netip.AddrPort{netip.AddrPortFrom(a, 53)}, nil
	}
	if a, err := netip.ParseAddrPort(named); err == nil && a.Port() != 0 {
		return []netip.AddrPort{a}, nil
	}
	return nil, tool.Refuse(tool.CodeInvalidArguments, "server is %q; expected an address such as 192.0.2.53 or "+
		"[2001:db8::53]:5353", named)
}

// exchange queries one server by UDP and, if the response is truncated, by TCP.
func exchange(ctx context.Context, server netip.AddrPort, q dnsmessage.Question) (*dnsmessage.Message, error) {
	m, err := roundTrip(ctx, "udp", server, q)
	if err == nil && m.Truncated {
		return roundTrip(ctx, "tcp", server, q)
	}
	return m, err
}

func roundTrip(
	ctx context.Context, over string, server netip.AddrPort, q dnsmessage.Question,
) (*dnsmessage.Message, error) {
	ctx, cancel := context.WithTimeout(ctx, dnsTimeout)
	defer cancel()
	var id [2]byte
	rand.Read(id[:])
	send := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: binary.BigEndian.Uint16(id[:]), RecursionDesired: true},
		Questions: []dnsmessage.Question{q},
	}
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
		ours := err == nil && m.ID == send.ID && m.Response && len(m.Questions) == 1 && sameQuestion(m.Questions[0], q)
		switch {
		case ours:
			return &m, nil
		case over == "tcp" && err == nil:
			return nil, errors.New("the server answered another question")
		case over == "tcp":
			return nil, fmt.Errorf("the response of the server is invalid: %w", err)
		} // over UDP any host may send a packet: wait for the right one
	}
}

func sameQuestion(a, b dnsmessage.Question) bool {
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

func (o *queryOut) addRecords(answers []dnsmessage.Resource) {
	for _, r := range answers {
		if len(o.Records) == maxRecords {
			o.More++
			continue
		}
		o.Records = append(
			o.Records,
			recordOut{
				strings.TrimSuffix(r.Header.Name.String(), "."), typeName(r.Header.Type), r.Header.TTL, valueOf(r.Body),
			},
		)
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

// valueOf formats a record as in a zone file. It quotes text, because anyone may
// have put it into the record.
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
		return fmt.Sprintf(
			"%s %s %d %d %d %d %d", bare(b.NS), bare(b.MBox), b.Serial, b.Refresh, b.Retry, b.Expire, b.MinTTL,
		)
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

// caa formats a CAA record.
func caa(data []byte) string {
	if len(data) < 2 || len(data) < 2+int(data[1]) {
		return fmt.Sprintf("\\# %d %x", len(data), data)
	}
	tag, value := data[2:2+int(data[1])], data[2+int(data[1]):]
	return fmt.Sprintf("%d %s %s", data[0], strings.ToValidUTF8(string(tag), "\uFFFD"), strconv.Quote(string(value)))
}
