package config

import (
	"reflect"
	"testing"
)

// TestVariablesOfOriginals checks that variables of other servers set settings of this one, which its own
// variables override.
func TestVariablesOfOriginals(t *testing.T) {
	c, err := FromEnv(
		environment(
			t,
			"CORE_MCP_TRANSPORT=both",
			"CORE_MCP_ADDR=:7000",
			"CORE_HEALTH_ADDR=off",
			"CORE_PID_FILE=/x/y.pid",
			"MCP_UNIX_SOCKET=/x/core.sock",
			"MCP_AUTH_TOKEN=a token of 20 bytes.",
			"BOUVET_POOL_MIN_SIZE=7",
			"BOUVET_POOL_ENABLED=false",
			"BOUVET_KERNEL=/x/vmlinux",
			"BOUVET_CHROOT=/x/jails",
			"GATEHOUSE_CHROOT=/x/ours",
		),
	)
	if err != nil {
		t.Fatal(err)
	}
	if d := (Daemon{"all", ":7000", "off", "/x/y.pid"}); c.Daemon != d {
		t.Errorf("the daemon is %+v, want %+v", c.Daemon, d)
	}
	s := c.Modules.Sandbox
	if c.Listen.Unix != "/x/core.sock" || c.Auth.Token.Reveal() != "a token of 20 bytes." || s.Pool.MinSize != 7 ||
		s.Pool.Enabled ||
		s.Kernel != "/x/vmlinux" ||
		s.Chroot != "/x/ours" {
		t.Errorf("got %+v, %+v", c.Listen, s)
	}
	// The address of a socket is a path.
	c, err = FromEnv(environment(t, "CORE_MCP_TRANSPORT=unix", "CORE_MCP_ADDR=/x/s"))
	if err == nil {
		err = c.Validate()
	}
	if err != nil || c.Daemon.SecondSocket() != "/x/s" {
		t.Errorf("got %+v, %v", c.Daemon, err)
	}
	if _, err := FromEnv(environment(t, "CORE_MCP_TRANSPORT=stdio", "MCP_AUTH_TOKEN=")); err != nil {
		t.Errorf("stdio does not apply to a daemon: %v", err)
	}
	if _, err := FromEnv(environment(t, "BOUVET_POOL_MIN_SIZE=many")); err == nil ||
		err.Error()[:20] != "BOUVET_POOL_MIN_SIZE" {
		t.Errorf("got %v", err)
	}
}

// TestOriginalsNameSettings checks that every own variable in the table belongs to a setting.
func TestOriginalsNameSettings(t *testing.T) {
	known := map[string]bool{}
	var walk func(typ reflect.Type, path string)
	walk = func(typ reflect.Type, path string) {
		for _, s := range settingsIn(typ, path) {
			if s.section() {
				walk(s.typ, s.path)
			} else {
				known[s.variable()] = true
			}
		}
	}
	walk(reflect.TypeFor[Config](), "")
	for name := range originals {
		if !known[name] {
			t.Errorf("there is no setting with the variable %s", name)
		}
	}
}

// TestListenersOfDesignD checks that a host with the preset of design D listens as the original server does, but
// on loopback.
func TestListenersOfDesignD(t *testing.T) {
	for _, c := range []struct {
		env         []string
		stdio, http bool
		host        string
		port        int
		off         bool
	}{
		{nil, false, false, "127.0.0.1", 3000, false},
		{[]string{"BOUVET_POOL_MIN_SIZE=1"}, true, true, "127.0.0.1", 8080, true},
		{[]string{"BOUVET_TRANSPORT=stdio"}, true, false, "127.0.0.1", 8080, true},
		{[]string{"BOUVET_TRANSPORT=sse", "BOUVET_HTTP_PORT=9000"}, false, true, "127.0.0.1", 9000, true},
		{[]string{"BOUVET_HTTP_HOST=0.0.0.0"}, true, true, "0.0.0.0", 8080, true},
		{[]string{"BOUVET_TRANSPORT=http", "GATEHOUSE_TRANSPORT=stdio", "GATEHOUSE_HTTP_PORT=7000"}, true, false,
			"127.0.0.1", 7000, true},
	} {
		getenv := environment(t, c.env...)
		l, err := Load(getenv, "")
		if err == nil {
			err = l.Bouvet(getenv)
		}
		if d := l.Listen; err != nil || d.Stdio != c.stdio || d.HTTP.Open != c.http || d.HTTP.Host != c.host ||
			d.HTTP.Port != c.port ||
			l.Sessions.Off != c.off {
			t.Errorf("%v: %+v, sessions off %t, %v", c.env, d, l.Sessions.Off, err)
		}
	}
	getenv := environment(t, "BOUVET_HTTP_PORT=http")
	if l, err := Load(getenv, ""); err != nil || l.Bouvet(getenv) == nil {
		t.Errorf("an invalid port is accepted: %v", err)
	}
}

func TestListenersOfDesignC(t *testing.T) {
	for _, c := range []struct {
		env       []string
		stdio     bool
		tcp, unix string
	}{
		{[]string{"MCP_ADDR=:7000"}, false, "127.0.0.1:7000", ""},
		{[]string{"MCP_ADDR=:7000", "CORE_MCP_TRANSPORT=stdio"}, true, "", ""},
		{[]string{"CORE_MCP_TRANSPORT=tcp"}, false, DefaultTCP, ""},
		{[]string{"CORE_MCP_TRANSPORT=tcp", "CORE_MCP_ADDR=:7001"}, false, "127.0.0.1:7001", ""},
		{[]string{"CORE_MCP_TRANSPORT=socket", "CORE_MCP_ADDR=/x/s"}, false, "", "/x/s"},
		{[]string{"CORE_MCP_TRANSPORT=unix", "MCP_UNIX_SOCKET=/x/t"}, false, "", "/x/t"},
		{[]string{"CORE_MCP_TRANSPORT=stdio", "GATEHOUSE_TRANSPORT=tcp"}, false, DefaultTCP, ""},
	} {
		getenv := environment(t, c.env...)
		l, err := Load(getenv, "")
		if err == nil {
			err = l.Core(getenv)
		}
		if d := l.Listen; err != nil || d.Stdio != c.stdio || d.TCP != c.tcp || d.Unix != c.unix || d.HTTP.Open {
			t.Errorf("%v: %+v, %v", c.env, d, err)
		}
	}
}
