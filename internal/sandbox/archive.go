package sandbox

import (
	"context"
	"io"
)

// Archive is implemented by a Sandbox whose folders can be packed and unpacked as a whole. As with Files, the
// work is done inside the sandbox with the permissions of the code, so no link leads out of it. A name in an
// archive that is absolute or contains "..", and an entry that is neither a regular file nor a folder nor a
// symbolic link, is an error.
type Archive interface {
	// Pack writes the contents of a folder to w as a tar, with names relative to the folder. Sockets, pipes
	// and devices are left out.
	Pack(ctx context.Context, folder string, w io.Writer) error
	// Unpack creates the entries of a tar below a folder, which it creates if it does not exist. Existing
	// files are replaced. After an error the entries made so far stay.
	Unpack(ctx context.Context, folder string, r io.Reader) error
}
