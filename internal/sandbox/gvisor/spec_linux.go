//go:build amd64 || arm64

package gvisor

import "gatehouse/internal/sandbox/bundle"

// config returns the configuration for runsc. gVisor filters its own calls to the host; the agent installs the
// filter of the code.
func (r *root) config() bundle.Config {
	const quiet = "nosuid"
	return bundle.Config{
		Version:  bundle.Version,
		Hostname: "sandbox",
		Root:     bundle.Root{Path: r.path, Readonly: true},
		Process: bundle.Program{
			Args: []string{bundle.AgentAt, "stdio"}, Env: []string{}, Cwd: "/", NoNewPrivileges: true,
			Capabilities: map[string][]string{
				"bounding":  bundle.Needed,
				"effective": bundle.Needed,
				"permitted": bundle.Needed,
			},
		},
		Mounts: append([]bundle.Mount{
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
				Options:     []string{quiet, "noexec", "newinstance", "ptmxmode=0666", "mode=0620"},
			},
			{
				Destination: "/dev/shm",
				Type:        "tmpfs",
				Source:      "shm",
				Options:     []string{quiet, "noexec", "nodev", "mode=1777", "size=65536"},
			},
		}, r.mounts...),
		Linux: bundle.Linux{
			Namespaces:  bundle.Namespaces("mount", "pid", "network", "ipc", "uts", "cgroup"),
			MaskedPaths: []string{}, ReadonlyPaths: []string{},
		},
	}
}
