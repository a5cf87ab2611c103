package system

import (
	"crypto/ecdh"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"gatehouse/internal/access/secret"
	"gatehouse/internal/modules/system/wireguard"
	"gatehouse/internal/tests/machinetest"
)

type memorySecrets struct{ sync.Map }

func (m *memorySecrets) Get(name string) (secret.Text, error) {
	if t, has := m.Load(name); has {
		return t.(secret.Text), nil
	}
	return secret.Text{}, secret.ErrNotFound
}

func (m *memorySecrets) Set(name string, value secret.Text) error { m.Store(name, value); return nil }

// newKeys returns a private key and its public one.
func newKeys(t *testing.T) (private, public string) {
	t.Helper()
	k, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return base64.StdEncoding.EncodeToString(k.Bytes()), base64.StdEncoding.EncodeToString(k.PublicKey().Bytes())
}

// The other end of the tunnel runs in a network namespace of its own, as another process, which answers by HTTP with the
// address of the client.
func TestTunnels(t *testing.T) {
	if config := os.Getenv("SYSTEM_TEST_PEER"); config != "" {
		servePeer(t, config)
		return
	}
	machinetest.Need(t)
	ours, oursPublic := newKeys(t)
	theirs, theirsPublic := newKeys(t)
	command(t, "ip", "netns", "add", "far")
	command(t, "ip", "link", "add", "near1", "type", "veth", "peer", "name", "far1", "netns", "far")
	command(t, "sh", "-c", "ip addr add 198.51.100.1/24 dev near1 && ip link set near1 up && "+
		"ip -n far addr add 198.51.100.2/24 dev far1 && ip -n far link set far1 up && ip -n far link set lo up && "+
		"ip -n far addr add 203.0.113.80/32 dev lo")
	far := exec.Command("ip", "netns", "exec", "far", "/test/program", "-test.run=^TestTunnels$")
	far.Env = append(os.Environ(), "SYSTEM_TEST_PEER=[Interface]\nPrivateKey="+theirs+"\nAddress=10.9.0.2/24\nListenPort=51820\n"+
		"[Peer]\nPublicKey="+oursPublic+"\nAllowedIPs=10.9.0.1/32\n")
	far.Stdout, far.Stderr = os.Stderr, os.Stderr
	end, err := far.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := far.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		end.Close()
		far.Wait()
		exec.Command("ip", "netns", "del", "far").Run()
	})

	command(t, "systemctl", "stop", "NetworkManager")
	command(t, "systemctl", "start", "systemd-networkd")
	resolved(t, "start")
	t.Cleanup(func() {
		exec.Command("systemctl", "stop", "systemd-resolved", "systemd-networkd.socket", "systemd-networkd").Run()
	})
	kept := &memorySecrets{}
	s := open(t, Config{Secrets: kept})
	s.takeBack = time.Hour
	// AllowedIPs is not what reaches 203.0.113.80: the route for everything is.
	config := "# a comment\n[Interface]\nPrivateKey = " + ours + "\nAddress = 10.9.0.1/24\n" +
		"DNS = 10.9.0.53, corp.example\n[Peer]\nPublicKey = " + theirsPublic + "\nAllowedIPs = 10.9.0.0/24\nEndpoint = 198.51.100.2:51820\nPersistentKeepalive = 25\n"
	var added tunnelChangeOut
	kind := wireguard.OutboundOnly
	add := func(all bool) {
		t.Helper()
		if refused := over(t, s, "first", "system_tunnel_add", &added, "name", "office", "config", config, "setAsDefaultOutbound", all,
			"type", kind); refused != "" {
			t.Fatal(refused)
		}
	}
	add(false)
	reaches(t, "http://10.9.0.2:8080", "10.9.0.1")
	if _, err := fetchPage("http://203.0.113.80:8080", time.Second); err == nil {
		t.Error("what is not in AllowedIPs goes through the tunnel")
	}
	fromFar := reachedFromFar(t)
	if err := fromFar(); err == nil || added.Tunnel.Type != kind {
		t.Errorf("the other end connects through a tunnel of the type %s: %v", added.Tunnel.Type, err)
	}
	nameServers(t, s, false)
	if refused := over(t, s, "first", "system_tunnel_add", nil, "name", "two", "config", config); !strings.HasPrefix(refused, "busy:") {
		t.Errorf("a second change: %q", refused)
	}
	if refused := over(t, s, "first", "system_confirm", nil, "change", added.Change); !strings.HasPrefix(refused, "denied:") {
		t.Errorf("confirmed over the same connection: %q", refused)
	}
	if refused := over(t, s, "second", "system_take_back", nil, "change", added.Change); refused != "" {
		t.Fatal(refused)
	}
	gone(t, added.Tunnel.ID)

	s.takeBack, kind = 20*time.Second, wireguard.InboundOutbound
	add(true)
	reaches(t, "http://203.0.113.80:8080", "10.9.0.1")
	nameServers(t, s, true)
	// systemd-resolved keeps them in /run while its unit is started again.
	resolved(t, "restart")
	nameServers(t, s, true)
	if err := fromFar(); err != nil {
		t.Errorf("the other end does not connect through a tunnel of the type %s: %v", kind, err)
	}
	gone(t, added.Tunnel.ID) // it was not confirmed
	if rules := command(t, "ip", "rule"); strings.Contains(rules, "suppress") || strings.Contains(rules, "fwmark") {
		t.Errorf("rules are left: %s", rules)
	}

	s.takeBack = time.Hour
	add(true)
	if refused := over(t, s, "second", "system_confirm", nil, "change", added.Change); refused != "" {
		t.Fatal(refused)
	}
	tunnelsOfTheNextHost(t, s, kept, added.Tunnel.ID)
}

// reachedFromFar returns what has the other end connect to a server of this machine at its address in the tunnel.
func reachedFromFar(t *testing.T) func() error {
	t.Helper()
	l, err := net.Listen("tcp", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Write([]byte("here\n"))
			c.Close()
		}
	}()
	at := fmt.Sprintf("exec 3<>/dev/tcp/10.9.0.1/%d && read line <&3 && test $line = here", l.Addr().(*net.TCPAddr).Port)
	return func() error {
		out, err := exec.Command("ip", "netns", "exec", "far", "timeout", "3", "bash", "-c", at).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}
}

// nameServers checks that systemd-resolved asks the name servers of the tunnel.
func nameServers(t *testing.T, s *system, forAll bool) {
	t.Helper()
	var all tunnelsOut
	must(t, s, "system_tunnel_list", &all)
	if len(all.Tunnels) != 1 || fmt.Sprint(all.Tunnels[0].DNS) != "[10.9.0.53]" || all.Tunnels[0].Why != "" {
		t.Fatalf("the tunnels are %+v", all)
	}
	id := all.Tunnels[0].ID
	domains := command(t, "resolvectl", "domain", id)
	if got := command(t, "resolvectl", "dns", id); !strings.HasSuffix(got, ": 10.9.0.53") || !strings.Contains(domains, " corp.example") ||
		strings.Contains(domains, " ~.") != forAll {
		t.Errorf("systemd-resolved has %s and %s", got, domains)
	}
	if alias := command(t, "cat", "/sys/class/net/"+id+"/ifalias"); alias != "gatehouse wireguard "+all.Tunnels[0].Type {
		t.Errorf("the alias is %q", alias)
	}
}

// NetworkManager applies the name servers of a tunnel, and forgets them with it.
func TestNetworkManagerAsksTheNameServersOfATunnel(t *testing.T) {
	network(t)
	ours, _ := newKeys(t)
	_, theirs := newKeys(t)
	s := open(t, Config{})
	s.takeBack = time.Hour
	config := "[Interface]\nPrivateKey=" + ours + "\nAddress=10.8.0.1/24\nDNS=10.8.0.53,corp.example\n" +
		"[Peer]\nPublicKey=" + theirs + "\nAllowedIPs=10.8.0.0/24,10.88.0.0/16\nEndpoint=192.0.2.1:51820\n"
	for _, all := range []bool{false, true} {
		var added tunnelChangeOut
		if refused := over(t, s, "first", "system_tunnel_add", &added, "name", "office", "config", config,
			"setAsDefaultOutbound", all); refused != "" || added.Tunnel.Why != "" {
			t.Fatalf("%s%s", refused, added.Tunnel.Why)
		}
		await(t, "the server is asked", func() bool {
			text := resolvers(t)
			return strings.Contains(text, "10.8.0.53") && strings.Contains(text, "corp.example") &&
				strings.Contains(text, "192.0.2.53") != all
		})
		if routes := command(t, "ip", "route"); !strings.Contains(routes, "10.88.0.0/16 dev "+added.Tunnel.ID) {
			t.Errorf("the routes are %s", routes)
		}
		if refused := over(t, s, "second", "system_take_back", nil, "change", added.Change); refused != "" {
			t.Fatal(refused)
		}
		gone(t, added.Tunnel.ID)
		await(t, "it is not asked any more", func() bool {
			return !strings.Contains(resolvers(t), "10.8.0.53") && strings.Contains(resolvers(t), "192.0.2.53")
		})
	}
}

// tunnelsOfTheNextHost ends the host, and has the next one bring up the tunnel and remove it.
func tunnelsOfTheNextHost(t *testing.T, s *system, kept *memorySecrets, id string) {
	t.Helper()
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	gone(t, id)
	next := open(t, Config{Secrets: kept})
	reaches(t, "http://203.0.113.80:8080", "10.9.0.1")
	var all tunnelsOut
	must(t, next, "system_tunnel_list", &all)
	if len(all.Tunnels) != 1 || !all.Tunnels[0].Up || all.Tunnels[0].Received == 0 || all.Tunnels[0].Handshake == "" {
		t.Errorf("got %+v", all)
	}
	refuses(t, next, "system_tunnel_remove", "not_found:", "id", "wg9")
	next.takeBack = time.Hour
	var removed tunnelChangeOut
	if refused := over(t, next, "first", "system_tunnel_remove", &removed, "id", id); refused != "" {
		t.Fatal(refused)
	}
	gone(t, id)
	if refused := over(t, next, "second", "system_take_back", nil, "change", removed.Change); refused != "" {
		t.Fatal(refused)
	}
	reaches(t, "http://203.0.113.80:8080", "10.9.0.1")
	if refused := over(t, next, "first", "system_tunnel_remove", &removed, "id", id); refused != "" {
		t.Fatal(refused)
	}
	if refused := over(t, next, "second", "system_confirm", nil, "change", removed.Change); refused != "" {
		t.Fatal(refused)
	}
	if text, err := kept.Get(tunnelsSecret); err != nil || text.Reveal() != "[]" {
		t.Errorf("it is kept for the next start: %v", err)
	}
}

// servePeer is the other end of a tunnel, until its input ends.
func servePeer(t *testing.T, config string) {
	c, err := wireguard.Parse(config)
	if err != nil {
		t.Fatal(err)
	}
	up, err := wireguard.Up(t.Context(), 0, c, wireguard.Options{Inbound: true, Log: slog.Default()})
	if err != nil {
		t.Fatal(err)
	}
	defer up.Close()
	server := &http.Server{Addr: ":8080", Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, _ := net.SplitHostPort(r.RemoteAddr)
		fmt.Fprint(w, host)
	})}
	go server.ListenAndServe()
	io.Copy(io.Discard, os.Stdin)
	server.Close()
}

func fetchPage(url string, wait time.Duration) (string, error) {
	c := &http.Client{Timeout: wait, Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := c.Get(url)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return string(b), err
}

// reaches waits until a server answers that it sees the client at an address.
func reaches(t *testing.T, url, as string) {
	t.Helper()
	var last error
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		got, err := fetchPage(url, 2*time.Second)
		if err == nil && got == as {
			return
		}
		last = errors.Join(err, errors.New(got))
	}
	t.Fatalf("%s is not reached through the tunnel: %v", url, last)
}

func gone(t *testing.T, link string) {
	t.Helper()
	await(t, "the interface is gone", func() bool {
		_, err := os.Stat("/sys/class/net/" + link)
		return errors.Is(err, os.ErrNotExist)
	})
}

// Configurations that run commands, and those that are none, are refused before the user is asked.
func TestConfigurationsOfTunnelsThatAreRefused(t *testing.T) {
	s := open(t, Config{Bus: "unix:path=/nonexistent/bus"})
	private, public := newKeys(t)
	good := "[Interface]\nPrivateKey=" + private + "\nAddress=10.9.0.1/24\n[Peer]\nPublicKey=" + public + "\nAllowedIPs=10.9.0.2/32\n"
	for name, config := range map[string]string{
		"line 2: postup": "[Interface]\nPostUp = touch /tmp/x\n" + good,
		"line 1":         "PrivateKey=x\n" + good,
		"peer":           strings.Replace(good, "PublicKey="+public, "", 1),
		"no PrivateKey":  strings.Replace(good, "PrivateKey="+private, "", 1),
		"two":            good + good,
		"a key":          strings.Replace(good, private, "c2hvcnQ=", 1),
		"range":          strings.Replace(good, "10.9.0.2/32", "10.9.0.2/99", 1),
	} {
		refused := ask(t, s, "system_tunnel_add", nil, "name", "x", "config", config)
		if !strings.HasPrefix(refused, "invalid_arguments: config: ") || strings.Contains(refused, private) {
			t.Errorf("%s: refused with %q", name, refused)
		}
	}
	if _, err := wireguard.Parse(good); err != nil {
		t.Error(err)
	}
}
