package identity

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"sync"
	"syscall"
	"time"

	"gatehouse/internal/access/displaytext"
)

// documents fetches the documents that describe clients, at the address that is the id of the client. Anybody can
// have the host fetch one, so that only public addresses are dialled, no redirect is followed, and little is read.
type documents struct {
	client *http.Client // nil means one that dials public addresses alone

	mu   sync.Mutex
	kept map[string]keptDocument
}

type keptDocument struct {
	client oauthClient
	until  time.Time
}

const (
	documentLife  = 10 * time.Minute
	documentTime  = 5 * time.Second
	documentBytes = 16 << 10
	mostDocuments = 200 // in memory
)

// fetch returns the client that a document describes.
func (d *documents) fetch(ctx context.Context, id string) (c oauthClient, err error) {
	u, err := url.Parse(id)
	if err != nil || u.Host == "" || u.Path == "" || u.Path == "/" || u.User != nil || u.Fragment != "" ||
		len(id) > mostURI {
		return c, fmt.Errorf("client_id %q: expected an https URL with a path", clip(id))
	}
	now := clock()
	d.mu.Lock()
	known, ok := d.kept[id]
	d.mu.Unlock()
	if ok && now.Before(known.until) {
		return known.client, nil
	}
	ctx, cancel := context.WithTimeout(ctx, documentTime)
	defer cancel()
	if c, err = d.get(ctx, id); err != nil {
		return c, fmt.Errorf("the client's document at %s cannot be used: %w", clip(id), err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.kept) >= mostDocuments || d.kept == nil {
		d.kept = map[string]keptDocument{}
	}
	d.kept[id] = keptDocument{c, now.Add(documentLife)}
	return c, nil
}

func (d *documents) get(ctx context.Context, id string) (c oauthClient, err error) {
	r, err := http.NewRequestWithContext(ctx, "GET", id, nil)
	if err != nil {
		return c, err
	}
	r.Header.Set("Accept", "application/json")
	client := d.client
	if client == nil {
		client = publicClient
	}
	res, err := client.Do(r)
	if err != nil {
		return c, errors.New("it cannot be fetched from a public address")
	}
	defer res.Body.Close()
	if res.StatusCode != 200 {
		return c, fmt.Errorf("the answer is %d", res.StatusCode)
	}
	text, err := io.ReadAll(io.LimitReader(res.Body, documentBytes+1))
	if err != nil || len(text) > documentBytes {
		return c, fmt.Errorf("it has more than %d bytes, or ends early", documentBytes)
	}
	if err := json.Unmarshal(text, &c); err != nil {
		return c, errors.New("it is not JSON")
	}
	if c.ID != id {
		return oauthClient{}, errors.New("it describes another client")
	}
	c.Name = displaytext.Cut(displaytext.Line(c.Name), mostName, "")
	return c, checkRedirects(c.Redirects)
}

// PublicClient returns a client that dials public addresses alone and follows no redirect, for addresses that others
// name.
func PublicClient() *http.Client { return publicClient }

// publicClient dials public addresses alone. The address is checked after the name was resolved, so that a name
// cannot lead elsewhere.
var publicClient = &http.Client{
	Timeout:       documentTime,
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: (&net.Dialer{
			Timeout: documentTime,
			Control: func(_, address string, _ syscall.RawConn) error {
				at, err := netip.ParseAddrPort(address)
				if err != nil || !publicAddress(at.Addr().Unmap()) {
					return errors.New("this address is not public")
				}
				return nil
			},
		}).DialContext,
	},
}

// notPublic are ranges that netip does not name and that are not reachable from the internet.
var notPublic = []netip.Prefix{
	netip.MustParsePrefix(
		"100.64.0.0/10",
	), netip.MustParsePrefix("192.0.0.0/24"), netip.MustParsePrefix("192.0.2.0/24"),
	netip.MustParsePrefix(
		"198.18.0.0/15",
	), netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("203.0.113.0/24"),
	netip.MustParsePrefix("240.0.0.0/4"), netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("64:ff9b::/96"),
	netip.MustParsePrefix("2002::/16"), netip.MustParsePrefix("2001:db8::/32"),
}

func publicAddress(a netip.Addr) bool {
	for _, p := range notPublic {
		if p.Contains(a) {
			return false
		}
	}
	return a.IsGlobalUnicast() && !a.IsPrivate() && !a.IsLoopback() && !a.IsLinkLocalUnicast()
}
