package app

import (
	"context"
	"errors"
	"io/fs"
	"net"
	nethttp "net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"gatehouse/internal/access/identity"
	"gatehouse/internal/access/permit"
	"gatehouse/internal/config"
	"gatehouse/internal/dispatch/bus"
	"gatehouse/internal/mcp/protocol"
	"gatehouse/internal/server/httpserver"
	"gatehouse/internal/server/socket"
)

// openIdentity opens the identity service.
func (a *App) openIdentity(ctx context.Context) (err error) {
	c := a.cfg.Auth
	o := identity.Options{
		Insecure: c.Insecure, Embedded: a.opts.Embedded, Secure: c.BehindTLS, AuthToken: c.Token.Reveal(),
		OAuth: provider(
			c.OAuth,
		), Server: c.Server, SignIn: signIn(c.Login), ClientCA: a.cfg.Listen.HTTP.TLS.ClientCA != "",
		Origins: a.cfg.Listen.HTTP.Origins, Log: a.log, OnEvent: a.publishAuth,
		Tried: a.nodes.tellTry(),
	}
	if o.Nodes, err = a.loginNodes(ctx); err != nil {
		return err
	}
	if c.Required {
		o.Mode = identity.Required
	}
	path := ""
	if !a.opts.Private {
		path = filepath.Join(a.cfg.Folders.Data, "identity.db")
		o.Known = KnownUsers(a.cfg.Folders)
		o.Replicate = a.replicate(ctx, "identity")
		if a.cfg.Listen.HTTP.Open || a.cfg.Listen.TCP != "" {
			o.LocalToken = LocalTokenFile(a.cfg.Folders)
		}
	}
	a.who, err = identity.Open(path, o)
	if err != nil && !c.Required && cannotExist(path) {
		a.log.Warn("users and tokens are unknown to this host: cannot read them", "file", path, "err", err)
		a.who, err = identity.Open("", o)
	}
	if err != nil {
		return &SettingError{err}
	}
	if a.cfg.Approvals.Proof == "passkey" && !a.who.HasDeciding() {
		a.log.Warn(
			"calls that need an approval cannot get one: no passkey is registered; log in to the page of this host, " +
				"register one, and restart the host",
		)
	}
	if err := a.shareTries(); err != nil {
		return err
	}
	a.who.OnRevoked(func(r identity.Revocation) { a.engine.Revoked(r.Principal, r.Credential) })
	a.addPart("identity", func(ctx context.Context) error {
		return errors.Join(a.who.Run(ctx), a.who.Close())
	})
	return nil
}

// provider returns the OAuth provider of the settings, or nil if there is none.
func provider(o config.OAuth) *identity.OAuth {
	if o.Issuer == "" {
		return nil
	}
	return &identity.OAuth{
		Issuer: o.Issuer, Resource: o.Resource, Audiences: o.Audiences, JWKS: o.JWKS, Scopes: o.Scopes,
		Required: o.Required,
		Grants:   o.Grants, UserClaim: o.UserClaim, RolesClaim: o.RolesClaim,
	}
}

// signIn returns the provider of the settings at which people log in, or nil if there is none.
func signIn(l config.SignIn) *identity.SignIn {
	if l.Issuer == "" {
		return nil
	}
	return &identity.SignIn{
		Issuer: l.Issuer, ClientID: l.ClientID, Secret: l.ClientSecret.Reveal(), Title: l.Title, Server: l.Server,
		Scopes: l.Scopes, UserClaim: l.UserClaim, RolesClaim: l.RolesClaim,
	}
}

// cannotExist reports whether a file certainly does not exist, so that no user can be stored in it. A file that
// exists but cannot be read is no reason to admit every caller.
func cannotExist(path string) bool {
	_, err := os.Stat(path)
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
}

// publishAuth publishes an event of identity.
func (a *App) publishAuth(e identity.Event) { a.publish("auth."+e.Kind, e) }

// publish publishes an event of the host itself.
func (a *App) publish(subject string, fact any) { a.bus.Publish(a.event(subject, fact)) }

func (a *App) event(subject string, fact any) bus.Event {
	e, err := bus.NewEvent(subject, fact)
	if err != nil {
		a.log.Error("event cannot be encoded", "subject", subject, "err", err)
	}
	return e
}

// KnownUsers returns the files that record, outside the data folder, that this host has users: one in the state
// folder and, if there is one, one in the config folder. If the user's folders are on several disks, one of the
// files is on another disk than the data.
func KnownUsers(f config.Folders) (paths []string) {
	const name = "has-users"
	if f.State != "" {
		paths = append(paths, filepath.Join(f.State, name))
	}
	if info, err := os.Stat(f.Config); err == nil && info.IsDir() {
		paths = append(paths, filepath.Join(f.Config, name))
	}
	return paths
}

// LocalTokenFile returns the path of the token for callers on this machine.
func LocalTokenFile(f config.Folders) string { return filepath.Join(f.State, "local-token") }

// LocalToken returns the token for callers on this machine, or "" if there is none.
func (a *App) LocalToken() string { return a.who.LocalToken() }

// HasTokens reports whether a token exists or can be created that authenticates its bearer over TCP, or none is
// required.
func (a *App) HasTokens() bool { return a.who.MustHaveTokens("") == nil }

// Pairing returns the code with which the first user is created, if this host has none and needs one; see
// identity.
func (a *App) Pairing(ctx context.Context) (string, error) {
	if !a.cfg.Auth.Required {
		return "", nil
	}
	return a.who.Pairing(ctx)
}

func whoIs(p identity.Principal) protocol.Caller {
	who := protocol.Caller{Caller: p.Caller(), Bound: p.Context, Until: p.Until}
	who.Person = p.Person()
	return who
}

// identify returns the caller that sends an HTTP request.
func (a *App) identify(r *nethttp.Request) (protocol.Caller, *httpserver.Denied) {
	p, denied := a.who.HTTP(r)
	if denied != nil {
		if err := a.pace(r.Context(), "", "", remote(r)); err != nil { // a caller who guesses tokens is limited too
			return protocol.Caller{}, tooMany(err)
		}
		return protocol.Caller{}, &httpserver.Denied{Status: denied.Status, Message: denied.Message,
			Header: denied.Header}
	}
	if err := a.pace(r.Context(), p.Name, r.Header.Get("Mcp-Session-Id"), remote(r)); err != nil {
		return protocol.Caller{}, tooMany(err)
	}
	if a.nodes != nil && p.Name != identity.AnonymousName {
		if err := a.nodes.Fresh(); err != nil { // the credential may have been revoked
			return protocol.Caller{}, &httpserver.Denied{
				Status: nethttp.StatusServiceUnavailable, Message: err.Error(),
				Header: nethttp.Header{"Retry-After": {"1"}},
			}
		}
	}
	return whoIs(p), nil
}

// mayWatch returns a refusal for a caller who may not read the metrics. Without authentication every caller may.
func (a *App) mayWatch(who protocol.Caller) *httpserver.Denied {
	if who.Principal == identity.AnonymousName || permit.Watches(who.Caller, identity.Admin) {
		return nil
	}
	denied := a.who.InsufficientScope(permit.MetricsScope)
	_, challenge := a.who.StepUp(
		who.Caller,
		func(scopes []string) bool { return slices.Contains(scopes, permit.MetricsScope) },
	)
	if challenge != "" {
		denied.Header.Set("WWW-Authenticate", challenge)
	}
	return &httpserver.Denied{Status: denied.Status, Header: denied.Header,
		Message: "metrics are for admins and for tokens with the scope metrics: create one with gatehouse token " +
			"create --scope metrics"}
}

// owner returns the principal of the user who started this process.
func (a *App) owner() protocol.Caller {
	who := whoIs(a.who.Owner())
	who.Local = true
	return who
}

// connected returns the caller at the other end of a connection: on a Unix socket the peer that the kernel names.
// Every other caller must send a token in a message, unless the host requires no credentials.
func (a *App) connected(conn net.Conn) (protocol.Caller, error) {
	a.publishConnection(conn)
	if uid, known := socket.PeerUID(conn); known {
		if p, ok := a.who.Peer(uid); ok {
			who := whoIs(p)
			if socket.PeerIsChild(conn) {
				return a.paced(a.proving(asChild(who), netip.Addr{}), remoteEnd(netip.Addr{})), nil
			}
			if c, ok := conn.(interface{ ClientWork() ([]string, bool) }); ok {
				who.Work = c.ClientWork
				who.Local = int64(uid) == int64(os.Getuid())
			}
			return a.paced(a.proving(who, netip.Addr{}), remoteEnd(netip.Addr{})), nil
		}
	}
	addr := address(conn)
	p, denied := a.who.Line(context.Background(), "", addr)
	if denied != nil {
		return a.paced(a.proving(protocol.Caller{Advice: a.advice(addr)}, addr), remoteEnd(addr)), nil
	}
	return a.paced(a.proving(whoIs(p), addr), remoteEnd(addr)), nil
}

// advice tells a caller without a token, if it is on this machine, where the token is. A user who cannot read the
// file must not have the token.
func (a *App) advice(addr netip.Addr) string {
	if !addr.IsLoopback() || a.who.LocalToken() == "" {
		return ""
	}
	said := "; the one for this user's programs on this machine is in " + LocalTokenFile(a.cfg.Folders)
	if !a.cfg.Auth.Required && !a.who.Authenticates() {
		said += "; a server that was started with --insecure requires none"
	}
	return said
}

// publishConnection publishes an event about a connection to a newline-framed listener: its remote address and, on
// a Unix socket, its process.
func (a *App) publishConnection(conn net.Conn) {
	kind := conn.LocalAddr().Network()
	fact := map[string]any{"listener": kind, "door": kind} // door is the former name of listener
	if uid, known := socket.PeerUID(conn); known {
		fact["uid"] = uid
	} else {
		fact["from"] = conn.RemoteAddr().String()
	}
	a.publish("connection.opened", fact)
}

// proving adds to a caller the check of tokens that arrive over this connection.
func (a *App) proving(who protocol.Caller, addr netip.Addr) protocol.Caller {
	child := who.Child
	who.Prove = func(ctx context.Context, token string) (protocol.Caller, error) {
		p, denied := a.who.Line(ctx, token, addr)
		if denied != nil {
			return protocol.Caller{}, denied
		}
		if a.nodes != nil {
			if err := a.nodes.Fresh(); err != nil { // the credential may have been revoked
				return protocol.Caller{}, err
			}
		}
		proved := whoIs(p)
		if child {
			proved = asChild(proved)
		}
		return a.proving(proved, addr), nil
	}
	return who
}

// asChild returns the caller of a child process of this host. It is never an administrator, whatever credential it
// sends, because the child process may act without a user.
func asChild(who protocol.Caller) protocol.Caller {
	who.Roles, who.Child, who.Person = nil, true, false
	return who
}

func address(conn net.Conn) netip.Addr {
	if t, ok := conn.RemoteAddr().(*net.TCPAddr); ok {
		return t.AddrPort().Addr().Unmap()
	}
	return netip.Addr{}
}

// Degraded describes what this host cannot do at the moment, for readiness checks; "" if it can do everything. A
// degraded host continues to serve calls that only read.
func (a *App) Degraded() string {
	switch {
	case a.who.Lost():
		return "the file of users is lost; only the host's own user is admitted"
	case a.ledger != nil && a.ledger.Ready() != nil:
		return "the ledger cannot be written; calls that change something are refused"
	case a.who.Degraded() != nil, a.readOnly:
		return "the data folder cannot be written; calls that change something are refused"
	}
	return ""
}
