package sandboxtest

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"gatehouse/internal/sandbox"
)

// identity checks which user the code runs as, and what it was given.
func (s suite) identity(t *testing.T) {
	t.Setenv("SECRET_OF_THE_HOST", "leaked")
	b := s.probed(t, sandbox.Spec{})
	got := answers(t, b, "identity")
	want := map[string]string{
		"CapInh": "0000000000000000", "CapPrm": "0000000000000000", "CapEff": "0000000000000000",
		"CapBnd": "0000000000000000", "CapAmb": "0000000000000000",
		"NoNewPrivs": "1", "Seccomp": "2", "descriptors": "0 1 2", "core": "1 1", "hostname": "sandbox", "oom": "1000",
	}
	if s.driver.Capabilities().OwnUsers {
		want["uid"], want["groups"] = "1000 1000 1000 1000", "[]"
	}
	for name, w := range want {
		if got[name] != w {
			t.Errorf("%s is %q, want %q", name, got[name], w)
		}
	}
	for _, way := range []string{"setrlimit", "prlimit", "prlimit by number"} {
		if got["core after "+way] != "1 1" {
			t.Errorf("after %s of 0 the limit of core files is %q, by which a crash runs the host's handler", way,
				got["core after "+way])
		}
	}
	if strings.Contains(got["environment"], "SECRET_OF_THE_HOST") {
		t.Errorf("the environment is %q", got["environment"])
	}
}

// refused are the results of the probe that mean a refusal.
var refused = []string{"EPERM", "EACCES", "ENOENT", "ENOSYS", "ESRCH", "EROFS", "ENXIO", "ENODEV", "EAFNOSUPPORT",
	"EPROTONOSUPPORT", "ESOCKTNOSUPPORT", "ECONNREFUSED", "ENETUNREACH", "EHOSTUNREACH", "EXDEV", "empty"}

// isolation checks that the code reaches nothing of the host.
func (s suite) isolation(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("of the host"), 0o644); err != nil {
		t.Fatal(err)
	}
	b := s.probed(t, sandbox.Spec{})
	t.Run("files and processes", func(t *testing.T) {
		for name, got := range answers(t, b, "isolation", secret, strconv.Itoa(os.Getpid())) {
			want := refused
			switch {
			case name == "see the processes":
				want = []string{"0"}
				if s.userKernel() {
					want = append(want, "1") // the first process of its own space, and no more
				}
			case name == "above the root":
				want = []string{"true"}
			case strings.HasPrefix(name, "setuid files"):
				want = []string{"nosuid"}
			case !s.driver.Capabilities().OwnUsers && (strings.HasSuffix(name, " process 1") || name == "setuid"):
				continue // process 1 is out of reach by being the first, not by its user; alive tells
			}
			if !slices.Contains(want, got) {
				t.Errorf("%s: %s, want one of %q", name, got, want)
			}
		}
		alive(t, b)
	})
	t.Run("the kernel", func(t *testing.T) {
		for name, got := range answers(t, b, "kernel") {
			// ENOTTY: no terminal to do that to.
			if !slices.Contains(append([]string{"EAFNOSUPPORT"}, refused...), got) {
				t.Errorf("%s: %s", name, got)
			}
		}
		alive(t, b)
	})
	t.Run("another sandbox", func(t *testing.T) {
		shell(t, b, "echo mine >/tmp/mine; echo mine >/home/user/mine")
		other := s.box(t, sandbox.Spec{})
		if r := shell(t, other, "ls -A /tmp /var/tmp /dev/shm /home/user"); strings.Contains(r.stdout, "mine") {
			t.Errorf("it sees %q", r.stdout)
		}
	})
	t.Run("trees", func(t *testing.T) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "shown"), []byte("shown\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		b := s.box(t, sandbox.Spec{Trees: []sandbox.Tree{{From: dir, To: "/data/set"}}})
		if r := shell(t, b,
			"cat /data/set/shown; touch /data/set/new || rm /data/set/shown"); r.stdout != "shown\n" || r.Code == 0 {
			t.Errorf("%+v, %v: %q %q", r.Result, r.err, r.stdout, r.stderr)
		}
	})
}

// network checks that there is no network unless one is set.
func (s suite) network(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	abstract := "gatehouse-sandboxtest-" + strconv.Itoa(os.Getpid())
	a, err := net.Listen("unix", "@"+abstract)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	for name, got := range answers(t, s.probed(t, sandbox.Spec{}), "network", l.Addr().String(), abstract) {
		want := refused
		switch name {
		case "interfaces":
			want = []string{"lo"}
		case "loopback of its own":
			want = []string{"allowed"}
		}
		if !slices.Contains(want, got) {
			t.Errorf("%s: %s, want one of %q", name, got, want)
		}
	}
}
