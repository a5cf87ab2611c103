package filesystem

import (
	"errors"
	"fmt"
	"regexp"
	"runtime"

	"gatehouse/internal/files/roots"
	"gatehouse/tool"
)

// say makes a refusal that reads as it stands, without a code in front.
func say(format string, args ...any) *tool.Refusal {
	return &tool.Refusal{Message: fmt.Sprintf(format, args...)}
}

var drive = regexp.MustCompile(`^[A-Za-z]:(?:[\\/]|$)`)

// find looks a path up, refusing in the words of the original. The folders
// that are allowed are in none of them.
func find(c *tool.Call, path string) (roots.Place, error) {
	if runtime.GOOS != "windows" && drive.MatchString(path) {
		return roots.Place{}, say("Access denied - Windows-style path received on a POSIX host: %s", path)
	}
	name := path
	if name == "" {
		name = "."
	}
	p, err := roots.Find(c.Roots, name)
	if code(err) == "outside_root" {
		return p, say("Access denied - path outside allowed directories: %s", path)
	}
	if err != nil {
		return p, told(err, "open", path)
	}
	return p, nil
}

func code(err error) string {
	if r, ok := errors.AsType[*tool.Refusal](err); ok {
		return r.Code
	}
	return ""
}

// words are what the original, or rather what it runs on, says of a failure.
var words = map[string]string{
	"not_found":       "ENOENT: no such file or directory",
	"is_a_directory":  "EISDIR: illegal operation on a directory",
	"not_a_directory": "ENOTDIR: not a directory",
	"exists":          "EEXIST: file already exists",
	"not_empty":       "ENOTEMPTY: directory not empty",
	"disk_full":       "ENOSPC: no space left on device",
	"not_a_file":      "EINVAL: not a regular file",
}

// told puts a refusal into those words: what was done, and to which path as the
// caller wrote it.
func told(err error, op, path string) error {
	r, ok := errors.AsType[*tool.Refusal](err)
	switch {
	case !ok || r.Code == "":
		return err
	case r.Code == "outside_root":
		return say("Access denied - symlink target outside allowed directories: %s", path)
	case r.Code == "denied":
		return say("EACCES: permission denied, %s '%s' (%s)", op, path, r.Message)
	case words[r.Code] == "":
		return say("%s", r.Message)
	case r.Code == "is_a_directory" && op == "read":
		return say("%s, read", words[r.Code])
	}
	return say("%s, %s '%s'", words[r.Code], op, path)
}
