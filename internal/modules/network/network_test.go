package network

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"gatehouse/module"
	"gatehouse/module/moduletest"
	"gatehouse/tool"
)

// visitor calls the tools of one module.
type visitor struct {
	t *testing.T
	n *network
}

func visit(t *testing.T, cfg Config) visitor {
	t.Helper()
	ids := 0
	m, err := New(cfg)(t.Context(), module.Deps{
		NewID: func(kind string) string { ids++; return kind + "_" + strconv.Itoa(ids) },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := m.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return visitor{t, m.(*network)}
}

// ask calls a tool as a user and returns a refusal as text.
func (v visitor) ask(who, name string, into any, args ...any) string {
	v.t.Helper()
	c := moduletest.NewCall(v.t, args...)
	c.Caller.Principal, c.Caller.Owner = who, who+"/default"
	return c.Ask(v.t, v.n, name, into)
}

// listening gives a port that is open, and one that is not.
func listening(t *testing.T) (open net.Listener, closed int) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	other, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	return l, portOf(other)
}

func portOf(l net.Listener) int { return l.Addr().(*net.TCPAddr).Port }

func TestInterfacesAreTheMachines(t *testing.T) {
	var out interfacesOut
	if refused := visit(t, Config{}).ask("ann", "net_interfaces", &out); refused != "" {
		t.Fatal(refused)
	}
	i := slices.IndexFunc(out.Interfaces, func(i interfaceOut) bool { return i.DeviceType == "loopback" })
	if i < 0 || !out.Interfaces[i].Up || !slices.Contains(out.Interfaces[i].Subnets, "127.0.0.1/8") {
		t.Errorf("no loopback with its address: %+v", out)
	}
}

func TestRoutersAreRead(t *testing.T) {
	four := "Iface\tDestination\tGateway\tFlags\neth0\t00000000\t0101A8C0\t0003\neth0\t0001A8C0\t00000000\t0001\neth0\t00000000\t0101A8C0\t0003\nwlan0\t00000000\tFE01A8C0\t0003\nbad\t00000000\txyz\n"
	if got := fmt.Sprint(parseRoutes([]byte(four))); got != "map[eth0:[192.168.1.1] wlan0:[192.168.1.254]]" {
		t.Errorf("got %s", got)
	}
	zero := strings.Repeat("0", 32)
	six := zero + " 00 " + zero + " 00 fe80000000000000000000000000000a 00000400 00000000 00000000 00000003 eth0\n" +
		"20010db8000000000000000000000000 40 " + zero + " 00 " + zero + " 00000400 00000000 00000000 00000001 eth0\n" +
		zero + " 00 " + zero + " 00 " + zero + " ffffffff 00000001 00000000 00200200 lo\n"
	if got := fmt.Sprint(parseRoutes6([]byte(six))); got != "map[eth0:[fe80::a]]" {
		t.Errorf("got %s", got)
	}
}

func TestTypesOfInterfacesAreRead(t *testing.T) {
	class := t.TempDir()
	for _, path := range []string{"eth0/type", "wlan0/wireless/x", "br0/bridge/x", "wg0/uevent", "wg1/ifalias"} {
		text := map[string]string{"eth0/type": "1\n", "wg0/uevent": "DEVTYPE=wireguard\nINTERFACE=wg0\n",
			"wg1/ifalias": "gatehouse wireguard inbound-outbound\n"}[path]
		if err := errors.Join(os.MkdirAll(filepath.Join(class, filepath.Dir(path)), 0o700),
			os.WriteFile(filepath.Join(class, path), []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	n := &network{files: paths{class: class}}
	for name, want := range map[string]string{"eth0": "ethernet", "wlan0": "wireless", "br0": "bridge",
		"wg0": "wireguard", "wg1": "wireguard", "new": "", "../../etc": ""} {
		if got := n.typeOf(net.Interface{Name: name}); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	if got := n.tunnelType("wg1") + n.tunnelType("wg0"); got != "inbound-outbound" {
		t.Errorf("got the type %q", got)
	}
	if got := n.typeOf(net.Interface{Name: "tun0", Flags: net.FlagPointToPoint}); got != "tunnel" {
		t.Errorf("got %q", got)
	}
}

func TestListenersAreFoundWithTheirProcess(t *testing.T) {
	l, closed := listening(t)
	u, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	v := visit(t, Config{})
	var out listenersOut
	if refused := v.ask("ann", "net_listeners", &out, "port", portOf(l), "protocol", "tcp"); refused != "" {
		t.Fatal(refused)
	}
	if len(out.Listeners) != 1 || out.Listeners[0].PID != os.Getpid() || out.Listeners[0].Process == "" ||
		out.Listeners[0].Address != "127.0.0.1" {
		t.Errorf("got %+v", out)
	}
	if v.ask("ann", "net_listeners", &out, "port", u.LocalAddr().(*net.UDPAddr).Port, "protocol", "udp"); len(
		out.Listeners,
	) != 1 ||
		out.Listeners[0].Protocol != "udp" {
		t.Errorf("got %+v", out)
	}
	if v.ask("ann", "net_listeners", &out, "port", closed, "protocol", "tcp"); len(out.Listeners) != 0 {
		t.Errorf("got %+v", out)
	}
	if v.ask("ann", "net_listeners", &out); !slices.ContainsFunc(
		out.Listeners, func(o listenerOut) bool { return o.Port == portOf(l) },
	) &&
		out.More == 0 {
		t.Errorf("got %+v", out)
	}
}

func TestPortsAreTried(t *testing.T) {
	l, closed := listening(t)
	v := visit(t, Config{})
	var out portOut
	if refused := v.ask("ann", "net_port_check", &out, "host", "127.0.0.1", "port", portOf(l)); refused != "" ||
		!out.Open || out.Addresses[0].IP != "127.0.0.1" {
		t.Errorf("got %+v, %s", out, refused)
	}
	if refused := v.ask("ann", "net_port_check", &out, "host", "127.0.0.1", "port", closed); refused != "" ||
		out.Open || !strings.Contains(out.Addresses[0].Why, "refused") {
		t.Errorf("got %+v, %s", out, refused)
	}
	if refused := v.ask("ann", "net_port_check", &out, "host", "localhost", "port", portOf(l)); refused != "" ||
		!out.Open {
		t.Errorf("got %+v, %s", out, refused)
	}
	for host, want := range map[string]string{
		"https://example.com": "neither a name nor an address",
		"a b":                 "neither a name nor an address",
		"no.such.invalid":     "cannot be resolved",
	} {
		if refused := v.ask("ann", "net_port_check", nil, "host", host, "port", 80, "timeout", 2); !strings.Contains(
			refused, want,
		) {
			t.Errorf("%s: got %q, want %q", host, refused, want)
		}
	}
}

func TestResolversAreRead(t *testing.T) {
	dir := t.TempDir()
	v := visit(t, Config{})
	v.n.files.resolv, v.n.files.hosts = filepath.Join(dir, "resolv.conf"), filepath.Join(dir, "hosts")
	if err := errors.Join(
		os.WriteFile(
			v.n.files.resolv,
			[]byte(
				"# made by hand\nnameserver 192.0.2.1\nnameserver nonsense\nnameserver fe80::1%eth0\nsearch "+
					"a.example\nsearch b.example c.example\noptions edns0 trust-ad\n",
			),
			0o600,
		),
		os.WriteFile(v.n.files.hosts, []byte("127.0.0.1 localhost Me # not this\n::1 localhost\nnonsense x\n"), 0o600),
	); err != nil {
		t.Fatal(err)
	}
	var out dumpOut
	if refused := v.ask("ann", "net_dns_dump", &out); refused != "" {
		t.Fatal(refused)
	}
	want := `{[192.0.2.1 fe80::1%eth0] [b.example c.example] [edns0 trust-ad] [{localhost [127.0.0.1 ::1]} {me [127.0.0.1]}] 0}`
	if got := fmt.Sprint(out); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	v.n.files.resolv = filepath.Join(dir, "gone")
	for _, name := range []string{"net_dns_check", "net_dns_query"} {
		if refused := v.ask("ann", name, nil, "name", "a.example"); !strings.HasPrefix(refused, "unsupported: ") {
			t.Errorf("%s: got %q", name, refused)
		}
	}
}

func TestCertificatesAreTold(t *testing.T) {
	var out acmeOut
	if visit(t, Config{}).ask("ann", "net_acme_status", &out); out.On || out.Domains == nil {
		t.Errorf("got %+v", out)
	}
	now := time.Now()
	v := visit(t, Config{ACME: func() ACME {
		return ACME{
			Directory: "https://ca.example.com",
			Email:     "a@example.com",
			Domains:   []string{"x.example.com"},
			Certificates: []Certificate{
				{Name: "x.example.com", Issuer: "CA", NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour)},
				{
					Name:      "x.example.com",
					Issuer:    "CA",
					NotBefore: now.Add(-2 * time.Hour),
					NotAfter:  now.Add(-time.Hour),
				},
			},
		}
	}})
	if v.ask("ann", "net_acme_status", &out); !out.On || !out.Certificates[0].Good || out.Certificates[1].Good ||
		out.Contact[0] != "a@example.com" {
		t.Errorf("got %+v", out)
	}
}

// shout answers each line in capitals, and ends when the other end does.
func shout(t *testing.T) net.Listener {
	t.Helper()
	l, _ := listening(t)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				b, err := io.ReadAll(c)
				if err == nil {
					io.WriteString(c, strings.ToUpper(string(b)))
				}
			}()
		}
	}()
	return l
}

// send writes a text, ends its half, and reads what comes.
func send(t *testing.T, addr, text string) (string, error) {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return "", err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(30 * time.Second))
	if _, err := io.WriteString(c, text); err != nil {
		return "", err
	}
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		return "", err
	}
	b, err := io.ReadAll(c)
	return string(b), err
}

func TestConnectionsArePassedOn(t *testing.T) {
	target := shout(t)
	v := visit(t, Config{})
	var f forwardOut
	if refused := v.ask("ann", "net_forward_start", &f, "target", target.Addr().String()); refused != "" {
		t.Fatal(refused)
	}
	text := strings.Repeat("many words ", 100_000)
	for range 3 {
		if got, err := send(t, f.Listen, text); err != nil || got != strings.ToUpper(text) {
			t.Fatalf("got %d bytes, %v", len(got), err)
		}
	}
	var all forwardsOut
	if v.ask("ann", "net_forward_list", &all); len(all.Forwards) != 1 || all.Forwards[0].Served != 3 ||
		all.Forwards[0].Sent != int64(3*len(text)) || all.Forwards[0].Received != int64(3*len(text)) {
		t.Errorf("got %+v", all)
	}
	if v.ask("eve", "net_forward_list", &all); len(all.Forwards) != 0 {
		t.Errorf("eve sees %+v", all)
	}
	if refused := v.ask("eve", "net_forward_stop", nil, "id", f.ID); !strings.HasPrefix(refused, "not_found: ") {
		t.Errorf("eve: %q", refused)
	}
	open, err := net.Dial("tcp", f.Listen)
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	if refused := v.ask("ann", "net_forward_stop", nil, "id", f.ID); refused != "" {
		t.Fatal(refused)
	}
	open.SetDeadline(time.Now().Add(30 * time.Second))
	if n, err := open.Read(make([]byte, 1)); n > 0 || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("an open connection goes on: %d, %v", n, err)
	}
	if _, err := send(t, f.Listen, "x"); err == nil {
		t.Error("the port is still open")
	}
	if refused := v.ask("ann", "net_forward_stop", nil, "id", f.ID); !strings.HasPrefix(refused, "not_found: ") {
		t.Errorf("twice: %q", refused)
	}
}

func TestForwardsHaveLimits(t *testing.T) {
	target := shout(t)
	var mu sync.Mutex
	held := map[string]int{}
	v := visit(t, Config{
		Rules: func(who tool.Caller) bool { return who.Principal == "ann" },
		Claim: func(principal string, administrator bool) (func(), error) {
			mu.Lock()
			defer mu.Unlock()
			if held[principal] == 3 || administrator != (principal == "ann") {
				return nil, errors.New("you have 3 of this host's forwards")
			}
			held[principal]++
			return func() {
				mu.Lock()
				defer mu.Unlock()
				held[principal]--
			}, nil
		},
	})
	at := target.Addr().String()
	var f forwardOut
	for want, args := range map[string][]any{
		"listen is \"here\"":            {"target", at, "listen", "here"},
		"listen is \"127.0.0.1:70000\"": {"target", at, "listen", "127.0.0.1:70000"},
		"may open a port that other":    {"target", at, "listen", "0.0.0.0:0"},
		"target is \"nowhere\"":         {"target", "nowhere"},
		"target is \"x:0\"":             {"target", "x:0"},
		"target is \":80\"":             {"target", ":80"},
		"unsupported: listen":           {"target", at, "listen", at},
	} {
		if refused := v.ask("eve", "net_forward_start", nil, args...); !strings.Contains(refused, want) {
			t.Errorf("%v: got %q, want %q", args, refused, want)
		}
	}
	if refused := v.ask("ann", "net_forward_start", &f, "target", at, "listen", "0.0.0.0:0"); refused != "" {
		t.Error(refused)
	}
	for range 3 {
		if refused := v.ask("eve", "net_forward_start", &f, "target", at); refused != "" {
			t.Fatal(refused)
		}
	}
	if refused := v.ask("eve", "net_forward_start", nil, "target", at); !strings.HasPrefix(refused, "busy: ") {
		t.Errorf("got %q", refused)
	}
	if refused := v.ask("eve", "net_forward_stop", nil, "id", f.ID); refused != "" {
		t.Error(refused)
	}
	free := func() bool {
		mu.Lock()
		defer mu.Unlock()
		return held["eve"] == 2
	}
	for end := time.Now().Add(30 * time.Second); !free() && time.Now().Before(end); {
		time.Sleep(5 * time.Millisecond)
	}
	if refused := v.ask("eve", "net_forward_start", &f, "target", at); refused != "" {
		t.Errorf("after one was stopped: %q", refused)
	}
	_, closed := listening(t)
	if refused := v.ask("ann", "net_forward_start", &f, "target", "127.0.0.1:"+strconv.Itoa(closed), "seconds", 3600); refused != "" ||
		f.Until == "" {
		t.Fatal(f, refused)
	}
	if got, err := send(t, f.Listen, "x"); got != "" {
		t.Errorf("there is no target, and %q came, %v", got, err)
	}
}

func TestAForwardEndsInTime(t *testing.T) {
	target := shout(t)
	v := visit(t, Config{})
	var f forwardOut
	if refused := v.ask("ann", "net_forward_start", &f, "target", target.Addr().String(), "seconds", 1); refused != "" {
		t.Fatal(refused)
	}
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		var all forwardsOut
		if v.ask("ann", "net_forward_list", &all); len(all.Forwards) == 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatal("it goes on")
		}
	}
}

func FuzzTables(f *testing.F) {
	f.Add([]byte("nameserver ::1\nsearch a\noptions b\n127.0.0.1 a b # c"))
	f.Add([]byte("eth0 00000000 0101A8C0 0003\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		parseRoutes(text)
		parseRoutes6(text)
		if r := parseResolv(text); len(r.Servers) > maxServers {
			t.Errorf("%d servers", len(r.Servers))
		}
		all, _ := parseHosts(text)
		for _, h := range all {
			for _, a := range h.Addresses {
				if _, err := netip.ParseAddr(a); err != nil {
					t.Error(err)
				}
			}
		}
	})
}

func TestTheModuleKeepsTheContract(t *testing.T) {
	alone := func(ctx context.Context, d module.Deps) (module.Module, error) {
		m, err := New(Config{})(ctx, d)
		if err == nil {
			m.(*network).files = paths{} // no name server of this machine is asked
		}
		return m, err
	}
	moduletest.Run(t, alone, moduletest.Options{})
}
