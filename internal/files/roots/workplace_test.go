package roots

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"gatehouse/tool"
)

func TestAProgramBeginsInWhatWasFound(t *testing.T) {
	home := t.TempDir()
	if err := os.Mkdir(filepath.Join(home, "barn"), 0o755); err != nil {
		t.Fatal(err)
	}
	s, err := Open([]Dir{{Path: home}}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	w, err := OpenWorkplace(s, "barn", "dir")
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	asked, err1 := os.Stat(w.Path)
	started, err2 := os.Stat(w.Dir)
	if err := errors.Join(err1, err2); err != nil || !os.SameFile(asked, started) {
		t.Errorf("shown %s, started in %s: not the same folder, %v", w.Path, w.Dir, err)
	}
	if text := w.Says(errors.New("chdir " + w.Dir + ": no such file")); !strings.Contains(text, w.Path) {
		t.Errorf("the error reads %q", text)
	}
}

func TestWhatIsNoFolderIsRefusedByItsField(t *testing.T) {
	home := t.TempDir()
	if err := os.WriteFile(filepath.Join(home, "file"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	s, err := Open([]Dir{{Path: home}}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for dir, code := range map[string]string{"file": "invalid_arguments", "missing": "not_found"} {
		_, err := OpenWorkplace(s, dir, "working_dir")
		if r, ok := errors.AsType[*tool.Refusal](err); !ok || string(r.Code) != code ||
			!strings.Contains(r.Message, "working_dir") {
			t.Errorf("%s: %v, want %s that names the field", dir, err, code)
		}
	}
	if _, err := OpenWorkplace(s, "../elsewhere", "dir"); err == nil {
		t.Error("a folder outside the roots was opened")
	}
}

func TestAPipeIsNotWaitedFor(t *testing.T) {
	home := t.TempDir()
	if out, err := exec.CommandContext(t.Context(), "mkfifo",
		filepath.Join(home, "pipe")).CombinedOutput(); err != nil {
		t.Skipf("no named pipe can be made here: %v %s", err, out)
	}
	s, err := Open([]Dir{{Path: home}}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := OpenWorkplace(s, "pipe", "dir"); err == nil {
		t.Error("a pipe is taken for a folder")
	}
}
