//go:build linux && (amd64 || arm64)

package agent

import (
	"errors"
	"os"
	"slices"

	"gatehouse/internal/sandbox/agentprotocol"

	"golang.org/x/sys/unix"
)

// baseWork is the file system of the writable folders and of the layer over an image, seen from the root that the layer
// makes while the sandbox is set up.
const baseWork = "../work"

func baseTrees(p agentprotocol.Plan) []agentprotocol.Tree {
	if p.Base.To == "" {
		return nil
	}
	return []agentprotocol.Tree{p.Base}
}

// layBase mounts an image with a writable layer over it, which ends with the sandbox, and enters it. The working
// directory is the file system of newRoot. Names of the image may be links, which are replaced, not followed.
func layBase(image int, p agentprotocol.Plan) error {
	if err := errors.Join(os.Mkdir("root", 0o755), os.Mkdir("work", 0o755)); err != nil {
		return err
	}
	if err := mountWork("work", p); err != nil {
		return err
	}
	if err := errors.Join(os.Mkdir("work/upper", 0o755), os.Mkdir("work/changing", 0o755)); err != nil {
		return err
	}
	if err := attachTree(image, "/image"); err != nil {
		return err
	}
	err := unix.Mount("overlay", "root", "overlay", unix.MS_NOSUID|unix.MS_NODEV,
		"lowerdir=image,upperdir=work/upper,workdir=work/changing,userxattr")
	if err != nil {
		return sysErr("mount", agentprotocol.RootLayer, err)
	}
	if err := unix.Unmount("image", unix.MNT_DETACH); err != nil { // the layer has a copy of the mount
		return sysErr("umount2", "image", err)
	}
	if err := unix.Chdir("root"); err != nil {
		return sysErr("chdir", "root", err)
	}
	for _, dir := range []string{"dev", "proc", "sys", "run", "tmp", "home/user", "var/tmp"} {
		if err := ensureFolder(dir); err != nil {
			return err
		}
	}
	if err := unix.Mount("tmpfs", "dev", "tmpfs", unix.MS_NOSUID|unix.MS_NOEXEC, "mode=755,size=65536"); err != nil {
		return sysErr("mount", "tmpfs of /dev", err)
	}
	if err := overwriteFiles(p.Files); err != nil || p.Range {
		return err
	}
	made := []string{".", "run", "home", "var"} // the one user of the sandbox owns the files of the image, and these as well
	for _, f := range p.Files {
		made = append(made, inside(f.Path))
	}
	for _, name := range made {
		if err := unix.Lchown(name, int(p.UID), int(p.GID)); err != nil {
			return sysErr("lchown", name, err)
		}
	}
	return nil
}

// writablePaths returns where programs may write.
func writablePaths(p agentprotocol.Plan) []string {
	if p.Base.To != "" {
		return []string{"/"} // what can only be read is mounted so
	}
	return slices.Concat(writableFolders, writableMounts(p.Mounts))
}
