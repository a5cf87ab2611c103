package backup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// filled is a machine with a backup of three large files and a small one.
func filled(t *testing.T) (m *machine, files map[string]string) {
	t.Helper()
	m = newMachine(t, "host_a")
	r := rand.New(rand.NewPCG(1, 2))
	files = map[string]string{"data/sub/small.txt": "small\n"}
	for i, size := range []int{0, blockSize, 3*blockSize + 17, 5 << 20} {
		b := make([]byte, size)
		for j := range b {
			b[j] = byte(r.Uint32())
		}
		files[fmt.Sprintf("data/f%d.bin", i)] = string(b)
	}
	for name, text := range files {
		m.put(m.Data, strings.TrimPrefix(name, "data/"), text)
	}
	m.put(m.Config, "secrets.key", "the key")
	m.target(0)
	m.create()
	return m, files
}

// Any part of any file is read in any order, by many at once, from a few streams.
func TestContentsInAnyOrder(t *testing.T) {
	m, files := filled(t)
	c, done, err := m.backups.openContents(t.Context(), "shelf", "", key(password))
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	var all sync.WaitGroup
	for reader := range 4 {
		all.Go(func() {
			r := rand.New(rand.NewPCG(3, uint64(reader)))
			for range 40 {
				i := r.IntN(len(c.manifest.Files))
				f := c.manifest.Files[i]
				want, known := files[f.Member()]
				if !known || f.Size == 0 {
					continue
				}
				off := r.Int64N(f.Size)
				p := make([]byte, min(1+r.Int64N(300<<10), f.Size-off))
				if err := c.readAt(t.Context(), i, p, off); err != nil || string(p) != want[off:off+int64(len(p))] {
					t.Errorf("%s from %d, %d bytes: %v", f.Member(), off, len(p), err)
				}
			}
		})
	}
	all.Wait()
	if len(c.streams) > mostStreams || len(c.blocks) > keptBlocks {
		t.Errorf("%d streams and %d blocks are kept", len(c.streams), len(c.blocks))
	}
}

// A copy of everything in the order of the backup reads it once.
func TestContentsInOrderAreReadOnce(t *testing.T) {
	m, files := filled(t)
	c, done, err := m.backups.openContents(t.Context(), "shelf", "", key(password))
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	first := c.streams[0]
	for i, f := range c.manifest.Files {
		p := make([]byte, f.Size)
		if err := c.readAt(t.Context(), i, p, 0); err != nil {
			t.Fatal(err)
		}
		if want, known := files[f.Member()]; known && string(p) != want {
			t.Errorf("%s differs", f.Member())
		}
	}
	if len(c.streams) != 1 || c.streams[0] != first {
		t.Errorf("%d streams were opened", len(c.streams))
	}
}

// mountable skips a test where nothing can be mounted.
func mountable(t *testing.T) {
	t.Helper()
	if err := CanMount(); err != nil {
		t.Skip(err)
	}
}

// mounted mounts the newest backup.
func (m *machine) mounted(q MountRequest) Mounted {
	m.t.Helper()
	q.Target, q.Key = "shelf", key(password)
	got, err := m.backups.Mount(m.t.Context(), q)
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() {
		if err := m.backups.Close(context.Background()); err != nil {
			m.t.Error(err)
		}
	})
	return got
}

// A mounted backup is read by other programs as a folder is; nothing can be written,
// and files that are to be hidden are not there.
//
//redteam:attack A backup is as closed as its password: a mounted backup is read, written and searched for the keys of the host
func TestMount(t *testing.T) {
	mountable(t)
	m, files := filled(t)
	at := m.mounted(MountRequest{Owner: "ann",
		Hide: func(member string) bool { return member == "config/secrets.key" }})
	copied := filepath.Join(t.TempDir(), "copy")
	if out, err := exec.Command("cp", "-r", at.Path, copied).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	got := all(t, copied)
	for name, want := range files {
		if got[name] != want {
			t.Errorf("%s has %d bytes of %d, or others", name, len(got[name]), len(want))
		}
	}
	if len(got) != at.Files || got["config/secrets.key"] != "" {
		t.Errorf("%d of %d files: %v", len(got), at.Files, slices.Sorted(func(yield func(string) bool) {
			for k := range got {
				if !yield(k) {
					return
				}
			}
		}))
	}
	if _, err := os.Stat(filepath.Join(at.Path, "config", "secrets.key")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the key of the secrets is there: %v", err)
	}
	for _, name := range []string{"data/new", "data/sub/small.txt"} {
		if err := os.WriteFile(filepath.Join(at.Path, name), nil, 0o600); !errors.Is(err, syscall.EROFS) {
			t.Errorf("%s was written: %v", name, err)
		}
	}
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for line := range strings.Lines(string(table)) {
		if !strings.Contains(line, " "+at.Path+" ") {
			continue
		}
		found = true
		for _, option := range []string{"ro", "nosuid", "nodev", "noexec"} {
			if !slices.Contains(strings.Split(strings.Fields(line)[5], ","), option) {
				t.Errorf("it is not mounted %s: %s", option, line)
			}
		}
	}
	if !found {
		t.Error("it is not in the table of mounts")
	}
	// This process may read its own mount, from its middle too.
	file, err := os.Open(filepath.Join(at.Path, "data", "f3.bin"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	part := make([]byte, 1000)
	if _, err := file.ReadAt(part, 4<<20); err != nil || string(part) != files["data/f3.bin"][4<<20:4<<20+1000] {
		t.Errorf("the middle of a file: %v", err)
	}
}

// A mount is listed, is not unmounted while it is used unless that is forced, and
// then leaves nothing.
func TestUnmount(t *testing.T) {
	mountable(t)
	m, _ := filled(t)
	at := m.mounted(MountRequest{Owner: "ann"})
	if list := Mounts(m.Folders); len(list) != 1 || list[0].Path != at.Path || list[0].Files != at.Files {
		t.Errorf("listed: %+v", list)
	}
	file, err := os.Open(filepath.Join(at.Path, "data", "f3.bin"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := m.backups.Unmount(at.ID, false); !errors.Is(err, ErrMountUsed) {
		t.Errorf("a mount that is used: %v", err)
	}
	if _, err := m.backups.Unmount(at.Path, true); err != nil {
		t.Error(err)
	}
	if n, err := io.Copy(io.Discard, file); err == nil && n == 5<<20 {
		t.Error("the file can still be read")
	}
	m.leavesNothing()
	if _, err := m.backups.Unmount(at.Path, true); !errors.Is(err, ErrNoMount) {
		t.Errorf("unmounted again: %v", err)
	}
}

func (m *machine) leavesNothing() {
	m.t.Helper()
	if left, err := os.ReadDir(filepath.Join(m.Data, mountsFolder)); err != nil || len(left) > 0 {
		m.t.Errorf("left: %v, %v", left, err)
	}
	if table, _ := os.ReadFile("/proc/self/mountinfo"); bytes.Contains(table, []byte(m.Data)) {
		m.t.Error("something is still mounted")
	}
}

// A mount that no process uses ends by itself; one that is used stays.
func TestIdleMount(t *testing.T) {
	mountable(t)
	m, _ := filled(t)
	at := m.mounted(MountRequest{Owner: "ann", Idle: time.Second})
	file, err := os.Open(filepath.Join(at.Path, "data", "f3.bin"))
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(1500 * time.Millisecond)
	if len(Mounts(m.Folders)) != 1 {
		t.Error("it ended while a file was open")
	}
	file.Close()
	for end := time.Now().Add(time.Minute); len(Mounts(m.Folders)) > 0; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it does not end")
		}
	}
	if err := m.backups.Close(t.Context()); err != nil { // waits for the rest
		t.Error(err)
	}
	m.leavesNothing()
}

// One owner has four mounts at most; a backup that cannot be opened leaves nothing.
func TestLimitOfMounts(t *testing.T) {
	mountable(t)
	m, _ := filled(t)
	wrong := MountRequest{Target: "shelf", Key: key("another password")}
	if _, err := m.backups.Mount(t.Context(), wrong); !errors.Is(err, ErrPassword) {
		t.Errorf("a wrong password: %v", err)
	}
	for range mostMountsOwner {
		m.mounted(MountRequest{Owner: "ann"})
	}
	further := MountRequest{Target: "shelf", Key: key(password), Owner: "ann"}
	if _, err := m.backups.Mount(t.Context(), further); !errors.Is(err, ErrMountLimit) {
		t.Errorf("one more: %v", err)
	}
	m.mounted(MountRequest{Owner: "bob"})
	if err := m.backups.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	m.leavesNothing()
	if _, err := m.backups.Mount(t.Context(), further); err == nil {
		t.Error("mounted after the end")
	}
}

// killVariable makes the test's own program one that mounts a backup and waits.
const killVariable = "GATEHOUSE_TEST_MOUNT"

func TestMain(m *testing.M) {
	if data := os.Getenv(killVariable); data != "" {
		room := New(Options{Folders: Folders{Data: data}})
		at, err := room.Mount(context.Background(), MountRequest{Target: os.Args[1], Key: key(password)})
		fmt.Println(at.Path, err)
		select {}
	}
	os.Exit(m.Run())
}

// What a killed process mounted is dead and listed no more; the next start of a host
// removes it, and a living process' mount stays.
func TestTheMountOfAKilledProcess(t *testing.T) {
	mountable(t)
	m, _ := filled(t)
	alive := m.mounted(MountRequest{Owner: "ann"})
	target, err := m.backups.Target("shelf")
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, target.Path)
	cmd.Env = append(os.Environ(), killVariable+"="+m.Data)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Process.Kill()
	var path, failure string
	if _, err := fmt.Fscan(out, &path, &failure); err != nil || failure != "<nil>" {
		t.Fatal(path, failure, err)
	}
	if list := Mounts(m.Folders); len(list) != 2 {
		t.Errorf("listed: %+v", list)
	}
	cmd.Process.Kill()
	cmd.Wait()
	if _, err := os.ReadDir(path); err == nil {
		t.Error("the mount outlives its process")
	}
	if list := Mounts(m.Folders); len(list) != 1 || list[0].ID != alive.ID {
		t.Errorf("listed after the kill: %+v", list)
	}
	m.create() // a dead mount in the data folder does not stop a backup
	CleanMounts(m.Folders, slog.New(slog.DiscardHandler))
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the dead mount stays: %v", err)
	}
	if _, err := os.ReadDir(filepath.Join(alive.Path, "data")); err != nil {
		t.Errorf("the living mount: %v", err)
	}
}
