package packages

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"gatehouse/internal/files/atomicfile"
	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/image"
	"gatehouse/tool"
)

// The files in the data folder of an image that has users of its own belong to ids which this process cannot use
// itself, unless it is root. What has to be done with them is done by the agent of a sandbox that has the same users.

const (
	// ownersFile, in the folder of a package, says that files in its data folder belong to users of its image.
	ownersFile = "owners.json"
	// ownedArchive, in the folder of a package, is its data folder with the owners of files, as a backup contains it.
	ownedArchive = "data.tar"

	// replacedData, in the folder of a package, is the data folder while that of a backup takes its place.
	replacedData = "data.replaced"

	// ownedMode lets each user of an image write the data folder, which no other user of this machine can reach.
	ownedMode = 0o777 | fs.ModeSticky

	ownedAt   = "/owned"         // the data folder in such a sandbox
	ownedTime = 30 * time.Minute // for the work in it
)

// ownedFolder is a sandbox for work on the files in a data folder.
type ownedFolder interface {
	sandbox.Sandbox
	sandbox.Files
	sandbox.Archive
	sandbox.OwnedFiles
}

// openOwned opens a data folder. The caller closes it.
func openOwned(ctx context.Context, d sandbox.Driver, dir string) (ownedFolder, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, createTime, errors.New("it took too long to make a sandbox"))
	defer cancel()
	box, err := d.Create(ctx, sandbox.Spec{
		Users:  &sandbox.Users{},
		Mounts: []sandbox.Mount{{From: realPath(dir), To: ownedAt, Write: true, Owned: true}},
	})
	if err != nil {
		return nil, fmt.Errorf("files in %s belong to users of an image: %w", dir, err)
	}
	f, ok := box.(ownedFolder)
	if !ok {
		return nil, errors.Join(errors.ErrUnsupported, box.Close())
	}
	return f, nil
}

// userRange returns nil if images can have users of their own here, and otherwise why not.
func (h *Manager) userRange() error {
	d, err := h.openDriver()
	if err != nil {
		return err
	}
	if r, ok := d.(sandbox.UserRanges); ok {
		return r.UserRange()
	}
	return errors.New("no driver of sandboxes here can do that")
}

// ownUsers returns nil if a package's image has users of its own, and otherwise why it runs as one user. What is
// granted of the machine belongs to a person, and so does what is made there: only one user keeps it so.
func (h *Manager) ownUsers(r *Record) error {
	if g := r.Grants; len(g.Folders)+len(g.Sockets)+len(g.Devices) > 0 || len(r.Image.hostFolders()) > 0 {
		return errors.New("files of this machine are granted to it, and what it makes there belongs to their owner")
	}
	return h.userRange()
}

// imageUsers returns the ids with which the program of an image starts; nil if it runs as one user.
func (p *managedPackage) imageUsers(r *Record, im *sandbox.Image, pulled image.Pulled) (*sandbox.Users, error) {
	if p.manager.ownUsers(r) != nil {
		return nil, nil
	}
	user := pulled.Config.User
	if r.Image != nil {
		user = cmp.Or(r.Image.User, user)
	}
	u, err := image.FindUser(im.Root, user)
	if err != nil {
		return nil, invalid("the image is run as user %q: %v", shorten(user, 100), err)
	}
	return &sandbox.Users{UID: u.UID, GID: u.GID, Groups: u.Groups}, nil
}

// hasOwners reports whether files in the data folder belong to users of the image.
func (p *managedPackage) hasOwners() bool { return fileExists(filepath.Join(p.folder(), ownersFile)) }

func fileExists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// prepareOwners makes the files in the data folder ready for the users of an image, or for one user if users is nil.
// p.owners is held.
func (p *managedPackage) prepareOwners(users *sandbox.Users) error {
	had := p.hasOwners()
	switch {
	case users != nil:
		if err := errors.Join(os.Chmod(p.data(), ownedMode), p.restoreOwned(had)); err != nil {
			return err
		}
		if had {
			return nil
		}
		if err := atomicfile.Write(filepath.Join(p.folder(), ownersFile), []byte("{\"users\":true}\n")); err != nil {
			return err
		}
		return p.chownData(users, false)
	case had:
		if err := p.manager.userRange(); err != nil {
			return &tool.Refusal{
				Code: tool.CodeUnavailable,
				Message: fmt.Sprintf("the data of package %s belong to users of its image, which it cannot have any more: %v",
					p.id, err),
				Next: "Make these users possible again; gatehouse doctor says how.",
			}
		}
		if err := errors.Join(p.restoreOwned(true), p.chownData(&sandbox.Users{}, true)); err != nil {
			return err
		}
		return errors.Join(os.Chmod(p.data(), 0o700), os.Remove(filepath.Join(p.folder(), ownersFile)))
	}
	return nil
}

// restoreOwned unpacks the data folder of a restored backup. had says that its files belong to users of the image.
func (p *managedPackage) restoreOwned(had bool) error {
	from := filepath.Join(p.folder(), ownedArchive)
	if !had || !fileExists(from) {
		return nil
	}
	f, err := os.Open(from)
	if err != nil {
		return err
	}
	defer f.Close()
	before := filepath.Join(p.folder(), replacedData)
	if !fileExists(before) { // otherwise it was interrupted
		if err := os.Rename(p.data(), before); err != nil {
			return err
		}
	}
	if err := errors.Join(p.removeOwned(p.data()), os.Mkdir(p.data(), 0o700)); err != nil {
		return err
	}
	err = p.workOwned(func(ctx context.Context, box ownedFolder) error { return box.Unpack(ctx, ownedAt, f) })
	if err != nil {
		return fmt.Errorf("unpack the restored data: %w", err)
	}
	return errors.Join(os.Chmod(p.data(), ownedMode), makeHome(p.data()), os.Remove(from), p.removeOwned(before))
}

// workOwned does work on the data folder of a package.
func (p *managedPackage) workOwned(work func(context.Context, ownedFolder) error) error {
	d, err := p.manager.openDriver()
	if err == nil && d == nil {
		err = errClosing
	}
	if err != nil {
		return err
	}
	return withOwned(p.manager.ctx, d, p.data(), work)
}

func withOwned(
	ctx context.Context, d sandbox.Driver, dir string, work func(context.Context, ownedFolder) error,
) error {
	ctx, cancel := context.WithTimeoutCause(ctx, ownedTime, errors.New("it took too long"))
	defer cancel()
	box, err := openOwned(ctx, d, dir)
	if err != nil {
		return err
	}
	return errors.Join(work(ctx, box), box.Close())
}

// chownData gives what is in the data folder and its volumes to a user: what belongs to user 0 or, with all,
// everything. The folders themselves stay this process's, which has to find its way through them.
func (p *managedPackage) chownData(to *sandbox.Users, all bool) error {
	if to.UID == 0 && to.GID == 0 && !all {
		return nil
	}
	var names []string
	for _, dir := range []string{"", volumes} {
		entries, err := os.ReadDir(filepath.Join(p.data(), dir))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		for _, e := range entries {
			if name := path.Join(dir, e.Name()); name != volumes {
				names = append(names, name)
			}
		}
	}
	if len(names) == 0 {
		return nil
	}
	return p.workOwned(func(ctx context.Context, box ownedFolder) error {
		for _, name := range names {
			if err := box.Chown(ctx, path.Join(ownedAt, name), to.UID, to.GID, all); err != nil {
				return err
			}
		}
		return nil
	})
}

// chownVolume gives the files of a new volume to their owners in the image, and what is root's there to the user with
// which the program starts.
func (p *managedPackage) chownVolume(name, at string, owners map[string]string, users *sandbox.Users) error {
	type change struct {
		path     string
		uid, gid uint32
	}
	var changes []change
	for _, member := range slices.Backward(slices.Sorted(maps.Keys(owners))) { // what is deeper comes first
		uid, gid, err := parseOwner(owners[member])
		if err != nil {
			return err
		}
		if within(at, member) {
			changes = append(changes, change{path.Join(ownedAt, name, strings.TrimPrefix(member, at)), uid, gid})
		}
	}
	if users.UID != 0 {
		changes = append(changes, change{path.Join(ownedAt, name), users.UID, users.GID})
	}
	if len(changes) == 0 {
		return nil
	}
	return p.workOwned(func(ctx context.Context, box ownedFolder) error {
		for _, c := range changes {
			if err := box.Chown(ctx, c.path, c.uid, c.gid, false); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
		return nil
	})
}

func parseOwner(text string) (uid, gid uint32, err error) {
	user, group, _ := strings.Cut(text, ":")
	u, err1 := strconv.ParseUint(user, 10, 16)
	g, err2 := strconv.ParseUint(group, 10, 16)
	return uint32(u), uint32(g), errors.Join(err1, err2)
}

// dataSize returns the bytes of the files in the data folder.
func (p *managedPackage) dataSize(ctx context.Context) (size int64, err error) {
	if os.Geteuid() == 0 || !p.hasOwners() {
		return folderSize(ctx, p.data())
	}
	err = p.workOwned(func(ctx context.Context, box ownedFolder) error {
		size, err = box.TreeSize(ctx, ownedAt)
		return err
	})
	return size, err
}

// removeOwned removes a file or folder in the folder of a package, also if files in it belong to users of the image.
func (p *managedPackage) removeOwned(path string) error {
	err := os.RemoveAll(path)
	if !errors.Is(err, fs.ErrPermission) || !p.hasOwners() {
		return err
	}
	d, err := p.manager.openDriver()
	if err == nil && d == nil {
		err = errClosing
	}
	if err != nil {
		return err
	}
	return removeOwned(context.WithoutCancel(p.manager.ctx), d, path)
}

func removeOwned(ctx context.Context, d sandbox.Driver, dir string) error {
	err := withOwned(ctx, d, dir, func(ctx context.Context, box ownedFolder) error {
		for {
			entries, more, err := box.List(ctx, ownedAt, "", 0)
			for _, e := range entries {
				if err == nil {
					err = box.Remove(ctx, path.Join(ownedAt, e.Name), true)
				}
			}
			if err != nil || !more {
				return err
			}
		}
	})
	return errors.Join(err, os.RemoveAll(dir))
}

// OwnedData returns the data folders, below the folder of packages, whose files belong to users of images.
func OwnedData(folder string) (dirs []string) {
	found, _ := filepath.Glob(filepath.Join(folder, "*", ownersFile))
	for _, f := range found {
		dirs = append(dirs, filepath.Join(filepath.Dir(f), dataFolder))
	}
	return dirs
}

// PackOwned packs the folders of OwnedData with the owners of their files, each as a file in the folder to, and returns
// these by their paths below the folder of packages, at which a restore puts them. What cannot be packed is logged.
func PackOwned(
	ctx context.Context, d sandbox.Driver, folder, to string, log *slog.Logger,
) (files map[string]string, err error) {
	files = map[string]string{}
	for _, dir := range OwnedData(folder) {
		id := filepath.Base(filepath.Dir(dir))
		file := filepath.Join(to, "owned-"+id+".tar")
		out, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err != nil {
			return nil, err
		}
		err = errors.Join(withOwned(ctx, d, dir, func(ctx context.Context, box ownedFolder) error {
			return box.Pack(ctx, ownedAt, out)
		}), out.Close())
		if err != nil {
			log.Warn("the data of a package are not in the backup", "package", id, "err", err)
			continue
		}
		files[path.Join(id, ownedArchive)] = file
	}
	return files, nil
}

// RemoveOwned removes a folder with folders of packages in it, of whose data some may belong to users of images.
func RemoveOwned(ctx context.Context, d sandbox.Driver, folder string) error {
	err := filepath.WalkDir(folder, func(at string, e fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrPermission) || errors.Is(err, fs.ErrNotExist):
			return nil // it is in a data folder, and removed with it
		case err == nil && e.Name() == ownersFile:
			for _, name := range []string{dataFolder, replacedData} {
				if dir := filepath.Join(filepath.Dir(at), name); fileExists(dir) {
					err = errors.Join(err, removeOwned(ctx, d, dir))
				}
			}
		}
		return err
	})
	return errors.Join(err, os.RemoveAll(folder))
}
