//go:build linux && amd64

package qemu

import (
	"bytes"
	"runtime"
	"testing"
	"time"

	"gatehouse/internal/sandbox"

	"golang.org/x/sys/unix"
)

// printed is what a script prints in a sandbox.
func printed(t *testing.T, s sandbox.Sandbox, script string) string {
	t.Helper()
	var out bytes.Buffer
	p, err := s.Exec(t.Context(), sandbox.Command{
		Argv:    []string{"sh", "-c", script},
		Stdout:  &out,
		Timeout: time.Minute,
	})
	if err != nil {
		t.Fatal(err)
	}
	if r, err := p.Wait(); err != nil || r.Outcome != sandbox.OK {
		t.Fatalf("%s: %+v, %v", script, r, err)
	}
	return out.String()
}

// moment is a snapshot that is thrown away with the test.
func moment(t *testing.T, s sandbox.Sandbox) *snapshot {
	t.Helper()
	k, err := s.(sandbox.Snapshotter).Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := k.Close(); err != nil {
			t.Error(err)
		}
	})
	return k.(*snapshot)
}

// restored is a sandbox of a snapshot, in which a file says that.
func restored(t *testing.T, k *snapshot, says string) sandbox.Sandbox {
	t.Helper()
	s, err := k.Create(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	if got := printed(t, s, "cat /tmp/kept"); got != says {
		t.Errorf("it reads %q, want %q", got, says)
	}
	return s
}

// unprivileged calls f without the right to look into processes of others.
func unprivileged(t *testing.T, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends, so that no other goroutine gets it
		head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var caps [2]unix.CapUserData
		if err := unix.Capget(&head, &caps[0]); err != nil {
			t.Error(err)
			return
		}
		caps[0].Effective &^= 1 << unix.CAP_SYS_PTRACE
		if err := unix.Capset(&head, &caps[0]); err != nil {
			t.Error(err)
			return
		}
		f()
	}()
	<-done
}

func TestSnapshotsKeepWhatAMachineChanged(t *testing.T) {
	d := driver(t, Options{})
	first, err := d.Create(t.Context(), sandbox.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	printed(t, first, "echo one >/tmp/kept")
	k := moment(t, first)
	of := first.(*instance).template
	whole, err := filled(of.image.base)
	if err != nil {
		t.Fatal(err)
	}
	all := int64(0)
	for _, r := range whole {
		all += r.size
	}
	if k.Size() > all/2 || !k.holdsTemplate || of.users != 1 {
		t.Errorf("it takes %d bytes of %d; it holds the template: %v, with %d", k.Size(), all,
			k.holdsTemplate, of.users)
	}
	one := restored(t, k, "one\n")
	printed(t, one, "echo two >/tmp/kept")
	restored(t, moment(t, one), "two\n")
	restored(t, k, "one\n")
	if err := k.Close(); err != nil || of.users != 1 { // that of the second generation
		t.Errorf("%v; %d hold the template", err, of.users)
	}
	t.Run("of a template that is not kept any more", func(t *testing.T) {
		d.mu.Lock()
		delete(d.templates, of.key)
		d.mu.Unlock()
		defer func() {
			d.mu.Lock()
			d.templates[of.key] = of
			d.mu.Unlock()
		}()
		if k := moment(t, one); k.holdsTemplate || k.Size() < all {
			t.Errorf("it takes %d bytes, with a template of %d", k.Size(), all)
		}
	})
	t.Run("where memory cannot be looked at", func(t *testing.T) {
		if d.users.Single {
			t.Skip("QEMU runs as the user of this test, who may look")
		}
		var k *snapshot
		unprivileged(t, func() { k = moment(t, one) })
		if k == nil || k.image.base != nil || k.Size() < all/2 {
			t.Fatalf("%+v", k)
		}
		again := restored(t, k, "two\n") // the memory is its own
		if k := moment(t, again); k.image.base != nil || k.image.changed == nil {
			t.Errorf("%+v", k.image)
		} else {
			restored(t, k, "two\n")
		}
	})
}
