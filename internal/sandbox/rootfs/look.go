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

// Look is what a sandbox looks like: what it shows of the host or of an image,
// read-only. Nothing in an image leads out of it: its links stay links, which
// are followed in the sandbox alone.
type Look struct {
	Trees []sandbox.Tree       // folders and files; To is never empty
	Links []agentprotocol.Text // symbolic links and where they lead
	Texts []agentprotocol.Text // small files of our own
	Env   []string             // for every program, on top of what all sandboxes have
}

// largest is how many bytes a plan may take of the one frame it travels in.
const largest = agentprotocol.MaxBody - 8<<10

// Of is what a sandbox looks like that is asked for like this.
func Of(spec sandbox.Spec) (Look, error) {
	look := Look{Texts: Texts()}
	if spec.Image == nil {
		look.Trees, look.Links = System()
	} else {
		var err error
		if look, err = ofImage(*spec.Image); err != nil {
			return Look{}, err
		}
	}
	for _, t := range spec.Trees {
		if t.To == "" {
			t.To = t.From
		}
		if err := look.fits(t); err != nil {
			return Look{}, err
		}
		look.Trees = append(look.Trees, t)
	}
	return look, nil
}

// fits makes sure that what is to be shown at t.To can be: a link on the way
// there would have to be followed while the sandbox is being made, and then it
// could lead anywhere.
func (l Look) fits(t sandbox.Tree) error {
	to := path.Clean("/" + t.To)
	for _, link := range l.Links {
		if to == link.At || strings.HasPrefix(to, link.At+"/") {
			return fmt.Errorf("%s cannot be shown at %s: %s is a link there, to %s; name the folder it leads to", t.From, t.To, link.At, link.Says)
		}
	}
	for _, under := range l.Trees {
		rest, below := strings.CutPrefix(to, path.Clean("/"+under.To)+"/")
		if !below {
			continue
		}
		if err := walk(under.From, rest); err != nil {
			return fmt.Errorf("%s cannot be shown at %s, which is in a folder that cannot be written to: %w; choose another path, or one that is there", t.From, t.To, err)
		}
	}
	return nil
}

// walk follows a path that has to be there without a link on it.
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
			return fmt.Errorf("%s is a link", rel[:i])
		}
	}
	return nil
}

// ours are the folders of every sandbox that an image has no say in.
var ours = []string{"dev", "proc", "sys", "tmp", "run", ".agent"}

// shared are folders in which both of us have something; what is listed is
// ours.
var shared = map[string][]string{
	"etc":  {"passwd", "group", "hosts", "hostname", "resolv.conf"},
	"home": {"user"},
	"var":  {"tmp"},
}

// named are variables that say what is another way in a sandbox.
var named = []string{"HOME", "USER", "LOGNAME", "PWD", "HOSTNAME"}

// ofImage shows an image. What it has in dev, proc, sys, tmp, run, home/user
// and var/tmp is not seen; of etc the names of the machine are ours, and the
// lists of users and groups have ours before its own.
func ofImage(im sandbox.Image) (Look, error) {
	if !filepath.IsAbs(im.Root) {
		return Look{}, fmt.Errorf("the image %s: its folder is %q, which is no absolute path", im.ID, im.Root)
	}
	root, err := os.OpenRoot(im.Root)
	if err != nil {
		return Look{}, fmt.Errorf("the image %s has no folder to show: %w", im.ID, err)
	}
	defer root.Close()
	look := Look{Env: environmentOf(im), Texts: textsWith(root)}
	if err := look.add(root, im.Root, "."); err != nil {
		return Look{}, fmt.Errorf("the image %s: %w", im.ID, err)
	}
	if len(look.Trees)+len(look.Links) == 0 {
		return Look{}, fmt.Errorf("the image %s is empty: there is nothing in %s", im.ID, im.Root)
	}
	size := 0
	for _, t := range look.Trees {
		size += len(t.From) + len(t.To)
	}
	for _, t := range append(slices.Clone(look.Links), look.Texts...) {
		size += len(t.At) + len(t.Says)
	}
	if size += 24 * (len(look.Trees) + len(look.Links)); size > largest {
		return Look{}, fmt.Errorf("the image %s has too much in /, /etc, /home and /var, %d names: what is directly in these is shown one by one", im.ID, len(look.Trees)+len(look.Links))
	}
	return look, nil
}

// add shows what is in a folder of an image.
func (l *Look) add(root *os.Root, at, folder string) error {
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
		case folder == "." && slices.Contains(ours, name), slices.Contains(shared[folder], e.Name()):
		case opened && e.IsDir():
			err = l.add(root, at, name)
		case opened && len(mine) > 0: // a link: the folder is ours
		case e.Type() == fs.ModeSymlink:
			to, readErr := root.Readlink(name)
			l.Links, err = append(l.Links, agentprotocol.Text{At: "/" + name, Says: to}), readErr
		case e.IsDir(), e.Type().IsRegular():
			l.Trees = append(l.Trees, sandbox.Tree{From: filepath.Join(at, name), To: "/" + name})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// environmentOf is what an image's programs expect, but for what is not as in
// the image.
func environmentOf(im sandbox.Image) (env []string) {
	for _, v := range im.Env {
		name, _, _ := strings.Cut(v, "=")
		if !slices.Contains(named, name) && !strings.HasSuffix(strings.ToUpper(name), "_PROXY") {
			env = append(env, v)
		}
	}
	return env
}

// textsWith are our small files, with what an image has for them.
func textsWith(root *os.Root) (all []agentprotocol.Text) {
	for _, t := range texts {
		switch t.At {
		case "/etc/passwd":
			t.Says = before("user:x:1000:1000:user:/home/user:/bin/sh\n", root, t)
		case "/etc/group":
			t.Says = before("user:x:1000:\n", root, t)
		case "/etc/nsswitch.conf":
			if _, err := root.Lstat(t.At[1:]); !errors.Is(err, fs.ErrNotExist) {
				continue
			}
		}
		all = append(all, t)
	}
	return all
}

const largestList = 16 << 10 // bytes of an image's list of users or groups

// before is an image's list after a line of ours; where the image has none that
// can be read, or an endless one, it is ours alone.
func before(line string, root *os.Root, ours agentprotocol.Text) string {
	name := ours.At[1:]
	info, err := root.Stat(name)
	if err != nil || !info.Mode().IsRegular() || info.Size() > largestList {
		return ours.Says
	}
	b, err := root.ReadFile(name)
	if err != nil || len(b) > largestList {
		return ours.Says
	}
	return line + string(b)
}
