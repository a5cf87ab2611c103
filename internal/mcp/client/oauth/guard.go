package oauth

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"syscall"
	"time"
)

const (
	metadataTimeout = 15 * time.Second // for one request to an authorization server
	maxRedirects    = 3
)

// reach says how near an address is. An authorization server may be as near as the resource
// itself, because metadata of a resource on the network must not lead to this machine.
type reach int

const (
	public reach = iota
	private
	loopback
	never // link-local addresses, among which are those of clouds' metadata
)

func reachOf(ip netip.Addr) reach {
	ip = ip.Unmap()
	shared := netip.PrefixFrom(netip.AddrFrom4([4]byte{100, 64}), 10) // RFC 6598
	switch {
	case ip.IsLoopback():
		return loopback
	case ip.IsPrivate() || shared.Contains(ip):
		return private
	case !ip.IsGlobalUnicast():
		return never
	}
	return public
}

// guard is the client for metadata and tokens of one resource. It refuses addresses that are
// nearer than the resource, plain HTTP unless the resource is reached so, and redirects to
// another origin. Addresses are checked when they are dialed, so that a name cannot change
// between the check and its use.
type guard struct {
	resource *url.URL
	direct   *http.Transport
	proxied  *http.Transport
}

// newGuard returns the client for the authorization servers of a resource.
func newGuard(resource string) *http.Client {
	g := &guard{}
	g.resource, _ = url.Parse(resource)
	if g.resource == nil {
		g.resource = &url.URL{}
	}
	g.direct = http.DefaultTransport.(*http.Transport).Clone()
	g.direct.Proxy, g.direct.DialContext = nil, g.dial
	g.proxied = http.DefaultTransport.(*http.Transport).Clone()
	return &http.Client{
		Transport: g, Timeout: metadataTimeout,
		CheckRedirect: func(req *http.Request, via []*http.Request) error {
			first := via[0].URL
			if len(via) > maxRedirects || req.URL.Host != first.Host || req.URL.Scheme != first.Scheme {
				return fmt.Errorf("%s redirects to another origin, %s", first.Host, req.URL.Host)
			}
			return nil
		},
	}
}

// RoundTrip implements http.RoundTripper.
func (g *guard) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL.Scheme != "https" && (req.URL.Scheme != "http" || g.resource.Scheme != "http") {
		return nil, fmt.Errorf("%.200s: an authorization server is reached by https alone", req.URL.Redacted())
	}
	via, err := http.ProxyFromEnvironment(req)
	if err != nil {
		return nil, err
	}
	if via == nil {
		return g.direct.RoundTrip(req)
	}
	// The proxy resolves names, so only what is written as an address can be checked.
	host := req.URL.Hostname()
	ip, err := netip.ParseAddr(host)
	if strings.EqualFold(host, "localhost") || err == nil && reachOf(ip) != public {
		return nil, errNear(host)
	}
	return g.proxied.RoundTrip(req)
}

func errNear(host string) error {
	return fmt.Errorf("the metadata leads to %.200s, an address of this machine or network, "+
		"where the server itself is not", host)
}

// dial connects to an authorization server.
func (g *guard) dial(ctx context.Context, network, address string) (net.Conn, error) {
	allowed := g.allowed(ctx)
	d := net.Dialer{Timeout: metadataTimeout, Control: func(_, address string, _ syscall.RawConn) error {
		at, err := netip.ParseAddrPort(address)
		if err != nil {
			return err
		}
		if r := reachOf(at.Addr()); r == never || r > allowed {
			return errNear(at.Addr().String())
		}
		return nil
	}}
	return d.DialContext(ctx, network, address)
}

// allowed returns how near an authorization server may be: as near as the farthest address of
// the resource.
func (g *guard) allowed(ctx context.Context) reach {
	all, err := net.DefaultResolver.LookupNetIP(ctx, "ip", g.resource.Hostname())
	if err != nil || len(all) == 0 {
		return public
	}
	nearest := loopback
	for _, ip := range all {
		nearest = min(nearest, reachOf(ip))
	}
	return nearest
}

// errStatus is an error response of an authorization server.
type errStatus struct {
	status     int
	code, text string
}

func (e *errStatus) Error() string {
	return fmt.Sprintf("the authorization server answered %d: %.100q %.300q", e.status, e.code, e.text)
}

// refusesGrant reports whether an authorization server will not accept a refresh token or
// client any more.
func refusesGrant(err error) bool {
	e, ok := errors.AsType[*errStatus](err)
	return ok && e.status >= 400 && e.status < 500 && e.status != http.StatusTooManyRequests
}
