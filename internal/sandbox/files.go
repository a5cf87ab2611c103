package sandbox

import (
	"context"
	"io"
	"io/fs"
	"time"
)

// Files is what a Sandbox offers whose files can be reached without a program
// in it. Everything is done inside the sandbox with the rights of the code that
// runs there, so no link leads out of it. Paths are absolute or relative to the
// home folder. Only regular files and folders are opened, never those of /proc.
// Errors are *fs.PathError and match fs.ErrNotExist and its like.
type Files interface {
	// ReadFile copies length bytes from offset on to w; length 0 or less
	// means up to the end. The Info is that of the whole file.
	ReadFile(ctx context.Context, path string, offset, length int64, w io.Writer) (Info, error)
	// WriteFile makes a file of what r brings. The file appears whole or not
	// at all, unless it is appended to.
	WriteFile(ctx context.Context, path string, r io.Reader, how Writing) (Info, error)
	// List names what is in a folder, sorted, what sorts after the name after
	// and at most limit of it; limit 0 means 1,000, which is also the most.
	// more tells that there is more.
	List(ctx context.Context, path, after string, limit int) (entries []Info, more bool, err error)
	// Stat describes what is at a path without following a link there.
	Stat(ctx context.Context, path string) (Info, error)
	// Mkdir makes a folder and the folders above it. One that exists is fine.
	Mkdir(ctx context.Context, path string) error
	// Remove takes away a file or a folder, with all that is in it when asked.
	Remove(ctx context.Context, path string, all bool) error
	// Rename moves a file or folder; what is at the new path is replaced.
	Rename(ctx context.Context, from, to string) error
}

// Writing is how a file is written.
type Writing struct {
	Mode    fs.FileMode // permissions of a new file; 0 means 0644
	Append  bool        // add to what is there
	Parents bool        // make the folders above it
}

// Info describes a file.
type Info struct {
	Name     string // without the folder
	Size     int64  // bytes
	Mode     fs.FileMode
	Modified time.Time
	Link     string // where it leads, when it is a link
}
