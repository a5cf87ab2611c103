//go:build linux && (amd64 || arm64)

package namespaces

import (
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/sandboxtest"
)

func TestNothingIsLeftBehind(t *testing.T) {
	d := driver(t, Options{})
	sandboxtest.LeavesNothing(t, 40, func() { cycle(t, d) }, children)
}

// children are the processes that this one has.
func children() (all []string) {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range stats {
		b, _ := os.ReadFile(file)
		if _, rest, ok := strings.Cut(string(b), ") "); ok && len(strings.Fields(rest)) > 1 &&
			strings.Fields(rest)[1] == fmt.Sprint(os.Getpid()) {
			all = append(all, string(b))
		}
	}
	return all
}

// cycle is the life of one sandbox.
func cycle(t *testing.T, d *Driver) {
	t.Helper()
	s, err := d.Create(t.Context(), sandbox.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	p, err := s.Exec(t.Context(), sandbox.Command{Argv: []string{"sh", "-c", "sleep 1000 & sleep 1000"}, Timeout: -1})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	p.Wait()
}

const (
	markVariable   = "SANDBOX_MARK"
	pausedVariable = "SANDBOX_PAUSED" // set when the sandbox is to be paused
)

// This is the other process of TestAHostThatIsKilledLeavesNothing.
func TestHostOfTheOther(t *testing.T) {
	mark := os.Getenv(markVariable)
	if mark == "" {
		t.Skip("it is for another test")
	}
	s, err := driver(t, Options{}).Create(t.Context(), sandbox.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	sandboxtest.Busy(t, s, mark, os.Getenv(pausedVariable) != "")
	sandboxtest.AwaitDeath()
}

//redteam:attack A kill leaves whole files: a host is killed while sandboxes live
func TestAHostThatIsKilledLeavesNothing(t *testing.T) {
	self := uint32(os.Geteuid())
	users := map[string]uint32{"self": self, "self, paused": self}
	if self == 0 {
		users["nobody"] = 65534
	}
	for name, uid := range users {
		t.Run(name, func(t *testing.T) {
			driver(t, Options{})
			mark := rand.Text()
			cmd := again(t, uid, "^TestHostOfTheOther$", markVariable+"="+mark)
			if strings.HasSuffix(name, "paused") {
				cmd.Env = append(cmd.Env, pausedVariable+"=yes")
			}
			groups := sandboxtest.KillHost(t, cmd, func() []string { return []string{mark} })
			driver(t, Options{}) // the next host takes the groups away
			if left := sandboxtest.Groups(groups); len(left) > 0 {
				t.Errorf("%q is left", left)
			}
		})
	}
}
