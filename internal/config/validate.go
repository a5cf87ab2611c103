package config

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"time"
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
	}
	if d.TCP != "" {
		if _, err := ParseTCP(d.TCP); err != nil {
			wrong = append(wrong, err)
		}
	}
	return errors.Join(wrong...)
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
