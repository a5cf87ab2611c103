package config

import (
	"cmp"
	"path/filepath"
	"slices"
)

// Daemon is what a host in the background is told besides; see gatehouse
// daemon.
type Daemon struct {
	Transport string `doc:"What is opened beside the command line's own Unix socket, which always is: tcp (lines at addr), socket (nothing more, or a second Unix socket where addr is a path), http (Streamable HTTP at addr), or all (lines at addr, and HTTP where listen.http says). Left out, the doors that listen names, tcp if addr is set, or else nothing more." enum:"tcp,socket,http,all" env:"GATEHOUSE_MCP_TRANSPORT"`
	Addr      string `doc:"Where tcp, or http alone, listens: host:port. Left out, 127.0.0.1:9100, or any free port if that is in use. With the transport socket, the path of a second Unix socket." env:"GATEHOUSE_MCP_ADDR"`
	Health    string `doc:"Where /health and /ready are shown, host:port, or off, which is the default." env:"GATEHOUSE_HEALTH_ADDR"`
	PIDFile   string `doc:"File with the daemon's process number, which it keeps claimed, or off. Left out, gatehouse.pid in the runtime folder." env:"GATEHOUSE_PID_FILE" kind:"path" none:"off"`
}

// Off is what is said of health and of the PID file to have none.
const Off = "off"

// transports are the words for what a daemon opens beside its own socket.
var transports = []string{"tcp", "socket", "http", "all"}

// PID is where the PID file is; "" when there is none.
func (d Daemon) PID(f Folders) string {
	if d.PIDFile == Off {
		return ""
	}
	return cmp.Or(d.PIDFile, filepath.Join(f.Runtime, "gatehouse.pid"))
}

// HealthAddr is where health is shown; "" when nowhere.
func (d Daemon) HealthAddr() string {
	if d.Health == Off {
		return ""
	}
	return d.Health
}

// SecondSocket returns the path of the Unix socket that is opened beside the
// daemon's own; "" for none.
func (d Daemon) SecondSocket() string {
	if d.Transport != "socket" {
		return ""
	}
	return d.Addr
}

func (d Daemon) validate(w *problems) {
	if d.Transport != "" && !slices.Contains(transports, d.Transport) {
		w.addf("daemon.transport", "%q is no transport of a daemon; expected tcp, socket, http or all", d.Transport)
	}
	if path := d.SecondSocket(); path != "" && !filepath.IsAbs(path) {
		w.addf("daemon.addr", "%q is no absolute path; the transport socket expects one", path)
	} else if _, err := ParseTCP(cmp.Or(d.Addr, DefaultTCP)); path == "" && err != nil {
		w.addf("daemon.addr", "%w", err)
	}
	if d.HealthAddr() != "" {
		if _, err := ParseTCP(d.HealthAddr()); err != nil {
			w.addf("daemon.health", "%w, or off", err)
		}
	}
}
