package config

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"gatehouse/internal/access/certs"
)

// SettingProblem is the error of an invalid setting.
type SettingProblem struct {
	Path string // of the setting, such as listen.http.port
	Err  error  // what is wrong, and what was expected
}

func (s *SettingProblem) Error() string { return s.Err.Error() }
func (s *SettingProblem) Unwrap() error { return s.Err }

// problems collects errors.
type problems struct{ all []error }

func (p *problems) addf(path, format string, args ...any) {
	p.all = append(p.all, &SettingProblem{path, fmt.Errorf(format, args...)})
}

// Validate reports everything that is wrong with the settings at once; each error is a *SettingProblem. Listeners
// are checked only if they are open.
func (c Config) Validate() error {
	w := &problems{}
	c.Listen.validate(w)
	c.Daemon.validate(w)
	c.Update.validate(w)
	c.Auth.validate(w)
	c.Sessions.validate(w)
	c.Limits.validate(w)
	c.Observe.validate(w)
	c.Modules.validate(w)
	c.checkContexts(w)
	c.checkPackages(w)
	c.Guards.Validate(func(path, text string) { w.addf("guardrails."+path, "%s", text) })
	if c.Approvals.Webhook != "" {
		w.url("approvals.webhook", "webhook", c.Approvals.Webhook, "https", "http")
	}
	if p := c.Approvals.Proof; p != "" && p != "none" && p != "passphrase" && p != "passkey" {
		w.addf("approvals.proof", "%q is not a proof of an operator; expected none, passphrase or passkey", p)
	}
	if c.Audit.Keep < 0 || c.Audit.MaxSize < 0 {
		w.addf("audit", "keep is %v and max_size is %d: expected no less than 0", c.Audit.Keep, c.Audit.MaxSize)
	}
	return errors.Join(w.all...)
}

func (l Listeners) validate(w *problems) {
	if l.HTTP.Open {
		l.HTTP.validate(w)
	}
	if l.TCP != "" {
		if _, err := ParseTCP(l.TCP); err != nil {
			w.addf("listen.tcp", "%w", err)
		}
	}
}

func (h HTTP) validate(w *problems) {
	if h.Port < 0 || h.Port > 65535 {
		w.addf("listen.http.port", "port %d: expected a number from 0 to 65535", h.Port)
	}
	if h.Host == "" {
		w.addf("listen.http.host", "host is empty: expected a name or an address, such as 127.0.0.1")
	}
	for _, o := range h.Origins {
		if err := validOrigin(o); err != nil {
			w.addf("listen.http.origins", "%w", err)
		}
	}
	h.TLS.validate(w)
}

func (t TLS) validate(w *problems) {
	for _, s := range []struct{ path, flag, value string }{
		{"cert", "--cert", t.Cert}, {"key", "--key", t.Key}, {"client_ca", "--client-ca", t.ClientCA},
		{"acme.domains", "--acme-domain", strings.Join(t.ACME.Domains, " ")},
	} {
		if s.value != "" && !t.On {
			w.addf("listen.http.tls."+s.path, "%s needs --tls", s.flag)
		}
	}
	if (t.Cert == "") != (t.Key == "") {
		w.addf("listen.http.tls", "%w", certs.ErrHalf)
	}
	if t.Cert != "" && len(t.ACME.Domains) > 0 {
		w.addf("listen.http.tls.acme", "--cert and --acme-domain exclude each other")
	}
	for _, d := range t.ACME.Domains {
		if !publicName(d) {
			w.addf(
				"listen.http.tls.acme.domains",
				"--acme-domain %q: expected a public name, such as tools.example.com",
				d,
			)
		}
	}
	w.url("listen.http.tls.acme.directory", "ACME directory", t.ACME.Directory, "https")
}

// url checks a setting that is a URL or empty.
func (p *problems) url(path, what, value string, schemes ...string) {
	u, err := url.Parse(value)
	if value != "" && (err != nil || u.Host == "" || !slices.Contains(schemes, u.Scheme)) {
		p.addf(path, "%s %q: expected a URL that begins with %s://", what, value, strings.Join(schemes, ":// or "))
	}
}

// publicName reports whether an authority on the internet could know a name: labels separated by dots, neither an
// address nor a pattern.
func publicName(d string) bool {
	labels := strings.Split(d, ".")
	if _, err := netip.ParseAddr(d); err == nil || len(labels) < 2 || len(d) > 253 {
		return false
	}
	return !slices.ContainsFunc(
		labels,
		func(l string) bool { return l == "" || len(l) > 63 || strings.ContainsAny(l, " */:@[]") },
	)
}

func validOrigin(o string) error {
	if o == "*" {
		return nil
	}
	u, err := url.Parse(o)
	if err != nil || u.Scheme == "" || u.Host == "" || u.Path != "" || u.RawQuery != "" || u.User != nil ||
		u.Fragment != "" {
		return fmt.Errorf("origin %q: expected scheme://host or scheme://host:port without a path, or *", o)
	}
	return nil
}

func (a Auth) validate(w *problems) {
	if a.Required && a.Insecure {
		w.addf("auth.insecure", "required and insecure exclude each other")
	}
	if l := a.Login; l.Issuer != "" {
		w.url("auth.login.issuer", "issuer", l.Issuer, "https", "http")
		w.url("auth.login.server", "server", l.Server, "https", "http")
		if l.ClientID == "" {
			w.addf("auth.login.client_id", "client_id is empty; expected that of this host at the provider")
		}
	}
	if a.Server != "" {
		w.url("auth.server", "server", a.Server, "https", "http")
		if a.OAuth.Issuer != "" {
			w.addf("auth.server",
				"server and oauth exclude each other: a host issues tokens, or accepts those of another server")
		}
	}
	if o := a.OAuth; o.Issuer != "" {
		w.url("auth.oauth.issuer", "issuer", o.Issuer, "https", "http")
		w.url("auth.oauth.jwks", "jwks", o.JWKS, "https", "http")
		w.url("auth.oauth.resource", "resource", o.Resource, "https", "http")
	} else if o.Resource != "" || o.JWKS != "" {
		w.addf("auth.oauth", "there is no issuer; expected the URL of an authorization server")
	}
}

func (s Sessions) validate(w *problems) {
	if s.Off {
		return
	}
	atLeast(w, "sessions.idle", "session idle time", s.Idle, time.Second)
	atLeast(w, "sessions.sweep", "session sweep", s.Sweep, time.Second)
	atLeast(w, "sessions.max", "sessions at once", s.Max, 1)
}

func (l Limits) validate(w *problems) {
	atLeast(w, "limits.message", "message limit", l.Message, 1<<10)
	atLeast(w, "limits.result", "result budget", l.Result, 1<<10)
	atLeast(w, "limits.deadline", "tool deadline", l.Deadline, time.Second)
	atLeast(w, "limits.spool_entry", "spool entry", l.SpoolEntry, 1<<10)
	atLeast(w, "limits.spool_total", "spool total", l.SpoolTotal, l.SpoolEntry)
	atLeast(w, "limits.spool_keep", "spool keep", l.SpoolKeep, time.Second)
	atLeast(w, "limits.job_keep", "job keep", l.JobKeep, time.Second)
	atLeast(w, "limits.stop_patience", "stop patience", l.StopPatience, time.Millisecond)
	if l.Rate != nil {
		atLeast(w, "limits.rate", "rate", *l.Rate, 0)
	}
	atLeast(w, "limits.burst", "burst", l.Burst, 0)
	atLeast(w, "limits.calls", "calls at once", l.Calls, 0)
	atLeast(w, "limits.calls_session", "calls at once for one session", l.CallsSession, 0)
	atLeast(w, "limits.calls_tool", "calls at once of one tool", l.CallsTool, 0)
	atLeast(w, "limits.calls_waiting", "calls that wait", l.CallsWaiting, 0)
}

func atLeast[T cmp.Ordered](w *problems, path, what string, got, least T) {
	if got < least || got != got { // the second is NaN
		w.addf(path, "%s is %v: expected at least %v", what, got, least)
	}
}

func (o Observe) validate(w *problems) {
	w.url("observe.traces.endpoint", "endpoint", o.Traces.Endpoint, "http", "https")
	if s := o.Traces.Sample; !(s >= 0 && s <= 1) {
		w.addf("observe.traces.sample", "sample is %v: expected a number from 0 to 1", s)
	}
}

// Loopback reports whether a host to listen on can be reached from this machine alone.
func Loopback(host string) bool {
	if host == "localhost" {
		return true
	}
	a, err := netip.ParseAddr(host)
	return err == nil && a.Unmap().IsLoopback()
}

// LoopbackAddr is Loopback for host:port.
func LoopbackAddr(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	return err == nil && Loopback(host)
}
