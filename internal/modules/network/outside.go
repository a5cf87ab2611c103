package network

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"gatehouse/tool"
)

const (
	echoTime      = 5 * time.Second
	challengeTime = 5 * time.Second
	maxEcho       = 4 << 10 // bytes of an answer
)

// ask asks a service outside, which has the interface of echoip, over a local address; the zero address is any.
func ask(ctx context.Context, at string, from netip.Addr) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, echoTime)
	defer cancel()
	d := &net.Dialer{}
	if from.IsValid() {
		d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 0))
	}
	transport := &http.Transport{DialContext: d.DialContext, DisableKeepAlives: true}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Accept", "application/json")
	res, err := (&http.Client{Transport: transport}).Do(r)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answers with %s", at, res.Status)
	}
	return io.ReadAll(io.LimitReader(res.Body, maxEcho))
}

// errNoEcho says that no service outside may be asked.
var errNoEcho = errors.New("no service outside is named: server_set_echo_ip names some")

func (n *network) services() []string {
	if n.cfg.EchoIP == nil {
		return nil
	}
	return n.cfg.EchoIP()
}

// seenAs returns the address that a service outside sees of a local one.
func (n *network) seenAs(ctx context.Context, from netip.Addr) (string, error) {
	failed := errNoEcho
	for _, at := range n.services() {
		b, err := ask(ctx, at+"/ip", from)
		if err == nil {
			var a netip.Addr
			if a, err = netip.ParseAddr(strings.TrimSpace(string(b))); err == nil {
				return a.String(), nil
			}
		}
		failed = err
	}
	return "", failed
}

// ownAddress returns an address of an interface, or of the first one that is no loopback.
func ownAddress(name string) (netip.Addr, error) {
	all, err := net.Interfaces()
	if err != nil {
		return netip.Addr{}, err
	}
	for _, i := range all {
		if name != "" && i.Name != name || name == "" && i.Flags&net.FlagLoopback != 0 || i.Flags&net.FlagUp == 0 {
			continue
		}
		addrs, err := i.Addrs()
		if err != nil {
			continue
		}
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil && !p.Addr().IsLinkLocalUnicast() {
				return p.Addr().Unmap(), nil
			}
		}
	}
	if name == "" {
		return netip.Addr{}, tool.Refuse(tool.CodeUnsupported, "this machine has no address but that of loopback")
	}
	return netip.Addr{}, &tool.Refusal{
		Code:    tool.CodeNotFound,
		Message: fmt.Sprintf("no interface %q is up and has an address", name),
		Next:    "net_interfaces lists them.",
	}
}

// checkOwn checks from inside and outside whether a port of this machine can be reached.
func (n *network) checkOwn(ctx context.Context, in portIn, wait time.Duration) (portOut, error) {
	own, err := ownAddress(in.Gateway)
	if err != nil {
		return portOut{}, err
	}
	out := portOut{Host: own.String(), Port: in.Port}
	inside := dialAddress(ctx, own, in.Port, wait)
	out.Addresses, out.Open, out.OpenInternally = []addressOut{inside}, inside.Open, &inside.Open
	failed := errNoEcho
	for _, at := range n.services() {
		b, err := ask(ctx, fmt.Sprintf("%s/port/%d", at, in.Port), own)
		var said struct {
			IP        netip.Addr `json:"ip"`
			Port      int        `json:"port"`
			Reachable bool       `json:"reachable"`
		}
		if err == nil {
			err = json.Unmarshal(b, &said)
		}
		if err == nil && (said.Port != in.Port || !said.IP.IsValid()) {
			err = fmt.Errorf("%s does not answer as echoip does", at)
		}
		if err != nil {
			failed = err
			continue
		}
		through := dialAddress(ctx, said.IP, in.Port, wait)
		out.IP, out.OpenExternally, out.Hairpinning = said.IP.String(), &said.Reachable, &through.Open
		return out, nil
	}
	out.Why = reason(failed)
	return out, nil
}

// challenge answers at UDP port 53 of this machine for a name that it has made up, and reports which of the servers,
// asked for that name, return its answer.
func challenge(ctx context.Context, listen string, servers []netip.AddrPort) (reached []bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, challengeTime)
	defer cancel()
	conn, err := new(net.ListenConfig).ListenPacket(ctx, "udp", listen)
	if err != nil {
		return nil, tool.Refuse(tool.CodeUnsupported, "this host cannot answer queries: %v", err)
	}
	defer conn.Close()
	name := dnsmessage.MustNewName(strings.ToLower(rand.Text()) + ".check.gatehouse.internal.")
	secret := rand.Text()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		answerChallenge(conn, name, secret)
	}()
	q := dnsmessage.Question{Name: name, Type: dnsmessage.TypeTXT, Class: dnsmessage.ClassINET}
	for _, s := range servers {
		m, err := exchange(ctx, s, q)
		ok := false
		if err == nil {
			for _, r := range m.Answers {
				t, is := r.Body.(*dnsmessage.TXTResource)
				ok = ok || is && len(t.TXT) == 1 && t.TXT[0] == secret
			}
		}
		reached = append(reached, ok)
	}
	conn.Close()
	<-ended
	return reached, nil
}

// answerChallenge answers queries for one name until the connection is closed.
func answerChallenge(conn net.PacketConn, name dnsmessage.Name, secret string) {
	b := make([]byte, 1500)
	for {
		n, from, err := conn.ReadFrom(b)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		var m dnsmessage.Message
		if err != nil || m.Unpack(b[:n]) != nil || m.Response || len(m.Questions) != 1 ||
			!strings.EqualFold(m.Questions[0].Name.String(), name.String()) {
			continue
		}
		answer := dnsmessage.Message{
			Header: dnsmessage.Header{
				ID:               m.ID,
				Response:         true,
				Authoritative:    true,
				RecursionDesired: m.RecursionDesired,
			},
			Questions: m.Questions,
			Answers: []dnsmessage.Resource{{
				Header: dnsmessage.ResourceHeader{
					Name:  m.Questions[0].Name,
					Type:  dnsmessage.TypeTXT,
					Class: dnsmessage.ClassINET,
				},
				Body: &dnsmessage.TXTResource{TXT: []string{secret}},
			}},
		}
		if packed, err := answer.Pack(); err == nil {
			conn.WriteTo(packed, from) // a lost answer is asked for again
		}
	}
}
