package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"gatehouse/internal/files/filelock"
)

// OwnFolder makes the runtime folder for this user only, and refuses one of another user, because its owner could
// put a socket there.
func OwnFolder(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return CheckFolder(dir)
}

// CheckFolder returns an error if a runtime folder exists in which another user can put a socket or a PID file.
func CheckFolder(dir string) error { return checkOwn(dir, "GATEHOUSE_RUNTIME_DIR") }

// checkOwn returns an error if a folder exists and is not this user's alone to change. The error names the variable
// that chooses another folder.
func checkOwn(dir, variable string) error {
	info, err := os.Lstat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case !info.IsDir(): // a link as well: its target could be exchanged after this check
		return fmt.Errorf("%s is not a folder; remove it, or set %s", dir, variable)
	case filelock.OfAnother(info):
		return fmt.Errorf("%s belongs to another user; set %s to a folder of your own", dir, variable)
	case runtime.GOOS != "windows" && info.Mode().Perm()&0o022 != 0:
		return fmt.Errorf(
			"other users can write to %s; chmod 700 it, or set %s to a folder of your own", dir, variable,
		)
	}
	return nil
}

// folders fills Folders. Where the user has no home folder, they are in the system's folder for temporary files,
// in which another user could have made the folder of this one first. Such a folder is refused, because its owner
// could read keys and tokens, and write settings.
func (e *envReader) folders() {
	e.into.Folders = platformFolders(e.getenv, e.setFrom)
	dir := temporaryFolder(os.TempDir())
	below := func(path string) bool { return strings.HasPrefix(path, dir+string(filepath.Separator)) }
	f := e.into.Folders
	if !below(homeFolder(e.getenv)) || !below(f.Config) && !below(f.Data) && !below(f.Cache) && !below(f.State) {
		return
	}
	os.Mkdir(dir, 0o700) // now, since another user could make it later; without it the host keeps nothing
	if err := checkOwn(dir, "HOME"); err != nil {
		e.wrong = append(e.wrong, fmt.Errorf("HOME: it is not set, and %w", err))
	}
}
