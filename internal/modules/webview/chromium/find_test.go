package chromium

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"
)

// A launcher script is left out if the browser that it starts is where Debian has it, and can be executed.
func TestLauncherScriptsAreLeftOut(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("launcher scripts are of Unix")
	}
	const script, browser = "#!/bin/sh\n", "\x7fELF and more"
	for _, c := range []struct {
		name, file, program, behind string
		mode                        os.FileMode
		left                        bool
	}{
		{"Debian", "chromium", script, browser, 0o755, true},
		{"Debian's headless shell", "chromium-headless-shell", script, browser, 0o755, true},
		{"no script", "chromium", browser, browser, 0o755, false},
		{"another script behind it", "chromium", script, script, 0o755, false},
		{"not to be executed", "chromium", script, browser, 0o644, false},
		{"nothing behind it", "chromium", script, "", 0o755, false},
	} {
		prefix := t.TempDir()
		program, behind := filepath.Join(prefix, "bin", c.file), filepath.Join(prefix, "lib", "chromium", c.file)
		write := func(path, text string, mode os.FileMode) {
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(text), mode); err != nil {
				t.Fatal(err)
			}
		}
		write(program, c.program, 0o755)
		if c.behind != "" {
			write(behind, c.behind, c.mode)
		}
		want := program
		if c.left {
			want = behind
		}
		t.Setenv("PATH", filepath.Dir(program))
		if got, err := FindProgram(""); err != nil || got != want {
			t.Errorf("%s: got %s, %v; want %s", c.name, got, err, want)
		}
	}
}
