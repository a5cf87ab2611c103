package app

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"gatehouse/internal/access/certs"
	"gatehouse/internal/access/identity"
	"gatehouse/internal/app/core"
	"gatehouse/internal/config"
	"gatehouse/internal/mcp/protocol"
	"gatehouse/internal/server/httpserver"
	"gatehouse/internal/server/socket"
	"gatehouse/internal/server/stdio"
	"gatehouse/internal/server/web"
)

// These are the kinds of listeners, in the form shown to users.
const (
	Stdio = "stdio"
	HTTP  = "HTTP"
	HTTPS = "HTTPS"
	TCP   = "TCP"
	Unix  = "Unix"
)

// Listener is an open listener of the host.
type Listener struct {
	Kind    string
	Address string   // a URL; "" if there is none
	Notes   []string // printed before its address
	Trust   string   // the file a client needs to verify the certificate; "" if none is needed

	bind  string // host:port, or the path of a socket; "" for stdio
	part  Part
	close func() // called if it is never served
}

// Listeners returns the open listeners, in a fixed order.
func (a *App) Listeners() []Listener { return a.listeners }

func (a *App) listenersPart() Part {
	var parts []Part
	for _, d := range a.listeners {
		parts = append(parts, d.part)
	}
	return core.Together("listeners", parts...)
}

// openListeners opens every listener that the settings name.
func (a *App) openListeners(ctx context.Context) error {
	d := a.cfg.Listen
	for _, listener := range []struct {
		named bool
		open  func(context.Context) (Listener, error)
	}{
		{d.Stdio, a.openStdio},
		{d.HTTP.Open, a.openHTTP},
		{d.TCP != "", a.openTCP},
		{d.Unix != "", a.openUnix},
		{a.opts.Socket != "", func(ctx context.Context) (Listener, error) { return a.OpenUnix(ctx, a.opts.Socket) }},
		{a.opts.Conn != nil, a.openConn},
	} {
		if !listener.named {
			continue
		}
		open, err := listener.open(ctx)
		if err != nil {
			return err
		}
		a.listeners = append(a.listeners, open)
	}
	return nil
}

// NewHTTPServer returns the HTTP server without a listener.
func (a *App) NewHTTPServer() (*httpserver.Server, error) {
	o, err := a.httpOptions()
	if err != nil {
		return nil, err
	}
	listener, err := httpserver.New(a.engine, o)
	if err != nil {
		return nil, &SettingError{err}
	}
	a.observed.http(listener)
	return listener, nil
}

func (a *App) httpOptions() (httpserver.Options, error) {
	h := a.cfg.Listen.HTTP
	pages, err := web.New(introduce(a.opts.Info).Title)
	if err != nil {
		return httpserver.Options{}, err
	}
	client, err := a.clientDocument()
	if err != nil {
		return httpserver.Options{}, err
	}
	return httpserver.Options{
		Client:   client,
		Nodes:    a.sessionNodes(false),
		Bind:     h.Host,
		Hosts:    slices.Concat(a.opts.Hosts, h.Hosts, h.TLS.ACME.Domains),
		Origins:  h.Origins,
		Identify: a.identify,
		Public:   identity.Public,
		Auth:     a.who.Handler(),
		Metrics:  a.observed.handler,
		Watches:  a.mayWatch,
		Socket: func(w http.ResponseWriter, r *http.Request, who protocol.Caller) {
			a.sockets.Serve(w, r, who) // the modules create sockets after this server
		},
		Stream: func(w http.ResponseWriter, r *http.Request) bool {
			if !a.streams.Has(r) {
				return false
			}
			a.streams.Serve(w, r)
			return true
		},
		Registry:      a.serveRegistry,
		Forwards:      a.forwards,
		MaxBody:       int64(a.cfg.Limits.Message),
		Bytes:         a.limits.Bytes,
		Streams:       a.limits.Streams,
		Opens:         a.limits.Opens,
		Administrator: a.rules,
		// The server must give up waiting for its last request before the host gives up waiting for the server.
		Patience: a.cfg.Limits.StopPatience / 2,
		Pages:    pages,
		KeepView: func(w http.ResponseWriter, r *http.Request, who protocol.Caller) {
			pages.KeepView(w, r, who.Principal)
		},
		Degraded: a.Degraded,
		Log:      a.log,
	}, nil
}

func (a *App) openHTTP(ctx context.Context) (Listener, error) {
	listener, err := a.NewHTTPServer()
	if err != nil {
		return Listener{}, err
	}
	h := a.cfg.Listen.HTTP
	if err := a.who.MustAuthenticate(h.Host); err != nil {
		return Listener{}, &SettingError{err}
	}
	ln, err := a.listenHTTP(ctx, h)
	if err != nil {
		return Listener{}, fmt.Errorf("open the HTTP listener: %w", err)
	}
	open := Listener{Kind: HTTP, Address: httpserver.URL(ln.Addr(), h.TLS.On), close: func() { ln.Close() }}
	if h.TLS.On {
		source, err := a.openCerts(h.TLS)
		if err != nil {
			ln.Close()
			return Listener{}, err
		}
		ln = tls.NewListener(ln, source.Config())
		open.Kind, open.Notes, open.Trust = HTTPS, source.Lines(), source.Trust()
		if d := h.TLS.ACME.Domains; len(d) > 0 {
			open.Address = "https://" + d[0] + "/mcp" // the certificate is for this name, whichever port leads here
		}
	}
	open.bind = ln.Addr().String()
	open.part = Part{Name: "http", Run: func(ctx context.Context) error { return listener.Serve(ctx, ln) }}
	return a.withNodes(open)
}

func (a *App) listenHTTP(ctx context.Context, h config.HTTP) (net.Listener, error) {
	if ln := a.opts.Listeners[HTTP]; ln != nil {
		return ln, nil
	}
	var lc net.ListenConfig
	network := "tcp"
	if a, err := netip.ParseAddr(h.Host); err == nil && a.Is4() {
		network = "tcp4" // 0.0.0.0 would mean every IPv6 address as well
	}
	return lc.Listen(ctx, network, net.JoinHostPort(h.Host, strconv.Itoa(h.Port)))
}

// OpenListener serves HTTP on a listener that the caller has opened.
func (a *App) OpenListener(ln net.Listener) (Listener, error) {
	listener, err := a.NewHTTPServer()
	if err != nil {
		return Listener{}, err
	}
	return Listener{Kind: HTTP, Address: httpserver.URL(ln.Addr(), false), close: func() { ln.Close() },
		part: Part{Name: "http", Run: func(ctx context.Context) error { return listener.Serve(ctx, ln) }}}, nil
}

// authority returns the settings of the authority that issues certificates for public names.
func (a *App) authority(t config.TLS) certs.ACME {
	return certs.ACME{
		Domains:   t.ACME.Domains,
		Email:     t.ACME.Email,
		Directory: t.ACME.Directory,
		Folder:    filepath.Join(a.cfg.Folders.Data, "acme"),
	}
}

// openCerts returns the source of the HTTP listener's certificate.
func (a *App) openCerts(t config.TLS) (*certs.Source, error) {
	o := certs.Options{
		Cert: t.Cert, Key: t.Key, ClientCA: t.ClientCA, Log: a.log,
		ACME: a.authority(t),
	}
	if a.cfg.Folders.Cache != "" && !a.opts.Private {
		o.Folder = filepath.Join(a.cfg.Folders.Cache, "tls")
	}
	source, err := certs.Open(o)
	if err != nil {
		return nil, &SettingError{err}
	}
	return source, nil
}

// openStdio serves the program that started this process.
func (a *App) openStdio(context.Context) (Listener, error) { return a.OpenStdio(a.opts.In, a.opts.Out) }

// OpenStdio returns a listener that serves one client on an input and an output.
func (a *App) OpenStdio(in io.Reader, out io.Writer) (Listener, error) {
	if in == nil || out == nil {
		return Listener{}, errors.New("open the stdio listener: there is no standard input and output")
	}
	return Listener{Kind: Stdio, part: Part{Name: "stdio", Run: func(ctx context.Context) error {
		return stdio.Serve(
			ctx,
			a.engine,
			a.owner(),
			in,
			out,
			stdio.Options{Limit: a.cfg.Limits.Message, Stop: a.cfg.Limits.StopPatience / 2, Log: a.log},
		)
	}}, close: func() {}}, nil
}

// openConn serves the one client of Options.Conn.
func (a *App) openConn(context.Context) (Listener, error) {
	conn := a.opts.Conn
	d, err := a.OpenStdio(conn, conn)
	d.Kind, d.close = "pipe", func() { conn.Close() }
	return d, err
}

func (a *App) openTCP(ctx context.Context) (Listener, error) { return a.OpenTCP(ctx, a.cfg.Listen.TCP) }

// OpenTCP listens on host:port. Each caller must send a token; OpenTCP returns an error if no token exists.
func (a *App) OpenTCP(_ context.Context, addr string) (Listener, error) {
	if host, _, err := net.SplitHostPort(addr); err == nil {
		if err := a.who.MustHaveTokens(host); err != nil {
			return Listener{}, &SettingError{err}
		}
	}
	ln := a.opts.Listeners[TCP]
	if ln == nil || addr != a.cfg.Listen.TCP {
		var err error
		if ln, err = socket.ListenTCP(addr); err != nil {
			return Listener{}, err
		}
	}
	open := a.lines(TCP, "tcp://"+ln.Addr().String(), ln)
	if a.who.LocalToken() != "" && !a.cfg.Auth.Insecure {
		open.Notes = []string{
			"TCP needs a token in _meta, as " + identity.MetaToken + "; this user's is in " + LocalTokenFile(
				a.cfg.Folders,
			),
		}
	}
	return open, nil
}

func (a *App) openUnix(ctx context.Context) (Listener, error) {
	return a.OpenUnix(ctx, a.cfg.Listen.Unix)
}

// OpenUnix listens on a Unix socket at a path.
func (a *App) OpenUnix(_ context.Context, path string) (Listener, error) {
	ln := a.opts.Listeners[Unix]
	if ln == nil || path != a.cfg.Listen.Unix {
		var err error
		if ln, err = socket.ListenUnix(path); err != nil {
			return Listener{}, err
		}
	}
	return a.lines(Unix, "unix://"+ln.Addr().String(), ln), nil
}

// lines returns a listener for newline-framed clients.
func (a *App) lines(kind, address string, ln net.Listener) Listener {
	return Listener{
		Kind:    kind,
		Address: address,
		bind:    ln.Addr().String(),
		part: Part{Name: strings.ToLower(kind), Run: func(ctx context.Context) error {
			return socket.Serve(ctx, ln, a.engine, a.connected, socket.Options{
				Limit: a.cfg.Limits.Message, Stop: a.cfg.Limits.StopPatience / 2, Administrator: a.rules, Log: a.log,
			})
		}},
		close: func() { ln.Close() },
	}
}

// Serve serves the listener until ctx is done or its last client has disconnected. It is for a listener that was
// opened besides those of the settings.
func (l Listener) Serve(ctx context.Context) error { return l.part.Run(ctx) }
