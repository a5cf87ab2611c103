package sandbox

import (
	"context"
	"io"
	"io/fs"
	"time"
)

// Files is implemented by a Sandbox whose files can be accessed without running a program in it. The work is
// done inside the sandbox with the permissions of the code, so no link leads out of it. Paths are absolute or
// relative to the home folder. Only regular files and folders are opened, never those of /proc. Errors are
// *fs.PathError and match fs.ErrNotExist and the like.
type Files interface {
	// ReadFile copies length bytes, starting at offset, to w. A length of 0 or less means up to the end. The
	// Info describes the whole file.
	ReadFile(ctx context.Context, path string, offset, length int64, w io.Writer) (Info, error)
	// WriteFile creates a file from the content of r. The file appears whole or not at all, unless it is
	// appended to.
	WriteFile(ctx context.Context, path string, r io.Reader, how WriteOptions) (Info, error)
	// List returns the entries of a folder, sorted by name, that sort after the name after, and at most limit
	// of them; limit 0 means 1,000, which is also the maximum. more reports whether there are further entries.
	List(ctx context.Context, path, after string, limit int) (entries []Info, more bool, err error)
	// Stat describes a path without following a symbolic link there.
	Stat(ctx context.Context, path string) (Info, error)
	// Mkdir creates a folder and its parents. An existing folder is not an error.
	Mkdir(ctx context.Context, path string) error
	// Remove removes a file or a folder. If all is set, it also removes the folder's contents.
	Remove(ctx context.Context, path string, all bool) error
	// Rename moves a file or folder. It replaces a file at the new path.
	Rename(ctx context.Context, from, to string) error
}

// WriteOptions holds the options of WriteFile.
type WriteOptions struct {
	Mode    fs.FileMode // permissions of a new file; 0 means 0644
	Append  bool        // append to an existing file
	Parents bool        // create missing parent folders
}

// Info describes a file.
type Info struct {
	Name     string // base name
	Size     int64  // bytes
	Mode     fs.FileMode
	Modified time.Time
	Link     string // target of a symbolic link, else ""
}
