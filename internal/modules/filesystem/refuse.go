package filesystem

import (
	"errors"
	"fmt"
	"regexp"
	"runtime"

	"gatehouse/internal/files/roots"
	"gatehouse/tool"
)

// refusef returns a refusal whose text has no code in front, as in the original.
func refusef(format string, args ...any) *tool.Refusal {
	return &tool.Refusal{Message: fmt.Sprintf(format, args...)}
}

var drive = regexp.MustCompile(`^[A-Za-z]:(?:[\\/]|$)`)

// findPlace resolves a path. Its errors have the texts of the original, without the
// list of the allowed folders.
func findPlace(c *tool.Call, path string) (roots.Place, error) {
	if runtime.GOOS != "windows" && drive.MatchString(path) {
		return roots.Place{}, refusef("Access denied - Windows-style path received on a POSIX host: %s", path)
	}
	name := path
	if name == "" {
		name = "."
	}
	p, err := roots.Locate(c.Roots, name)
	if code(err) == tool.CodeOutsideRoot {
		return p, refusef("Access denied - path outside allowed directories: %s", path)
	}
	if err != nil {
		return p, nodeError(err, "open", path)
	}
	return p, nil
}

func code(err error) tool.Code {
	if r, ok := errors.AsType[*tool.Refusal](err); ok {
		return r.Code
	}
	return ""
}

// nodeErrors are the messages of Node.js, on which the original runs, by code.
var nodeErrors = map[tool.Code]string{
	tool.CodeNotFound:      "ENOENT: no such file or directory",
	tool.CodeIsADirectory:  "EISDIR: illegal operation on a directory",
	tool.CodeNotADirectory: "ENOTDIR: not a directory",
	tool.CodeExists:        "EEXIST: file already exists",
	tool.CodeNotEmpty:      "ENOTEMPTY: directory not empty",
	tool.CodeDiskFull:      "ENOSPC: no space left on device",
	tool.CodeNotAFile:      "EINVAL: not a regular file",
}

// nodeError turns a refusal into the message of the original, with the operation
// and the path as the caller wrote it.
func nodeError(err error, op, path string) error {
	r, ok := errors.AsType[*tool.Refusal](err)
	switch {
	case !ok || r.Code == "":
		return err
	case r.Code == tool.CodeOutsideRoot:
		return refusef("Access denied - symlink target outside allowed directories: %s", path)
	case r.Code == tool.CodeDenied:
		return refusef("EACCES: permission denied, %s '%s' (%s)", op, path, r.Message)
	case nodeErrors[r.Code] == "":
		return refusef("%s", r.Message)
	case r.Code == tool.CodeIsADirectory && op == "read":
		return refusef("%s, read", nodeErrors[r.Code])
	}
	return refusef("%s, %s '%s'", nodeErrors[r.Code], op, path)
}
