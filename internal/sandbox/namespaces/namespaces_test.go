//go:build linux && (amd64 || arm64)

package namespaces

import (
	"bytes"
	"os"
	"testing"

	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/sandboxtest"
)

// driver is one that is closed with the test. A machine that cannot have
// sandboxes of this kind skips it, with what Doctor says.
func driver(t testing.TB, o Options) *Driver {
	t.Helper()
	d, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	sandboxtest.Tried(t, d)
	return d
}

func TestASandboxRunsAProgramAsSomebodyElse(t *testing.T) {
	s, err := driver(t, Options{}).Create(t.Context(), sandbox.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	p, err := s.Exec(t.Context(), sandbox.Command{
		Argv:   []string{"sh", "-c", "cat && pwd"},
		Stdin:  bytes.NewReader([]byte("hello\n")),
		Stdout: &out,
	})
	if err != nil {
		t.Fatal(err)
	}
	if r, err := p.Wait(); err != nil || r.Outcome != sandbox.OK || out.String() != "hello\n/home/user\n" {
		t.Errorf("%+v, %v: %q", r, err, out.String())
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if _, err := s.Exec(t.Context(), sandbox.Command{Argv: []string{"true"}}); err == nil {
		t.Error("a closed sandbox ran a program")
	}
}

//redteam:attack Code in a sandbox is shut in several times: one sandbox takes all it can of 34 resources of the kernel; driver namespaces
//redteam:attack Code in a sandbox is shut in several times: 94 system calls, 26 kinds of sockets, exhaustion, escapes by files and processes; driver namespaces
func TestSuite(t *testing.T) {
	who := "namespaces, a user"
	if os.Geteuid() == 0 {
		who = "namespaces, root"
	}
	sandboxtest.Record(t, who, sandboxtest.Run(t, driver(t, Options{})))
}
