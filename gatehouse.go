// Package gatehouse embeds the house in a Go program: a host with its tools
// and doors, built by New and stopped by Shutdown.
//
//	s, err := gatehouse.New(gatehouse.WithWorkspaceRoot("/srv/data"))
//	if err != nil { ... }
//	defer s.Shutdown(ctx)
//	http.Handle("/mcp", s.Handler())
//
// Any number of doors may be open at once, and several hosts may live in one
// program. A host keeps its jobs and keys in memory unless WithState names a
// folder. Tools are written against the packages tool and module.
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

// WithWorkspaceRoot adds a folder the tools may touch; the first one is where
// relative paths start. "" lifts every restriction, which is logged as a
// warning. Without this option it is the current folder.
func WithWorkspaceRoot(dir string) Option {
	return func(s *settings) {
		if dir == "" {
			s.cfg.Roots.Unrestricted = true
			return
		}
		s.cfg.Roots.Folders = append(s.cfg.Roots.Folders, dir)
	}
}

// WithModules chooses among the modules that Gatehouse brings: file, dir and
// lang. Without names it brings none; without this option, all.
func WithModules(names ...string) Option {
	return func(s *settings) { s.cfg.View.Modules, s.app.Bare = names, len(names) == 0 }
}

// WithModule adds a module of your own. Its name stands before the names of
// nothing: give tools their whole name.
func WithModule(name string, make module.New) Option {
	return func(s *settings) { s.app.Extra = append(s.app.Extra, app.Guest{Name: name, New: make}) }
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

// WithTools offers only the tools that match: names, or patterns such as
// file_*; "!" in front leaves out.
func WithTools(patterns ...string) Option {
	return func(s *settings) { s.cfg.View.Tools = append(s.cfg.View.Tools, patterns...) }
}

// WithReadOnly leaves out every tool that does not promise to change nothing.
func WithReadOnly() Option { return func(s *settings) { s.cfg.View.ReadOnly = true } }

// WithContext names the view that callers get who name none.
func WithContext(name string) Option { return func(s *settings) { s.cfg.View.Context = name } }

// WithLogger says where the host logs, for instance at which address a door
// listens. Without it, it is silent.
func WithLogger(l *slog.Logger) Option { return func(s *settings) { s.app.Log = l } }

// WithInfo says how the host introduces itself to clients.
func WithInfo(name, version string) Option {
	return func(s *settings) { s.app.Info.Name, s.app.Info.Version = name, version }
}

// WithoutSessions serves HTTP without sessions.
func WithoutSessions() Option { return func(s *settings) { s.cfg.Sessions.Off = true } }

// WithOrigins lets web pages of these origins call: scheme://host[:port], or
// "*" for every one, then without credentials. Loopback pages may always.
func WithOrigins(origins ...string) Option {
	return func(s *settings) { s.cfg.Doors.HTTP.Origins = append(s.cfg.Doors.HTTP.Origins, origins...) }
}

// WithHosts lets requests in whose Host header has one of these names,
// besides those of loopback. "*" means every name: for a Handler that stands
// behind a proxy which has checked it.
func WithHosts(names ...string) Option {
	return func(s *settings) { s.app.Hosts = append(s.app.Hosts, names...) }
}

// WithAuthToken asks everybody at the doors for this token, of at least 16
// characters: as Authorization: Bearer over HTTP, in a message's _meta on lines.
// The client on standard input and output is whoever started the program.
// Without this option HTTP serves everybody, Unix sockets serve this user, and
// ServeTCP refuses to open.
func WithAuthToken(token string) Option {
	return func(s *settings) {
		s.cfg.Auth.Token, s.cfg.Auth.Required, s.cfg.Auth.Insecure = secret.New(token), true, false
		s.app.Embedded = false
	}
}

// WithInsecure asks nobody for anything, over TCP neither: every program of
// every user of this machine may call, and beyond loopback everybody on the
// network. Of this and WithAuthToken the last one counts.
func WithInsecure() Option {
	return func(s *settings) {
		s.cfg.Auth.Token, s.cfg.Auth.Required, s.cfg.Auth.Insecure = secret.Text{}, false, true
	}
}

// WithDeadline is how long a tool may work that says nothing itself. Without
// it, 60 s.
func WithDeadline(d time.Duration) Option {
	return func(s *settings) { s.cfg.Limits.Deadline = d }
}

// WithState keeps jobs, keys and the ledger of what is done in a folder, so that
// they outlive the host.
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
	doors   sync.WaitGroup

	begin sync.Once
	stop  context.CancelFunc // of everything behind the doors
	ended chan struct{}
	err   error // set before ended is closed
}

// handler is the HTTP door without a listener.
type handler interface {
	http.Handler
	Close()
}

// ErrClosed is what a door says that is opened after Shutdown.
var ErrClosed = errors.New("gatehouse: the server is shut down")

// ErrNoToken is what ServeTCP says of a host that could let nobody in.
var ErrNoToken = errors.New("gatehouse: callers over TCP bring a token, and this host has none: build it WithAuthToken, or WithInsecure to serve everybody")

// New builds a host: its folders are open when it returns, and nothing runs
// before the first door is opened. A host that was built must be shut down.
func New(opts ...Option) (*Server, error) {
	s := settings{cfg: config.Default(), app: app.Options{Private: true}}
	s.app.Embedded = true // who may reach a Handler is the program's to decide
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
		s.app.Log.Warn("unrestricted: the tools can touch every file this user can; name folders with WithWorkspaceRoot instead")
	}
	host, err := app.New(context.Background(), s.cfg, s.app)
	if err != nil {
		return nil, err
	}
	srv := &Server{app: host, log: s.app.Log, ended: make(chan struct{})}
	srv.closing, srv.close = context.WithCancel(context.Background())
	door, err := host.HTTPDoor()
	if err != nil {
		return nil, errors.Join(err, srv.Shutdown(context.Background()))
	}
	srv.handler = door
	return srv, nil
}

// start lets the host run, once.
func (s *Server) start() {
	s.begin.Do(func() {
		ctx, stop := context.WithCancel(context.Background())
		s.stop = stop
		go func() {
			defer close(s.ended)
			s.err = s.app.Run(ctx)
		}()
	})
}

// Handler serves HTTP: MCP at /mcp, with /health and a page beside it. It can
// be used until Shutdown. Whoever listens must set no write timeout: streams
// stay open.
//
// It serves everybody who reaches it: put the program's own authentication in
// front of it before other machines do.
func (s *Server) Handler() http.Handler {
	s.start()
	return s.handler
}

// Serve serves HTTP on ln until ctx is done, and closes it: what Handler
// serves, with limits of time, in the way that gatehouse serve does, which
// costs less for each call than a server of net/http.
func (s *Server) Serve(ctx context.Context, ln net.Listener) error {
	err := s.serve(ctx, func(context.Context) (app.Door, error) { return s.app.OpenListener(ln) })
	ln.Close() // also when it was never served
	return err
}

// ServeStdio serves standard input and output until the input ends or ctx is
// done. Nothing else may write to standard output meanwhile.
func (s *Server) ServeStdio(ctx context.Context) error {
	return s.serve(ctx, func(context.Context) (app.Door, error) { return s.app.OpenStdio(os.Stdin, os.Stdout) })
}

// ServeTCP listens on host:port and serves lines until ctx is done. An empty
// host means loopback. Callers bring the token of WithAuthToken, on loopback
// too; the error is ErrNoToken where there is none, unless the host was built
// with WithInsecure.
func (s *Server) ServeTCP(ctx context.Context, addr string) error {
	addr, err := config.ParseTCP(addr)
	if err != nil {
		return err
	}
	return s.serve(ctx, func(ctx context.Context) (app.Door, error) {
		if !s.app.HasTokens() {
			return app.Door{}, ErrNoToken
		}
		return s.app.OpenTCP(ctx, addr)
	})
}

// ServeUnix listens on a Unix socket and serves lines until ctx is done. The
// socket is for this user only and is removed at the end.
func (s *Server) ServeUnix(ctx context.Context, path string) error {
	return s.serve(ctx, func(ctx context.Context) (app.Door, error) { return s.app.OpenUnix(ctx, path) })
}

// serve opens a door and serves it until ctx is done or the host shuts down.
func (s *Server) serve(ctx context.Context, open func(context.Context) (app.Door, error)) error {
	if s.closing.Err() != nil {
		return ErrClosed
	}
	s.doors.Add(1)
	defer s.doors.Done()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(s.closing, cancel)
	defer stop()
	door, err := open(ctx)
	if err != nil {
		return err
	}
	s.log.Info("listening", "door", door.Kind, "address", door.Address)
	s.start()
	return door.Serve(ctx)
}

// Shutdown closes the doors, lets what is in flight finish, and stops the
// host. It waits for that until ctx is done. Safe to call twice.
func (s *Server) Shutdown(ctx context.Context) error {
	s.start() // what was never used has to be closed as well
	s.close()
	if s.handler != nil {
		s.handler.Close()
	}
	closed := make(chan struct{})
	go func() { s.doors.Wait(); close(closed) }()
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
