//go:build linux

package rootfs

import (
	"os"
	"path/filepath"
	"slices"

	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/agentprotocol"
	"gatehouse/internal/sandbox/cgroup"
	"gatehouse/internal/sandbox/landlock"
)

// filesPerMiB is how many files and folders there may be for each MiB of disk. Each occupies memory of the
// kernel.
const filesPerMiB = 256

// Capabilities returns those of a driver that isolates by namespaces and limits by control groups.
func Capabilities(groups *cgroup.Hierarchy, users *Users) sandbox.Capabilities {
	c := sandbox.Capabilities{
		Tier: sandbox.Namespaces, Memory: groups.Enforcement("memory"), Processes: groups.Enforcement("pids"),
		CPU:      groups.Enforcement("cpu"),
		OwnUsers: !users.Single, Seccomp: true, Landlock: landlock.Version(), Terminals: true,
	}
	if c.Memory == sandbox.NotEnforced {
		c.Memory = sandbox.PerProcess
	}
	if c.Processes == sandbox.NotEnforced {
		c.Processes = sandbox.PerUser
	}
	return c
}

// environment is the environment of every program. Nothing comes from the host.
var environment = []string{
	"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
	"HOME=/home/user", "USER=user", "LOGNAME=user", "SHELL=/bin/sh", "LANG=C.UTF-8", "TERM=xterm-256color",
}

// SystemFiles returns the small system files that programs read.
func SystemFiles() []agentprotocol.TextFile { return slices.Clone(systemFiles) }

var systemFiles = []agentprotocol.TextFile{
	{
		Path: "/etc/passwd",
		Content: "root:x:0:0:root:/:/sbin/nologin\nuser:x:1000:1000:user:/home/user:/bin/sh\n" +
			"nobody:x:65534:65534:nobody:/:/sbin/nologin\n",
	},
	{Path: "/etc/group", Content: "root:x:0:\nuser:x:1000:\nnogroup:x:65534:\n"},
	{Path: "/etc/hosts", Content: "127.0.0.1 localhost sandbox\n::1 localhost\n"},
	{Path: "/etc/hostname", Content: "sandbox\n"},
	{Path: "/etc/resolv.conf", Content: ""},
	{Path: "/etc/nsswitch.conf", Content: "passwd: files\ngroup: files\nhosts: files dns\n"},
}

// System returns what the host's programs require: programs, libraries, and those settings that reveal nothing
// about the host.
func System() (trees []sandbox.Tree, links []agentprotocol.TextFile) {
	for _, from := range []string{
		"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32",
		"/etc/ld.so.cache", "/etc/alternatives", "/etc/ssl/certs", "/etc/ssl/openssl.cnf",
		"/etc/pki/tls/certs", "/etc/ca-certificates", "/etc/localtime", "/etc/mime.types",
		"/nix/store",
	} {
		info, err := os.Lstat(from)
		if err != nil {
			continue
		}
		if info.Mode()&os.ModeSymlink != 0 {
			if to, err := os.Readlink(from); err == nil {
				links = append(links, agentprotocol.TextFile{Path: from, Content: to})
			}
			continue
		}
		if real, err := filepath.EvalSymlinks(from); err == nil {
			trees = append(trees, sandbox.Tree{From: real, To: from})
		}
	}
	return trees, links
}
