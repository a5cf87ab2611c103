package packages

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"gatehouse/internal/access/secret"
	"gatehouse/internal/files/clientroots"
	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/proxy"
	"gatehouse/tool"
)

// How a package is confined; see Record.Confinement.
const (
	Sandboxed = "sandbox" // in a sandbox, with its grants
	Trusted   = "trusted" // as this host's user, because an administrator trusts it
)

// Grants are what a package may use beside its own folders and the programs of the machine. The zero value is nothing,
// with the default limits.
type Grants struct {
	Folders []string `json:"folders,omitempty" yaml:"folders" doc:"Folders and files of this host, at the same paths; PATH:ro to read alone, PATH:roots for those of a client's roots that are in PATH."`
	Hosts   []string `json:"hosts,omitempty" yaml:"hosts" doc:"What it may reach: HOST, HOST:PORT or *.HOST; without a port 80 and 443. Addresses that are not public have to be named as addresses."`
	Sockets []string `json:"sockets,omitempty" yaml:"sockets" doc:"Unix sockets of this host, by their paths."`
	Devices []string `json:"devices,omitempty" yaml:"devices" doc:"Devices of this host, by their paths below /dev."`

	Memory    int `json:"memory_mib,omitempty" yaml:"memory_mib" doc:"Memory of one instance, in MiB; 0 means 2048."`
	Processes int `json:"processes,omitempty" yaml:"processes" doc:"Processes and threads of one instance; 0 means 512."`
	Disk      int `json:"disk_mib,omitempty" yaml:"disk_mib" doc:"Size of its data folder, in MiB; 0 means 4096."`
}

// Default limits of a confined package.
const (
	defaultMemoryMiB = 2048
	defaultDiskMiB   = 4096
	mostGrants       = 100 // of each kind
)

// IsZero reports whether nothing is granted.
func (g Grants) IsZero() bool {
	return len(g.Folders)+len(g.Hosts)+len(g.Sockets)+len(g.Devices)+g.Memory+g.Processes+g.Disk == 0
}

// grantedFolder splits a grant of a folder.
func grantedFolder(text string) (path string, write bool) {
	if path, ok := strings.CutSuffix(text, ":ro"); ok {
		return path, false
	}
	if path, ok := announcedGrant(text); ok {
		return path, true
	}
	return strings.TrimSuffix(text, ":rw"), true
}

// announcedGrant splits a grant of what clients announce of a folder: an instance has those of its caller's roots that
// are in it.
func announcedGrant(text string) (path string, ok bool) { return strings.CutSuffix(text, ":roots") }

// grantsAnnounced reports whether what an instance may use depends on the roots of its caller.
func (r *Record) grantsAnnounced() bool {
	return r.Confinement == Sandboxed && r.Grants.haveAnnounced()
}

func (g *Grants) haveAnnounced() bool {
	return slices.ContainsFunc(g.Folders, func(text string) bool {
		_, ok := announcedGrant(text)
		return ok
	})
}

// withAnnounced replaces grants of what clients announce by those of the roots that they cover. A root that contains
// the granted folder stands for all of that.
func withAnnounced(folders, announced []string) (out []string) {
	for _, text := range folders {
		path, ok := announcedGrant(text)
		if !ok {
			out = append(out, text)
			continue
		}
		for _, root := range announced {
			real, err := filepath.EvalSymlinks(root) // so that no link leads out of what is granted
			switch {
			case err != nil:
			case within(real, path):
				out = append(out, path)
			case within(path, real):
				out = append(out, real)
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// announcedIn returns the folders of an answer to roots/list.
func announcedIn(answer string) (folders []string) {
	var said struct {
		Roots []struct {
			URI string `json:"uri"`
		} `json:"roots"`
	}
	if json.Unmarshal([]byte(answer), &said) != nil {
		return nil
	}
	for _, root := range said.Roots[:min(len(said.Roots), mostGrants)] {
		if path, ok := clientroots.PathOf(root.URI); ok && filepath.IsAbs(path) {
			folders = append(folders, filepath.Clean(path))
		}
	}
	return folders
}

// ownPaths are folders that each sandbox has of its own, so that those of the host cannot be granted.
var ownPaths = []string{"/proc", "/sys", "/dev", "/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc"}

// checkGrants validates grants without looking at the disk.
func (g *Grants) checkGrants() error {
	for _, list := range [][]string{g.Folders, g.Hosts, g.Sockets, g.Devices} {
		if len(list) > mostGrants {
			return invalid("grants: at most %d of each kind", mostGrants)
		}
	}
	for _, text := range g.Folders {
		path, write := grantedFolder(text)
		if err := checkGranted("folder", path); err != nil {
			return err
		}
		if i := slices.IndexFunc(ownPaths, func(own string) bool { return within(own, path) }); i >= 0 && write {
			return invalid("folder %q: %s cannot be written by packages; add :ro", text, ownPaths[i])
		}
		if within("/proc", path) || within("/sys", path) || within("/dev", path) {
			return invalid("folder %q: a package has its own %s", text, path)
		}
	}
	for _, path := range g.Sockets {
		if err := checkGranted("socket", path); err != nil {
			return err
		}
	}
	for _, path := range g.Devices {
		if err := checkGranted("device", path); err != nil {
			return err
		}
		if !within("/dev", path) || path == "/dev" {
			return invalid("device %q: expected a path below /dev", path)
		}
	}
	if _, err := proxy.Ports(g.Hosts); err != nil {
		return invalid("hosts: %v", err)
	}
	if g.Memory < 0 || g.Memory > 0 && g.Memory < sandbox.LeastMemoryMiB || g.Memory > 1<<20 {
		return invalid("memory_mib %d: expected %d to %d", g.Memory, sandbox.LeastMemoryMiB, 1<<20)
	}
	if g.Processes < 0 || g.Processes > 1<<16 {
		return invalid("processes %d: expected 1 to %d", g.Processes, 1<<16)
	}
	if g.Disk < 0 || g.Disk > 1<<20 {
		return invalid("disk_mib %d: expected 1 to %d", g.Disk, 1<<20)
	}
	return nil
}

func checkGranted(what, path string) error {
	if !filepath.IsAbs(path) || filepath.Clean(path) != path || path == "/" || strings.ContainsAny(path, "\x00\n") {
		return invalid("%s %q: expected an absolute path other than /, without .. or a slash at its end", what, path)
	}
	return nil
}

// within reports whether p is dir or below it; both are clean.
func within(dir, p string) bool {
	return p == dir || strings.HasPrefix(p, strings.TrimSuffix(dir, "/")+"/")
}

// Resolve returns the grants with paths that contain no symbolic links, after checking that they exist.
func (g Grants) Resolve() (Grants, error) {
	if err := g.checkGrants(); err != nil {
		return g, err
	}
	out := g
	out.Folders, out.Sockets, out.Devices = nil, nil, nil
	for _, text := range g.Folders {
		path, write := grantedFolder(text)
		real, _, err := resolveGranted("folder", path)
		if err != nil {
			return g, err
		}
		if !write {
			real += ":ro"
		}
		if _, ok := announcedGrant(text); ok {
			real += ":roots"
		}
		out.Folders = append(out.Folders, real)
	}
	for _, path := range g.Sockets {
		real, mode, err := resolveGranted("socket", path)
		if err == nil && mode&os.ModeSocket == 0 {
			err = invalid("socket %q: there is no socket", path)
		}
		if err != nil {
			return g, err
		}
		out.Sockets = append(out.Sockets, real)
	}
	for _, path := range g.Devices {
		real, mode, err := resolveGranted("device", path)
		if err == nil && mode&os.ModeDevice == 0 {
			err = invalid("device %q: there is no device", path)
		}
		if err != nil {
			return g, err
		}
		out.Devices = append(out.Devices, real)
	}
	return out, out.checkGrants()
}

func resolveGranted(what, path string) (real string, mode os.FileMode, err error) {
	real, err = filepath.EvalSymlinks(path)
	if err != nil {
		return "", 0, &tool.Refusal{
			Code:    tool.CodeNotFound,
			Message: fmt.Sprintf("%s %q: %v", what, path, err),
			Next:    "Create it first, or leave it out.",
		}
	}
	info, err := os.Lstat(real)
	if err != nil {
		return "", 0, err
	}
	return real, info.Mode(), nil
}

// with returns the grants and further ones, each once. A limit of more replaces one of g.
func (g Grants) with(more Grants) Grants {
	add := func(a, b []string) []string {
		for _, one := range b {
			path, _ := grantedFolder(one)
			a = slices.DeleteFunc(slices.Clone(a), func(have string) bool {
				p, _ := grantedFolder(have)
				return p == path
			})
			a = append(a, one)
		}
		return a
	}
	g.Folders, g.Hosts = add(g.Folders, more.Folders), add(g.Hosts, more.Hosts)
	g.Sockets, g.Devices = add(g.Sockets, more.Sockets), add(g.Devices, more.Devices)
	for _, n := range []struct{ have, want *int }{
		{&g.Memory, &more.Memory}, {&g.Processes, &more.Processes}, {&g.Disk, &more.Disk},
	} {
		if *n.want != 0 {
			*n.have = *n.want
		}
	}
	return g
}

// without returns the grants without some. A limit that is named becomes the default again.
func (g Grants) without(less Grants) (Grants, error) {
	remove := func(what string, a, b []string) ([]string, error) {
		a = slices.Clone(a)
		for _, one := range b {
			path, _ := grantedFolder(one)
			n := len(a)
			a = slices.DeleteFunc(a, func(have string) bool {
				p, _ := grantedFolder(have)
				return p == path
			})
			if len(a) == n {
				return nil, invalid("%s %q was not granted", what, one)
			}
		}
		return a, nil
	}
	var err error
	for _, l := range []struct {
		what       string
		have, want *[]string
	}{
		{"folder", &g.Folders, &less.Folders}, {"host", &g.Hosts, &less.Hosts}, {"socket", &g.Sockets, &less.Sockets},
		{"device", &g.Devices, &less.Devices},
	} {
		if *l.have, err = remove(l.what, *l.have, *l.want); err != nil {
			return g, err
		}
	}
	for _, n := range []struct{ have, want *int }{
		{&g.Memory, &less.Memory}, {&g.Processes, &less.Processes}, {&g.Disk, &less.Disk},
	} {
		if *n.want != 0 {
			*n.have = 0
		}
	}
	return g, nil
}

// Lines describes what a package may use, in plain words, one line for each kind.
func (r *Record) Lines() (lines []string) {
	if r.Source.IsRemote() {
		return []string{"It runs elsewhere, and receives the arguments of its calls."}
	}
	if r.Confinement != Sandboxed {
		return []string{
			"It runs as the user of this host, in no sandbox: it can read and write all of the user's files, " +
				"start programs and reach every network.",
		}
	}
	g := r.Grants
	say := func(format string, list []string) {
		if len(list) > 0 {
			lines = append(lines, fmt.Sprintf(format, strings.Join(list, ", ")))
		}
	}
	programs := "of this machine"
	if r.Source.Kind == OCI {
		programs = "of its image, which it cannot change"
	}
	lines = append(lines, "It runs in a sandbox, with a home folder of its own and the programs "+programs+".")
	var read, write, announced []string
	for _, text := range g.Folders {
		if path, ok := announcedGrant(text); ok {
			announced = append(announced, path)
		} else if path, w := grantedFolder(text); w {
			write = append(write, path)
		} else {
			read = append(read, path)
		}
	}
	say("It may read and write %s.", write)
	say("It may read %s.", read)
	say("It may read and write what clients announce as their folders in %s, for each client its own.", announced)
	if len(g.Hosts) == 0 {
		lines = append(lines, "It reaches no network.")
	}
	say("It may connect to %s, and to nothing else.", g.Hosts)
	say("It may use the sockets %s, and what serves there.", g.Sockets)
	say("It may use the devices %s.", g.Devices)
	say("It gets the secrets %s.", r.secretNames())
	return append(
		lines,
		fmt.Sprintf("One instance has at most %d MiB of memory and %d processes; its own files at most %d MiB.",
			g.memory(), g.processes(), g.disk()),
	)
}

// secretNames returns the names of the secrets that the variables of the package refer to.
func (r *Record) secretNames() (names []string) {
	for _, value := range r.Env {
		refers, _ := secret.Names(value)
		names = append(names, refers...)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func (g *Grants) memory() int { return cmp.Or(g.Memory, defaultMemoryMiB) }

func (g *Grants) processes() int { return cmp.Or(g.Processes, maxProcesses) }

func (g *Grants) disk() int { return cmp.Or(g.Disk, defaultDiskMiB) }

// ParseMiB parses a size such as 512, 512M or 2G, in MiB.
func ParseMiB(text string) (int, error) {
	number, factor := text, 1
	switch {
	case strings.HasSuffix(text, "G"):
		number, factor = strings.TrimSuffix(text, "G"), 1024
	case strings.HasSuffix(text, "M"):
		number = strings.TrimSuffix(text, "M")
	}
	n, err := strconv.Atoi(number)
	if err != nil || n < 1 || n > 1<<20 {
		return 0, fmt.Errorf("%q is no size: expected a number of MiB, such as 512, 512M or 2G", text)
	}
	return n * factor, nil
}
