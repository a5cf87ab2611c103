package proc

import (
	"os"
	"runtime"
	"slices"
	"strings"
)

// BaseEnv returns the part of the host's environment that programs need to run: paths, the user, the
// language. It omits everything else, such as tokens and the host's own settings.
func BaseEnv() []string { return filterEnv(os.Environ(), runtime.GOOS == "windows") }

func filterEnv(env []string, windows bool) []string {
	keep := []string{"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TERM", "TMPDIR"}
	if windows {
		keep = append(keep, "SYSTEMROOT", "SYSTEMDRIVE", "WINDIR", "COMSPEC", "PATHEXT", "TEMP", "TMP",
			"USERNAME", "USERPROFILE", "HOMEDRIVE", "HOMEPATH", "APPDATA", "LOCALAPPDATA", "PROGRAMDATA",
			"PROGRAMFILES", "PROGRAMFILES(X86)", "NUMBER_OF_PROCESSORS", "PROCESSOR_ARCHITECTURE")
	}
	var out []string
	for _, kv := range env {
		name, _, _ := strings.Cut(kv, "=")
		if windows {
			name = strings.ToUpper(name)
		}
		if slices.Contains(keep, name) || strings.HasPrefix(name, "LC_") {
			out = append(out, kv)
		}
	}
	if out == nil {
		out = []string{} // nil would mean the whole environment
	}
	return out
}
