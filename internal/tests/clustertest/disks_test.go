package clustertest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
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

// TestAnOldImageThenDeaths sets the disk of a machine back to what it was before writes that its engine has
// acknowledged, while one other node has not got them, then ends the only node that has them: the two others must not
// go on without.
func TestAnOldImageThenDeaths(t *testing.T) {
	if !long() {
		t.Skip("set GATEHOUSE_TEST_ALL to set a disk back")
	}
	f := newField(t, false)
	a, b, c := f.machines[0], f.machines[1], f.machines[2]
	add := func(m *machine, value string) bool {
		out, err := f.do(m, operation{Kind: "mount add", Key: "list", Value: value})
		return err == nil && out.OK
	}
	f.await("the first write", func() bool { return add(a, "first") })
	b.kill()
	image := filepath.Join(t.TempDir(), "image")
	copyTree(t, b.dir, image)
	b.start(t)
	f.await("the machine serves again", f.recovered)
	c.kill()
	var acknowledged []string
	f.await("two of three write", func() bool {
		value := fmt.Sprint("w", len(acknowledged))
		if add(a, value) {
			acknowledged = append(acknowledged, value)
		}
		return len(acknowledged) == 10
	})
	time.Sleep(2 * time.Second) // until the others have heard that its records have changed; see docs/cluster.md
	b.kill()
	if err := os.RemoveAll(b.dir); err != nil {
		t.Fatal(err)
	}
	copyTree(t, image, b.dir)
	b.start(t)
	f.await("it says that it is an old image", func() bool { return strings.Contains(b.output.String(), "is an old image") })
	a.kill()
	c.start(t)
	for end := time.Now().Add(15 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		for _, m := range []*machine{b, c} {
			add(m, "late")
		}
	}
	a.start(t)
	f.await("all serve again", f.recovered)
	for _, m := range f.machines {
		var out outcome
		f.await("the list is read", func() (ok bool) {
			got, err := f.do(m, operation{Kind: "mount add", Key: "list", Value: "last"})
			out = got
			return err == nil && out.OK
		})
		all := strings.Fields(out.Value)
		for _, value := range append([]string{"first"}, acknowledged...) {
			if !slices.Contains(all, value) {
				t.Errorf("%s: the acknowledged write %s is lost; there are %v", m.name, value, all)
			}
		}
	}
}
