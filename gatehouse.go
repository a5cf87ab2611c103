// Package gatehouse embeds a Gatehouse host in a Go program: the host with its
// tools and servers is built by New and stopped by Shutdown.
//
//	s, err := gatehouse.New(gatehouse.WithWorkspaceRoot("/srv/data"))
//	if err != nil { ... }
//	defer s.Shutdown(ctx)
//	http.Handle("/mcp", s.Handler())
//
// A host may serve over several transports at once, and a program may have several
// hosts. A host keeps its jobs and keys in memory unless WithState names a folder.
// Tools are written with the packages tool and module.
package gatehouse

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"gatehouse/internal/access/secret"
	"gatehouse/internal/app"
	"gatehouse/internal/config"
	"gatehouse/module"
)

// Option changes a setting of New. Options apply in order.
type Option func(*settings)

type settings struct {
	cfg  config.Config
	app  app.Options
	errs []error
}

// WithWorkspaceRoot adds a folder that the tools may use. Relative paths start in
// the first one. "" removes every restriction, which is logged as a warning.
// Without this option the tools may use the current folder.
func WithWorkspaceRoot(dir string) Option {
	return func(s *settings) {
		if dir == "" {
			s.cfg.Roots.Unrestricted = true
			return
		}
		s.cfg.Roots.Folders = append(s.cfg.Roots.Folders, dir)
	}
}

// WithModules selects modules of Gatehouse by name. Without names the host has none
// of them; without this option it has the default ones: file, dir and lang.
func WithModules(names ...string) Option {
	return func(s *settings) { s.cfg.View.Modules, s.app.Bare = names, len(names) == 0 }
}

// WithModule adds a module of the program. The name of the module is not put before
// the names of its tools: give tools their full name.
func WithModule(name string, make module.New) Option {
	return func(s *settings) { s.app.Extra = append(s.app.Extra, app.Module{Name: name, New: make}) }
}

// WithModuleConfig sets the configuration of a module that WithModule adds. The
// module reads it by Deps.Config. value is data that encoding/json can encode, or
// a json.RawMessage; the module decodes it strictly into a type of its own. New
// returns an error if value cannot be encoded, or if there is no such module.
func WithModuleConfig(name string, value any) Option {
	return func(s *settings) {
		section, err := json.Marshal(value)
		if err != nil {
			s.errs = append(s.errs, fmt.Errorf("gatehouse: the configuration of module %q: %w", name, err))
			return
		}
		if s.app.Configs == nil {
			s.app.Configs = map[string]json.RawMessage{}
		}
		s.app.Configs[name] = section
	}
}

// WithTools offers only the tools that match: names, or patterns such as file_*. A
// pattern that begins with "!" excludes tools.
func WithTools(patterns ...string) Option {
	return func(s *settings) { s.cfg.View.Tools = append(s.cfg.View.Tools, patterns...) }
}

// WithReadOnly leaves out every tool that does not promise to change nothing.
func WithReadOnly() Option { return func(s *settings) { s.cfg.View.ReadOnly = true } }

// WithContext sets the context of callers that name none.
func WithContext(name string) Option { return func(s *settings) { s.cfg.View.Context = name } }

// WithLogger sets the logger of the host, which among other things gets the address
// of each listener. Without this option the host logs nothing.
func WithLogger(l *slog.Logger) Option { return func(s *settings) { s.app.Log = l } }

// WithInfo sets the name and version that the host gives to clients.
func WithInfo(name, version string) Option {
	return func(s *settings) { s.app.Info.Name, s.app.Info.Version = name, version }
}

// WithoutSessions serves HTTP without sessions.
func WithoutSessions() Option { return func(s *settings) { s.cfg.Sessions.Off = true } }

// WithOrigins allows calls from web pages of these origins: scheme://host[:port],
// or "*" for all, which then call without credentials. Pages on loopback are always
// allowed.
func WithOrigins(origins ...string) Option {
	return func(s *settings) { s.cfg.Listen.HTTP.Origins = append(s.cfg.Listen.HTTP.Origins, origins...) }
}

// WithHosts accepts requests whose Host header has one of these names, besides those
// of loopback. "*" accepts every name, for a Handler behind a proxy that checks it.
func WithHosts(names ...string) Option {
	return func(s *settings) { s.app.Hosts = append(s.app.Hosts, names...) }
}

// WithAuthToken requires this token, of at least 16 characters, from every caller:
// as Authorization: Bearer over HTTP, and in the _meta of a message over TCP and Unix
// sockets. The client on standard input and output needs none, because it is the
// program that started this one. Without this option HTTP requires no credentials,
// Unix sockets serve the user of the program, and ServeTCP returns ErrNoToken.
func WithAuthToken(token string) Option {
	return func(s *settings) {
		s.cfg.Auth.Token, s.cfg.Auth.Required, s.cfg.Auth.Insecure = secret.New(token), true, false
		s.app.Embedded = false
	}
}

// WithInsecure requires no credentials, over TCP neither: every program of every
// user of this machine may call, and beyond loopback every machine on the network. If
// WithAuthToken is given too, the later option wins.
func WithInsecure() Option {
	return func(s *settings) {
		s.cfg.Auth.Token, s.cfg.Auth.Required, s.cfg.Auth.Insecure = secret.Text{}, false, true
	}
}

// WithDeadline sets the time limit of a call whose tool does not set one. Without
// this option it is 60 s.
func WithDeadline(d time.Duration) Option {
	return func(s *settings) { s.cfg.Limits.Deadline = d }
}

// WithState keeps jobs, keys and the ledger of calls in a folder, so that they
// outlive the host.
func WithState(dir string) Option {
	return func(s *settings) {
		abs, err := filepath.Abs(dir)
		if err != nil {
			s.errs = append(s.errs, err)
		}
		s.app.Private = false
		s.cfg.Folders.State, s.cfg.Folders.Data = abs, abs
	}
}

// Server is a host. Safe for concurrent use.
type Server struct {
	app     *app.App
	log     *slog.Logger
	handler handler
	// closing ends when the listeners have to close. Everything that serves waits for it, so it
	// lives as long as the Server.
	closing context.Context
	close   context.CancelFunc
	serving sync.WaitGroup

	started sync.Once
	stop    context.CancelFunc // stops the host, after the listeners have closed
	ended   chan struct{}
	err     error // set before ended is closed
}

// handler is the HTTP server without a listener.
type handler interface {
	http.Handler
	Close()
}

// ErrClosed is returned by the methods that serve if Shutdown was called before.
var ErrClosed = errors.New("gatehouse: the server is shut down")

// ErrNoToken is returned by ServeTCP if the host has no token that callers could
// bring.
var ErrNoToken = errors.New("gatehouse: callers over TCP need a token, and this host has none: " +
	"build it WithAuthToken, or WithInsecure to require no credentials")

// New builds a host. Its folders are open when New returns, and nothing runs before
// the first call of Handler or of a Serve method. The caller must call Shutdown, also
// if it never serves.
func New(opts ...Option) (*Server, error) {
	s := settings{cfg: config.Default(), app: app.Options{Private: true}}
	s.app.Embedded = true // the program decides who can reach its Handler
	for _, o := range opts {
		o(&s)
	}
	if err := errors.Join(append(s.errs, s.cfg.Validate())...); err != nil {
		return nil, err
	}
	if s.app.Log == nil {
		s.app.Log = slog.New(slog.DiscardHandler)
	}
	if s.cfg.Roots.Unrestricted {
		s.app.Log.Warn("unrestricted: the tools can touch every file this user can; " +
			"name folders with WithWorkspaceRoot instead")
	}
	host, err := app.New(context.Background(), s.cfg, s.app)
	if err != nil {
		return nil, err
	}
	srv := &Server{app: host, log: s.app.Log, ended: make(chan struct{})}
	srv.closing, srv.close = context.WithCancel(context.Background())
	handler, err := host.NewHTTPServer()
	if err != nil {
		return nil, errors.Join(err, srv.Shutdown(context.Background()))
	}
	srv.handler = handler
	return srv, nil
}

// startServing runs the host, once.
func (s *Server) startServing() {
	s.started.Do(func() {
		ctx, stop := context.WithCancel(context.Background())
		s.stop = stop
		go func() {
			defer close(s.ended)
			s.err = s.app.Run(ctx)
		}()
	})
}

// Handler returns the HTTP handler: MCP at /mcp, /health, and a start page. It can be
// used until Shutdown. Its server must have no write timeout, because streams stay
// open.
//
// Without WithAuthToken it serves every request that reaches it: put the program's
// own authentication in front of it before other machines can reach it.
func (s *Server) Handler() http.Handler {
	s.startServing()
	return s.handler
}

// Serve serves on ln what Handler serves, until ctx is done, and closes ln. It has
// time limits, and uses the HTTP server of gatehouse serve, which costs less for each
// call than that of net/http.
func (s *Server) Serve(ctx context.Context, ln net.Listener) error {
	err := s.serveWith(ctx, func(context.Context) (app.Listener, error) { return s.app.OpenListener(ln) })
	ln.Close() // also if it was never served
	return err
}

// ServeStdio serves standard input and output until the input ends or ctx is done.
// The program must not write to standard output meanwhile.
func (s *Server) ServeStdio(ctx context.Context) error {
	return s.serveWith(ctx, func(context.Context) (app.Listener, error) {
		return s.app.OpenStdio(os.Stdin, os.Stdout)
	})
}

// ServeTCP listens on host:port and serves newline-framed messages until ctx is done.
// An empty host means loopback. Callers need the token of WithAuthToken, on loopback
// too. Without one ServeTCP returns ErrNoToken, unless the host was built with
// WithInsecure.
func (s *Server) ServeTCP(ctx context.Context, addr string) error {
	addr, err := config.ParseTCP(addr)
	if err != nil {
		return err
	}
	return s.serveWith(ctx, func(ctx context.Context) (app.Listener, error) {
		if !s.app.HasTokens() {
			return app.Listener{}, ErrNoToken
		}
		return s.app.OpenTCP(ctx, addr)
	})
}

// ServeUnix listens on a Unix socket and serves newline-framed messages until ctx is
// done. Only this user can connect. The socket is removed at the end.
func (s *Server) ServeUnix(ctx context.Context, path string) error {
	return s.serveWith(ctx, func(ctx context.Context) (app.Listener, error) { return s.app.OpenUnix(ctx, path) })
}

// serveWith opens a listener and serves it until ctx is done or the host shuts down.
func (s *Server) serveWith(ctx context.Context, open func(context.Context) (app.Listener, error)) error {
	if s.closing.Err() != nil {
		return ErrClosed
	}
	s.serving.Add(1)
	defer s.serving.Done()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(s.closing, cancel)
	defer stop()
	listener, err := open(ctx)
	if err != nil {
		return err
	}
	s.log.Info("listening", "listener", listener.Kind, "address", listener.Address)
	s.startServing()
	return listener.Serve(ctx)
}

// Shutdown closes the listeners, waits for active calls, and stops the host. It waits
// until ctx is done, then returns ctx's cause. It may be called more than once.
func (s *Server) Shutdown(ctx context.Context) error {
	s.startServing() // Run also closes a host that never served
	s.close()
	if s.handler != nil {
		s.handler.Close()
	}
	closed := make(chan struct{})
	go func() { s.serving.Wait(); close(closed) }()
	select {
	case <-closed:
	case <-ctx.Done():
	}
	s.stop()
	select {
	case <-s.ended:
		return s.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
