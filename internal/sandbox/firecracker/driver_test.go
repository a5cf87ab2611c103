//go:build linux && (amd64 || arm64)

package firecracker

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/firecracker/fake"
)

const patience = time.Minute // for what should take a moment, on a machine that is busy

// both runs a test with machines in jails, and with machines that are not.
func both(t *testing.T, run func(*testing.T, *Driver)) {
	for name, jailed := range map[string]bool{"jailed": true, "unjailed": false} {
		t.Run(name, func(t *testing.T) { run(t, faked(t, jailed)) })
	}
}

// made is a sandbox that is closed with the test.
func made(t *testing.T, d *Driver, spec sandbox.Spec) sandbox.Sandbox {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	b, err := d.Create(ctx, spec)
	if err != nil && strings.Contains(err.Error(), fake.ErrNoAgent.Error()) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

// shell runs a script and gives what it prints.
func shell(t *testing.T, b sandbox.Sandbox, script string) string {
	t.Helper()
	var out bytes.Buffer
	p, err := b.Exec(t.Context(), sandbox.Command{
		Argv:    []string{"sh", "-c", script},
		Stdout:  &out,
		Stderr:  &out,
		Timeout: patience,
	})
	if err != nil {
		t.Fatal(err)
	}
	if r, err := p.Wait(); err != nil || r.Outcome != sandbox.OK {
		t.Fatalf("%s: %+v, %v: %s", script, r, err, out.String())
	}
	return out.String()
}

func TestAMachineIsBootedRunsProgramsAndEnds(t *testing.T) {
	both(t, func(t *testing.T, d *Driver) {
		b := made(t, d, sandbox.Spec{Env: []string{"COLOUR=green"}, Trees: []sandbox.Tree{{From: "/srv", To: "/data"}}})
		if got := shell(t, b, "echo $COLOUR; pwd"); got != "green\n/home/user\n" {
			t.Errorf("%q", got)
		}
		if err := b.Ping(t.Context()); err != nil {
			t.Error(err)
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		if _, err := b.Exec(t.Context(), sandbox.Command{Argv: []string{"true"}}); !errors.Is(err, sandbox.ErrClosed) {
			t.Errorf("after the end: %v", err)
		}
		if left, err := filepath.Glob(filepath.Join(d.folder, "firecracker", "*")); err != nil || len(left) > 0 {
			t.Errorf("jails left: %v, %v", left, err)
		}
	})
}

func TestAMachineThatDiesTakesItsSandboxWithIt(t *testing.T) {
	both(t, func(t *testing.T, d *Driver) {
		b := made(t, d, sandbox.Spec{})
		pid, err := b.(*instance).machine.process.pid()
		if err != nil {
			t.Fatal(err)
		}
		if err := kill(pid); err != nil {
			t.Fatal(err)
		}
		select {
		case <-b.Done():
		case <-time.After(patience):
			t.Fatal("it lives on")
		}
		if _, err := os.Stat(b.(*instance).jail.folder()); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("its jail: %v", err)
		}
	})
}

func TestAPausedMachineStandsStillAndGoesOn(t *testing.T) {
	both(t, func(t *testing.T, d *Driver) {
		for _, version := range []release{{1, 16, 1}, {1, 17, 0}} {
			d.parts.vmm.version = version
			b := made(t, d, sandbox.Spec{})
			p := b.(sandbox.Pausable)
			for range 2 {
				if err := p.Pause(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if err := b.Ping(t.Context()); !errors.Is(err, sandbox.ErrPaused) {
				t.Errorf("%s: a ping meanwhile: %v", version, err)
			}
			for range 2 {
				if err := p.Resume(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if got := shell(t, b, "echo again"); got != "again\n" {
				t.Errorf("%s: %q", version, got)
			}
		}
	})
}

func TestASnapshotIsGoneOnFromMoreThanOnce(t *testing.T) {
	both(t, func(t *testing.T, d *Driver) {
		b := made(t, d, sandbox.Spec{Env: []string{"COLOUR=green"}})
		// A call that is under way goes on in the old one.
		in, out := newPipe(t)
		var heard bytes.Buffer
		p, err := b.Exec(t.Context(), sandbox.Command{
			Argv:    []string{"cat"},
			Stdin:   in,
			Stdout:  &heard,
			Timeout: patience,
		})
		if err != nil {
			t.Fatal(err)
		}
		s, err := b.(sandbox.Snapshotter).Snapshot(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := out.WriteString("after"); err != nil {
			t.Fatal(err)
		}
		out.Close()
		if r, err := p.Wait(); err != nil || r.Outcome != sandbox.OK || heard.String() != "after" {
			t.Errorf("the call that was under way: %+v, %v, %q", r, err, heard.String())
		}
		if s.Size() <= 0 {
			t.Errorf("it takes %d bytes", s.Size())
		}
		var clones []sandbox.Sandbox
		for range 2 {
			c, err := s.Create(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			clones = append(clones, c)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		for _, c := range append(clones, b) {
			if got := shell(t, c, "echo $COLOUR"); got != "green\n" {
				t.Errorf("%q", got)
			}
		}
	})
}

func TestAMachineThatCannotBeKeptGoesOn(t *testing.T) {
	both(t, func(t *testing.T, d *Driver) {
		b := made(t, d, sandbox.Spec{})
		if err := os.RemoveAll(d.snapshotFolder()); err != nil {
			t.Fatal(err)
		}
		if _, err := b.(sandbox.Snapshotter).Snapshot(t.Context()); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%v", err)
		}
		if got := shell(t, b, "echo again"); got != "again\n" {
			t.Errorf("%q", got)
		}
	})
}

func TestASandboxOfASnapshotIsKeptToo(t *testing.T) {
	both(t, func(t *testing.T, d *Driver) {
		first, err := made(t, d, sandbox.Spec{}).(sandbox.Snapshotter).Snapshot(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for range 2 { // what the first machine's memory is read from stays as it is
			b, err := first.Create(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer b.Close()
			second, err := b.(sandbox.Snapshotter).Snapshot(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			c, err := second.Create(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if got := shell(t, b, "echo b") + shell(t, c, "echo c"); got != "b\nc\n" {
				t.Errorf("%q", got)
			}
		}
	})
}

func TestTheWayOutAndIn(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip(err)
	}
	d := faked(t, true)
	b := made(t, d, sandbox.Spec{})
	ask := bash + ` -c 'exec 3<>/dev/tcp/127.0.0.1/3128; printf "GET http://other.test/ HTTP/1.1\r\nHost: other.test\r\nConnection: close\r\n\r\n" >&3; head -n1 <&3'`
	if err := b.(sandbox.Networked).SetNetwork(t.Context(),
		sandbox.Network{Allow: []string{"allowed.test:80"}}); err != nil {
		t.Fatal(err)
	}
	if got := shell(t, b, "echo $HTTP_PROXY; "+ask); !strings.HasPrefix(got, "http://127.0.0.1:3128\nHTTP/1.1 403 ") {
		t.Errorf("%q", got)
	}
	// The way out goes on after a snapshot, and a sandbox made of it has none.
	s, err := b.(sandbox.Snapshotter).Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got := shell(t, b, ask); !strings.HasPrefix(got, "HTTP/1.1 403 ") {
		t.Errorf("after a snapshot: %q", got)
	}
	c, err := s.Create(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if got := shell(t, c, "echo $HTTP_PROXY; "+ask+" 2>&1 || true"); strings.Contains(got, "HTTP/1.1") ||
		!strings.HasPrefix(got, "\n") {
		t.Errorf("of the snapshot: %q", got)
	}
	conn, err := b.(sandbox.Dialer).Dial(t.Context(), 3128)
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
	if err := b.(sandbox.Networked).SetNetwork(t.Context(), sandbox.Network{}); err != nil {
		t.Fatal(err)
	}
	if conn, err := b.(sandbox.Dialer).Dial(t.Context(), 3128); err == nil {
		conn.Close()
		t.Error("the way out is shut and listens")
	}
}

func TestWhatAMachineUses(t *testing.T) {
	b := made(t, faked(t, true), sandbox.Spec{})
	shell(t, b, "head -c 1000000 /dev/zero >zeros")
	u, err := b.(sandbox.UsageReporter).Usage(t.Context())
	if err != nil || u.Disk < 1000000 || u.Processes != -1 {
		t.Errorf("%+v, %v", u, err)
	}
}

func TestAPausedMachineIsKeptAndStaysPaused(t *testing.T) {
	both(t, func(t *testing.T, d *Driver) {
		for _, version := range []release{{1, 16, 1}, {1, 17, 0}} {
			d.parts.vmm.version = version
			b := made(t, d, sandbox.Spec{})
			p := b.(sandbox.Pausable)
			if err := p.Pause(t.Context()); err != nil {
				t.Fatal(err)
			}
			s, err := b.(sandbox.Snapshotter).Snapshot(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			if err := b.Ping(t.Context()); !errors.Is(err, sandbox.ErrPaused) {
				t.Errorf("%s: a ping afterwards: %v", version, err)
			}
			if err := p.Resume(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := shell(t, b, "echo again"); got != "again\n" {
				t.Errorf("%s: %q", version, got)
			}
		}
	})
}

func TestAMachineDoesNotGrow(t *testing.T) {
	d := faked(t, false)
	b := made(t, d, sandbox.Spec{Limits: sandbox.Limits{MemoryMiB: 128}})
	a := b.(sandbox.Adjustable)
	if err := a.Adjust(t.Context(), sandbox.Limits{MemoryMiB: 64}, []string{"COLOUR=red"}); err != nil {
		t.Fatal(err)
	}
	if got := shell(t, b, "echo $COLOUR"); got != "red\n" || b.Limits().MemoryMiB != 64 {
		t.Errorf("%q, %+v", got, b.Limits())
	}
	if err := a.Adjust(t.Context(), sandbox.Limits{MemoryMiB: 129}, nil); err == nil ||
		!strings.Contains(err.Error(), "128 MiB") {
		t.Errorf("more than it has: %v", err)
	}
}

func TestAMachineThatCannotStartSaysWhy(t *testing.T) {
	both(t, func(t *testing.T, d *Driver) {
		d.system = unbootable{d.system.(disks)}
		_, err := d.Create(t.Context(), sandbox.Spec{})
		if err == nil || !strings.Contains(err.Error(), "Invalid ELF magic number") ||
			!strings.Contains(err.Error(), "Running Firecracker v") {
			t.Errorf("%v", err)
		}
		if left, err := filepath.Glob(filepath.Join(d.folder, "firecracker", "*")); err != nil || len(left) > 0 {
			t.Errorf("jails left: %v, %v", left, err)
		}
	})
}

// unbootable has no kernel in its kernel's place.
type unbootable struct{ disks }

func (u unbootable) Vmlinux(context.Context) (string, error) { return u.file("vmlinux", "bzImage") }
