package clustertest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// used starts clients of a field that has a user.
func (f *field) used(prefix string) *clients {
	f.await("there is a user", func() bool {
		out, err := f.do(f.machines[0], operation{Kind: "token user", Key: "ada"})
		return err == nil && out.OK
	})
	c := &clients{f: f, h: newHistory(), prefix: prefix, stop: make(chan struct{})}
	c.start()
	return c
}

// TestALostDisk takes the disk of a machine away while clients work. It joins again as a new node, and has everything.
func TestALostDisk(t *testing.T) {
	if !long() {
		t.Skip("set GATEHOUSE_TEST_ALL to lose a disk")
	}
	f := newField(t, false)
	c := f.used("d")
	time.Sleep(3 * time.Second)
	m := f.machines[2]
	m.kill()
	if err := os.RemoveAll(m.dir); err != nil {
		t.Fatal(err)
	}
	m.id = strings.Repeat("d", 10) // known to the network; a host makes a random one
	f.net.names[m.id] = m.name
	m.nameNode(t)
	time.Sleep(3 * time.Second)
	m.start(t)
	f.await("the machine serves again", f.recovered)
	time.Sleep(3 * time.Second)
	c.finish(t)
	c.h.check(t, "a lost disk")
	t.Logf("what came of them: %v", c.h.counts())
}

// rack is a file system in a file, on which machines have their disks. If it loses its power it keeps what was written
// to the file, and not what the kernel would have written later.
type rack struct{ image, mount string }

func newRack(t *testing.T) *rack {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("only root mounts the file system that loses what was not synced")
	}
	r := &rack{image: filepath.Join(t.TempDir(), "image"), mount: t.TempDir()}
	for _, args := range [][]string{
		{"truncate", "-s", "2G", r.image}, {"mke2fs", "-q", "-t", "ext4", r.image}, {"mount", "-o", "loop", r.image, r.mount},
	} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Skipf("%v: %v: %s", args, err, out)
		}
	}
	t.Cleanup(func() { exec.Command("umount", r.mount).Run() })
	return r
}

// losePower makes the disk what it is without what the kernel had not written to it.
func (r *rack) losePower(t *testing.T) {
	t.Helper()
	next := r.image + "x"
	for _, args := range [][]string{
		{"cp", "--sparse=always", r.image, next}, {"umount", r.mount}, {"mount", "-o", "loop", next, r.mount},
	} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v: %s", args, err, out)
		}
	}
	os.Remove(r.image)
	r.image = next
}

// TestPowerLossOfAll ends all machines at once, with everything that their disks did not have yet, while clients work.
func TestPowerLossOfAll(t *testing.T) {
	if !long() {
		t.Skip("set GATEHOUSE_TEST_ALL to lose the power")
	}
	r := newRack(t)
	f := newFieldIn(t, r.mount, false)
	if out, err := exec.Command("sync", "-f", r.mount).CombinedOutput(); err != nil { // what the test has written
		t.Fatalf("sync: %v: %s", err, out)
	}
	if err := os.WriteFile(filepath.Join(r.mount, "unsynced"), []byte("lost"), 0o600); err != nil {
		t.Fatal(err)
	}
	for i := range 5 {
		c := f.used(fmt.Sprint("p", i))
		time.Sleep(4 * time.Second)
		for _, m := range f.machines {
			m.kill()
		}
		r.losePower(t)
		if i == 0 {
			if raw, err := os.ReadFile(filepath.Join(r.mount, "unsynced")); err == nil && len(raw) > 0 {
				t.Log("the kernel had written the file that nothing synced")
			}
		}
		for _, m := range f.machines {
			m.start(t)
		}
		c.finish(t)
		c.h.check(t, "power loss of all")
		if t.Failed() {
			return
		}
	}
}
