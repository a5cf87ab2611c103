package agentclient

import (
	"context"
	"fmt"

	"gatehouse/internal/sandbox/agentprotocol"
)

// Chown implements sandbox.OwnedFiles.
func (l *Client) Chown(ctx context.Context, path string, uid, gid uint32, all bool) error {
	_, err := l.do(ctx, "chown", path,
		agentprotocol.FileRequest{Op: agentprotocol.ChownTree, Offset: int64(uid), Length: int64(gid), All: all})
	return err
}

// TreeSize implements sandbox.OwnedFiles.
func (l *Client) TreeSize(ctx context.Context, path string) (int64, error) {
	f, err := l.do(ctx, "measure", path, agentprotocol.FileRequest{Op: agentprotocol.TreeSize})
	if err != nil {
		return 0, err
	}
	if len(f.entries) != 1 {
		return 0, fmt.Errorf("%w: %d answers about the size of %s; expected one", agentprotocol.ErrBroken,
			len(f.entries), path)
	}
	return f.entries[0].Size, nil
}
