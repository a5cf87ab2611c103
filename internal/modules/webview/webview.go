// Package webview is the module with which agents use web pages in a browser: they read a page as a short text, act on
// its elements by number, and see what came of it.
package webview

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"gatehouse/internal/access/secret"
	"gatehouse/internal/modules/webview/chromium"
	"gatehouse/internal/modules/webview/page"
	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/proxy"
	"gatehouse/module"
	"gatehouse/tool"
)

// Config is what the module depends on. The zero value is usable.
type Config struct {
	Settings

	// Secret returns a secret of the caller's context; nil means that there are none.
	Secret func(who tool.Caller, name string) (secret.Text, bool, error)
	// Claim takes one of the browsers of the host for a principal, or returns why it gets none. nil means that the
	// first principal that asks gets one. release is called when the browser has ended.
	Claim func(principal string, administrator bool) (release func(), err error)
	// Named makes a name known to be that of a browser of this host, among those that serve the same callers, until release
	// is called, or returns why it cannot be; nil means that this host is the only one.
	Named func(ctx context.Context, owner, name string) (release func(), err error)
	// Proxy is for the proxies of browsers; tests set its members.
	Proxy proxy.Options
	// Folder is for temporary profiles; "" means the system's.
	Folder string
	// Confining returns the driver of the sandboxes of browsers, or why there is none; nil means that this machine is
	// asked. Tests set it.
	Confining func(ctx context.Context) (sandbox.Driver, error)
}

// Defaults of the settings.
const (
	DefaultTotal     = 16
	defaultPerOwner  = 4
	defaultIdle      = 30 * time.Minute
	defaultProcesses = 2000
)

// manager is the module.
type manager struct {
	cfg   Config
	deps  module.Deps
	log   *slog.Logger
	offer module.Offer

	mu       sync.Mutex
	closed   bool
	sessions map[string]*session // by owner and name
	opening  map[string]chan struct{}
	total    int

	confine confinement
}

// session is a browser of one owner.
type session struct {
	name    string
	owner   string
	made    time.Time
	browser *page.Browser
	idle    *time.Timer
	release func()
	renders map[string]*page.Tab // by the names of webview_render
	loose   string               // why it is in no sandbox; "" if it is in one or was attached

	mu     sync.Mutex
	typed  []secret.Text // what no result may show
	hidden secret.Hider
}

// New returns what makes the module with a configuration.
func New(cfg Config) module.New {
	return func(_ context.Context, d module.Deps) (module.Module, error) {
		m := &manager{
			cfg:      cfg,
			deps:     d,
			log:      d.Log,
			sessions: map[string]*session{},
			opening:  map[string]chan struct{}{},
		}
		if m.log == nil {
			m.log = slog.New(slog.DiscardHandler)
		}
		s := &m.cfg.Settings
		s.PerOwner, s.Total = cmp.Or(s.PerOwner, defaultPerOwner), cmp.Or(s.Total, DefaultTotal)
		s.Idle, s.Processes = cmp.Or(s.Idle, defaultIdle), cmp.Or(s.Processes, defaultProcesses)
		if err := cfg.Check(); err != nil {
			return nil, err
		}
		chromium.Sweep(cfg.Folder)
		m.offer.Tools = m.tools()
		return m, nil
	}
}

// Offer implements module.Module.
func (m *manager) Offer(context.Context, module.Audience) (*module.Offer, error) {
	return &m.offer, nil
}

// Close implements module.Module: it ends all browsers.
func (m *manager) Close(context.Context) error {
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	m.endSessions(func(*session) bool { return true })
	return m.confine.close()
}

// EndOwned implements module.Owned.
func (m *manager) EndOwned(_ context.Context, match func(owner string, made time.Time) bool) (ended []string) {
	for _, s := range m.endSessions(func(s *session) bool { return match(s.owner, s.made) }) {
		ended = append(ended, "browser "+s.name)
	}
	return ended
}

// endSessions ends the browsers for which match holds.
func (m *manager) endSessions(match func(*session) bool) (ended []*session) {
	m.mu.Lock()
	for key, s := range m.sessions {
		if match(s) {
			ended = append(ended, s)
			delete(m.sessions, key)
		}
	}
	m.mu.Unlock()
	var wg sync.WaitGroup
	for _, s := range ended {
		wg.Go(func() { m.closeSession(s) })
	}
	wg.Wait()
	return ended
}

func (m *manager) closeSession(s *session) {
	s.idle.Stop()
	s.browser.Close()
	if s.release != nil {
		s.release()
	}
	m.mu.Lock()
	m.total--
	m.mu.Unlock()
}

func keyOf(owner, name string) string { return owner + "\x00" + name }

// findSession returns an open browser of the caller, or nil.
func (m *manager) findSession(c *tool.Call, name string) *session {
	m.mu.Lock()
	s := m.sessions[keyOf(c.Caller.Owner, name)]
	m.mu.Unlock()
	if s == nil {
		return nil
	}
	select {
	case <-s.browser.Done():
		m.endSessions(func(o *session) bool { return o == s })
		return nil
	default:
		s.idle.Reset(m.cfg.Idle)
		return s
	}
}

// get returns a browser of the caller, which it starts if there is none.
func (m *manager) get(ctx context.Context, c *tool.Call, name, debugURL string) (*session, error) {
	key := keyOf(c.Caller.Owner, name)
	for {
		if s := m.findSession(c, name); s != nil {
			return s, nil
		}
		m.mu.Lock()
		if wait := m.opening[key]; wait != nil {
			m.mu.Unlock()
			select {
			case <-wait:
				continue
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
		}
		if err := m.reserveLocked(c); err != nil {
			m.mu.Unlock()
			return nil, err
		}
		done := make(chan struct{})
		m.opening[key] = done
		m.mu.Unlock()
		s, err := m.openSession(ctx, c, name, debugURL)
		m.mu.Lock()
		delete(m.opening, key)
		close(done)
		switch {
		case err != nil:
			m.total--
		case m.closed:
			m.mu.Unlock()
			m.closeSession(s)
			return nil, tool.Refuse(tool.CodeBusy, "the host is stopping")
		default:
			m.sessions[key] = s
		}
		m.mu.Unlock()
		return s, err
	}
}

// reserveLocked counts one more browser, or refuses it.
func (m *manager) reserveLocked(c *tool.Call) error {
	own := 0
	for _, s := range m.sessions {
		if s.owner == c.Caller.Owner {
			own++
		}
	}
	switch {
	case m.closed:
		return tool.Refuse(tool.CodeBusy, "the host is stopping")
	case own >= m.cfg.PerOwner:
		return &tool.Refusal{
			Code: tool.CodeBusy, Message: fmt.Sprintf("%d browsers of yours are open, which is the limit", own),
			Next: "Close one with webview_disconnect; webview_tabs lists the sessions.",
		}
	case m.total >= m.cfg.Total:
		return &tool.Refusal{
			Code: tool.CodeBusy, Message: "this host has as many browsers open as its limit allows",
			Next: "Try again later.",
		}
	}
	m.total++
	return nil
}

const openTimeout = 30 * time.Second

func (m *manager) openSession(ctx context.Context, c *tool.Call, name, debugURL string) (s *session, err error) {
	release := func() {}
	if m.cfg.Claim != nil {
		if release, err = m.cfg.Claim(c.Caller.Principal, false); err != nil {
			return nil, &tool.Refusal{
				Code:    tool.CodeBusy,
				Message: err.Error(),
				Next:    "Close one with webview_disconnect.",
			}
		}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, openTimeout,
		fmt.Errorf("the browser was not ready within %v", openTimeout))
	defer cancel()
	if m.cfg.Named != nil {
		unname, err := m.cfg.Named(ctx, c.Caller.Owner, name)
		if err != nil {
			release()
			return nil, err
		}
		unclaim := release
		release = func() { unname(); unclaim() }
	}
	n := m.cfg.network()
	owner := c.Caller.Owner
	n.Decided = func(d sandbox.Decision) { m.publish(owner, name, d) }
	o := page.Options{
		Chromium: chromium.Options{
			Program: m.cfg.Program, Folder: m.cfg.Folder, Processes: m.cfg.Processes,
			NoSandbox: chromium.NeedsNoSandbox(),
			Memory:    int(m.cfg.Memory >> 20),
		},
		DebugURL: debugURL, Network: n, Proxy: m.cfg.Proxy, MaxDownload: m.cfg.MaxDownload,
	}
	b, loose, err := m.start(ctx, o)
	if err != nil {
		release()
		return nil, startRefusal(err)
	}
	s = &session{
		name:    name,
		owner:   owner,
		made:    time.Now(),
		browser: b,
		release: release,
		renders: map[string]*page.Tab{},
		loose:   loose,
	}
	s.idle = time.AfterFunc(m.cfg.Idle, func() { m.endSessions(func(o *session) bool { return o == s }) })
	return s, nil
}

func startRefusal(err error) error {
	if errors.Is(err, chromium.ErrNotFound) {
		return &tool.Refusal{
			Code: tool.CodeUnavailable, Message: err.Error(),
			Next: "gatehouse browser install installs one; modules.webview.program names one that is elsewhere.",
		}
	}
	return &tool.Refusal{
		Code: tool.CodeNotStarted, Message: "the browser cannot be used: " + err.Error(),
		Next: "gatehouse doctor says what this machine lacks.",
	}
}

// decision is the event that is published for each decision of a proxy.
type decision struct {
	Session   string `json:"session"`
	Principal string `json:"principal"`
	Context   string `json:"context"`
	Allowed   bool   `json:"allowed"`
	Way       string `json:"way"`
	Target    string `json:"target"`
	Address   string `json:"address,omitempty"`
	Rule      string `json:"rule,omitempty"`
	Reason    string `json:"reason"`
}

func (m *manager) publish(owner, name string, d sandbox.Decision) {
	if m.deps.Publish == nil {
		return
	}
	principal, in := tool.SplitOwner(owner)
	m.deps.Publish("browser.network", decision{
		name, principal, in, d.Allowed, d.Method, d.Target, d.Address, d.Rule, d.Reason,
	})
}

// hide removes from a text the secrets that were typed into pages of a browser.
func (s *session) hide(text string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.typed) == 0 {
		return text
	}
	return string(s.hidden.Hide([]byte(text)))
}

func (s *session) keepSecret(text secret.Text) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.ContainsFunc(s.typed, text.Equal) {
		s.typed = append(s.typed, text)
		s.hidden = secret.NewHider(s.typed...)
	}
}

// refuse makes a refusal of an error of a page.
func refuse(err error) error {
	var (
		stale     *page.StaleError
		ambiguous *page.AmbiguousError
		missing   *page.MissingError
		notReady  *page.NotReadyError
		refused   *page.RefusedError
		script    *page.ScriptError
		refusal   *tool.Refusal
	)
	switch {
	case err == nil, errors.As(err, &refusal):
		return err
	case errors.As(err, &stale):
		return &tool.Refusal{
			Code:    tool.CodeStale,
			Message: stale.Error(),
			Next:    "Take a new snapshot with webview_snapshot.",
		}
	case errors.As(err, &ambiguous):
		return &tool.Refusal{Code: tool.CodeAmbiguous, Message: ambiguous.Error(), Next: "Name one by its ref."}
	case errors.As(err, &missing):
		return &tool.Refusal{
			Code: tool.CodeNotFound, Message: missing.Error(),
			Next: "webview_snapshot shows the page; webview_find searches it.",
		}
	case errors.As(err, &notReady):
		return &tool.Refusal{
			Code:    tool.CodeNotTaken,
			Message: notReady.Error(),
			Next:    "webview_snapshot shows the page as it is now.",
		}
	case errors.As(err, &refused):
		return &tool.Refusal{Code: tool.CodeDenied, Message: refused.Error()}
	case errors.As(err, &script):
		return &tool.Refusal{Code: tool.CodeFailed, Message: script.Error()}
	case errors.Is(err, chromium.ErrClosed):
		return &tool.Refusal{
			Code:    tool.CodeGone,
			Message: "the browser has ended",
			Next:    "webview_navigate starts another one.",
		}
	case errors.Is(err, context.DeadlineExceeded):
		return &tool.Refusal{Code: tool.CodeTimeout, Message: "the page did not answer in time"}
	case errors.Is(err, os.ErrNotExist):
		return &tool.Refusal{Code: tool.CodeNotFound, Message: err.Error()}
	}
	return &tool.Refusal{Code: tool.CodeFailed, Message: strings.TrimSpace(err.Error())}
}
