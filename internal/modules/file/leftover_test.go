package file

import (
	"bufio"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	"gatehouse/internal/files/roots"
)

// half is a process that has written half of a file.
type half struct {
	cmd  *exec.Cmd
	in   io.WriteCloser
	temp string // what it has written so far
}

// TestHalfWritten is what such a process does; alone it is nothing.
func TestHalfWritten(t *testing.T) {
	dir := os.Getenv("GATEHOUSE_TEST_HALF")
	if dir == "" {
		t.Skip("it is run by another test")
	}
	set, err := roots.Open([]roots.Dir{{Path: dir}}, roots.Options{})
	if err != nil {
		t.Fatal(err)
	}
	p, err := roots.Locate(set, "f")
	if err != nil {
		t.Fatal(err)
	}
	was, err := p.Lstat()
	if err != nil {
		t.Fatal(err)
	}
	w := roots.Writer{}
	_, err = w.Replace(t.Context(), nil, p, was, 0o644, func(f *os.File) error {
		f.WriteString("half ")
		os.Stdout.WriteString("half\n")
		io.Copy(io.Discard, os.Stdin)
		_, err := f.WriteString("and half")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func writeHalf(t *testing.T, dir string) *half {
	t.Helper()
	before := temps(t, dir)
	h := &half{cmd: exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestHalfWritten$")}
	h.cmd.Env = append(os.Environ(), "GATEHOUSE_TEST_HALF="+dir)
	var err error
	if h.in, err = h.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := h.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := h.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for lines := bufio.NewScanner(out); lines.Scan() && lines.Text() != "half"; {
	}
	go io.Copy(io.Discard, out)
	for name := range temps(t, dir) {
		if !before[name] {
			h.temp = name
		}
	}
	if h.temp == "" {
		t.Fatal("it has no temporary file")
	}
	return h
}

func (h *half) kill() {
	h.cmd.Process.Kill()
	h.cmd.Wait()
}

func temps(t *testing.T, dir string) map[string]bool {
	t.Helper()
	list, err := filepath.Glob(filepath.Join(dir, ".gatehouse-*"))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]bool{}
	for _, path := range list {
		all[filepath.Base(path)] = true
	}
	return all
}

func age(t *testing.T, dir, name string) {
	t.Helper()
	old := time.Now().Add(-time.Hour)
	if err := os.Chtimes(filepath.Join(dir, name), old, old); err != nil {
		t.Fatal(err)
	}
}

// What a killed process left goes with the next write to its directory; what a
// living one is filling does not, however long that takes.
func TestLeftoversAreCleared(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("nothing is removed on systems without file locks")
	}
	h := newFixture(t)
	h.put("f", "whole")
	dead, young, alive := writeHalf(t, h.dir), writeHalf(t, h.dir), writeHalf(t, h.dir)
	defer alive.kill()
	dead.kill()
	young.kill()
	const strange = ".gatehouse-notes.tmp"
	h.put(strange, "a user's notes")
	for _, name := range []string{dead.temp, alive.temp, strange} {
		age(t, h.dir, name)
	}
	if got := h.get("f"); got != "whole" {
		t.Fatalf("the file holds %q", got)
	}
	write := func(why string, left ...string) {
		t.Helper()
		h.want(h.call("file_write", "path", "other", "content", why), map[string]any{"success": true})
		if got := slices.Sorted(maps.Keys(temps(t, h.dir))); !slices.Equal(got, slices.Sorted(slices.Values(left))) {
			t.Errorf("%s: there is %q, want %q", why, got, left)
		}
	}
	write("after a write", young.temp, alive.temp, strange)
	age(t, h.dir, young.temp)
	write("right after the first look", young.temp, alive.temp, strange)
	h.use(h.roots)
	write("after a new start", alive.temp, strange)

	alive.in.Close()
	if err := alive.cmd.Wait(); err != nil {
		t.Errorf("who was still writing: %v", err)
	}
	if got := h.get("f"); got != "half and half" {
		t.Errorf("it has written %q", got)
	}
	h.use(h.roots)
	write("in the end", strange)
}
