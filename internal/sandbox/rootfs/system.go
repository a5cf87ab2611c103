//go:build linux

package rootfs

import (
	"os"
	"path/filepath"
	"slices"

	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/agentprotocol"
)

// filesPerMiB is how many files and folders there may be for each MiB of disk.
// Each takes memory of the kernel's.
const filesPerMiB = 256

// environment is that of every program. Nothing comes from the host.
var environment = []string{
	"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
	"HOME=/home/user", "USER=user", "LOGNAME=user", "SHELL=/bin/sh", "LANG=C.UTF-8", "TERM=xterm-256color",
}

// Texts are the small files of a system that programs look into.
func Texts() []agentprotocol.Text { return slices.Clone(texts) }

var texts = []agentprotocol.Text{
	{At: "/etc/passwd", Says: "root:x:0:0:root:/:/sbin/nologin\nuser:x:1000:1000:user:/home/user:/bin/sh\nnobody:x:65534:65534:nobody:/:/sbin/nologin\n"},
	{At: "/etc/group", Says: "root:x:0:\nuser:x:1000:\nnogroup:x:65534:\n"},
	{At: "/etc/hosts", Says: "127.0.0.1 localhost sandbox\n::1 localhost\n"},
	{At: "/etc/hostname", Says: "sandbox\n"},
	{At: "/etc/resolv.conf", Says: ""},
	{At: "/etc/nsswitch.conf", Says: "passwd: files\ngroup: files\nhosts: files dns\n"},
}

// System is what programs of the host need of it: its programs and libraries,
// and of its settings only those that say nothing about it.
func System() (trees []sandbox.Tree, links []agentprotocol.Text) {
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
				links = append(links, agentprotocol.Text{At: from, Says: to})
			}
			continue
		}
		if real, err := filepath.EvalSymlinks(from); err == nil {
			trees = append(trees, sandbox.Tree{From: real, To: from})
		}
	}
	return trees, links
}
