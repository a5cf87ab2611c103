package sandbox

import (
	"context"
	"io"
)

// Archive is what a Sandbox offers whose folders can be taken out and put in as
// a whole. Like Files it is done inside with the rights of the code, so nothing
// leads out: a name in an archive that is absolute or has "..", and a file that
// is neither a regular one nor a folder nor a symbolic link, is an error.
type Archive interface {
	// Pack writes a tar of what is below a folder to w, names relative to it.
	// Sockets, pipes and devices are left out.
	Pack(ctx context.Context, folder string, w io.Writer) error
	// Unpack makes what a tar holds below a folder, which it makes if need
	// be. What is there is replaced. On an error what was made stays.
	Unpack(ctx context.Context, folder string, r io.Reader) error
}
