//go:build linux && (amd64 || arm64)

package guest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Why no machine can boot.
var (
	ErrNoKernel = errors.New("no kernel for virtual machines was found")
	ErrKernel   = errors.New("the kernel that the settings name cannot be used")
)

// Kernel is a kernel that a machine can boot.
type Kernel struct {
	Path    string
	Version string // name of its folder of modules
	ELF     bool   // it is an ELF file, not packed for a boot loader
	Modules string // folder of its modules; "" means it needs none
}

const (
	largestKernel = 512 << 20 // bytes
	setupMagic    = 0x202     // offset of the magic HdrS in a kernel for boot loaders
	setupVersion  = 0x20e     // offset of the pointer to its version
	setupSector   = 0x200
)

// FindKernel returns the kernel at path, or, if that is "", the newest of /boot with modules. modules may be
// "".
func FindKernel(path, modules string) (Kernel, error) { return findKernel("/boot", path, modules) }

func findKernel(boot, path, modules string) (Kernel, error) {
	if path != "" {
		k, err := readKernel(path, modules)
		if err != nil {
			err = fmt.Errorf("%w: %w", ErrKernel, err)
		}
		return k, err
	}
	all, _ := filepath.Glob(filepath.Join(boot, "vmlinuz-*"))
	slices.SortFunc(all, newerFirst)
	var why []string
	for _, p := range all {
		k, err := readKernel(p, modules)
		if err == nil && k.Modules != "" {
			return k, nil
		}
		if err == nil {
			err = fmt.Errorf("%s has no modules in /lib/modules/%s", p, k.Version)
		}
		why = append(why, err.Error())
	}
	if len(why) == 0 {
		return Kernel{}, fmt.Errorf("%w: %s has none", ErrNoKernel, boot)
	}
	return Kernel{}, fmt.Errorf("%w: %s", ErrNoKernel, strings.Join(why, "; "))
}

// newerFirst orders names by their numbers, newest first. Kernels made for virtual machines precede others.
func newerFirst(a, b string) int {
	if c := strings.Count(b, "cloud") - strings.Count(a, "cloud"); c != 0 {
		return c
	}
	return slices.Compare(numbers(b), numbers(a))
}

func numbers(s string) (all []int) {
	in := false
	for _, c := range s {
		if c < '0' || c > '9' {
			in = false
			continue
		}
		if !in {
			all = append(all, 0)
		}
		in = true
		all[len(all)-1] = min(all[len(all)-1]*10+int(c-'0'), 1<<30)
	}
	return all
}

func readKernel(path, modules string) (Kernel, error) {
	f, err := os.Open(path)
	if err != nil {
		return Kernel{}, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, largestKernel))
	if err != nil {
		return Kernel{}, err
	}
	k := Kernel{Path: path, Version: version(b), ELF: bytes.HasPrefix(b, []byte("\x7fELF"))}
	if k.Version == "" {
		return Kernel{}, fmt.Errorf("%s is not a kernel, or does not contain its version", path)
	}
	k.Modules = modules
	if modules == "" {
		k.Modules = modulesOf(path, k.Version)
	} else if _, err := os.Stat(modules); err != nil {
		return Kernel{}, fmt.Errorf("its modules: %w", err)
	}
	return k, nil
}

// modulesOf looks for the folder of a kernel's modules: where the system has them, and near the kernel, as in
// an unpacked package.
func modulesOf(path, version string) string {
	for _, dir := range []string{
		filepath.Join("/lib/modules", version),
		filepath.Join("/usr/lib/modules", version),
		filepath.Join(filepath.Dir(path), "..", "lib", "modules", version),
		filepath.Join(filepath.Dir(path), "modules", version),
	} {
		if info, err := os.Stat(dir); err == nil && info.IsDir() {
			return dir
		}
	}
	return ""
}

// version reads the version from the header for boot loaders, or finds the first line that every kernel
// prints.
func version(b []byte) string {
	if len(b) > setupVersion+2 && string(b[setupMagic:setupMagic+4]) == "HdrS" {
		at := int(binary.LittleEndian.Uint16(b[setupVersion:])) + setupSector
		if at < len(b) {
			return firstWord(b[at:])
		}
		return ""
	}
	const mark = "Linux version "
	for rest := b; ; {
		i := bytes.Index(rest, []byte(mark))
		if i < 0 {
			return ""
		}
		rest = rest[i+len(mark):]
		if w := firstWord(rest); w != "" && w[0] >= '0' && w[0] <= '9' {
			return w
		}
	}
}

// firstWord returns the first word if it can be a version and is safe as the name of a folder.
func firstWord(b []byte) string {
	end := bytes.IndexFunc(b[:min(len(b), 256)], func(r rune) bool {
		return !(r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' ||
			strings.ContainsRune(".-_+~", r))
	})
	if end <= 0 || b[0] == '.' {
		return ""
	}
	return string(b[:end])
}
