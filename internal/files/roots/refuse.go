package roots

import (
	"errors"
	"io/fs"
	"os"
	"syscall"

	"gatehouse/tool"
)

// Refuse converts an error of the system about p to a refusal. It never contains the path in that error, which may
// be relative to the root.
func (p Place) Refuse(err error) error {
	if r, ok := errors.AsType[*tool.Refusal](err); ok {
		return r
	}
	path := quote(p.Path)
	switch {
	case escapes(err):
		return Outside(p.Path)
	case errors.Is(err, fs.ErrNotExist):
		return &tool.Refusal{
			Code:    tool.CodeNotFound,
			Message: path + " does not exist",
			Next:    "Check the name with dir_list on its directory.",
		}
	case errors.Is(err, syscall.ENOTDIR):
		return &tool.Refusal{Code: tool.CodeNotADirectory, Message: "a part of " + path + " is a file, not a directory"}
	case errors.Is(err, syscall.ENOTEMPTY): // before ErrExist, which it also matches
		return &tool.Refusal{
			Code:    tool.CodeNotEmpty,
			Message: path + " is not an empty directory",
			Next:    "Delete what is in it first.",
		}
	case errors.Is(err, syscall.EISDIR):
		return &tool.Refusal{Code: tool.CodeIsADirectory, Message: path + " is a directory"}
	case errors.Is(err, fs.ErrExist):
		return &tool.Refusal{Code: tool.CodeExists, Message: path + " already exists"}
	case errors.Is(err, fs.ErrPermission):
		return &tool.Refusal{Code: tool.CodeDenied, Message: "the system does not allow this on " + path}
	case errors.Is(err, syscall.ENAMETOOLONG):
		return &tool.Refusal{
			Code:    tool.CodeInvalidArguments,
			Message: "the path " + path + " is too long for this file system",
		}
	case errors.Is(err, syscall.ELOOP), errorText(err) == "too many symbolic links":
		return &tool.Refusal{Code: tool.CodeUnsupported, Message: path + " leads through a loop of symbolic links"}
	case errors.Is(err, syscall.EXDEV):
		return &tool.Refusal{
			Code:    tool.CodeUnsupported,
			Message: path + " lies on another file system",
			Next:    "Read it, write it at the new place and delete the old one.",
		}
	case errors.Is(err, syscall.ENOSPC):
		return &tool.Refusal{Code: tool.CodeDiskFull, Message: "no space is left for " + path}
	case errors.Is(err, syscall.EROFS):
		return &tool.Refusal{Code: tool.CodeDenied, Message: path + " lies on a read-only file system"}
	case errors.Is(err, fs.ErrClosed):
		return &tool.Refusal{Code: tool.CodeUnavailable, Message: "the server is shutting down"}
	}
	return &tool.Refusal{Code: tool.CodeFailed, Message: path + ": " + errorText(err)}
}

// escapes reports whether an error is that of an os.Root for a name that leaves it; the os package does not export
// it.
func escapes(err error) bool { return errorText(err) == "path escapes from parent" }

// errorText returns the innermost message of a file system error, without its path.
func errorText(err error) string {
	if err == nil {
		return ""
	}
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		return e.Err.Error()
	}
	if e, ok := errors.AsType[*os.LinkError](err); ok {
		return e.Err.Error()
	}
	return err.Error()
}
