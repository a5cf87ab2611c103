package roots

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"gatehouse/tool"
)

// flip makes a name lead to one place and to another in turn, until the test
// ends.
func flip(t *testing.T, dir, name, a, b string) {
	t.Helper()
	point := func(to string) {
		os.Remove(filepath.Join(dir, ".next"))
		if err := os.Symlink(to, filepath.Join(dir, ".next")); err == nil {
			os.Rename(filepath.Join(dir, ".next"), filepath.Join(dir, name))
		}
	}
	point(a)
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
				point(b)
				point(a)
			}
		}
	}()
	t.Cleanup(func() { close(stop); <-done })
}

// What is read is judged by what was opened, not by what its name meant when it
// was asked for.
//
//redteam:attack Files stay inside the roots: a link is turned to a file with a protected name between the check and the open
func TestAProtectedFileIsNotReadInARace(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	write(t, "plain", dir, "notes.txt")
	write(t, "secret", dir, ".env")
	flip(t, dir, "link", "notes.txt", ".env")
	p, err := Locate(s, "link")
	if err != nil {
		t.Fatal(err)
	}
	read, refused := 0, 0
	for range 3000 {
		f, _, err := p.Regular()
		if err != nil {
			refused++
			continue
		}
		b, err := io.ReadAll(f)
		f.Close()
		if err != nil || string(b) != "plain" {
			t.Fatalf("read %q, %v", b, err)
		}
		read++
	}
	t.Logf("%d read, %d refused", read, refused)
	if read == 0 {
		t.Error("nothing was read")
	}
}

// Nor is a file written into a protected directory.
//
//redteam:attack Files stay inside the roots: a link is turned to a protected folder between the check and the write
func TestAProtectedDirectoryIsNotWrittenInARace(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	for _, d := range []string{"drafts", ".ssh"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	flip(t, dir, "link", "drafts", ".ssh")
	w := &Writer{}
	written := 0
	for range 1000 {
		p, err := Locate(s, "link/authorized_keys")
		if err != nil {
			t.Fatal(err)
		}
		if p.MayWrite() != nil {
			continue
		}
		// The place is not followed, so that the directory is looked up again.
		if _, err := w.Replace(t.Context(), nil, p, nil, 0o644, with("x")); err == nil {
			written++
			os.Remove(filepath.Join(dir, "drafts", "authorized_keys"))
		}
	}
	t.Logf("%d written", written)
	if list, err := os.ReadDir(filepath.Join(dir, ".ssh")); err != nil || len(list) > 0 {
		t.Errorf("written where it is protected: %v, %v", list, err)
	}
}

// A file whose name is gone since it was opened is judged by the name it had.
//
//redteam:attack Files stay inside the roots: a protected file is removed after it was opened
func TestADeletedFileIsJudged(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	write(t, "secret", dir, ".env")
	f, err := os.Open(filepath.Join(dir, ".env"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	os.Remove(filepath.Join(dir, ".env"))
	p, err := Locate(s, "notes.txt")
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Judge(f, "", false); code(err) != "denied" {
		t.Errorf("got %v", err)
	}
}

// A directory is not moved to where the names in it are no longer protected.
//
//redteam:attack Files stay inside the roots: a folder is renamed, so that names in it are no longer protected
func TestMovingTakesNoProtectionAway(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{".aws", "app", "keys", "deep/a/b"} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write(t, "x", dir, ".aws/credentials")
	write(t, "x", dir, "app/.env")
	write(t, "x", dir, "keys/server.key")
	write(t, "x", dir, "deep/a/b/server.key")
	for _, c := range []struct {
		from, to string
		patterns []string // besides the usual ones
		want     string
	}{
		{".aws", "aws2", nil, "denied"},
		{".aws", "app/.aws", nil, ""}, // it is as well protected there
		{"app", "app2", nil, ""},      // .env is .env anywhere
		{"keys", "public", []string{"!public/*.key"}, "denied"},
		{"deep", "public", []string{"!public/*.key"}, ""},
		{"deep", "public", []string{"!public/**"}, "denied"},
		{"deep", "public", []string{"write:deep/a/b/**"}, "denied"},
	} {
		s, err := Open([]Dir{{Path: dir}}, Options{Protect: append(Protected(), c.patterns...)})
		if err != nil {
			t.Fatal(err)
		}
		from, err := Locate(s, c.from)
		if err != nil {
			t.Fatal(err)
		}
		to, err := Locate(s, c.to)
		if err != nil {
			t.Fatal(err)
		}
		if got := code(from.MayMove(to)); got != c.want {
			t.Errorf("%s to %s with %v: got %q, want %q", c.from, c.to, c.patterns, got, c.want)
		}
		s.Close()
	}
}

// code is that of a refusal, "" for no error.
func code(err error) string {
	if r, ok := errors.AsType[*tool.Refusal](err); ok {
		return string(r.Code)
	}
	if err != nil {
		return err.Error()
	}
	return ""
}
