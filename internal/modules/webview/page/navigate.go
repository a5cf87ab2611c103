package page

import (
	"context"
	"fmt"
	"net"
	neturl "net/url"
	"strings"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/fetch"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"

	"gatehouse/internal/modules/webview/chromium"
	"gatehouse/internal/sandbox/proxy"
)

// RefusedError is the error of an address that the policy refuses.
type RefusedError struct{ URL, Reason string }

func (e *RefusedError) Error() string { return e.Reason }

// Schemes that a tab may be navigated to. A page itself can use data: and blob:, whose documents have no more access
// to the network than it has.
var schemes = map[string]bool{"http": true, "https": true, "file": true}

// CheckURL returns a URL in its full form. It refuses schemes that reach into the browser or carry their own content.
func CheckURL(text string) (*neturl.URL, error) {
	if text == "about:blank" {
		return neturl.Parse(text)
	}
	if !strings.Contains(text, "://") && !strings.HasPrefix(text, "data:") && !strings.HasPrefix(text, "javascript:") &&
		!strings.HasPrefix(text, "about:") {
		if strings.HasPrefix(text, "/") {
			text = "file://" + text
		} else {
			text = "https://" + text
		}
	}
	u, err := neturl.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("%q is not a URL: %w", cutText(text, 200), err)
	}
	if !schemes[strings.ToLower(u.Scheme)] {
		return nil, &RefusedError{
			text,
			fmt.Sprintf("addresses of the scheme %q are not opened; expected http, https or file", u.Scheme),
		}
	}
	if u.Scheme != "file" && u.Hostname() == "" {
		return nil, fmt.Errorf("%q has no host", cutText(text, 200))
	}
	return u, nil
}

func hostPort(u *neturl.URL) string {
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	if port == "" {
		return ""
	}
	return net.JoinHostPort(strings.ToLower(u.Hostname()), port)
}

// Navigation is how a page was opened.
type Navigation struct {
	URL     string
	Status  int64 // of HTTP; 0 if there is none
	Loading bool  // its load event had not come in time
}

// Navigate opens an address, and waits for the load event at most the timeout.
func (t *Tab) Navigate(ctx context.Context, text string, timeout time.Duration) (Navigation, error) {
	u, err := CheckURL(text)
	if err != nil {
		return Navigation{}, err
	}
	judged := t.browser.judgedSoFar()
	ctx, cancel := context.WithTimeoutCause(ctx, timeout,
		fmt.Errorf("%s did not answer within %v", cutText(u.String(), 200), timeout))
	defer cancel()
	var got page.NavigateResult
	err = t.waitForReply(ctx, chromium.Send(t.session.Session, page.Navigate, page.NavigateParams{URL: u.String()}), &got)
	if err != nil {
		return Navigation{}, err
	}
	if d := t.browser.refusedSince(judged, hostPort(u)); d != nil && u.Host != "" {
		return Navigation{}, &RefusedError{u.String(), d.Reason}
	}
	if got.ErrorText != "" && !got.IsDownload {
		if d := t.browser.refusedSince(judged, ""); d != nil && got.ErrorText == "net::ERR_TUNNEL_CONNECTION_FAILED" {
			return Navigation{}, &RefusedError{u.String(), d.Reason}
		}
		if got.ErrorText == "net::ERR_ACCESS_DENIED" {
			return Navigation{}, &RefusedError{
				u.String(),
				"the address is not allowed, or is not in a folder that you may use",
			}
		}
		return Navigation{}, fmt.Errorf("%s cannot be opened: %s", cutText(u.String(), 200), got.ErrorText)
	}
	if got.IsDownload {
		return Navigation{URL: u.String()}, nil
	}
	return t.loaded(ctx, judged,
		func() bool { return got.LoaderID == "" || t.life[got.LoaderID]["load"] || t.dialog != nil })
}

// loaded waits for a condition of the document that loads, and describes it. What redirected to a refused address is
// refused.
func (t *Tab) loaded(ctx context.Context, judged int, holds func() bool) (n Navigation, err error) {
	if t.browser.until(ctx, holds) != nil {
		select {
		case <-t.browser.Done():
			return n, t.browser.explain(chromium.ErrClosed)
		default:
			n.Loading = true
		}
	}
	n.URL = t.URL()
	t.browser.mu.Lock()
	for i := len(t.requests.all) - 1; i >= 0; i-- {
		if q := t.requests.all[i]; q.Type == string(network.ResourceTypeDocument) &&
			q.URL == strings.SplitN(n.URL, "#", 2)[0] {
			n.Status = q.Status
			break
		}
	}
	t.browser.mu.Unlock()
	if u, err := neturl.Parse(n.URL); err == nil {
		if d := t.browser.refusedSince(judged, hostPort(u)); d != nil && hostPort(u) != "" {
			return n, &RefusedError{n.URL, d.Reason}
		}
	}
	return n, nil
}

// History goes back (-1), forward (1) or reloads (0).
func (t *Tab) History(ctx context.Context, by int, timeout time.Duration) (Navigation, error) {
	judged := t.browser.judgedSoFar()
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("the page did not answer within %v", timeout))
	defer cancel()
	t.browser.mu.Lock()
	var before cdp.LoaderID
	if f := t.frames[t.main]; f != nil {
		before = f.loader
	}
	url := ""
	if f := t.frames[t.main]; f != nil {
		url = f.url
	}
	t.browser.mu.Unlock()
	var p chromium.Pending
	if by == 0 {
		p = chromium.Send(t.session.Session, page.Reload, page.ReloadParams{})
	} else {
		var h page.GetNavigationHistoryResult
		if err := t.waitForReply(ctx, chromium.Send(t.session.Session, page.GetNavigationHistory,
			cdp.Empty{}), &h); err != nil {
			return Navigation{}, err
		}
		to := int(h.CurrentIndex) + by
		if to < 0 || to >= len(h.Entries) {
			return Navigation{},
				fmt.Errorf("the tab has no page %s", map[int]string{-1: "before this one", 1: "after this one"}[by])
		}
		p = chromium.Send(t.session.Session, page.NavigateToHistoryEntry,
			page.NavigateToHistoryEntryParams{EntryID: h.Entries[to].ID})
	}
	if err := t.waitForReply(ctx, p, nil); err != nil {
		return Navigation{}, err
	}
	return t.loaded(ctx, judged, func() bool {
		f := t.frames[t.main]
		return t.dialog != nil ||
			f != nil &&
				(f.loader != before && t.life[f.loader]["load"] || by != 0 && f.loader == before && f.url != url)
	})
}

// answerFile answers a request that the browser asks about.
func (b *Browser) answerFile(s *session, r fetch.EventRequestPaused) {
	if r.Request == nil {
		return
	}
	u, err := neturl.Parse(r.Request.URL)
	if err != nil || u.Scheme != "file" {
		if b.opts.DebugURL != "" && err == nil && b.opts.judge(b.ctx, u) == nil {
			chromium.Send(s.Session, fetch.ContinueRequest, fetch.ContinueRequestParams{RequestID: r.RequestID})
			return
		}
		b.refuse(s, r)
		return
	}
	serve := b.filesOf(s)
	if serve == nil || u.Host != "" && u.Host != "localhost" {
		b.refuse(s, r)
		return
	}
	content, mime, err := serve(u.Path)
	if err != nil {
		b.refuse(s, r)
		return
	}
	chromium.Send(s.Session, fetch.FulfillRequest, fetch.FulfillRequestParams{
		RequestID: r.RequestID, ResponseCode: 200, Body: content,
		ResponseHeaders: []*fetch.HeaderEntry{{Name: "Content-Type", Value: mime}},
	})
}

func (b *Browser) refuse(s *session, r fetch.EventRequestPaused) {
	chromium.Send(s.Session, fetch.FailRequest, fetch.FailRequestParams{
		RequestID: r.RequestID, ErrorReason: network.ErrorReasonAccessDenied,
	})
}

// judge returns why the address of an attached browser's request is not allowed.
func (o Options) judge(ctx context.Context, u *neturl.URL) error {
	switch u.Scheme {
	case "data", "blob", "about":
		return nil
	case "http", "https", "ws", "wss":
		at := *u
		at.Scheme = strings.Replace(u.Scheme, "ws", "http", 1)
		return proxy.Judge(ctx, o.Network, hostPort(&at))
	}
	return fmt.Errorf("requests of the scheme %q are not allowed", u.Scheme)
}
