//go:build amd64 || arm64

package oci

import (
	"fmt"
	"path/filepath"

	"gatehouse/internal/sandbox/agentprotocol"
	"gatehouse/internal/sandbox/bundle"
	"gatehouse/internal/sandbox/rootfs"
	"gatehouse/internal/sandbox/seccomp"
)

// writeBundle writes the bundle of a sandbox.
func (b *instance) writeBundle(layout rootfs.Layout, firstFree int) error {
	root := filepath.Join(b.bundle, "rootfs")
	mounts, err := bundle.Fill(root, b.driver.agent, layout)
	if err != nil {
		return err
	}
	c := b.config(root, firstFree)
	c.Mounts = append(c.Mounts, mounts...)
	return c.Write(b.bundle)
}

func (b *instance) config(root string, firstFree int) bundle.Config {
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
			Args: []string{bundle.AgentAt, fmt.Sprint(firstFree)}, Env: []string{}, Cwd: "/", NoNewPrivileges: true,
			Capabilities: map[string][]string{
				"bounding":  bundle.Needed,
				"effective": bundle.Needed,
				"permitted": bundle.Needed,
			},
		},
		Mounts: []bundle.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{quiet, "nodev", "noexec"}},
			{
				Destination: "/dev",
				Type:        "tmpfs",
				Source:      "tmpfs",
				Options:     []string{quiet, "strictatime", "mode=755", "size=65536"},
			},
			{
				Destination: "/dev/pts",
				Type:        "devpts",
				Source:      "devpts",
				Options: []string{quiet, "noexec", "newinstance", "ptmxmode=0666", "mode=0620",
					agentprotocol.MaxTerminals},
			},
			{
				Destination: "/dev/shm",
				Type:        "tmpfs",
				Source:      "shm",
				Options:     []string{quiet, "noexec", "nodev", "mode=1777", "size=65536"},
			},
		},
		Linux: bundle.Linux{
			UIDMappings: []bundle.IDs{{Inside: 0, Host: uid, Size: size}},
			GIDMappings: []bundle.IDs{{Inside: 0, Host: gid, Size: size}},
			Namespaces:  bundle.Namespaces("user", "mount", "pid", "network", "ipc", "uts", "cgroup"),
			CgroupsPath: b.driver.runtime.groups(b.id), Seccomp: &profile, MaskedPaths: []string{},
			ReadonlyPaths: []string{},
		},
	}
}
