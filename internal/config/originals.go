package config

import (
	"errors"
	"fmt"
	"slices"
)

// originals maps variables of this program to those of the servers that it replaces, which give the value if its
// own variable is not set. Every command reads them, because each means exactly what the own variable means.
var originals = map[string][]string{
	"GATEHOUSE_MCP_TRANSPORT": {"CORE_MCP_TRANSPORT"},
	"GATEHOUSE_MCP_ADDR":      {"CORE_MCP_ADDR", "CORE_MCP_TCP_ADDR"},
	"GATEHOUSE_HEALTH_ADDR":   {"CORE_HEALTH_ADDR"},
	"GATEHOUSE_PID_FILE":      {"CORE_PID_FILE"},
	"GATEHOUSE_AUTH_TOKEN":    {"MCP_AUTH_TOKEN"},

	"GATEHOUSE_KERNEL":         {"BOUVET_KERNEL"},
	"GATEHOUSE_ROOTFS":         {"BOUVET_ROOTFS"},
	"GATEHOUSE_FIRECRACKER":    {"BOUVET_FIRECRACKER"},
	"GATEHOUSE_CHROOT":         {"BOUVET_CHROOT"},
	"GATEHOUSE_POOL_ENABLED":   {"BOUVET_POOL_ENABLED"},
	"GATEHOUSE_POOL_MIN_SIZE":  {"BOUVET_POOL_MIN_SIZE"},
	"GATEHOUSE_POOL_MAX_BOOTS": {"BOUVET_POOL_MAX_BOOTS"},
}

// original returns the value that another server's variable gives a variable of this program, and the name of that
// variable. It returns "" if the value has no meaning here, such as the transport stdio, which a daemon does not
// have.
func original(getenv func(string) string, name string) (value, by string) {
	for _, by := range originals[name] {
		value := getenv(by)
		if name == "GATEHOUSE_MCP_TRANSPORT" {
			switch value {
			case "unix":
				value = "socket"
			case "both":
				value = "all"
			case "stdio":
				value = ""
			}
		}
		if value != "" {
			return value, by
		}
	}
	return "", ""
}

// bouvet are the variables of design D.
var bouvet = []string{
	"BOUVET_KERNEL", "BOUVET_ROOTFS", "BOUVET_FIRECRACKER", "BOUVET_CHROOT", "BOUVET_TRANSPORT", "BOUVET_POOL_ENABLED",
	"BOUVET_POOL_MIN_SIZE", "BOUVET_POOL_MAX_BOOTS", "BOUVET_HTTP_HOST", "BOUVET_HTTP_PORT",
}

// Bouvet sets the listeners of a host with the preset of design D as the original server has them, if one of its
// variables is set: standard input and output, and HTTP at port 8080, without sessions, so that each request is
// answered alone. It stays on loopback unless BOUVET_HTTP_HOST names another address, while the original listens
// on all of them and requires no credentials. Settings that were set by their own names take precedence.
func (l *Loaded) Bouvet(getenv func(string) string) error {
	if !slices.ContainsFunc(bouvet, func(name string) bool { return getenv(name) != "" }) {
		return nil
	}
	e := envReader{getenv: getenv, into: &l.Config, said: l.said}
	unsaid := func(path string) bool { return l.Where(path) == Place{} }
	if unsaid("listen.stdio") && unsaid("listen.http.open") && unsaid("listen.tcp") && unsaid("listen.unix") {
		word := "both"
		switch said := getenv("BOUVET_TRANSPORT"); said {
		case "stdio":
			word = said
		case "http", "sse", "remote":
			word = "http"
		}
		if err := l.transport(word); err != nil {
			return err
		}
		l.By("listen.http.open", "BOUVET_TRANSPORT")
	}
	h := &l.Listen.HTTP
	if unsaid("listen.http.port") {
		h.Port = 8080
		e.setFrom("BOUVET_HTTP_PORT", func(text string) (err error) {
			h.Port, err = ParsePort(text)
			return err
		})
		l.By("listen.http.port", "BOUVET_HTTP_PORT")
	}
	if unsaid("listen.http.host") {
		e.setFrom("BOUVET_HTTP_HOST", func(text string) error {
			h.Host = text
			l.By("listen.http.host", "BOUVET_HTTP_HOST")
			return nil
		})
	}
	if unsaid("sessions.off") {
		l.Sessions.Off = true
		l.By("sessions.off", "BOUVET_TRANSPORT")
	}
	return errors.Join(e.wrong...)
}

// Core sets the listeners of a host with the preset of design C as CORE_MCP_TRANSPORT names them: stdio, tcp or a
// Unix socket.
func (l *Loaded) Core(getenv func(string) string) error {
	word := getenv("CORE_MCP_TRANSPORT")
	if word == "" || getenv(EnvTransport) != "" {
		return nil
	}
	if word == "socket" {
		word = "unix"
	}
	addr := getenv("CORE_MCP_ADDR")
	if word == "unix" && l.Listen.Unix == "" {
		l.Listen.Unix = addr // the path of a socket
	}
	if word == "tcp" && l.Listen.TCP == "" && addr != "" {
		var err error
		if l.Listen.TCP, err = ParseTCP(addr); err != nil {
			return fmt.Errorf("CORE_MCP_ADDR: %w", err)
		}
	}
	if err := l.transport(word); err != nil {
		return fmt.Errorf("CORE_MCP_TRANSPORT: %w", err)
	}
	for _, path := range []string{"listen.stdio", "listen.http.open", "listen.tcp", "listen.unix"} {
		l.By(path, "CORE_MCP_TRANSPORT")
	}
	return nil
}
