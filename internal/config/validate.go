package config

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"gatehouse/internal/certs"
)

// Validate says what is wrong with the settings, all of it at once. The doors
// are checked only where they are open.
func (c Config) Validate() error {
	return errors.Join(c.Doors.validate(), c.Sessions.validate(), c.Limits.validate())
}

func (d Doors) validate() error {
	var wrong []error
	if d.HTTP.Open {
		if d.HTTP.Port < 0 || d.HTTP.Port > 65535 {
			wrong = append(wrong, fmt.Errorf("port %d: expected a number from 0 to 65535", d.HTTP.Port))
		}
		if d.HTTP.Host == "" {
			wrong = append(wrong, errors.New("host is empty: expected a name or an address, such as 127.0.0.1"))
		}
		for _, o := range d.HTTP.Origins {
			if err := validOrigin(o); err != nil {
				wrong = append(wrong, err)
			}
		}
		wrong = append(wrong, d.HTTP.TLS.validate())
	}
	if d.TCP != "" {
		if _, err := ParseTCP(d.TCP); err != nil {
			wrong = append(wrong, err)
		}
	}
	return errors.Join(wrong...)
}

func (t TLS) validate() error {
	var wrong []error
	need := func(setting, value string) {
		if value != "" && !t.On {
			wrong = append(wrong, fmt.Errorf("%s needs --tls", setting))
		}
	}
	need("--cert", t.Cert)
	need("--key", t.Key)
	need("--client-ca", t.ClientCA)
	need("--acme-domain", strings.Join(t.ACME.Domains, " "))
	if (t.Cert == "") != (t.Key == "") {
		wrong = append(wrong, certs.ErrHalf)
	}
	if t.Cert != "" && len(t.ACME.Domains) > 0 {
		wrong = append(wrong, errors.New("--cert and --acme-domain exclude each other"))
	}
	for _, d := range t.ACME.Domains {
		if !publicName(d) {
			wrong = append(wrong, fmt.Errorf("--acme-domain %q: expected a public name, such as tools.example.com", d))
		}
	}
	if u, err := url.Parse(t.ACME.Directory); err != nil || t.ACME.Directory != "" && (u.Scheme != "https" || u.Host == "") {
		wrong = append(wrong, fmt.Errorf("ACME directory %q: expected a URL with https", t.ACME.Directory))
	}
	return errors.Join(wrong...)
}

// publicName reports whether an authority on the internet could know a name:
// labels with a dot between, neither an address nor a pattern.
func publicName(d string) bool {
	labels := strings.Split(d, ".")
	if _, err := netip.ParseAddr(d); err == nil || len(labels) < 2 || len(d) > 253 {
		return false
	}
	return !slices.ContainsFunc(labels, func(l string) bool { return l == "" || len(l) > 63 || strings.ContainsAny(l, " */:@[]") })
}

func validOrigin(o string) error {
	if o == "*" {
		return nil
	}
	u, err := url.Parse(o)
	if err != nil || u.Scheme == "" || u.Host == "" || u.Path != "" || u.RawQuery != "" || u.User != nil || u.Fragment != "" {
		return fmt.Errorf("origin %q: expected scheme://host or scheme://host:port without a path, or *", o)
	}
	return nil
}

func (s Sessions) validate() error {
	if s.Off {
		return nil
	}
	return errors.Join(
		atLeast("session idle time", s.Idle, time.Second),
		atLeast("session sweep", s.Sweep, time.Second),
		atLeast("sessions at once", s.Max, 1),
	)
}

func (l Limits) validate() error {
	return errors.Join(
		atLeast("message limit", l.Message, 1<<10),
		atLeast("result budget", l.Result, 1<<10),
		atLeast("tool deadline", l.Deadline, time.Second),
		atLeast("spool entry", l.SpoolEntry, 1<<10),
		atLeast("spool total", l.SpoolTotal, l.SpoolEntry),
		atLeast("spool keep", l.SpoolKeep, time.Second),
		atLeast("job keep", l.JobKeep, time.Second),
		atLeast("stop patience", l.StopPatience, time.Millisecond),
	)
}

func atLeast[T int | int64 | time.Duration](what string, got, least T) error {
	if got < least {
		return fmt.Errorf("%s is %v: expected at least %v", what, got, least)
	}
	return nil
}

// Loopback reports whether a host to listen on can be reached from this
// machine alone.
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
