//go:build amd64 || arm64

package gvisor

import "gatehouse/internal/sandbox/bundle"

// config is what runsc is told. A kernel in user space filters what it asks of
// the host by itself; the filter of the code is the agent's.
func (r *root) config() bundle.Config {
	const quiet = "nosuid"
	return bundle.Config{
		Version:  bundle.Version,
		Hostname: "sandbox",
		Root:     bundle.Root{Path: r.path, Readonly: true},
		Process: bundle.Program{
			Args: []string{bundle.AgentAt, "stdio"}, Env: []string{}, Cwd: "/", NoNew: true,
			Capabilities: map[string][]string{"bounding": bundle.Needed, "effective": bundle.Needed, "permitted": bundle.Needed},
		},
		Mounts: append([]bundle.Mount{
			{At: "/proc", Type: "proc", From: "proc", Options: []string{quiet, "nodev", "noexec"}},
			{At: "/dev", Type: "tmpfs", From: "tmpfs", Options: []string{quiet, "strictatime", "mode=755", "size=65536"}},
			{At: "/dev/pts", Type: "devpts", From: "devpts", Options: []string{quiet, "noexec", "newinstance", "ptmxmode=0666", "mode=0620"}},
			{At: "/dev/shm", Type: "tmpfs", From: "shm", Options: []string{quiet, "noexec", "nodev", "mode=1777", "size=65536"}},
		}, r.mounts...),
		Linux: bundle.Linux{
			Namespaces: bundle.Spaces("mount", "pid", "network", "ipc", "uts", "cgroup"),
			Masked:     []string{}, Readonly: []string{},
		},
	}
}
