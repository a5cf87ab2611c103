package agentclient

import (
	"context"
	"fmt"
	"io"

	"gatehouse/internal/sandbox/agentprotocol"
)

// Pack is that of sandbox.Archive.
func (l *Link) Pack(ctx context.Context, folder string, w io.Writer) error {
	f, err := l.work(agentprotocol.FileWork{Op: agentprotocol.PackFolder, Path: folder})
	if err != nil {
		return inWords("pack", folder, err)
	}
	return f.copyTo(ctx, w, "pack", folder)
}

// Unpack is that of sandbox.Archive.
func (l *Link) Unpack(ctx context.Context, folder string, r io.Reader) error {
	f, err := l.work(agentprotocol.FileWork{Op: agentprotocol.UnpackFolder, Path: folder})
	if err != nil {
		return inWords("unpack", folder, err)
	}
	return f.copyFrom(ctx, r, "unpack", folder)
}

// DiskUsed is how many bytes everything that can be written in the sandbox
// holds.
func (l *Link) DiskUsed(ctx context.Context) (int64, error) {
	f, err := l.do(ctx, "statfs", "/", agentprotocol.FileWork{Op: agentprotocol.UsedDisk})
	if err != nil {
		return 0, err
	}
	if len(f.entries) != 1 {
		return 0, fmt.Errorf("%w: the disk in use was told %d times", agentprotocol.ErrBroken, len(f.entries))
	}
	return f.entries[0].Size, nil
}
