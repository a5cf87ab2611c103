//go:build linux && (amd64 || arm64)

package guest

import (
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// A moduleGroup is a group of modules for one purpose, which are loaded in order, each after its dependencies.
type moduleGroup struct {
	group   string
	modules []string
	must    []string // those of modules that a machine requires
}

// moduleGroups are what a machine may require, depending on its channel and file system. The kernel may have any of
// it built in.
var moduleGroups = []moduleGroup{
	{"base", []string{"virtio", "virtio_ring", "virtio_mmio", "virtio_pci", "virtio_blk", "virtio-rng",
		"overlay"}, []string{"virtio_blk", "overlay"}},
	{"serial", []string{"virtio_console"}, []string{"virtio_console"}},
	{"vsock", []string{"vsock", "vmw_vsock_virtio_transport"}, nil},
	{"ext4", []string{"ext4"}, nil},
	{"squashfs", []string{"squashfs"}, nil},
	{"erofs", []string{"erofs"}, nil},
}

// module is a module that has been read.
type module struct {
	name    string
	program []byte
	after   []string
}

// modules returns those of each group in the order of loading. A kernel without a folder of modules has
// everything built in.
func (k Kernel) modules(ctx context.Context) (map[string][]module, error) {
	if k.Modules == "" {
		return nil, nil
	}
	files, err := moduleFiles(k.Modules)
	if err != nil {
		return nil, err
	}
	builtin := builtin(k.Modules)
	groups := map[string][]module{}
	for _, n := range moduleGroups {
		seen := map[string]bool{}
		for _, name := range n.modules {
			if err := collect(ctx, files, plain(name), seen, func(m module) {
				groups[n.group] = append(groups[n.group], m)
			}); err != nil {
				return nil, err
			}
		}
		for _, name := range n.must {
			if files[plain(name)] == "" && !builtin[plain(name)] {
				return nil, fmt.Errorf("the kernel %s has no module %s in %s", k.Version, name, k.Modules)
			}
		}
	}
	return groups, nil
}

// plain returns a module's name as the kernel compares it.
func plain(name string) string { return strings.ReplaceAll(name, "-", "_") }

// moduleFiles returns the paths of modules by name.
func moduleFiles(dir string) (map[string]string, error) {
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name, _, ok := strings.Cut(e.Name(), ".ko"); ok && e.Type().IsRegular() {
			files[plain(name)] = path
		}
		return nil
	})
	return files, err
}

// builtin returns the modules that are built into the kernel.
func builtin(dir string) map[string]bool {
	b, _ := os.ReadFile(filepath.Join(dir, "modules.builtin"))
	all := map[string]bool{}
	for line := range strings.Lines(string(b)) {
		all[plain(strings.TrimSuffix(filepath.Base(strings.TrimSpace(line)), ".ko"))] = true
	}
	return all
}

// collect calls give with a module after its dependencies, each once. Modules without a file are built in, or
// are reported by the caller.
func collect(ctx context.Context, files map[string]string, name string, seen map[string]bool, give func(module)) error {
	if seen[name] || files[name] == "" {
		return nil
	}
	seen[name] = true
	b, err := os.ReadFile(files[name])
	if err == nil {
		b, err = unpack(ctx, b)
	}
	if err != nil {
		return fmt.Errorf("read the module %s: %w", files[name], err)
	}
	after, err := dependencies(b)
	if err != nil {
		return fmt.Errorf("parse the module %s: %w", files[name], err)
	}
	for _, a := range after {
		if err := collect(ctx, files, plain(a), seen, give); err != nil {
			return err
		}
	}
	give(module{name: name, program: b, after: after})
	return nil
}

// dependencies returns the modules that a module depends on.
func dependencies(program []byte) ([]string, error) {
	f, err := elf.NewFile(bytes.NewReader(program))
	if err != nil {
		return nil, err
	}
	s := f.Section(".modinfo")
	if s == nil {
		return nil, errors.New("not a kernel module: it has no section .modinfo")
	}
	info, err := s.Data()
	if err != nil {
		return nil, err
	}
	for entry := range bytes.SplitSeq(info, []byte{0}) {
		if list, ok := bytes.CutPrefix(entry, []byte("depends=")); ok && len(list) > 0 {
			return strings.Split(string(list), ","), nil
		}
	}
	return nil, nil
}
