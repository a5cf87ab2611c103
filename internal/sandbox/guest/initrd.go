//go:build linux && (amd64 || arm64)

package guest

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"slices"

	"gatehouse/internal/sandbox/agent/binary"
)

// initrdLayout is part of the key of an initrd. It changes when the layout does.
const initrdLayout = "1"

// Initrd returns the path of the initramfs: the agent and the kernel modules it loads, for machines of every
// kind.
func (g *Cache) Initrd(ctx context.Context) (string, error) {
	agent, err := binary.Agent()
	if err != nil {
		return "", err
	}
	key := fmt.Sprintf("%s %s %s %x", initrdLayout, g.kernel.Version, g.kernel.Modules, agent)
	return g.pin(ctx, "initrd", key, func(path string) error {
		groups, err := g.kernel.modules(ctx)
		if err != nil {
			return err
		}
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		defer f.Close()
		buffered := bufio.NewWriter(f)
		if err := writeInitrd(buffered, agent, groups); err != nil {
			return err
		}
		return buffered.Flush()
	})
}

func writeInitrd(w io.Writer, agent []byte, groups map[string][]module) error {
	a := archive{w: w}
	for _, dir := range []string{"dev", "proc", "sys", "cgroup", "lower", "upper", "newroot", "modules"} {
		a.folder(dir)
	}
	a.console("dev/console")
	a.file("init", 0o755, agent)
	names := make([]string, 0, len(groups))
	for name := range groups {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, group := range names {
		a.folder("modules/" + group)
		for i, m := range groups[group] {
			a.file(fmt.Sprintf("modules/%s/%02d-%s.ko", group, i, m.name), 0o644, m.program)
		}
	}
	return a.endArchive()
}

// archive writes the cpio format "newc", which kernels unpack.
type archive struct {
	w    io.Writer
	next int
	err  error
}

const (
	typeFolder  = 0o040000
	typeFile    = 0o100000
	typeCharDev = 0o020000
)

func (a *archive) folder(name string) { a.entry(name, typeFolder|0o755, nil, 0, 0) }

func (a *archive) file(name string, mode int, body []byte) {
	a.entry(name, typeFile|mode, body, 0, 0)
}

// console adds the device of the first process's standard streams.
func (a *archive) console(name string) { a.entry(name, typeCharDev|0o600, nil, 5, 1) }

func (a *archive) entry(name string, mode int, body []byte, major, minor int) {
	a.next++
	head := fmt.Sprintf("070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X",
		a.next, mode, 0, 0, 1, 0, len(body), 0, 0, major, minor, len(name)+1, 0)
	a.writeBytes([]byte(head + name + "\x00"))
	a.pad(len(head) + len(name) + 1)
	a.writeBytes(body)
	a.pad(len(body))
}

func (a *archive) pad(n int) { a.writeBytes(make([]byte, (4-n%4)%4)) }

func (a *archive) writeBytes(b []byte) {
	if a.err == nil {
		_, a.err = a.w.Write(b)
	}
}

func (a *archive) endArchive() error {
	a.entry("TRAILER!!!", 0, nil, 0, 0)
	return a.err
}
