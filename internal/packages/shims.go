package packages

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// shimWait is how long a manager of versions is asked for a program.
const shimWait = 10 * time.Second

// lookPath is exec.LookPath, but returns the program that a shim of a manager of versions (pyenv, rbenv, nodenv, asdf,
// mise) would start: a sandbox has neither the manager nor its files. If the manager does not tell, it is the shim.
func lookPath(command string) (string, error) {
	file, err := exec.LookPath(command)
	if err != nil || filepath.Base(filepath.Dir(file)) != "shims" {
		return file, err
	}
	home := filepath.Dir(filepath.Dir(file)) // such as ~/.pyenv
	name := strings.TrimPrefix(filepath.Base(home), ".")
	for _, manager := range []string{filepath.Join(home, "bin", name), name} {
		ctx, cancel := context.WithTimeout(context.Background(), shimWait)
		out, err := exec.CommandContext(ctx, manager, "which", filepath.Base(file)).Output()
		cancel()
		real := strings.TrimSpace(string(out))
		if err != nil || !filepath.IsAbs(real) {
			continue
		}
		if info, err := os.Stat(real); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return real, nil
		}
	}
	return file, nil
}
