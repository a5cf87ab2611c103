package system

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/mail"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/acme"
	"golang.org/x/crypto/acme/autocert"

	"gatehouse/internal/files/atomicfile"
	"gatehouse/tool"
)

const (
	letsEncrypt        = "https://acme-v02.api.letsencrypt.org/directory"
	letsEncryptStaging = "https://acme-staging-v02.api.letsencrypt.org/directory"

	maxAuthorities = 8
	acmeTime       = time.Minute
	maxKept        = 1 << 20 // bytes of the file with names and authorities
)

// authority is a server from which this host gets certificates for the names that it serves.
type authority struct {
	Provider string   `json:"provider" doc:"its directory"`
	Contact  []string `json:"contact" doc:"addresses that it writes to"`
}

// authorities are those that an administrator has agreed with. Safe for concurrent use.
type authorities struct {
	mu  sync.Mutex
	all []authority
	by  map[string]*autocert.Manager // by provider
}

func (s *system) acmeTools() []daemonTool {
	return []daemonTool{
		changing(s, "", tool.Def{
			Name: "system_acme_init", Title: "Agree with a certificate authority", Aliases: []string{"net.acme.init"},
			Timeout: 2 * acmeTime,
			Description: "Agrees to the terms of an ACME authority, from which names of system_vhost_add then get " +
				"certificates, after the user has agreed.",
			Help: changeHelp + " provider is letsencrypt, letsencrypt-staging or the address of a directory. " +
				"The authority must reach " +
				"this machine at port 443 under each name. The host's own listener has its authority in the " +
				"settings: net_acme_status.",
			Effects: tool.Writes | tool.Idempotent | tool.OpenWorld,
		}, s.askACME, s.initACME),
		changing(s, "", tool.Def{
			Name: "system_acme_remove", Title: "Forget a certificate authority", Aliases: []string{"net.acme.remove"},
			Description: "Forgets an ACME authority that no name uses, after the user has agreed. " +
				"Its certificates stay valid until they expire.",
		}, s.askForgetACME, s.removeACME),
		reading(s, "", tool.Def{
			Name: "system_acme_list", Title: "List certificate authorities",
			Description: "Lists the ACME authorities that names of this host can get certificates from.",
		}, func(context.Context, *tool.Call, struct{}) (acmeOut, error) {
			s.acme.mu.Lock()
			defer s.acme.mu.Unlock()
			return acmeOut{append([]authority{}, s.acme.all...)}, nil
		}),
	}
}

type acmeIn struct {
	Provider string   `json:"provider" doc:"letsencrypt, letsencrypt-staging or an https address" min:"1" max:"300"`
	Contact  []string `json:"contact,omitempty" doc:"mail addresses" max:"5"`
	agreed
}

type acmeForgetIn struct {
	Provider string `json:"provider" min:"1" max:"300"`
	agreed
}

type acmeOut struct {
	Authorities []authority `json:"authorities"`
}

// directory returns the address of an authority.
func directory(provider string) (string, error) {
	switch provider {
	case "letsencrypt":
		return letsEncrypt, nil
	case "letsencrypt-staging":
		return letsEncryptStaging, nil
	}
	u, err := url.Parse(provider)
	if err != nil || u.Scheme != "https" || u.Host == "" || u.User != nil {
		return "", invalid("provider", provider, "letsencrypt, letsencrypt-staging or the https address of a directory")
	}
	return provider, nil
}

func (s *system) acmeClient(at string) *acme.Client {
	return &acme.Client{DirectoryURL: at, UserAgent: "gatehouse", HTTPClient: &http.Client{
		Timeout: acmeTime, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: s.cfg.Roots}},
	}}
}

func (s *system) askACME(ctx context.Context, in acmeIn) (change, error) {
	at, err := directory(in.Provider)
	if err != nil {
		return change{}, err
	}
	for _, c := range in.Contact {
		if a, err := mail.ParseAddress(c); err != nil || a.Address != c {
			return change{}, invalid("contact", c, "a mail address")
		}
	}
	d, err := s.acmeClient(at).Discover(ctx)
	if err != nil {
		return change{}, tool.Refuse(tool.CodeUnreachable, "the directory %s cannot be read: %v", at, err)
	}
	terms := ""
	if d.Terms != "" {
		terms = " Its terms are at " + d.Terms + "."
	}
	return change{in.Provider, fmt.Sprintf("Agree to the terms of the certificate authority %s, with the contact %s?%s",
		at, strings.Join(in.Contact, ", "), terms)}, nil
}

func (s *system) initACME(_ context.Context, _ *tool.Call, in acmeIn) (authority, error) {
	at, err := directory(in.Provider)
	if err != nil {
		return authority{}, err
	}
	one := authority{at, append([]string{}, in.Contact...)}
	s.acme.mu.Lock()
	defer s.acme.mu.Unlock()
	if s.acme.findAuthority(at) == nil && len(s.acme.all) >= maxAuthorities {
		return one, tool.Refuse(tool.CodeTooMany, "there are %d authorities, which is the limit", maxAuthorities)
	}
	s.acme.all = append(slices.DeleteFunc(s.acme.all, func(a authority) bool { return a.Provider == at }), one)
	delete(s.acme.by, at)
	return one, s.saveAuthorities()
}

func (a *authorities) findAuthority(at string) *authority {
	if i := slices.IndexFunc(a.all, func(x authority) bool { return x.Provider == at }); i >= 0 {
		return &a.all[i]
	}
	return nil
}

func (s *system) askForgetACME(_ context.Context, in acmeForgetIn) (change, error) {
	at, err := directory(in.Provider)
	if err != nil {
		return change{}, err
	}
	s.acme.mu.Lock()
	defer s.acme.mu.Unlock()
	if s.acme.findAuthority(at) == nil {
		return change{}, &tool.Refusal{
			Code:    tool.CodeNotFound,
			Message: "this host has no agreement with " + at,
			Next:    "system_acme_list lists them.",
		}
	}
	for _, p := range s.vhosts.listPassthroughs() {
		if p.ACME == at {
			return change{}, tool.Refuse(tool.CodeBusy, "%s at port %d gets its certificate from %s; remove it first",
				p.Hostname, p.ListenPort, at)
		}
	}
	return change{in.Provider, fmt.Sprintf("Forget the agreement with the certificate authority %s?", at)}, nil
}

func (s *system) removeACME(_ context.Context, _ *tool.Call, in acmeForgetIn) (authority, error) {
	at, err := directory(in.Provider)
	if err != nil {
		return authority{}, err
	}
	s.acme.mu.Lock()
	defer s.acme.mu.Unlock()
	one := s.acme.findAuthority(at)
	if one == nil {
		return authority{}, tool.Refuse(tool.CodeNotFound, "this host has no agreement with %s", at)
	}
	gone := *one
	s.acme.all = slices.DeleteFunc(s.acme.all, func(a authority) bool { return a.Provider == at })
	delete(s.acme.by, at)
	return gone, s.saveAuthorities()
}

// manager returns what gets certificates from an authority for the names that this host serves; nil
// without an agreement.
func (s *system) manager(at string) *autocert.Manager {
	s.acme.mu.Lock()
	defer s.acme.mu.Unlock()
	one := s.acme.findAuthority(at)
	if one == nil {
		return nil
	}
	if m := s.acme.by[at]; m != nil {
		return m
	}
	m := &autocert.Manager{
		Prompt: autocert.AcceptTOS, // an administrator has
		HostPolicy: func(_ context.Context, name string) error {
			if !slices.ContainsFunc(
				s.vhosts.listPassthroughs(),
				func(p passthroughOut) bool { return p.ACME == at && p.Hostname == name },
			) {
				return fmt.Errorf("this host does not serve %q", name)
			}
			return nil
		},
		Client: s.acmeClient(at),
	}
	if len(one.Contact) > 0 {
		m.Email = one.Contact[0]
	}
	if s.cfg.Folder != "" { // one for each authority, whose account key is in it
		sum := sha256.Sum256([]byte(at))
		m.Cache = autocert.DirCache(filepath.Join(s.cfg.Folder, "acme", hex.EncodeToString(sum[:8])))
	}
	s.acme.by[at] = m
	return m
}

// kept is what the next start of this host finds of names and authorities.
type kept struct {
	Authorities []authority      `json:"authorities,omitempty"`
	Names       []passthroughOut `json:"names,omitempty"`
}

func (s *system) keptFile() string { return filepath.Join(s.cfg.Folder, "names.json") }

// saveAuthorities stores names and authorities for the next start. The caller holds the lock of the authorities.
func (s *system) saveAuthorities() error {
	if s.cfg.Folder == "" {
		return nil
	}
	b, err := json.Marshal(kept{s.acme.all, s.vhosts.listPassthroughs()})
	if err = errors.Join(err, os.MkdirAll(s.cfg.Folder, 0o700)); err != nil {
		return err
	}
	return atomicfile.Write(s.keptFile(), b)
}

// startNames serves the names of the last run again. One that cannot be served is logged and left out.
func (s *system) startNames(ctx context.Context) {
	if s.cfg.Folder == "" {
		return
	}
	b, err := atomicfile.Read(s.keptFile(), maxKept)
	var was kept
	if err == nil {
		err = json.Unmarshal(b, &was)
	}
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			s.deps.Log.WarnContext(ctx, "names cannot be read", "err", err)
		}
		return
	}
	s.acme.mu.Lock()
	s.acme.all = was.Authorities
	s.acme.mu.Unlock()
	for _, p := range was.Names {
		p.Served = 0
		if err := s.vhosts.addPassthrough(ctx, &p); err != nil {
			s.deps.Log.WarnContext(ctx, "name not served", "name", p.Hostname, "port", p.ListenPort, "err", err)
		}
	}
}

// terminate ends TLS with a certificate of an authority, and passes on what is inside.
func (s *system) terminate(ctx context.Context, c net.Conn, p *passthrough, hello []byte) {
	m := s.manager(p.ACME)
	if m == nil {
		return
	}
	config := m.TLSConfig()
	config.MinVersion = tls.VersionTLS12
	config.NextProtos = []string{"http/1.1", acme.ALPNProto} // the backend is told no protocol
	t := tls.Server(&replayed{c, hello}, config)
	defer t.Close()
	c.SetDeadline(time.Now().Add(acmeTime)) // a first certificate has to be fetched
	if err := t.HandshakeContext(ctx); err != nil {
		s.deps.Log.DebugContext(ctx, "no TLS with a client", "name", p.Hostname, "err", err)
		return
	}
	if t.ConnectionState().NegotiatedProtocol == acme.ALPNProto {
		return // the authority has seen the proof
	}
	c.SetDeadline(time.Time{})
	s.vhosts.connect(ctx, p, t, c, nil)
}

// replayed is a connection of which the beginning was read already.
type replayed struct {
	net.Conn
	read []byte
}

func (r *replayed) Read(b []byte) (int, error) {
	if len(r.read) > 0 {
		n := copy(b, r.read)
		r.read = r.read[n:]
		return n, nil
	}
	return r.Conn.Read(b)
}
