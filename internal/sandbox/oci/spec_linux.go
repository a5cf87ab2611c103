//go:build amd64 || arm64

package oci

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/place"
	"gatehouse/internal/sandbox/seccomp"
	"gatehouse/internal/sandbox/wire"
)

// What of the OCI's runtime specification is needed here.
type (
	config struct {
		Version  string  `json:"ociVersion"`
		Process  program `json:"process"`
		Root     root    `json:"root"`
		Hostname string  `json:"hostname"`
		Mounts   []mount `json:"mounts"`
		Linux    linux   `json:"linux"`
	}
	program struct {
		User         user                `json:"user"`
		Args         []string            `json:"args"`
		Env          []string            `json:"env"`
		Cwd          string              `json:"cwd"`
		Capabilities map[string][]string `json:"capabilities"`
		NoNew        bool                `json:"noNewPrivileges"`
	}
	user struct {
		UID int `json:"uid"`
		GID int `json:"gid"`
	}
	root struct {
		Path     string `json:"path"`
		Readonly bool   `json:"readonly"`
	}
	mount struct {
		At      string   `json:"destination"`
		Type    string   `json:"type,omitempty"`
		From    string   `json:"source,omitempty"`
		Options []string `json:"options,omitempty"`
	}
	linux struct {
		UIDs       []ids             `json:"uidMappings"`
		GIDs       []ids             `json:"gidMappings"`
		Namespaces []namespace       `json:"namespaces"`
		Groups     string            `json:"cgroupsPath,omitempty"`
		Seccomp    seccomp.Profile   `json:"seccomp"`
		Masked     []string          `json:"maskedPaths"`
		Readonly   []string          `json:"readonlyPaths"`
		Resources  map[string]string `json:"resources,omitempty"`
	}
	ids struct {
		Inside int `json:"containerID"`
		Host   int `json:"hostID"`
		Size   int `json:"size"`
	}
	namespace struct {
		Type string `json:"type"`
	}
)

// agentAt is where the agent's program is shown. The code may read it, which
// tells it nothing.
const agentAt = "/.agent"

// needed are what the agent can do in its own user namespace. It makes a space
// of processes for each program and gives all of this up before it starts one.
var needed = []string{
	"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_NET_ADMIN",
	"CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID", "CAP_SYS_ADMIN", "CAP_SYS_PTRACE", "CAP_SYS_RESOURCE",
}

// write makes the bundle of a sandbox: its root, empty but for where things go
// and a few small files, and its configuration.
func (b *box) write(spec sandbox.Spec, firstFree int) error {
	rootfs := filepath.Join(b.bundle, "rootfs")
	c := b.config(rootfs, firstFree)
	trees, links := place.System()
	for _, t := range append(trees, spec.Trees...) {
		if t.To == "" {
			t.To = t.From
		}
		shown, err := stand(rootfs, t)
		if err != nil {
			return err
		}
		if !shown {
			c.Mounts = append(c.Mounts, mount{At: t.To, Type: "bind", From: t.From, Options: readOnly})
		}
	}
	if err := os.Link(b.driver.agent, filepath.Join(rootfs, agentAt)); err != nil {
		return err
	}
	for _, dir := range []string{"dev", "proc", "sys", "tmp", "var/tmp", "run", "home/user"} {
		if err := os.MkdirAll(filepath.Join(rootfs, dir), 0o755); err != nil {
			return err
		}
	}
	for _, l := range links {
		if err := put(rootfs, l, os.Symlink); err != nil {
			return err
		}
	}
	for _, t := range place.Texts() {
		if err := put(rootfs, t, writeText); err != nil {
			return err
		}
	}
	text, err := json.Marshal(c)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(b.bundle, "config.json"), text, 0o600)
}

var readOnly = []string{"rbind", "ro", "rro", "nosuid", "nodev"}

func (b *box) config(rootfs string, firstFree int) config {
	uid, gid, size := b.driver.users.Range(b.slot)
	const quiet = "nosuid"
	c := config{
		Version:  "1.0.2",
		Hostname: "sandbox",
		Root:     root{Path: rootfs, Readonly: true},
		Process: program{
			Args: []string{agentAt, fmt.Sprint(firstFree)}, Env: []string{}, Cwd: "/", NoNew: true,
			Capabilities: map[string][]string{"bounding": needed, "effective": needed, "permitted": needed},
		},
		Mounts: []mount{
			{"/proc", "proc", "proc", []string{quiet, "nodev", "noexec"}},
			{"/dev", "tmpfs", "tmpfs", []string{quiet, "strictatime", "mode=755", "size=65536"}},
			{"/dev/pts", "devpts", "devpts", []string{quiet, "noexec", "newinstance", "ptmxmode=0666", "mode=0620"}},
			{"/dev/shm", "tmpfs", "shm", []string{quiet, "noexec", "nodev", "mode=1777", "size=65536"}},
		},
		Linux: linux{
			UIDs: []ids{{0, uid, size}}, GIDs: []ids{{0, gid, size}},
			Groups: b.driver.runtime.groups(b.id), Seccomp: seccomp.ForAgent(), Masked: []string{}, Readonly: []string{},
		},
	}
	for _, n := range []string{"user", "mount", "pid", "network", "ipc", "uts", "cgroup"} {
		c.Linux.Namespaces = append(c.Linux.Namespaces, namespace{n})
	}
	return c
}

const largestCopy = 4 << 20 // bytes of a file that is shown as a copy

// stand makes what a tree is shown over. A file is copied, which shows it
// already: some runtimes cannot mount over a file in a user namespace.
func stand(rootfs string, t sandbox.Tree) (shown bool, err error) {
	info, err := os.Stat(t.From)
	if err != nil {
		return false, err
	}
	if info.IsDir() {
		return false, os.MkdirAll(filepath.Join(rootfs, filepath.Clean("/"+t.To)), 0o755)
	}
	if !info.Mode().IsRegular() || info.Size() > largestCopy {
		return false, fmt.Errorf("%s cannot be shown in a container: only folders, and files of up to %d bytes, can", t.From, largestCopy)
	}
	says, err := os.ReadFile(t.From)
	if err != nil {
		return false, err
	}
	return true, put(rootfs, wire.Text{At: t.To, Says: string(says)}, writeText)
}

func writeText(says, at string) error { return os.WriteFile(at, []byte(says), 0o644) }

func put(rootfs string, t wire.Text, how func(says, at string) error) error {
	at := filepath.Join(rootfs, filepath.Clean("/"+t.At))
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		return err
	}
	return how(t.Says, at)
}
