package overlay

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// view makes a view of a folder, with what a plan says beside it.
func view(t *testing.T, p Plan) (string, *Holder) {
	t.Helper()
	base := t.TempDir()
	for _, d := range []string{"real", "up", "work", "tmp"} {
		if err := os.Mkdir(filepath.Join(base, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	real := filepath.Join(base, "real")
	if err := os.WriteFile(filepath.Join(real, "a"), []byte("old"), 0o644); err != nil {
		t.Fatal(err)
	}
	p.Layers = []Layer{{real, filepath.Join(base, "up"), filepath.Join(base, "work")}}
	p.Binds = []Bind{{filepath.Join(base, "tmp"), "/tmp"}}
	p.Covers = append(p.Covers, "/run")
	if err := p.Binds[0].Mountpoint(real); err != nil {
		t.Fatal(err)
	}
	h, err := Hold(p)
	if err != nil {
		t.Skipf("no view: %v", err)
	}
	t.Cleanup(func() {
		h.Close()
		os.Chmod(filepath.Join(base, "work", "work"), 0o700)
	})
	return real, h
}

func run(t *testing.T, h *Holder, dir, line string) string {
	t.Helper()
	s, err := h.Space()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/bin/sh", "-c", line)
	cmd.Dir = dir
	if err := s.Prepare(cmd); err != nil {
		t.Fatal(err)
	}
	b, err := cmd.CombinedOutput()
	s.Close()
	if err != nil {
		b = append(b, []byte("\n"+err.Error())...)
	}
	return string(b)
}

// The host and its children see one view, and no child leaves it.
//
//redteam:attack Staged calls change nothing: a program that unmounts its view, makes namespaces, or uses another process
func TestOneTruth(t *testing.T) {
	real, h := view(t, Plan{})
	root, err := h.Root(real)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	if err := root.WriteFile("b", []byte("by the host"), 0o600); err != nil {
		t.Fatal(err)
	}
	got := run(
		t,
		h,
		real,
		"cat a b; rm a; echo by a child > c; mkdir d; id -u; touch /etc/x; echo $PWD; ls /run; "+
			"cat /proc/net/dev | wc -l",
	)
	t.Log(got)
	for _, want := range []string{"oldby the host", "Read-only"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q lacks %q", got, want)
		}
	}
	if b, _ := root.ReadFile("c"); string(b) != "by a child\n" {
		t.Errorf("got %q", b)
	}
	if _, err := root.Stat("a"); err == nil {
		t.Error("a is still in the view")
	}
	names, _ := os.ReadDir(real)
	if len(names) != 1 || names[0].Name() != "a" {
		t.Errorf("the folder has %v", names)
	}
	got = run(
		t,
		h,
		real,
		"umount "+real+"; unshare -Um umount "+real+"; unshare -Um umount -l "+real+"; unshare -Um cat "+real+
			"/a;unshare -Ur umount "+real+"; unshare -Urm umount "+real+
			"; unshare -Urm sh -c 'umount -l "+real+"; ls "+real+"'; mount -o remount,rw /; ls /proc/1/root; cat a",
	)
	t.Log(got)
	if _, err := os.Stat(filepath.Join(real, "a")); err != nil || strings.HasSuffix(got, "old") {
		t.Error("the view was left")
	}
}

// Where a view can be made, the probe says so, also for a folder in one of temporary files.
func TestProbe(t *testing.T) {
	_, _ = view(t, Plan{}) // skips the test where none can be made
	for _, network := range []bool{false, landlockVersion() >= scoped} {
		if err := Probe(filepath.Join(t.TempDir(), "tasks"), network); err != nil {
			t.Error(err)
		}
	}
}
