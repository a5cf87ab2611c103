package system

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"gatehouse/internal/tests/machinetest"
	"gatehouse/module/moduletest"
)

// network starts NetworkManager with a connection over one end of a pair of links.
func network(t *testing.T) {
	t.Helper()
	machinetest.Need(t)
	const conf = "/etc/NetworkManager/conf.d"
	text := "[main]\ndns=default\nrc-manager=file\n[device-test]\nmatch-device=interface-name:gw0\nmanaged=1\n"
	if err := errors.Join(os.MkdirAll(conf, 0o755), os.WriteFile(conf+"/test.conf", []byte(text), 0o644)); err != nil {
		t.Fatal(err)
	}
	if exec.Command("ip", "link", "show", "gw0").Run() != nil {
		command(t, "ip", "link", "add", "gw0", "type", "veth", "peer", "name", "far0")
		command(t, "ip", "link", "set", "far0", "up")
	}
	command(t, "systemctl", "start", "NetworkManager")
	command(t, "nmcli", "connection", "add", "type", "ethernet", "con-name", "uplink", "ifname", "gw0",
		"ip4", "192.0.2.2/24", "gw4", "192.0.2.1", "ipv4.dns", "192.0.2.53", "ipv6.method", "link-local")
	t.Cleanup(func() { exec.Command("nmcli", "connection", "delete", "uplink").Run() })
	command(t, "nmcli", "--wait", "20", "connection", "up", "uplink")
}

func resolvers(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("/etc/resolv.conf")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// await waits until a condition holds.
func await(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !is(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("in 20 s it is not so that %s", what)
		}
	}
}

// over calls a tool over a connection.
func over(t *testing.T, s *system, wire, name string, into any, args ...any) string {
	t.Helper()
	c := moduletest.NewCall(t, args...)
	c.Caller.Principal, c.Caller.Wire = administrator, wire
	c.Peer.Answers["confirm"] = moduletest.Accept(map[string]bool{"confirm": true})
	return noted(name, c.Ask(t, s, name, into))
}

func TestConnectionsAreRenamedAndForgotten(t *testing.T) {
	network(t)
	s := open(t, Config{})
	command(t, "nmcli", "connection", "add", "type", "ethernet", "con-name", "spare", "ifname", "eth9")
	var one gatewayOut
	must(t, s, "system_gateway_set_name", &one, "id", "spare", "name", "Spare cable")
	var all gatewaysOut
	must(t, s, "system_gateway_list", &all)
	found := map[string]gatewayOut{}
	for _, g := range all.Gateways {
		found[g.Name] = g
	}
	if found["Spare cable"].Interface != "eth9" || found["Spare cable"].Active || !found["uplink"].Active {
		t.Errorf("got %+v", all)
	}
	if got := command(t, "nmcli", "-g", "connection.id", "connection", "show",
		found["Spare cable"].ID); got != "Spare cable" {
		t.Errorf("NetworkManager calls it %q", got)
	}
	refuses(t, s, "system_gateway_forget", "busy:", "gateway", "uplink")
	must(t, s, "system_gateway_forget", &one, "gateway", found["Spare cable"].ID)
	refuses(t, s, "system_gateway_forget", "not_found:", "gateway", "Spare cable")
	if out := command(t, "nmcli", "-g", "NAME", "connection"); strings.Contains(out, "Spare") {
		t.Errorf("NetworkManager still has %s", out)
	}
}

// A change of the name servers is taken back by NetworkManager unless it is confirmed,
// and not by the connection that made it.
func TestNameServersAreTakenBackUnlessConfirmed(t *testing.T) {
	network(t)
	s := open(t, Config{})
	s.takeBack = 2 * time.Second
	if !strings.Contains(resolvers(t), "192.0.2.53") {
		t.Fatalf("at first: %s", resolvers(t))
	}
	set := func() (out dnsOut) {
		t.Helper()
		if refused := over(t, s, "first", "system_dns_set_static", &out, "servers",
			[]string{"198.51.100.7", "2001:db8::7"}); refused != "" {
			t.Fatal(refused)
		}
		await(t, "the server is used", func() bool {
			return strings.Contains(resolvers(t), "198.51.100.7") && !strings.Contains(resolvers(t), "192.0.2.53")
		})
		return out
	}
	out := set()
	if refused := over(t, s, "first", "system_confirm", nil, "change", out.Change); !strings.HasPrefix(
		refused,
		"denied:",
	) {
		t.Errorf("confirmed over the same connection: %q", refused)
	}
	if refused := over(t, s, "second", "system_dns_set_static", nil, "servers",
		[]string{"198.51.100.8"}); !strings.HasPrefix(
		refused,
		"busy:",
	) {
		t.Errorf("a second change: %q", refused)
	}
	await(t, "it was taken back", func() bool { return strings.Contains(resolvers(t), "192.0.2.53") })
	if refused := over(t, s, "second", "system_confirm", nil, "change", out.Change); !strings.HasPrefix(
		refused,
		"not_found:",
	) {
		t.Errorf("confirmed too late: %q", refused)
	}

	out = set()
	if refused := over(t, s, "second", "system_take_back", nil, "change", out.Change); refused != "" {
		t.Error(refused)
	}
	await(t, "it was taken back at once", func() bool { return strings.Contains(resolvers(t), "192.0.2.53") })

	out = set()
	if refused := over(t, s, "second", "system_confirm", nil, "change", out.Change); refused != "" {
		t.Error(refused)
	}
	time.Sleep(s.takeBack + time.Second) // nothing tells when nothing happens
	if !strings.Contains(resolvers(t), "198.51.100.7") {
		t.Errorf("after it was confirmed: %s", resolvers(t))
	}
}

// resolved starts systemd-resolved and waits until it has its name on the bus, which it asks for only after it has
// reported that it is ready.
func resolved(t *testing.T, verb string) {
	t.Helper()
	command(t, "systemctl", verb, "systemd-resolved")
	await(t, "systemd-resolved is on the bus", func() bool {
		return command(t, "busctl", "call", busName, "/org/freedesktop/DBus", busName, "NameHasOwner", "s", resolvedName) == "b true"
	})
}

// Without NetworkManager systemd-resolved is told, and a timer of systemd tells it again what was before.
func TestNameServersOfResolved(t *testing.T) {
	machinetest.Need(t)
	command(t, "systemctl", "stop", "NetworkManager")
	exec.Command("ip", "link", "del", "gw0").Run() // NetworkManager may have ended before it took its default route away
	resolved(t, "start")
	command(t, "sh", "-c", "ip link add out0 type veth peer name out1 && ip addr add 198.51.100.65/26 dev out0 && "+
		"ip link set out1 up && ip link set out0 up && ip route add default via 198.51.100.66 dev out0 metric 10")
	t.Cleanup(func() {
		exec.Command("ip", "link", "del", "out0").Run()
		exec.Command("systemctl", "stop", "systemd-resolved").Run()
	})
	command(t, "resolvectl", "dns", "out0", "192.0.2.53")
	s := open(t, Config{})
	s.takeBack = 2 * time.Second
	now := func() string { return command(t, "resolvectl", "dns", "out0") }
	var out dnsOut
	if refused := over(t, s, "first", "system_dns_set_static", &out, "servers",
		[]string{"198.51.100.7", "2001:db8::7"}); refused != "" {
		t.Fatal(refused)
	}
	if got := now(); !strings.Contains(got, "198.51.100.7 2001:db8::7") || len(out.Connections) != 1 ||
		out.Connections[0] != "out0" {
		t.Errorf("resolved has %s, the answer %+v", got, out)
	}
	await(t, "it was taken back", func() bool { return strings.HasSuffix(now(), ": 192.0.2.53") })
	if refused := over(t, s, "first", "system_dns_set_static", &out, "servers",
		[]string{"198.51.100.9"}); refused != "" {
		t.Fatal(refused)
	}
	if refused := over(t, s, "second", "system_confirm", nil, "change", out.Change); refused != "" {
		t.Fatal(refused)
	}
	time.Sleep(s.takeBack + 500*time.Millisecond) // nothing tells when nothing happens
	if got := now(); !strings.HasSuffix(got, ": 198.51.100.9") {
		t.Errorf("after it was confirmed: %s", got)
	}
}

// The host that made a change was killed: NetworkManager takes it back all the same.
func TestAChangeOutlivesItsHostByAMinuteAtMost(t *testing.T) {
	if os.Getenv("SYSTEM_TEST_CHANGE") != "" {
		s := open(t, Config{})
		s.takeBack = 2 * time.Second
		must(t, s, "system_dns_set_static", nil, "servers", []string{"203.0.113.9"})
		self, err := os.FindProcess(os.Getpid())
		if err == nil {
			err = self.Kill()
		}
		t.Fatal("this process lives on:", err)
	}
	network(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	host := exec.CommandContext(ctx, "/proc/self/exe", "-test.run=^TestAChangeOutlivesItsHost")
	host.Env = append(os.Environ(), "SYSTEM_TEST_CHANGE=1")
	out, err := host.CombinedOutput()
	if ended, is := errors.AsType[*exec.ExitError](err); !is || ended.ExitCode() != -1 {
		t.Fatalf("the host was not killed: %v %s", err, out)
	}
	await(t, "it was taken back", func() bool {
		return strings.Contains(resolvers(t), "192.0.2.53") && !strings.Contains(resolvers(t), "203.0.113.9")
	})
}

// Where NetworkManager has no checkpoint, a timer of systemd takes a change back.
func TestATimerTakesBack(t *testing.T) {
	machinetest.Need(t)
	s := open(t, Config{})
	s.takeBack = time.Second
	var was hostnameOut
	must(t, s, "system_set_hostname", &was, "name", "before")
	name := func() string {
		var now hostnameOut
		must(t, s, "system_hostname", &now)
		return now.Name
	}
	back := undo{
		{
			"call",
			hostnameName,
			"/org/freedesktop/hostname1",
			hostnameName,
			"SetPrettyHostname",
			"sb",
			"before",
			"false",
		},
	}
	do := func() error {
		return s.bus.callMethod(t.Context(), hostnameName, "/org/freedesktop/hostname1",
			hostnameName+".SetPrettyHostname", "after", false).err
	}
	call := moduletest.NewCall(t)
	call.Caller.Wire = "first"
	if _, err := s.guarded(t.Context(), &call.Call, back, do); err != nil {
		t.Fatal(err)
	}
	if got := name(); got != "after" {
		t.Errorf("after the change it is %q", got)
	}
	await(t, "the timer took it back", func() bool { return name() == "before" })

	out, err := s.guarded(t.Context(), &call.Call, back, do)
	if err != nil {
		t.Fatal(err)
	}
	if refused := over(t, s, "second", "system_confirm", nil, "change", out.Change); refused != "" {
		t.Error(refused)
	}
	time.Sleep(s.takeBack + 500*time.Millisecond) // nothing tells when nothing happens
	if got := name(); got != "after" {
		t.Errorf("after it was confirmed it is %q", got)
	}
	s.takeBack = time.Minute
	failed := errors.New("it failed")
	if _, err := s.guarded(t.Context(), &call.Call, back, func() error { return failed }); !errors.Is(err, failed) {
		t.Errorf("got %v", err)
	}
	if got := name(); got != "before" {
		t.Errorf("after the change failed it is %q", got)
	}
}
