package config

import (
	"cmp"
	"path/filepath"
	"slices"
)

// Daemon is what a host in the background is told besides; see gatehouse
// daemon.
type Daemon struct {
	Transport string `doc:"What is opened beside the command line's own Unix socket, which always is: tcp (lines at addr), socket (nothing more), http (Streamable HTTP at addr), or all (lines at addr, and HTTP where listen.http says). Left out, the doors that listen names, or else tcp." enum:"tcp,socket,http,all" env:"GATEHOUSE_MCP_TRANSPORT"`
	Addr      string `doc:"Where tcp, or http alone, listens." env:"GATEHOUSE_MCP_ADDR" kind:"address"`
	Health    string `doc:"Where /health and /ready are shown, or off." env:"GATEHOUSE_HEALTH_ADDR"`
	PIDFile   string `doc:"File with the daemon's process number, which it keeps claimed, or off. Left out, gatehouse.pid in the runtime folder." env:"GATEHOUSE_PID_FILE" kind:"path" none:"off"`
}

// Off is what is said of health and of the PID file to have none.
const Off = "off"

// DefaultHealth is where a daemon shows its health when nothing says where.
const DefaultHealth = "127.0.0.1:9101"

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
	return cmp.Or(d.Health, DefaultHealth)
}

func (d Daemon) validate(w *wrong) {
	if d.Transport != "" && !slices.Contains(transports, d.Transport) {
		w.add("daemon.transport", "%q is no transport of a daemon; expected tcp, socket, http or all", d.Transport)
	}
	if _, err := ParseTCP(cmp.Or(d.Addr, DefaultTCP)); err != nil {
		w.add("daemon.addr", "%w", err)
	}
	if d.HealthAddr() != "" {
		if _, err := ParseTCP(d.HealthAddr()); err != nil {
			w.add("daemon.health", "%w, or off", err)
		}
	}
}
