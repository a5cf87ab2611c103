//go:build linux && (amd64 || arm64)

package firecracker

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/sandboxtest"

	"golang.org/x/sys/unix"
)

// aJail is one that is removed with the test. Its path is too long for a socket.
func aJail(t *testing.T) *jail {
	t.Helper()
	base := filepath.Join(t.TempDir(), strings.Repeat("long", 30))
	j, err := newJail(base, "/opt/firecracker", "one", os.Geteuid(), os.Getegid())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { j.removeJail() })
	return j
}

// listenIn listens at a socket in a jail.
func listenIn(t *testing.T, j *jail, name string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "jail")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	l, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	if err := os.Link(filepath.Join(dir, "s"), j.path(name)); err != nil {
		t.Fatal(err)
	}
}

func TestASocketInAJailIsReachedWhateverItsPath(t *testing.T) {
	j := aJail(t)
	listenIn(t, j, apiSocket)
	conn, err := j.dial(t.Context(), apiSocket)
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
}

func TestAJailLeadsNobodyOutOfIt(t *testing.T) {
	j := aJail(t)
	listenIn(t, j, "real")
	outside, err := net.Listen("unix", filepath.Join(j.base, "../s"))
	if err == nil {
		defer outside.Close()
	}
	for name, make := range map[string]func(at string) error{
		"a link in it":   func(at string) error { return os.Symlink("real", at) },
		"a link out":     func(at string) error { return os.Symlink("/run/docker.sock", at) },
		"a link upwards": func(at string) error { return os.Symlink("../../../../s", at) },
		"a FIFO":         func(at string) error { return unix.Mkfifo(at, 0o600) },
		"a file":         func(at string) error { return os.WriteFile(at, nil, 0o600) },
		"nothing":        func(string) error { return nil },
	} {
		if err := make(j.path(agentSocket)); err != nil {
			t.Fatal(err)
		}
		if conn, err := j.dial(t.Context(), agentSocket); err == nil {
			conn.Close()
			t.Errorf("%s was connected to", name)
		}
		os.Remove(j.path(agentSocket))
	}
}

func TestOnlyAFileIsTakenOutOfAJail(t *testing.T) {
	j := aJail(t)
	for name, make := range map[string]func(at string) error{
		"a link": func(at string) error { return os.Symlink("/etc/passwd", at) },
		"a FIFO": func(at string) error { return unix.Mkfifo(at, 0o600) },
	} {
		if err := make(j.path(memoryFile)); err != nil {
			t.Fatal(err)
		}
		if err := j.moveOut(memoryFile, filepath.Join(t.TempDir(), "memory")); err == nil {
			t.Errorf("%s was taken", name)
		}
	}
	if err := os.WriteFile(j.path(memoryFile), []byte("pages"), 0o600); err != nil {
		t.Fatal(err)
	}
	to := filepath.Join(t.TempDir(), "memory")
	if err := j.moveOut(memoryFile, to); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(to); err != nil || info.Mode().Perm() != 0o444 {
		t.Errorf("%v, %v", info, err)
	}
}

func TestTheJailersCommandLine(t *testing.T) {
	w := jailerCommand{
		jailer: "/opt/jailer", binary: "/opt/firecracker", id: "one", uid: 1001, gid: 1002, base: "/srv",
		netns: "/run/netns/a", cgroupVersion: 2,
		parentCgroup: "all/of/them", cgroups: []string{"memory.max=1000", "cpu.max=100 1000"}, fileSize: 4096,
		descriptors: 64, arguments: []string{"--api-sock", "api.sock"},
	}
	want := []string{
		"/opt/jailer", "--id", "one", "--exec-file", "/opt/firecracker", "--uid", "1001", "--gid", "1002",
		"--chroot-base-dir", "/srv",
		"--netns", "/run/netns/a", "--cgroup-version", "2", "--parent-cgroup", "all/of/them", "--cgroup",
		"memory.max=1000", "--cgroup", "cpu.max=100 1000",
		"--resource-limit", "fsize=4096", "--resource-limit", "no-file=64", "--", "--api-sock", "api.sock",
	}
	if got := w.command(); !slices.Equal(got, want) {
		t.Errorf("got %q\nwant %q", got, want)
	}
	least := []string{"jailer", "--id", "one", "--exec-file", "firecracker", "--uid", "0", "--gid", "0", "--"}
	if got := (jailerCommand{jailer: "jailer", binary: "firecracker", id: "one"}).command(); !slices.Equal(got, least) {
		t.Errorf("got %q\nwant %q", got, least)
	}
}

func TestWhatAKilledHostLeftIsSweptAway(t *testing.T) {
	sandboxtest.Sweeps(t, prefix, func(parent string) (sandbox.Driver, error) { return New(Options{Chroot: parent}) })
}

func TestWhatIsOnTheShelfAnyUserMayRead(t *testing.T) {
	s := fileStore{dir: t.TempDir(), makeRoom: func(int64) error { return nil }}
	from := filepath.Join(t.TempDir(), "root")
	if err := os.WriteFile(from, []byte("first"), 0o600); err != nil {
		t.Fatal(err)
	}
	first, err := s.storeFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(first); err != nil || info.Mode().Perm() != 0o444 {
		t.Errorf("%v, %v", info, err)
	}
	if again, err := s.storeFile(from); err != nil || again != first {
		t.Errorf("the same file is at %s and %s, %v", first, again, err)
	}
	if err := os.WriteFile(from, []byte("second one"), 0o600); err != nil {
		t.Fatal(err)
	}
	second, err := s.storeFile(from)
	if err != nil || second == first {
		t.Errorf("another file is at %s, too: %v", second, err)
	}
	if b, err := os.ReadFile(first); err != nil || string(b) != "first" {
		t.Errorf("what machines read became %q, %v", b, err)
	}
	if _, err := s.storeFile(filepath.Dir(from)); err == nil {
		t.Error("a folder is on the shelf")
	}
}

func TestTheSocketDevicesHandshake(t *testing.T) {
	for answer, want := range map[string]string{
		"OK 1073741824\nframes":     "",
		"OK\n":                      "OK and a port",
		"OK -1\n":                   "OK and a port",
		"NO 5\n":                    "OK and a port",
		strings.Repeat("O", 40):     "nothing in the machine",
		"":                          "nothing in the machine",
		"OK 1073741824":             "nothing in the machine",
		"OK 99999999999999999999\n": "OK and a port",
	} {
		ours, theirs := net.Pipe()
		go func() {
			buf := make([]byte, 64)
			n, _ := theirs.Read(buf)
			if string(buf[:n]) == "CONNECT 52\n" {
				theirs.Write([]byte(answer))
			}
			theirs.Close()
		}()
		err := connectVsock(t.Context(), ours, 52)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v, want %q", answer, err, want)
		}
		if err == nil {
			rest := make([]byte, len("frames"))
			if n, _ := ours.Read(rest); string(rest[:n]) != "frames" {
				t.Errorf("after the handshake came %q", rest[:n])
			}
		}
		ours.Close()
	}
}

func TestAConnectionThatIsNotAnsweredEndsWithTheCaller(t *testing.T) {
	ours, theirs := net.Pipe()
	defer theirs.Close()
	enough := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		theirs.Read(make([]byte, 64))
		cancel(enough)
	}()
	if err := connectVsock(ctx, ours, 52); !errors.Is(err, enough) {
		t.Errorf("%v", err)
	}
}

func FuzzHandshake(f *testing.F) {
	f.Add([]byte("OK 1073741824\n"))
	f.Add([]byte("\x00\n"))
	f.Fuzz(func(t *testing.T, answer []byte) {
		r := strings.NewReader(string(answer))
		line, err := readLine(r)
		if err == nil && (strings.Contains(line, "\n") || !strings.HasPrefix(string(answer), line+"\n")) {
			t.Errorf("%q was read as %q", answer, line)
		}
		if read := len(answer) - r.Len(); read > longestOK {
			t.Errorf("%d bytes were read", read)
		}
	})
}

func TestTheTailIsTheEnd(t *testing.T) {
	var says tail
	says.Write([]byte("begin\n"))
	for range 100 {
		says.Write([]byte(strings.Repeat("x", 100) + "\n"))
	}
	says.Write([]byte(strings.Repeat("y", 3*maxTail)))
	says.Write([]byte("\n\x1b[31mlast but one\r\n\xff\nlast\n"))
	if got := says.lines(3); got != "[31mlast but one; ?; last" {
		t.Errorf("%q", got)
	}
	if len(says.last) > maxTail {
		t.Errorf("%d bytes are kept", len(says.last))
	}
}
