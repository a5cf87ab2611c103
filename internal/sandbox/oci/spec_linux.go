//go:build amd64 || arm64

package oci

import (
	"fmt"
	"path/filepath"

	"gatehouse/internal/sandbox/bundle"
	"gatehouse/internal/sandbox/rootfs"
	"gatehouse/internal/sandbox/seccomp"
)

// write makes the bundle of a sandbox.
func (b *box) write(look rootfs.Look, firstFree int) error {
	root := filepath.Join(b.bundle, "rootfs")
	mounts, err := bundle.Fill(root, b.driver.agent, look)
	if err != nil {
		return err
	}
	c := b.config(root, firstFree)
	c.Mounts = append(c.Mounts, mounts...)
	return c.Write(b.bundle)
}

func (b *box) config(root string, firstFree int) bundle.Config {
	uid, gid, size := b.driver.users.Range(b.slot)
	const quiet = "nosuid"
	profile := seccomp.ForAgent()
	if b.strict {
		profile = seccomp.ForAgentStrict()
	}
	return bundle.Config{
		Version:  bundle.Version,
		Hostname: "sandbox",
		Root:     bundle.Root{Path: root, Readonly: true},
		Process: bundle.Program{
			Args: []string{bundle.AgentAt, fmt.Sprint(firstFree)}, Env: []string{}, Cwd: "/", NoNew: true,
			Capabilities: map[string][]string{"bounding": bundle.Needed, "effective": bundle.Needed, "permitted": bundle.Needed},
		},
		Mounts: []bundle.Mount{
			{At: "/proc", Type: "proc", From: "proc", Options: []string{quiet, "nodev", "noexec"}},
			{At: "/dev", Type: "tmpfs", From: "tmpfs", Options: []string{quiet, "strictatime", "mode=755", "size=65536"}},
			{At: "/dev/pts", Type: "devpts", From: "devpts", Options: []string{quiet, "noexec", "newinstance", "ptmxmode=0666", "mode=0620"}},
			{At: "/dev/shm", Type: "tmpfs", From: "shm", Options: []string{quiet, "noexec", "nodev", "mode=1777", "size=65536"}},
		},
		Linux: bundle.Linux{
			UIDs: []bundle.IDs{{Inside: 0, Host: uid, Size: size}}, GIDs: []bundle.IDs{{Inside: 0, Host: gid, Size: size}},
			Namespaces: bundle.Spaces("user", "mount", "pid", "network", "ipc", "uts", "cgroup"),
			Groups:     b.driver.runtime.groups(b.id), Seccomp: &profile, Masked: []string{}, Readonly: []string{},
		},
	}
}
