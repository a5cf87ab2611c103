package config

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"strconv"
	"strings"
)

// Environment variables. The folders' are in folders.go.
const (
	EnvTransport = "GATEHOUSE_TRANSPORT" // stdio, http, both, tcp or unix
	EnvHTTPHost  = "GATEHOUSE_HTTP_HOST" // where --http listens
	EnvHTTPPort  = "GATEHOUSE_HTTP_PORT" // on which port
	EnvLog       = "GATEHOUSE_LOG"       // debug, info, warn or error
	EnvTCP       = "MCP_ADDR"            // host:port; set, it opens the TCP door there
	EnvSecretKey = "GATEHOUSE_SECRET_KEY_FILE"
)

// DefaultTCP is where the TCP door listens when nothing says where.
const DefaultTCP = "127.0.0.1:9100"

// FromEnv is Default with what the environment says. getenv is os.Getenv or
// a test's own. The error joins all mistakes; each names its variable.
func FromEnv(getenv func(string) string) (Config, error) {
	c := Default()
	var wrong []error
	set := func(name string, take func(string) error) {
		if v := getenv(name); v != "" {
			if err := take(v); err != nil {
				wrong = append(wrong, fmt.Errorf("%s: %w", name, err))
			}
		}
	}
	c.Folders = platformFolders(getenv, set)
	set(EnvHTTPHost, func(v string) error { c.Doors.HTTP.Host = v; return nil })
	set(EnvHTTPPort, func(v string) (err error) { c.Doors.HTTP.Port, err = ParsePort(v); return err })
	set(EnvLog, func(v string) (err error) { c.Log.Level, err = ParseLevel(v); return err })
	set(EnvTCP, func(v string) (err error) { c.Doors.TCP, err = ParseTCP(v); return err })
	set(EnvSecretKey, func(v string) error { c.Secrets.KeyFile = v; return nil })
	set(EnvTransport, c.transport)
	return c, errors.Join(wrong...)
}

// transport opens the doors that one word names. It comes after MCP_ADDR,
// whose address it keeps only for the TCP door.
func (c *Config) transport(word string) error {
	d := &c.Doors
	switch word {
	case "stdio":
		d.Stdio, d.TCP = true, ""
	case "http":
		d.HTTP.Open, d.TCP = true, ""
	case "both":
		d.Stdio, d.HTTP.Open, d.TCP = true, true, ""
	case "tcp":
		if d.TCP == "" {
			d.TCP = DefaultTCP
		}
	case "unix":
		d.Unix, d.TCP = c.Folders.Socket(), ""
	default:
		return fmt.Errorf("%q is no transport; expected stdio, http, both, tcp or unix", word)
	}
	return nil
}

// Socket is where the Unix door listens when nothing says where.
func (f Folders) Socket() string { return filepath.Join(f.Runtime, "gatehouse.sock") }

// ParseLevel reads a level of logging.
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
	return slog.LevelInfo, fmt.Errorf("%q is no level; expected debug, info, warn or error", s)
}

// ParsePort reads a port; 0 means any free one.
func ParsePort(s string) (int, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil {
		return 0, fmt.Errorf("%q is no port; expected a number from 0 to 65535", s)
	}
	return int(n), nil
}

// ParseTCP reads host:port. An empty host becomes loopback, never every
// interface.
func ParseTCP(s string) (string, error) {
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		return "", fmt.Errorf("%q is no address; expected host:port, such as %s", s, DefaultTCP)
	}
	if _, err := ParsePort(port); err != nil {
		return "", err
	}
	if host == "" {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, port), nil
}
