package packages

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"gatehouse/tool"
)

// digest returns a digest of what a package runs, which is the same wherever the same is installed: of
// packages of npm and PyPI the versions and checksums of the package and all it needs, of a program of this machine its
// file, and of any other program its files. It is "" for a server that runs elsewhere.
func (p *managedPackage) digest(ctx context.Context, r *Record) (string, error) {
	sum := sha256.New()
	switch {
	case r.Source.IsRemote():
		return "", nil
	case r.Source.Kind == OCI:
		return r.Digest, nil
	case r.Source.Kind == Command:
		path, err := lookPath(p.expand(r, r.Command))
		if err != nil {
			return "", nil // the attempt to start it says why
		}
		f, err := os.Open(path)
		if err != nil {
			return "", nil // a program may be started and not be read
		}
		defer f.Close()
		if _, err := io.Copy(sum, f); err != nil {
			return "", fmt.Errorf("digest of %s: %w", path, err)
		}
	case r.Source.Kind == NPM:
		if err := digestNPM(sum, filepath.Join(p.folder(), programTop(r.Program), "package-lock.json")); err != nil {
			return "", err
		}
	case r.Source.Kind == PyPI:
		lines, err := readPyPILock(filepath.Join(p.folder(), programTop(r.Program)))
		if err != nil {
			return "", err
		}
		fmt.Fprintf(sum, "%q", lines)
	default:
		if err := digestTree(ctx, sum, r.program(p.folder())); err != nil {
			return "", fmt.Errorf("digest of the program: %w", err)
		}
	}
	return "sha256:" + hex.EncodeToString(sum.Sum(nil)), nil
}

// digestNPM adds the packages of a lock file of npm, without the addresses they came from, which differ by
// registry.
func digestNPM(sum hash.Hash, path string) error {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var lock struct {
		Packages map[string]struct {
			Version   string `json:"version"`
			Integrity string `json:"integrity"`
		} `json:"packages"`
	}
	if err == nil {
		err = json.Unmarshal(b, &lock)
	}
	if err != nil {
		return fmt.Errorf("npm's lock file: %w", err)
	}
	for _, name := range slices.Sorted(maps.Keys(lock.Packages)) {
		if name != "" {
			fmt.Fprintf(sum, "%q %q %q\n", name, lock.Packages[name].Version, lock.Packages[name].Integrity)
		}
	}
	return nil
}

// digestTree adds the files of a folder: path, whether they can be executed, and content.
func digestTree(ctx context.Context, sum hash.Hash, dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	return fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case d.Type()&fs.ModeSymlink != 0:
			to, err := root.Readlink(filepath.FromSlash(name))
			fmt.Fprintf(sum, "%q -> %q\n", name, to)
			return err
		case !d.Type().IsRegular():
			return nil
		}
		f, err := root.Open(filepath.FromSlash(name))
		if err != nil {
			return err
		}
		defer f.Close()
		info, err := f.Stat()
		if err != nil {
			return err
		}
		one := sha256.New()
		if _, err := io.Copy(one, f); err != nil {
			return err
		}
		fmt.Fprintf(sum, "%q %v %x\n", name, info.Mode()&0o100 != 0, one.Sum(nil))
		return nil
	})
}

// checkDigest refuses a program that is another than a lock file says.
func (plan *Plan) checkDigest(digest string) error {
	if plan.Expect == nil || plan.Expect.Digest == "" || plan.Expect.Digest == digest {
		return nil
	}
	return &tool.Refusal{
		Code: tool.CodeDenied,
		Message: fmt.Sprintf("package %s: the program that was fetched has the digest %s, and the lock file says %s",
			plan.ID, digest, plan.Expect.Digest),
		Next: "Nothing was installed. If the source may have changed, write the lock file again where it was approved: " +
			"gatehouse package lock.",
	}
}
