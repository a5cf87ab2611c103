//go:build linux && (amd64 || arm64)

package bundle

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/agentprotocol"
	"gatehouse/internal/sandbox/rootfs"
)

// AgentAt is the path of the agent's program. The code may read it, which reveals nothing.
const AgentAt = "/.agent"

// Fill creates the root file system of a sandbox in a folder: the mount points, a few small files and the
// agent's program, which must be on the same file system. It returns what is to be mounted.
func Fill(root, agent string, layout rootfs.Layout) (mounts []Mount, err error) {
	for _, t := range layout.Trees {
		shown, err := prepare(root, t)
		if err != nil {
			return nil, err
		}
		if !shown {
			mounts = append(mounts, Mount{Destination: t.To, Type: "bind", Source: t.From, Options: readOnly})
		}
	}
	if err := os.Link(agent, filepath.Join(root, AgentAt)); err != nil {
		return nil, err
	}
	for _, dir := range []string{"dev", "proc", "sys", "tmp", "var/tmp", "run", "home/user"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			return nil, err
		}
	}
	for _, l := range layout.Links {
		if err := place(root, l, os.Symlink); err != nil {
			return nil, err
		}
	}
	for _, t := range layout.Files {
		if err := place(root, t, writeText); err != nil {
			return nil, err
		}
	}
	return mounts, nil
}

var readOnly = []string{"rbind", "ro", "rro", "nosuid", "nodev"}

const largestCopy = 4 << 20 // bytes of a file that is copied instead of mounted

// prepare creates the mount point of a tree. It copies a small file instead, because some runtimes cannot
// mount over a file in a user namespace; shown reports that it did. A large file is not copied and needs a
// runtime that can mount it.
func prepare(root string, t sandbox.Tree) (shown bool, err error) {
	info, err := os.Stat(t.From)
	if err != nil {
		return false, err
	}
	if info.IsDir() {
		return false, os.MkdirAll(filepath.Join(root, filepath.Clean("/"+t.To)), 0o755)
	}
	if !info.Mode().IsRegular() {
		return false, fmt.Errorf("%s cannot be mounted in a container: only folders and regular files can", t.From)
	}
	if info.Size() > largestCopy {
		return false, place(root, agentprotocol.TextFile{Path: t.To}, writeText)
	}
	says, err := os.ReadFile(t.From)
	if err != nil {
		return false, err
	}
	return true, place(root, agentprotocol.TextFile{Path: t.To, Content: string(says)}, func(says, at string) error {
		return errors.Join(writeText(says, at), os.Chmod(at, info.Mode().Perm()))
	})
}

func writeText(says, at string) error { return os.WriteFile(at, []byte(says), 0o644) }

func place(root string, t agentprotocol.TextFile, how func(says, at string) error) error {
	at := filepath.Join(root, filepath.Clean("/"+t.Path))
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		return err
	}
	return how(t.Content, at)
}
