package config

import (
	"maps"
	"runtime"
	"testing"
)

// With the variables, a program that is started with HOME alone finds the same
// folders.
func TestFolderVariables(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the variables of the convention are those of Linux")
	}
	t.Setenv("TMPDIR", "/tmp")
	for name, env := range map[string]map[string]string{
		"nothing": {"HOME": "/home/ann"},
		"a login": {"HOME": "/home/ann", "XDG_RUNTIME_DIR": "/run/user/1000"},
		"all": {"HOME": "/home/ann", "XDG_RUNTIME_DIR": "/run/user/1000", "XDG_CONFIG_HOME": "/c",
			"XDG_DATA_HOME": "/d"},
		"our own":  {"HOME": "/home/ann", "GATEHOUSE_DATA_DIR": "/data", "XDG_DATA_HOME": "/d"},
		"relative": {"HOME": "/home/ann", "XDG_CONFIG_HOME": "c"},
	} {
		got := FolderVariables(func(v string) string { return env[v] })
		short := maps.Clone(got)
		short["HOME"] = env["HOME"]
		want, err := FromEnv(func(v string) string { return env[v] })
		if err != nil {
			t.Fatal(err)
		}
		found, err := FromEnv(func(v string) string { return short[v] })
		if err != nil || found.Folders != want.Folders {
			t.Errorf("%s: with %v the folders are %+v, %v, want %+v", name, got, found.Folders, err, want.Folders)
		}
		if name == "nothing" && len(got) > 0 {
			t.Errorf("%s: got %v", name, got)
		}
	}
}
