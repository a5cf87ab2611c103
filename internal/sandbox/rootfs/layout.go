//go:build linux

package rootfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/agentprotocol"
)

// Layout is the read-only part of a sandbox's file system, from the host or from an image. No link of an image
// is followed outside the sandbox: links stay links, which only the sandbox resolves.
type Layout struct {
	Trees []sandbox.Tree           // folders and files; To is never empty
	Links []agentprotocol.TextFile // symbolic links; Content is the target
	Files []agentprotocol.TextFile // small files that the host writes
	Env   []string                 // for every program, in addition to the variables of all sandboxes
	Base  string                   // the folder of an image that becomes the whole root, with a layer over it; "" for none
}

// maxPlanBytes is how many bytes of a plan the layout may have, because a plan travels in one frame.
const maxPlanBytes = agentprotocol.MaxBody - 8<<10

// Of returns the layout of a sandbox with the given spec.
func Of(spec sandbox.Spec) (Layout, error) {
	if len(spec.Mounts) > 0 || spec.Route != nil {
		return Layout{}, sandbox.ErrNoMounts
	}
	layout := Layout{Files: SystemFiles()}
	if spec.Image == nil {
		layout.Trees, layout.Links = System()
	} else {
		var err error
		if layout, err = ofImage(*spec.Image, spec.Users != nil, spec.WritableRoot); err != nil {
			return Layout{}, err
		}
	}
	if layout.Base != "" && len(spec.Trees) > 0 {
		return Layout{}, errors.New("folders of the host cannot be shown in an image that can be written to")
	}
	for _, t := range spec.Trees {
		if t.To == "" {
			t.To = t.From
		}
		if err := layout.fits(t); err != nil {
			return Layout{}, err
		}
		layout.Trees = append(layout.Trees, t)
	}
	return layout, nil
}

// fits checks that t can be mounted at t.To. A symbolic link on the way there would have to be followed while
// the sandbox is set up, and it could lead anywhere.
func (l Layout) fits(t sandbox.Tree) error {
	to := path.Clean("/" + t.To)
	for _, link := range l.Links {
		if to == link.Path || strings.HasPrefix(to, link.Path+"/") {
			return fmt.Errorf("%s cannot be mounted at %s: %s is a symbolic link to %s; name the folder "+
				"it leads to", t.From, t.To, link.Path, link.Content)
		}
	}
	for _, under := range l.Trees {
		rest, below := strings.CutPrefix(to, path.Clean("/"+under.To)+"/")
		if !below {
			continue
		}
		if err := walk(under.From, rest); err != nil {
			return fmt.Errorf("%s cannot be mounted at %s, which is in a read-only folder: %w; choose another "+
				"path, or one that exists", t.From, t.To, err)
		}
	}
	return nil
}

// walk checks that a path exists and contains no symbolic link.
func walk(root, rel string) error {
	r, err := os.OpenRoot(root)
	if err != nil {
		return err
	}
	defer r.Close()
	for i := range len(rel) + 1 {
		if i < len(rel) && rel[i] != '/' {
			continue
		}
		info, err := r.Lstat(rel[:i])
		if err != nil {
			return err
		}
		if info.Mode()&fs.ModeSymlink != 0 {
			return fmt.Errorf("%s is a symbolic link", rel[:i])
		}
	}
	return nil
}

// hostFolders are the top-level folders that an image cannot replace.
var hostFolders = []string{"dev", "proc", "sys", "tmp", "run", ".agent"}

// shared are folders with entries of the host and of the image. The listed entries are the host's.
var shared = map[string][]string{
	"etc":  {"passwd", "group", "hosts", "hostname", "resolv.conf"},
	"home": {"user"},
	"var":  {"tmp"},
}

// reservedVariables are variables that an image cannot set, because their values differ in a sandbox.
var reservedVariables = []string{"HOME", "USER", "LOGNAME", "PWD", "HOSTNAME"}

// ofImage returns the layout of an image. The image's dev, proc, sys, tmp, run, home/user and var/tmp are
// hidden; in etc the host's names of the machine replace the image's, and the lists of users and groups start
// with the sandbox's own, unless it has the users of the image.
// whole has all of the image be the root, with a layer over it: the agent hides the same folders.
func ofImage(im sandbox.Image, users, whole bool) (Layout, error) {
	if !filepath.IsAbs(im.Root) {
		return Layout{}, fmt.Errorf("image %s: its folder is %q; expected an absolute path", im.ID, im.Root)
	}
	root, err := os.OpenRoot(im.Root)
	if err != nil {
		return Layout{}, fmt.Errorf("image %s: open its folder: %w", im.ID, err)
	}
	defer root.Close()
	layout := Layout{Env: environmentOf(im), Files: filesWith(root, users)}
	if err := layout.addMount(root, im.Root, "."); err != nil {
		return Layout{}, fmt.Errorf("image %s: %w", im.ID, err)
	}
	if len(layout.Trees)+len(layout.Links) == 0 {
		return Layout{}, fmt.Errorf("image %s is empty: %s contains nothing", im.ID, im.Root)
	}
	if whole {
		layout.Trees, layout.Links, layout.Base = nil, nil, im.Root
		return layout, nil
	}
	size := 0
	for _, t := range layout.Trees {
		size += len(t.From) + len(t.To)
	}
	for _, t := range append(slices.Clone(layout.Links), layout.Files...) {
		size += len(t.Path) + len(t.Content)
	}
	if size += 24 * (len(layout.Trees) + len(layout.Links)); size > maxPlanBytes {
		return Layout{},
			fmt.Errorf("image %s has %d names directly in /, /etc, /home and /var, which is too many: each of "+
				"them is mounted separately", im.ID, len(layout.Trees)+len(layout.Links))
	}
	return layout, nil
}

// addMount adds the entries of a folder of an image.
func (l *Layout) addMount(root *os.Root, at, folder string) error {
	f, err := root.Open(folder)
	if err != nil {
		return err
	}
	defer f.Close()
	entries, err := f.ReadDir(-1)
	if err != nil {
		return err
	}
	for _, e := range entries {
		name := path.Join(folder, e.Name())
		mine, opened := shared[name]
		switch {
		case folder == "." && slices.Contains(hostFolders, name), slices.Contains(shared[folder], e.Name()):
		case opened && e.IsDir():
			err = l.addMount(root, at, name)
		case opened && len(mine) > 0: // a link, which the host's folder replaces
		case e.Type() == fs.ModeSymlink:
			to, readErr := root.Readlink(name)
			l.Links, err = append(l.Links, agentprotocol.TextFile{Path: "/" + name, Content: to}), readErr
		case e.IsDir(), e.Type().IsRegular():
			l.Trees = append(l.Trees, sandbox.Tree{From: filepath.Join(at, name), To: "/" + name})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// environmentOf returns an image's variables except those that differ in a sandbox.
func environmentOf(im sandbox.Image) (env []string) {
	for _, v := range im.Env {
		name, _, _ := strings.Cut(v, "=")
		if !slices.Contains(reservedVariables, name) && !strings.HasSuffix(strings.ToUpper(name), "_PROXY") {
			env = append(env, v)
		}
	}
	return env
}

// filesWith returns the host's small files, merged with those of an image.
func filesWith(root *os.Root, users bool) (all []agentprotocol.TextFile) {
	user, group := "user:x:1000:1000:user:/home/user:/bin/sh\n", "user:x:1000:\n"
	if users {
		user, group = "", ""
	}
	for _, t := range systemFiles {
		switch t.Path {
		case "/etc/passwd":
			t.Content = before(user, root, t)
		case "/etc/group":
			t.Content = before(group, root, t)
		case "/etc/nsswitch.conf":
			if _, err := root.Lstat(t.Path[1:]); !errors.Is(err, fs.ErrNotExist) {
				continue
			}
		}
		all = append(all, t)
	}
	return all
}

const largestList = 16 << 10 // bytes of an image's list of users or groups

// before returns an image's list after a line of the host's. If the image's list cannot be read or is too
// long, it returns the host's list alone.
func before(line string, root *os.Root, ours agentprotocol.TextFile) string {
	name := ours.Path[1:]
	info, err := root.Stat(name)
	if err != nil || !info.Mode().IsRegular() || info.Size() > largestList {
		return ours.Content
	}
	b, err := root.ReadFile(name)
	if err != nil || len(b) > largestList {
		return ours.Content
	}
	return line + string(b)
}
