// Package page drives the pages of one browser: it words them for a model, acts on them and keeps what they report.
package page

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/chromedp/cdproto/browser"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/target"
	"github.com/chromedp/chromedp/remote"

	"gatehouse/internal/modules/webview/chromium"
	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/proxy"
)

//go:embed engine.js
var engineSource string

const (
	world         = "gatehouse" // the name of the isolated world of the engine
	mostDecisions = 200         // newest decisions of the proxy that are kept
	mostTabs      = 50          // tabs of one browser; more are closed when they open
	mostFrames    = 200         // frames of one tab that are worded
)

// Options are for Open. The zero value starts the browser of this machine, whose pages reach nothing.
type Options struct {
	Chromium chromium.Options
	// DebugURL attaches to a browser that runs already, at its debug address; "" means that one is started.
	DebugURL string
	// Network is what pages may reach.
	Network sandbox.Network
	// Proxy is for the proxy of the traffic; tests set its members.
	Proxy proxy.Options
	// MaxDownload limits one download, in bytes; 0 means 1 GiB.
	MaxDownload int64
}

// Browser is one browser with its tabs. It is safe for concurrent use. The caller must call Close.
type Browser struct {
	opts     Options
	conn     *chromium.Conn
	process  *chromium.Process // nil if it was attached
	proxy    *proxy.Proxy      // nil if it was attached, or is in a sandbox, which has one
	listener net.Listener
	folder   string // for downloads and uploads
	wg       sync.WaitGroup
	ctx      context.Context // ends with Close; of what events start
	cancel   context.CancelFunc

	mu        sync.Mutex
	changed   chan struct{} // closed, and made anew, at each change of state
	tabs      []*Tab
	current   *Tab
	lastTab   int
	sessions  map[target.SessionID]*session
	decisions []sandbox.Decision
	judged    int // decisions so far
	downloads []*Download
}

// FileServer answers requests of pages for files of this machine: it returns the content and its media type.
type FileServer func(path string) (content []byte, mime string, err error)

// session is a DevTools session of a tab: of its page, or of a frame that another process draws.
type session struct {
	chromium.Session
	tab    *Tab // nil for a worker
	parent *session
}

// Open starts a browser, or attaches to one, and returns it when its first tab is ready.
func Open(ctx context.Context, o Options) (_ *Browser, err error) {
	b := &Browser{opts: o, changed: make(chan struct{}), sessions: map[target.SessionID]*session{}}
	b.ctx, b.cancel = context.WithCancel(context.Background())
	defer func() {
		if err != nil {
			b.Close()
		}
	}()
	if b.folder, err = chromium.MakeFolder(o.Chromium.Folder); err != nil {
		return nil, err
	}
	if o.DebugURL != "" {
		err = b.attach(ctx)
	} else {
		err = b.start(ctx)
	}
	if err != nil {
		return nil, err
	}
	if err = b.attachTabs(ctx); err != nil {
		return nil, err
	}
	return b, nil
}

func (b *Browser) start(ctx context.Context) (err error) {
	n := b.opts.Network
	n.Resolve = localNames{n.Resolve}
	decided := n.Decided
	n.Decided = func(d sandbox.Decision) {
		b.keepDecision(d)
		if decided != nil {
			decided(d)
		}
	}
	c := b.opts.Chromium
	if c.Driver != nil {
		c.Network, c.Shared = n, b.folder
	} else if c.Proxy, err = b.serveProxy(n); err != nil {
		return err
	}
	b.process, err = chromium.Launch(ctx, c, b.event)
	if err == nil {
		b.conn = b.process.Conn
	}
	return err
}

// serveProxy serves the proxy of a browser that is a process of the host, and returns its address.
func (b *Browser) serveProxy(n sandbox.Network) (address string, err error) {
	b.proxy = proxy.New(b.opts.Proxy)
	if err := b.proxy.Set(n); err != nil {
		return "", err
	}
	if b.listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		return "", err
	}
	b.wg.Go(func() { b.proxy.Serve(b.listener) })
	return b.listener.Addr().String(), nil
}

// localNames is a resolver that knows localhost and the names below it, as browsers do.
type localNames struct{ others sandbox.Resolver }

// LookupNetIP implements sandbox.Resolver.
func (l localNames) LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error) {
	if name := strings.TrimSuffix(strings.ToLower(host), "."); name == "localhost" ||
		strings.HasSuffix(name, ".localhost") {
		return []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}, nil
	}
	if l.others == nil {
		return net.DefaultResolver.LookupNetIP(ctx, network, host)
	}
	return l.others.LookupNetIP(ctx, network, host)
}

func (b *Browser) attach(ctx context.Context) error {
	url, err := debugAddress(ctx, b.opts.DebugURL)
	if err != nil {
		return err
	}
	conn, err := remote.DialContext(ctx, url)
	if err != nil {
		return fmt.Errorf("cannot attach to %s: %w", b.opts.DebugURL, err)
	}
	b.conn = chromium.NewConn(conn, b.event)
	b.wg.Go(b.conn.Run)
	return nil
}

// attachTabs asks for the tabs and waits for the first.
func (b *Browser) attachTabs(ctx context.Context) error {
	root := chromium.Session{Conn: b.conn}
	attach := chromium.Send(root, target.SetAutoAttach, target.SetAutoAttachParams{
		AutoAttach: true, WaitForDebuggerOnStart: true, Flatten: new(true),
	})
	chromium.Send(root, target.SetDiscoverTargets, target.SetDiscoverTargetsParams{Discover: true})
	down := chromium.Send(root, browser.SetDownloadBehavior, browser.SetDownloadBehaviorParams{
		Behavior: browser.SetDownloadBehaviorBehaviorAllowAndName, DownloadPath: b.folder, EventsEnabled: new(true),
	})
	for _, p := range []chromium.Pending{attach, down} {
		if err := p.Wait(ctx, nil); err != nil {
			return b.explain(err)
		}
	}
	return b.until(ctx, func() bool { return b.current != nil && b.current.isReady })
}

// explain adds to the end of a browser why it ended.
func (b *Browser) explain(err error) error {
	if errors.Is(err, chromium.ErrClosed) && b.process != nil {
		return b.process.Failure()
	}
	return err
}

// Done is closed when the browser has ended.
func (b *Browser) Done() <-chan struct{} { return b.conn.Done() }

// PID returns the number of the browser's process, or 0 if it was attached or is in a sandbox.
func (b *Browser) PID() int {
	if b.process == nil {
		return 0
	}
	return b.process.PID()
}

// Confined reports whether the browser is in a sandbox.
func (b *Browser) Confined() bool { return b.process != nil && b.process.Confined() }

// Close ends the browser and removes its files. One that was attached goes on.
func (b *Browser) Close() {
	b.cancel()
	switch {
	case b.process != nil:
		b.process.Close()
	case b.conn != nil:
		b.conn.Close()
	}
	if b.listener != nil {
		b.listener.Close()
	}
	if b.proxy != nil {
		b.proxy.Close()
	}
	b.wg.Wait()
	if b.folder != "" {
		os.RemoveAll(b.folder)
	}
}

// broadcast wakes the calls that wait for a change of state. b.mu is held.
func (b *Browser) broadcast() {
	close(b.changed)
	b.changed = make(chan struct{})
}

// until waits until a condition holds, which is evaluated with b.mu held.
func (b *Browser) until(ctx context.Context, holds func() bool) error {
	for {
		b.mu.Lock()
		ok, changed := holds(), b.changed
		b.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-b.conn.Done():
			return b.explain(chromium.ErrClosed)
		}
	}
}

func (b *Browser) keepDecision(d sandbox.Decision) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.decisions) == mostDecisions {
		b.decisions = slices.Delete(b.decisions, 0, 1)
	}
	b.decisions = append(b.decisions, d)
	b.judged++
}

// judgedSoFar counts the decisions of the proxy.
func (b *Browser) judgedSoFar() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.judged
}

// refusedSince returns the last refusal after a count of judgedSoFar for a host and port, or nil.
func (b *Browser) refusedSince(count int, hostPort string) *sandbox.Decision {
	b.mu.Lock()
	defer b.mu.Unlock()
	from := max(0, len(b.decisions)-(b.judged-count))
	for _, d := range slices.Backward(b.decisions[from:]) {
		if !d.Allowed && (hostPort == "" || strings.EqualFold(d.Target, hostPort)) {
			return &d
		}
	}
	return nil
}

// Decisions returns the newest decisions of the proxy.
func (b *Browser) Decisions() []sandbox.Decision {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.decisions)
}

// ServeFiles sets what answers requests for files of a tab and of those that it opens, until it is called again; nil
// refuses them.
func (t *Tab) ServeFiles(f FileServer) {
	t.browser.mu.Lock()
	defer t.browser.mu.Unlock()
	t.files = f
}

// filesOf returns what answers requests for files of a session, or nil.
func (b *Browser) filesOf(s *session) FileServer {
	b.mu.Lock()
	defer b.mu.Unlock()
	for s.tab == nil && s.parent != nil { // a worker
		s = s.parent
	}
	t := s.tab
	if t != nil && t.files == nil {
		t = t.opener
	}
	if t == nil {
		return nil
	}
	return t.files
}

// Tabs returns the open tabs, and which is the current one.
func (b *Browser) Tabs() (tabs []*Tab, current *Tab) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, t := range b.tabs {
		if t.isReady {
			tabs = append(tabs, t)
		}
	}
	return tabs, b.current
}

// Current returns the tab that actions without a tab mean. It opens one if none is left.
func (b *Browser) Current(ctx context.Context) (*Tab, error) {
	b.mu.Lock()
	t := b.current
	b.mu.Unlock()
	if t != nil {
		return t, b.until(ctx, func() bool { return t.isReady })
	}
	return b.NewTab(ctx)
}

// NewTab opens an empty tab and makes it the current one.
func (b *Browser) NewTab(ctx context.Context) (*Tab, error) {
	got, err := chromium.Call(ctx, chromium.Session{Conn: b.conn}, target.CreateTarget,
		target.CreateTargetParams{URL: "about:blank"})
	if err != nil {
		return nil, b.explain(err)
	}
	var t *Tab
	err = b.until(ctx, func() bool {
		i := slices.IndexFunc(b.tabs, func(t *Tab) bool { return t.target == got.TargetID })
		if i < 0 || !b.tabs[i].isReady {
			return false
		}
		t = b.tabs[i]
		b.current = t
		return true
	})
	return t, err
}

// Select makes a tab the current one.
func (b *Browser) Select(ctx context.Context, t *Tab) error {
	b.mu.Lock()
	b.current = t
	b.mu.Unlock()
	return chromium.Send(chromium.Session{Conn: b.conn}, target.ActivateTarget,
		target.ActivateTargetParams{TargetID: t.target}).
		Wait(ctx, nil)
}

// CloseTab closes a tab.
func (b *Browser) CloseTab(ctx context.Context, t *Tab) error {
	if err := chromium.Send(chromium.Session{Conn: b.conn}, target.CloseTarget,
		target.CloseTargetParams{TargetID: t.target}).Wait(ctx, nil); err != nil {
		return err
	}
	return b.until(ctx, func() bool { return !slices.Contains(b.tabs, t) })
}

// Download is a file that a page had the browser download.
type Download struct {
	GUID     string
	URL      string
	Name     string // as the server suggests it
	Received int64
	Total    int64 // 0 means unknown
	State    string
	Path     string // of the file in the browser's folder
}

const mostDownloads = 100

func (b *Browser) downloadBegan(e browser.EventDownloadWillBegin) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.downloads) == mostDownloads {
		os.Remove(b.downloads[0].Path)
		b.downloads = slices.Delete(b.downloads, 0, 1)
	}
	b.downloads = append(b.downloads, &Download{
		GUID: e.GUID, URL: e.URL, Name: filepath.Base(filepath.Clean("/" + e.SuggestedFilename)), State: "inProgress",
		Path: filepath.Join(b.folder, filepath.Base(e.GUID)),
	})
	b.broadcast()
}

func (b *Browser) downloadProgressed(e browser.EventDownloadProgress) {
	b.mu.Lock()
	defer b.mu.Unlock()
	limit := b.opts.MaxDownload
	if limit == 0 {
		limit = 1 << 30
	}
	for _, d := range b.downloads {
		if d.GUID != e.GUID {
			continue
		}
		d.Received, d.Total, d.State = int64(e.ReceivedBytes), int64(e.TotalBytes), string(e.State)
		if (d.Received > limit || d.Total > limit) && d.State == "inProgress" {
			d.State = "tooLarge"
			chromium.Send(chromium.Session{Conn: b.conn}, browser.CancelDownload,
				browser.CancelDownloadParams{GUID: e.GUID})
		}
	}
	b.broadcast()
}

// Downloads returns the downloads, after it has waited until none is in progress or ctx is done.
func (b *Browser) Downloads(ctx context.Context) (all []Download) {
	b.until(ctx, func() bool {
		return !slices.ContainsFunc(b.downloads, func(d *Download) bool { return d.State == "inProgress" })
	})
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, d := range b.downloads {
		all = append(all, *d)
	}
	return all
}

// UploadFolder makes an empty folder for files that a page gets.
func (b *Browser) UploadFolder() (string, error) { return os.MkdirTemp(b.folder, "up-") }

// debugAddress returns the WebSocket address of a browser's debug address.
func debugAddress(ctx context.Context, url string) (string, error) {
	if strings.HasPrefix(url, "ws://") || strings.HasPrefix(url, "wss://") {
		return url, nil
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(url, "/")+"/json/version", nil)
	if err != nil {
		return "", err
	}
	return readDebugAddress(r)
}

// frameID names a frame.
type frameID = cdp.FrameID
