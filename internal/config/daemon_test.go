package config

import (
	"path/filepath"
	"strings"
	"testing"
)

func TestDaemonBySaidAndUnsaid(t *testing.T) {
	c, err := FromEnv(environment(t, "XDG_RUNTIME_DIR=/run/a"))
	if err != nil {
		t.Fatal(err)
	}
	if d := c.Daemon; d.Transport != "" || d.HealthAddr() != "" || d.SecondSocket() != "" ||
		d.PID(c.Folders) != filepath.FromSlash("/run/a/gatehouse/gatehouse.pid") {
		t.Errorf("unset: %+v, health %s, PID file %s", d, d.HealthAddr(), d.PID(c.Folders))
	}
	c, err = FromEnv(
		environment(
			t,
			"GATEHOUSE_MCP_TRANSPORT=all",
			"GATEHOUSE_MCP_ADDR=:7000",
			"GATEHOUSE_HEALTH_ADDR=off",
			"GATEHOUSE_PID_FILE=/x/y.pid",
		),
	)
	if err != nil {
		t.Fatal(err)
	}
	if d := c.Daemon; d.Transport != "all" || d.Addr != ":7000" || d.HealthAddr() != "" ||
		d.PID(c.Folders) != "/x/y.pid" {
		t.Errorf("said: %+v", d)
	}
	_, err = FromEnv(environment(t, "GATEHOUSE_MCP_TRANSPORT=carrier-pigeon"))
	if err == nil || !strings.Contains(err.Error(), "expected tcp, socket, http or all") {
		t.Errorf("a transport that does not exist: %v", err)
	}
}

func TestTheTransportSocketTakesAPath(t *testing.T) {
	l, err := read(t, "daemon:\n  transport: socket\n  addr: /run/more.sock\n")
	if err != nil || l.Daemon.SecondSocket() != "/run/more.sock" {
		t.Errorf("%+v, %v", l.Daemon, err)
	}
	if _, err = read(t, "daemon:\n  transport: socket\n  addr: 127.0.0.1:1\n"); err == nil ||
		!strings.Contains(err.Error(), "expects one") {
		t.Errorf("an address for the transport socket: %v", err)
	}
	if _, err = read(t, "daemon:\n  transport: tcp\n  addr: /run/more.sock\n"); err == nil ||
		!strings.Contains(err.Error(), "host:port") {
		t.Errorf("a path for the transport tcp: %v", err)
	}
}

func TestDaemonInTheFile(t *testing.T) {
	l, err := read(t, "daemon:\n  transport: socket\n  pid_file: off\n")
	if err != nil || l.Daemon.Transport != "socket" || l.Daemon.PID(l.Folders) != "" {
		t.Errorf("%+v, %v", l.Daemon, err)
	}
	l, err = read(t, "daemon:\n  pid_file: run/g.pid\n")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := l.Daemon.PID(l.Folders), filepath.Join(filepath.Dir(l.File), "run", "g.pid"); got != want {
		t.Errorf("the PID file is %q, want %q", got, want)
	}
	_, err = read(t, "daemon:\n  health: nowhere\n")
	if err == nil || !strings.Contains(err.Error(), "g.yaml:2:3: daemon.health") ||
		!strings.Contains(err.Error(), "or off") {
		t.Errorf("an invalid address for health: %v", err)
	}
}
