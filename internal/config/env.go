package config

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
)

// These environment variables belong to no setting. Those of the folders are in folders.go; those of settings are
// in the settings' tags, or are GATEHOUSE_ and their path.
const (
	EnvConfig    = "GATEHOUSE_CONFIG"    // path of the settings file
	EnvTransport = "GATEHOUSE_TRANSPORT" // stdio, http, both, tcp or unix
)

// DefaultTCP is the address of the TCP listener if none is set.
const DefaultTCP = "127.0.0.1:9100"

// FromEnv returns Default with the values of the environment, and reads no file. getenv is os.Getenv or the
// function of a test. The error joins all mistakes; each names its variable.
func FromEnv(getenv func(string) string) (Config, error) {
	c := Default()
	e := envReader{getenv: getenv, into: &c, said: map[string]Place{}}
	e.folders()
	e.readAll()
	return c, errors.Join(e.wrong...)
}

// envReader reads variables into settings.
type envReader struct {
	getenv func(string) string
	into   *Config
	said   map[string]Place
	wrong  []error
}

// setFrom passes the value of a variable, if it has one, to set.
func (e *envReader) setFrom(name string, set func(string) error) {
	v := e.getenv(name)
	if v == "" {
		if v, name = original(e.getenv, name); v == "" {
			return
		}
	}
	if err := set(v); err != nil {
		e.wrong = append(e.wrong, fmt.Errorf("%s: %w", name, err))
	}
}

// readAll reads the variable of each setting, and then the one that names the listeners to open.
func (e *envReader) readAll() {
	e.section(reflect.ValueOf(e.into).Elem(), "")
	e.otel()
	e.setFrom(EnvTransport, func(word string) error {
		for _, path := range []string{"listen.stdio", "listen.http.open", "listen.tcp", "listen.unix"} {
			e.said[path] = Place{By: EnvTransport}
		}
		return e.into.transport(word)
	})
}

func (e *envReader) section(v reflect.Value, path string) {
	for _, s := range settingsIn(v.Type(), path) {
		if s.section() {
			e.section(v.Field(s.at), s.path)
		} else if name := s.variable(); name != "" {
			e.setFrom(name, func(text string) error {
				by := name
				if e.getenv(name) == "" {
					_, by = original(e.getenv, name)
				}
				e.said[s.path] = Place{By: by}
				return s.parseText(v.Field(s.at), text)
			})
		}
	}
}

// transport opens the listeners that one word names and closes the others. It runs after MCP_ADDR, whose address
// it keeps only for the TCP listener, and after the file, whose addresses it keeps for the listeners it opens.
func (c *Config) transport(word string) error {
	d := &c.Listen
	tcp, unix := d.TCP, d.Unix
	d.Stdio, d.HTTP.Open, d.TCP, d.Unix = false, false, "", ""
	switch word {
	case "stdio":
		d.Stdio = true
	case "http":
		d.HTTP.Open = true
	case "both":
		d.Stdio, d.HTTP.Open = true, true
	case "tcp":
		d.TCP = cmp.Or(tcp, DefaultTCP)
	case "unix":
		d.Unix = cmp.Or(unix, c.Folders.Socket())
	default:
		return fmt.Errorf("%q is not a transport; expected stdio, http, both, tcp or unix", word)
	}
	return nil
}

// Socket returns the path of the Unix socket if none is set.
func (f Folders) Socket() string { return filepath.Join(f.Runtime, "gatehouse.sock") }

// ParseLevel parses a level of logging.
func ParseLevel(s string) (slog.Level, error) {
	switch strings.ToLower(s) {
	case "debug":
		return slog.LevelDebug, nil
	case "info":
		return slog.LevelInfo, nil
	case "warn":
		return slog.LevelWarn, nil
	case "error":
		return slog.LevelError, nil
	}
	return slog.LevelInfo, fmt.Errorf("%q is not a level; expected debug, info, warn or error", s)
}

// ParsePort parses a port; 0 means any free one.
func ParsePort(s string) (int, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil {
		return 0, fmt.Errorf("%q is not a port; expected a number from 0 to 65535", s)
	}
	return int(n), nil
}

// ParseTCP parses host:port. An empty host becomes loopback, never every interface.
func ParseTCP(s string) (string, error) {
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		return "", fmt.Errorf("%q is not an address; expected host:port, such as %s", s, DefaultTCP)
	}
	if _, err := ParsePort(port); err != nil {
		return "", err
	}
	if host == "" {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, port), nil
}
