package agentclient

import (
	"context"
	"fmt"
	"io"

	"gatehouse/internal/sandbox/agentprotocol"
)

// Pack implements sandbox.Archive.
func (l *Client) Pack(ctx context.Context, folder string, w io.Writer) error {
	f, err := l.startFileRequest(agentprotocol.FileRequest{Op: agentprotocol.PackFolder, Path: folder})
	if err != nil {
		return pathError("pack", folder, err)
	}
	return f.copyTo(ctx, w, "pack", folder)
}

// Unpack implements sandbox.Archive.
func (l *Client) Unpack(ctx context.Context, folder string, r io.Reader) error {
	f, err := l.startFileRequest(agentprotocol.FileRequest{Op: agentprotocol.UnpackFolder, Path: folder})
	if err != nil {
		return pathError("unpack", folder, err)
	}
	return f.copyFrom(ctx, r, "unpack", folder)
}

// DiskUsed returns how many bytes are in use on the writable file systems of the sandbox.
func (l *Client) DiskUsed(ctx context.Context) (int64, error) {
	f, err := l.do(ctx, "statfs", "/", agentprotocol.FileRequest{Op: agentprotocol.DiskUsage})
	if err != nil {
		return 0, err
	}
	if len(f.entries) != 1 {
		return 0, fmt.Errorf("%w: %d answers about the disk in use; expected one", agentprotocol.ErrBroken,
			len(f.entries))
	}
	return f.entries[0].Size, nil
}
