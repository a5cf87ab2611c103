package sandboxtest

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"gatehouse/internal/sandbox"
)

// fileChecks are the checks of the files of one sandbox.
type fileChecks struct {
	suite
	b sandbox.Sandbox
	f sandbox.Files
}

// read returns a part of a file; a length of 0 means to its end.
func (s fileChecks) read(t *testing.T, name string, offset, length int64) (string, error) {
	t.Helper()
	var out bytes.Buffer
	_, err := s.f.ReadFile(deadline(t), name, offset, length, &out)
	return out.String(), err
}

// write writes a file and checks the returned name.
func (s fileChecks) write(t *testing.T, name, text string, how sandbox.WriteOptions) {
	t.Helper()
	i, err := s.f.WriteFile(deadline(t), name, strings.NewReader(text), how)
	if err != nil || i.Name != filepath.Base(name) {
		t.Fatalf("write %s: %+v, %v", name, i, err)
	}
}

// files checks that files are reached without a program, and with no more rights than a program of the sandbox has.
func (s suite) files(t *testing.T) {
	b := s.box(t, sandbox.Spec{})
	f, ok := b.(sandbox.Files)
	if !ok {
		t.Skip("the driver offers no files")
	}
	c := fileChecks{s, b, f}
	t.Run("there and back", c.roundTrip)
	t.Run("folders", c.folders)
	t.Run("many names", c.manyNames)
	t.Run("moving and removing", c.moves)
	t.Run("all or nothing", c.atomicWrites)
	t.Run("traps", c.traps)
	t.Run("a race of links", c.linkRace)
}

func (s fileChecks) roundTrip(t *testing.T) {
	ctx := deadline(t)
	b, f := s.b, s.f
	big := strings.Repeat("0123456789", 200_000)
	s.write(t, "deep/er/file", big, sandbox.WriteOptions{Parents: true, Mode: 0o600})
	if got, err := s.read(t, home(t, b)+"/deep/er/file", 0, 0); err != nil || got != big {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if got, err := s.read(t, "deep/er/file", 1_999_995, 100); err != nil || got != "56789" {
		t.Errorf("the last bytes: %q, %v", got, err)
	}
	s.write(t, "deep/er/file", "+", sandbox.WriteOptions{Append: true})
	if i, err := f.Stat(ctx, "deep/er/file"); err != nil || i.Size != 2_000_001 || i.Mode != 0o600 {
		t.Errorf("%+v, %v", i, err)
	}
	if r := shell(t, b, "stat -c %U deep/er/file"); r.stdout != "user\n" && s.driver.Capabilities().OwnUsers {
		t.Errorf("the file belongs to %q", r.stdout)
	}
}

func (s fileChecks) folders(t *testing.T) {
	ctx := deadline(t)
	b, f := s.b, s.f
	for _, n := range []string{"list/b", "list/a", "list/with\nnewline", "list/\xff", "list/c"} {
		s.write(t, n, "", sandbox.WriteOptions{Parents: true})
	}
	shell(t, b, "ln -s /etc/shadow list/link")
	var names []string
	for after, more := "", true; more; {
		entries, m, err := f.List(ctx, "list", after, 2)
		if err != nil || len(entries) == 0 {
			t.Fatal(entries, err)
		}
		for _, e := range entries {
			names = append(names, e.Name)
			if e.Name == "link" && (e.Link != "/etc/shadow" || e.Mode&fs.ModeSymlink == 0) {
				t.Errorf("the link is %+v", e)
			}
		}
		more, after = m, entries[len(entries)-1].Name
	}
	if want := []string{"a", "b", "c", "link", "with\nnewline", "\xff"}; !slices.Equal(names, want) {
		t.Errorf("%q, want %q", names, want)
	}
}

func (s fileChecks) manyNames(t *testing.T) {
	ctx := deadline(t)
	b, f := s.b, s.f
	shell(t, b, "mkdir many && cd many && seq 1 5000 | xargs touch")
	entries, more, err := f.List(ctx, "many", "", 0)
	if err != nil || len(entries) != 1000 || !more || entries[0].Name != "1" {
		t.Errorf("%d entries, %v, %v", len(entries), more, err)
	}
	if err := f.Remove(ctx, "many", false); err == nil {
		t.Error("a full folder was removed without asking for all")
	}
	if err := f.Remove(ctx, "many", true); err != nil {
		t.Error(err)
	}
}

func (s fileChecks) moves(t *testing.T) {
	ctx := deadline(t)
	f := s.f
	s.write(t, "one", "1", sandbox.WriteOptions{})
	if err := errors.Join(f.Mkdir(ctx, "new/folder"), f.Mkdir(ctx, "new/folder"),
		f.Rename(ctx, "one", "new/folder/two")); err != nil {
		t.Fatal(err)
	}
	if got, err := s.read(t, "new/folder/two", 0, 0); err != nil || got != "1" {
		t.Errorf("%q, %v", got, err)
	}
	if err := f.Remove(ctx, "new/folder/two", false); err != nil {
		t.Error(err)
	}
	if _, err := f.Stat(ctx, "new/folder/two"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after removing: %v", err)
	}
}

func (s fileChecks) atomicWrites(t *testing.T) {
	ctx := deadline(t)
	b, f := s.b, s.f
	s.write(t, "kept", "before", sandbox.WriteOptions{})
	broken := errors.New("broken off")
	if _, err := f.WriteFile(ctx, "kept", iotest.ErrReader(broken), sandbox.WriteOptions{}); !errors.Is(err,
		broken) {
		t.Errorf("%v, want %v", err, broken)
	}
	if got, _ := s.read(t, "kept", 0, 0); got != "before" {
		t.Errorf("half a write left %q", got)
	}
	if r := shell(t, b, "ls -A | grep writing"); r.stdout != "" {
		t.Errorf("it left %q", r.stdout)
	}
}

func (s fileChecks) traps(t *testing.T) {
	ctx := deadline(t)
	b, f := s.b, s.f
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("of the host"), 0o644); err != nil {
		t.Fatal(err)
	}
	shell(t, b, "mkfifo fifo; ln -s "+
		secret+" out; ln -s /proc/1/root slash; ln -s loop loop; ln -s / top; mkdir dir")
	for name, want := range map[string]error{
		"fifo": nil, "out": fs.ErrNotExist, "slash/etc/passwd": nil, "loop": nil, "dir": nil,
		"/proc/self/environ": fs.ErrPermission, "/proc/1/environ": fs.ErrPermission,
		"top/proc/self/mem":          fs.ErrPermission,
		"/proc/self/root/etc/passwd": nil, "/proc/self/fd/3": nil, "/dev/zero": nil, "/dev/fd/3": nil,
		secret:        fs.ErrNotExist,
		"/etc/shadow": fs.ErrNotExist, "../../../../../root": fs.ErrNotExist, strings.Repeat("x/", 3000): nil,
		"nul\x00": nil, "": nil,
	} {
		got, err := s.read(t, name, 0, 0)
		if s.noWall() {
			want = nil // what is not there and what is not given look the same
		}
		if err == nil || got != "" || want != nil && !errors.Is(err, want) {
			t.Errorf("read %.40q: %q, %v, want %v", name, got, err, want)
		}
	}
	for _, name := range []string{"/etc/passwd", "/usr/bin/new", "/new", "/proc/self/oom_score_adj", "dir",
		"/dev/new"} {
		if _, err := f.WriteFile(ctx, name, strings.NewReader("x"), sandbox.WriteOptions{}); err == nil {
			t.Errorf("%s was written", name)
		}
	}
	if err := f.Remove(ctx, "/usr/bin/env", false); err == nil {
		t.Error("a program of the system was removed")
	}
	if _, _, err := f.List(ctx, "/proc/1/fd", "", 0); err == nil {
		t.Error("the agent's files were listed")
	}
	alive(t, b)
}

func (s fileChecks) linkRace(t *testing.T) {
	ctx := deadline(t)
	b, f := s.b, s.f
	p, err := b.Exec(ctx, sandbox.Command{Argv: []string{"sh", "-c", `mkdir -p real && echo inside >real/passwd
		while :; do ln -sfn /etc flip; ln -sfn real flip; ln -sfn /proc/self/root/etc flip; done`}, Timeout: -1})
	if err != nil {
		t.Fatal(err)
	}
	for range 500 {
		if got, err := s.read(t, "flip/passwd", 0, 0); err == nil && got != "inside\n" &&
			!strings.Contains(got, "user:x:1000") {
			t.Fatalf("read %q", got)
		}
		f.WriteFile(ctx, "flip/passwd", strings.NewReader("inside\n"), sandbox.WriteOptions{})
	}
	p.Signal(9)
	p.Wait()
	if r := shell(t, b, "cat /etc/passwd"); r.Code != 0 || strings.Contains(r.stdout, "inside") {
		t.Errorf("the system's file now is %q, %v", r.stdout, r.err)
	}
}
