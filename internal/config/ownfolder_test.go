package config

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

func TestFolderOfAnotherIsRefused(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("folders have no owners and modes there")
	}
	dir := filepath.Join(t.TempDir(), "a", "b")
	if err := OwnFolder(dir); err != nil {
		t.Fatal(err)
	}
	refused := func(what, words string) {
		t.Helper()
		if err := OwnFolder(dir); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	refused("a folder open to others", "other users can write")
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if os.Getuid() == 0 { // only root can change the owner of folders
		if err := os.Chown(dir, 65534, -1); err != nil {
			t.Fatal(err)
		}
		refused("a folder of another user", "another user")
	}
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(t.TempDir(), dir); err != nil {
		t.Fatal(err)
	}
	refused("a link", "is not a folder")
}

// Without a home folder keys, tokens and settings are in the folder for temporary files, where another user can
// make the folder first.
func TestWithoutAHomeFolder(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("folders have no owners and modes there")
	}
	own := t.TempDir()
	elsewhere := map[string]string{
		"GATEHOUSE_CONFIG_DIR": own, "GATEHOUSE_DATA_DIR": own, "GATEHOUSE_CACHE_DIR": own, "GATEHOUSE_STATE_DIR": own,
	}
	for _, c := range []struct {
		name    string
		prepare func(string) error
		env     map[string]string
		want    string // part of the error; "" means none
	}{
		{name: "nothing there", prepare: func(string) error { return nil }},
		{name: "made before", prepare: func(dir string) error { return os.Mkdir(dir, 0o700) }},
		{
			name:    "open to others",
			prepare: func(dir string) error { return os.Mkdir(dir, 0o700) },
			want:    "HOME: it is not set, and other users can write to ",
		},
		{
			name:    "a link",
			prepare: func(dir string) error { return os.Symlink(own, dir) },
			want:    "is not a folder; remove it, or set HOME",
		},
		{
			name:    "a home folder",
			prepare: func(dir string) error { return os.Symlink(own, dir) },
			env:     map[string]string{"HOME": own},
		},
		{
			name:    "all folders elsewhere",
			prepare: func(dir string) error { return os.Symlink(own, dir) },
			env:     elsewhere,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			temporary := t.TempDir()
			t.Setenv("TMPDIR", temporary)
			dir := temporaryFolder(temporary)
			if err := c.prepare(dir); err != nil {
				t.Fatal(err)
			}
			if c.name == "open to others" {
				if err := os.Chmod(dir, 0o777); err != nil { // the mode of Mkdir passes the umask
					t.Fatal(err)
				}
			}
			getenv := func(name string) string { return c.env[name] }
			_, err := FromEnv(getenv)
			_, loaded := Load(getenv, "")
			_, without := WithoutFile(getenv)
			for from, err := range map[string]error{"FromEnv": err, "Load": loaded, "WithoutFile": without} {
				if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
					t.Errorf("%s: %v, want %q", from, err, c.want)
				}
			}
			if info, err := os.Stat(dir); c.name == "nothing there" && (err != nil || info.Mode().Perm() != 0o700) {
				t.Errorf("the folder was not reserved: %v, %v", info, err)
			}
		})
	}
}
