package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"syscall"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"gatehouse/internal/access/secret"
)

// Login holds the credentials for a registry. Without a User, Password is a bearer token.
type Login struct {
	User     string
	Password secret.Text
}

// registries are those that may be pulled from, by host and port. The value is true for a registry without
// TLS.
type registries map[string]bool

// readRegistries parses the setting: hosts, with http:// before those without TLS.
func readRegistries(list []string) (registries, error) {
	out := registries{}
	for _, text := range list {
		host, bare := strings.CutPrefix(text, "http://")
		r, err := name.NewRegistry(host, name.StrictValidation)
		if err != nil {
			return nil, fmt.Errorf("registry %q: expected host or host:port, with http:// before it if it "+
				"has no TLS: %w", text, err)
		}
		out[strings.ToLower(r.RegistryStr())] = bare
	}
	return out, nil
}

// pulled is an image in a registry.
type pulled struct {
	puller *remote.Puller
	ref    name.Reference
	opts   []remote.Option
	close  func()
}

func (s *Store) openRegistry(r Ref) (source, error) {
	host := strings.ToLower(r.Host)
	bare, allowed := s.registries[host]
	if !allowed {
		return nil, fmt.Errorf("%w: the settings of images do not name %s; an administrator can add it",
			ErrNotAllowed, r.Host)
	}
	return s.registries.pull(r, bare, s.login(host))
}

// pull opens an image in a registry; bare says that it has no TLS.
func (may registries) pull(r Ref, bare bool, login authn.Authenticator) (source, error) {
	ref := r.remote
	if bare {
		var err error
		if ref, err = name.ParseReference(r.text, name.StrictValidation, name.Insecure); err != nil {
			return nil, err
		}
	}
	t := may.transport()
	opts := []remote.Option{
		remote.WithTransport(t), remote.WithUserAgent("gatehouse"), remote.WithAuth(login),
		remote.WithRetryBackoff(remote.Backoff{Duration: 200 * time.Millisecond, Factor: 3, Jitter: 0.1, Steps: 3}),
	}
	puller, err := remote.NewPuller(opts...)
	return pulled{puller, ref, opts, t.inner.CloseIdleConnections}, err
}

// login finds the credentials for each request, so that the secret is not stored elsewhere.
func (s *Store) login(host string) authn.Authenticator { return loginOf(s.o.Logins, host) }

func loginOf(logins map[string]Login, host string) authn.Authenticator {
	for h, l := range logins {
		if r, err := name.NewRegistry(h); err == nil && strings.EqualFold(r.RegistryStr(), host) {
			return l
		}
	}
	return authn.Anonymous
}

// Authorization implements authn.Authenticator.
func (l Login) Authorization() (*authn.AuthConfig, error) {
	if l.User == "" {
		return &authn.AuthConfig{RegistryToken: l.Password.Reveal()}, nil
	}
	return &authn.AuthConfig{Username: l.User, Password: l.Password.Reveal()}, nil
}

func (p pulled) find(ctx context.Context) (*found, error) {
	d, err := p.puller.Get(ctx, p.ref)
	if err != nil {
		return nil, scrub(err)
	}
	what, err := resolve(ctx, p, d.Descriptor, d.Manifest, 0)
	if err == nil {
		what.digest = d.Digest
	}
	return what, err
}

func (p pulled) manifest(ctx context.Context, d v1.Descriptor) ([]byte, error) {
	got, err := p.puller.Get(ctx, p.ref.Context().Digest(d.Digest.String()))
	if err != nil {
		return nil, scrub(err)
	}
	return got.Manifest, nil
}

func (p pulled) blob(ctx context.Context, d v1.Descriptor) (io.ReadCloser, error) {
	l, err := p.puller.Layer(ctx, p.ref.Context().Digest(d.Digest.String()))
	if err != nil {
		return nil, scrub(err)
	}
	r, err := l.Compressed()
	return r, scrub(err)
}

func (p pulled) Close() error {
	p.close()
	return nil
}

// scrub removes from an error the registry's own text and the queries of URLs, because both may contain
// credentials.
func scrub(err error) error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*transport.Error](err); ok {
		var codes []string
		for _, d := range e.Errors {
			codes = append(codes, fmt.Sprintf("%.40q", d.Code))
		}
		return &refused{e.StatusCode, strings.Join(codes, ", ")}
	}
	if e, ok := errors.AsType[*url.Error](err); ok {
		at := ""
		if u, perr := url.Parse(e.URL); perr == nil {
			at = u.Host
		}
		if e.Err == nil {
			return fmt.Errorf("request to %s: no answer", at)
		}
		if inner, ok := errors.AsType[*url.Error](e.Err); ok {
			return scrub(inner)
		}
		return &unreached{at, e.Err}
	}
	return err
}

// refused is an error answer of a registry.
type refused struct {
	status int
	codes  string
}

func (r *refused) Error() string {
	next := "the registry answered %d (%s)"
	switch r.status {
	case http.StatusUnauthorized, http.StatusForbidden:
		next += ": the credentials in the settings of images are wrong or missing, or the image does not exist"
	case http.StatusNotFound:
		next += ": the image does not exist"
	case http.StatusTooManyRequests:
		next += ": too many requests; try again later"
	}
	return fmt.Sprintf(next, r.status, r.codes)
}

// unreached is the error for a registry that did not answer.
type unreached struct {
	host string
	err  error
}

func (u *unreached) Error() string {
	if errors.Is(u.err, http.ErrSchemeMismatch) {
		return fmt.Sprintf("request to %s: the server does not use TLS; if that is intended, put http:// before "+
			"the host in the settings of images", u.host)
	}
	return fmt.Sprintf("request to %s: %v", u.host, u.err)
}

func (u *unreached) Unwrap() error { return u.err }

// temporary reports whether the registry did not answer, or answered with a temporary error.
func temporary(err error) bool {
	if r, ok := errors.AsType[*refused](err); ok {
		return r.status >= 500 || r.status == http.StatusTooManyRequests
	}
	_, ok := errors.AsType[*unreached](err)
	return ok
}

// allowedOnly is a transport that allows plain HTTP only to registries of the settings, and connections to
// this machine and its network only to them as well. A registry may redirect to other hosts for blobs and
// tokens.
type allowedOnly struct {
	registries
	inner *http.Transport
}

func (r registries) transport() allowedOnly {
	plain := &net.Dialer{Timeout: 10 * time.Second}
	outward := &net.Dialer{Timeout: 10 * time.Second, Control: public}
	return allowedOnly{r, &http.Transport{
		Proxy: http.ProxyFromEnvironment,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			if r.named(address) || proxied(address) {
				return plain.DialContext(ctx, network, address)
			}
			return outward.DialContext(ctx, network, address)
		},
		ForceAttemptHTTP2: true, MaxIdleConnsPerHost: 4, IdleConnTimeout: 30 * time.Second,
		TLSHandshakeTimeout: 10 * time.Second, ResponseHeaderTimeout: 30 * time.Second, MaxResponseHeaderBytes: 1 << 20,
	}}
}

func (a allowedOnly) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme != "https" && !a.registries[strings.ToLower(r.URL.Host)] {
		return nil, fmt.Errorf("the request to %s would not use TLS; if that is intended, put http:// before "+
			"the host in the settings of images", r.URL.Host)
	}
	return a.inner.RoundTrip(r)
}

// named reports whether an address is that of a registry in the settings.
func (r registries) named(address string) bool {
	address = strings.ToLower(address)
	if _, ok := r[address]; ok {
		return true
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil || port != "443" && port != "80" {
		return false
	}
	_, ok := r[host]
	return ok
}

// proxied reports whether an address is that of the proxy in the host's environment, which resolves and judges
// targets itself.
func proxied(address string) bool {
	for _, scheme := range []string{"http", "https"} {
		r := &http.Request{URL: &url.URL{Scheme: scheme, Host: "example.test"}}
		if p, err := http.ProxyFromEnvironment(r); err == nil && p != nil {
			port := p.Port()
			if port == "" {
				port = map[string]string{"http": "80", "https": "443", "socks5": "1080", "socks5h": "1080"}[p.Scheme]
			}
			if strings.EqualFold(net.JoinHostPort(p.Hostname(), port), address) {
				return true
			}
		}
	}
	return false
}

var sharedSpace = netip.MustParsePrefix("100.64.0.0/10") // of carriers (RFC 6598) and of services of some clouds

// public refuses addresses that are not public.
func public(_, address string, _ syscall.RawConn) error {
	a, err := netip.ParseAddrPort(address)
	if err != nil {
		return err
	}
	ip := a.Addr().Unmap()
	if !ip.IsGlobalUnicast() || ip.IsPrivate() || ip.IsLoopback() || ip.IsLinkLocalUnicast() ||
		sharedSpace.Contains(ip) {
		return fmt.Errorf("%s is an address of this machine or its network, and not of a registry in the settings", ip)
	}
	return nil
}
