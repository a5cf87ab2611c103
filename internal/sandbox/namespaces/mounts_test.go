//go:build linux && (amd64 || arm64)

package namespaces

import (
	"bufio"
	"bytes"
	"context"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"gatehouse/internal/sandbox"
)

// Mounts and routes, with a host of this test's user and with one of an ordinary user.
func TestMountsAsNobody(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can start a host of another user")
	}
	if out, err := again(t, 65534,
		"^(TestFoldersOfTheHost|TestEveryAddressLeadsToTheHost)$").CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	} else if !bytes.Contains(out, []byte("PASS")) {
		t.Errorf("the tests have not run: %s", out)
	}
}

// runIn runs a shell script in a new sandbox and returns what it prints.
func runIn(t *testing.T, spec sandbox.Spec, script string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s, err := driver(t, Options{}).Create(ctx, spec)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var out, errs bytes.Buffer // each is written by a goroutine of its own
	p, err := s.Exec(ctx, sandbox.Command{Argv: []string{"sh", "-c", script}, Stdout: &out, Stderr: &errs})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Wait(); err != nil {
		t.Fatal(err)
	}
	return out.String() + errs.String()
}

// What is made in a folder of the host belongs to the owner of the folder; one that is for reading cannot be written,
// and what is covered cannot be seen.
func TestFoldersOfTheHost(t *testing.T) {
	top, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	write, read := filepath.Join(top, "write"), filepath.Join(top, "read")
	for _, dir := range []string{write, read, filepath.Join(write, "closed")} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range []string{filepath.Join(read, "a"), filepath.Join(write, "closed", "key")} {
		if err := os.WriteFile(file, []byte("text"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	owner := os.Geteuid()
	if owner == 0 {
		owner = 12345
		if err := os.Chown(write, owner, owner); err != nil {
			t.Fatal(err)
		}
	}
	got := runIn(t, sandbox.Spec{Mounts: []sandbox.Mount{
		{From: write, Write: true}, {From: read}, {To: filepath.Join(write, "closed")},
	}}, `
		cat `+read+`/a; echo
		echo x > `+read+`/b || echo refused
		echo made > `+write+`/new && mkdir `+write+`/dir && stat -c %A `+write+`/new
		ls -A `+write+`/closed | wc -l
		ls -A `+top+` | sort | tr '\n' ' '
		ls / | grep -c root`)
	for _, want := range []string{"text\n", "refused\n", "\n0\nread write ", " 0\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("it printed %q, without %q", got, want)
		}
	}
	info, err := os.Stat(filepath.Join(write, "new"))
	if err != nil {
		t.Fatal(err)
	}
	if uid := int(info.Sys().(*syscall.Stat_t).Uid); uid != owner {
		t.Errorf("the file belongs to user %d, not %d", uid, owner)
	}
	if err := os.Symlink(read, filepath.Join(top, "link")); err != nil {
		t.Fatal(err)
	}
	if _, err := driver(t, Options{}).Create(t.Context(), sandbox.Spec{
		Mounts: []sandbox.Mount{{From: filepath.Join(top, "link")}},
	}); err == nil {
		t.Error("a link was followed")
	}
}

// names resolves every name to one address.
type names struct{ to netip.Addr }

func (n names) LookupNetIP(context.Context, string, string) ([]netip.Addr, error) {
	return []netip.Addr{n.to}, nil
}

// served returns the port of a web server in a process of its own, because a listener of this one is never reached.
func served(t *testing.T) (port string) {
	cmd := exec.CommandContext(t.Context(), "python3", "-u", "-c", `
import http.server
class H(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self): self.send_response(200); self.send_header("Content-Length", "0"); self.end_headers()
s = http.server.ThreadingHTTPServer(("127.0.0.1", 0), H); print(s.server_address[1]); s.serve_forever()`)
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Skipf("there is no Python to serve with: %v", err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(line)
}

// A program that knows of no proxy reaches what a rule allows, and nothing else, and each attempt has a decision.
func TestEveryAddressLeadsToTheHost(t *testing.T) {
	port := served(t)
	var mu sync.Mutex
	var seen []sandbox.Decision
	number, _ := strconv.Atoi(port)
	route := &sandbox.Route{Ports: []uint16{80, 443, uint16(number)}, Network: sandbox.Network{
		Allow: []string{"allowed.example:" + port}, Special: []string{"127.0.0.1:" + port},
		Resolve: names{netip.MustParseAddr("127.0.0.1")},
		Decided: func(d sandbox.Decision) {
			mu.Lock()
			defer mu.Unlock()
			seen = append(seen, d)
		},
	}}
	got := runIn(t, sandbox.Spec{Route: route}, `python3 - <<'P'
import socket
def tcp(host, port, say=b"", family=socket.AF_INET):
    try:
        c = socket.socket(family, socket.SOCK_STREAM); c.settimeout(20); c.connect((host, port)); c.sendall(say)
        return c.recv(4096).split(b"\r\n")[0].decode()
    except OSError as e: return type(e).__name__
def look(name):
    try: return socket.getaddrinfo(name, 80, socket.AF_INET, socket.SOCK_STREAM)[0][4][0]
    except OSError as e: return type(e).__name__
print("allowed name", look("allowed.example"))
print("other name", look("c2VjcmV0.attacker.example"))
print("reached", tcp("allowed.example", `+port+`, b"GET / HTTP/1.1\r\nHost: allowed.example:`+port+`\r\n\r\n"))
print("direct", tcp("203.0.113.5", 80, b"GET / HTTP/1.1\r\nHost: 203.0.113.5\r\n\r\n"))
print("metadata", tcp("169.254.169.254", 80, b"GET / HTTP/1.1\r\nHost: 169.254.169.254\r\n\r\n"))
print("port", tcp("203.0.113.5", 8081))
print("six", tcp("2001:db8::5", 8081, b"", socket.AF_INET6))
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); u.sendto(b"x", ("203.0.113.5", 5000)); print("udp sent")
u.settimeout(5); u.sendto(bytes.fromhex("aaaa01000001000000000000"+"03777777"+"086174746163"+"6b6572"+"00"+"00010001"), ("8.8.8.8", 53))
try: print("query elsewhere", u.recvfrom(512)[1][0])
except OSError as e: print("query elsewhere", type(e).__name__)
try: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1); print("raw made")
except OSError as e: print("raw", type(e).__name__)
P
sleep 0.3`)
	for _, want := range []string{
		"allowed name 127.0.0.1\n", "other name gaierror\n", "reached HTTP/1.1 200 OK\n",
		"direct HTTP/1.1 403 203.0.113.5:80",
		"metadata HTTP/1.1 403 169.254.169.254:80", "port ConnectionRefusedError\n", "six ConnectionRefusedError\n",
		"raw PermissionError\n", "query elsewhere 8.8.8.8\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("it printed %q, without %q", got, want)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	for _, want := range []sandbox.Decision{
		{Method: "DNS", Target: "c2VjcmV0.attacker.example"}, {Method: "TCP", Target: "203.0.113.5:80"},
		{Method: "TCP", Target: "169.254.169.254:80"}, {Method: "TCP", Target: "203.0.113.5:8081"},
		{Method: "TCP", Target: "[2001:db8::5]:8081"}, {Method: "UDP", Target: "203.0.113.5:5000"},
	} {
		if !slices.ContainsFunc(seen, func(d sandbox.Decision) bool {
			return d.Method == want.Method && d.Target == want.Target && !d.Allowed && d.Reason != ""
		}) {
			t.Errorf("no decision on %s %s: %+v", want.Method, want.Target, seen)
		}
	}
}
