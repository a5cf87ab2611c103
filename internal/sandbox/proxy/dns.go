package proxy

import (
	"context"
	"net"
	"net/netip"
	"strings"

	"golang.org/x/net/dns/dnsmessage"

	"gatehouse/internal/sandbox"
)

const (
	maxQueries  = 32  // that are answered at once; further ones are dropped
	maxQuery    = 512 // bytes
	answerTTL   = 60  // seconds
	maxAddrs    = 16  // in one answer
	maxRecorded = 253 // bytes of a name in a decision
)

// ServeDNS answers queries for names until the caller closes the socket, whose queries carry the address that they
// were sent to. Only names that a rule allows are looked up, by the host, so that no query carries data out; any other
// name does not exist. Only queries for addresses have answers.
func (p *Proxy) ServeDNS(c *net.UDPConn) {
	free := make(chan struct{}, maxQueries)
	b, oob := make([]byte, maxQuery), make([]byte, 128)
	for {
		n, size, _, from, err := c.ReadMsgUDPAddrPort(b, oob)
		if err != nil {
			return
		}
		select {
		case free <- struct{}{}:
		default:
			continue
		}
		query, to := append([]byte(nil), b[:n]...), append([]byte(nil), oob[:size]...)
		p.work.Go(func() {
			defer func() { <-free }()
			if answer := p.answerDNS(query); answer != nil {
				c.WriteMsgUDPAddrPort(answer, to, from)
			}
		})
	}
}

// answerDNS returns the answer to a query; nil if it is malformed.
func (p *Proxy) answerDNS(query []byte) []byte {
	var parser dnsmessage.Parser
	head, err := parser.Start(query)
	if err != nil || head.Response {
		return nil
	}
	q, err := parser.Question()
	if err != nil {
		return nil
	}
	code, found := p.lookUp(q)
	answer := dnsmessage.NewBuilder(nil, dnsmessage.Header{
		ID: head.ID, Response: true, RecursionDesired: head.RecursionDesired, RecursionAvailable: true, RCode: code,
	})
	answer.EnableCompression()
	if answer.StartQuestions() != nil || answer.Question(q) != nil || answer.StartAnswers() != nil {
		return nil
	}
	h := dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class, TTL: answerTTL}
	for _, a := range found {
		if a.Is4() {
			err = answer.AResource(h, dnsmessage.AResource{A: a.As4()})
		} else {
			err = answer.AAAAResource(h, dnsmessage.AAAAResource{AAAA: a.As16()})
		}
		if err != nil {
			return nil
		}
	}
	b, err := answer.Finish()
	if err != nil {
		return nil
	}
	return b
}

// lookUp returns the addresses of a query's name that the client may reach, of the family that it asks for.
func (p *Proxy) lookUp(q dnsmessage.Question) (code dnsmessage.RCode, found []netip.Addr) {
	asked := strings.TrimSuffix(q.Name.String(), ".")
	policy := p.policy.Load()
	record := func(allowed bool, reason string) {
		policy.decided(sandbox.Decision{Allowed: allowed, Method: "DNS",
			Target: printable(asked[:min(len(asked), maxRecorded)]), Reason: printable(reason)})
	}
	name, err := cleanName(asked)
	if err == nil {
		err = policy.hasNameAnywhere(name)
	}
	if err != nil {
		record(false, err.Error())
		return dnsmessage.RCodeNameError, nil
	}
	if q.Class != dnsmessage.ClassINET || q.Type != dnsmessage.TypeA && q.Type != dnsmessage.TypeAAAA {
		return dnsmessage.RCodeSuccess, nil
	}
	ctx, cancel := context.WithTimeout(p.ctx, p.limits.Dial)
	defer cancel()
	all, err := policy.resolve.LookupNetIP(ctx, "ip", name+".")
	if len(all) == 0 { // so that what lacks a network and what lacks a grant are told apart
		record(true, "but the host cannot resolve it: "+unresolved(err))
	}
	if err != nil && unresolved(err) != "the host does not exist" {
		return dnsmessage.RCodeServerFailure, nil
	}
	for _, a := range all {
		if a = a.Unmap(); a.Is4() == (q.Type == dnsmessage.TypeA) && len(found) < maxAddrs {
			found = append(found, a)
		}
	}
	p.answered.recordAnswers(name, found)
	if len(all) == 0 {
		return dnsmessage.RCodeNameError, nil
	}
	return dnsmessage.RCodeSuccess, found
}
