package config

import (
	"cmp"
	"path/filepath"
	"slices"
)

// Daemon configures a host that runs in the background; see gatehouse daemon.
type Daemon struct {
	Transport string `doc:"What is opened besides the command line's own Unix socket, which is always open: tcp (newline-delimited messages at addr), socket (nothing more, or a second Unix socket if addr is a path), http (Streamable HTTP at addr), or all (newline-delimited messages at addr, and HTTP at the address in listen.http). Empty means the listeners that listen names, tcp if addr is set, or else nothing more." enum:"tcp,socket,http,all" env:"GATEHOUSE_MCP_TRANSPORT"`
	Addr      string `doc:"Address at which tcp, or http alone, listens: host:port. Empty means 127.0.0.1:9100, or any free port if that is in use. With the transport socket, the path of a second Unix socket." env:"GATEHOUSE_MCP_ADDR"`
	Health    string `doc:"Address at which /health and /ready are served, host:port, or off, which is the default." env:"GATEHOUSE_HEALTH_ADDR"`
	PIDFile   string `doc:"File with the daemon's process id, which the daemon keeps locked, or off. Empty means gatehouse.pid in the runtime folder." env:"GATEHOUSE_PID_FILE" kind:"path" none:"off"`
}

// Off is the value of health and of pid_file that turns them off.
const Off = "off"

// transports are the values of daemon.transport.
var transports = []string{"tcp", "socket", "http", "all"}

// PID returns the path of the PID file, or "" if there is none.
func (d Daemon) PID(f Folders) string {
	if d.PIDFile == Off {
		return ""
	}
	return cmp.Or(d.PIDFile, filepath.Join(f.Runtime, "gatehouse.pid"))
}

// HealthAddr returns the address at which health is served, or "" if it is not.
func (d Daemon) HealthAddr() string {
	if d.Health == Off {
		return ""
	}
	return d.Health
}

// SecondSocket returns the path of the Unix socket that is opened besides the daemon's own, or "" for none.
func (d Daemon) SecondSocket() string {
	if d.Transport != "socket" {
		return ""
	}
	return d.Addr
}

func (d Daemon) validate(w *problems) {
	if d.Transport != "" && !slices.Contains(transports, d.Transport) {
		w.addf("daemon.transport", "%q is not a transport of a daemon; expected tcp, socket, http or all", d.Transport)
	}
	if path := d.SecondSocket(); path != "" && !filepath.IsAbs(path) {
		w.addf("daemon.addr", "%q is not an absolute path; the transport socket expects one", path)
	} else if _, err := ParseTCP(cmp.Or(d.Addr, DefaultTCP)); path == "" && err != nil {
		w.addf("daemon.addr", "%w", err)
	}
	if d.HealthAddr() != "" {
		if _, err := ParseTCP(d.HealthAddr()); err != nil {
			w.addf("daemon.health", "%w, or off", err)
		}
	}
}
