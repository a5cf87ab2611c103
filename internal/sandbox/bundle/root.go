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

// AgentAt is where the agent's program is shown. The code may read it, which
// tells it nothing.
const AgentAt = "/.agent"

// Fill makes the root of a sandbox in a folder: the places where things go, a
// few small files and the agent's program, which has to lie on the same file
// system. It gives what is to be mounted there.
func Fill(root, agent string, look rootfs.Look) (mounts []Mount, err error) {
	for _, t := range look.Trees {
		shown, err := stand(root, t)
		if err != nil {
			return nil, err
		}
		if !shown {
			mounts = append(mounts, Mount{At: t.To, Type: "bind", From: t.From, Options: readOnly})
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
	for _, l := range look.Links {
		if err := put(root, l, os.Symlink); err != nil {
			return nil, err
		}
	}
	for _, t := range look.Texts {
		if err := put(root, t, writeText); err != nil {
			return nil, err
		}
	}
	return mounts, nil
}

var readOnly = []string{"rbind", "ro", "rro", "nosuid", "nodev"}

const largestCopy = 4 << 20 // bytes of a file that is shown as a copy

// stand makes what a tree is shown over. A file is copied, which shows it
// already: some runtimes cannot mount over a file in a user namespace, which
// only one that is large has to put up with.
func stand(root string, t sandbox.Tree) (shown bool, err error) {
	info, err := os.Stat(t.From)
	if err != nil {
		return false, err
	}
	if info.IsDir() {
		return false, os.MkdirAll(filepath.Join(root, filepath.Clean("/"+t.To)), 0o755)
	}
	if !info.Mode().IsRegular() {
		return false, fmt.Errorf("%s cannot be shown in a container: only folders and regular files can", t.From)
	}
	if info.Size() > largestCopy {
		return false, put(root, agentprotocol.Text{At: t.To}, writeText)
	}
	says, err := os.ReadFile(t.From)
	if err != nil {
		return false, err
	}
	return true, put(root, agentprotocol.Text{At: t.To, Says: string(says)}, func(says, at string) error {
		return errors.Join(writeText(says, at), os.Chmod(at, info.Mode().Perm()))
	})
}

func writeText(says, at string) error { return os.WriteFile(at, []byte(says), 0o644) }

func put(root string, t agentprotocol.Text, how func(says, at string) error) error {
	at := filepath.Join(root, filepath.Clean("/"+t.At))
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		return err
	}
	return how(t.Says, at)
}
