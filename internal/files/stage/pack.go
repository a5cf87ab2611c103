package stage

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"gatehouse/internal/files/filelock"
)

// A task is packed as one file, because a backup has regular files alone: an archive (tar, with the extended attributes
// as records named as other programs name them) of the task's folder, with the whiteouts of deleted names.
const (
	packedPrefix = "restored-" // and the ID of the task, and packedSuffix: in the folder of the tasks
	packedSuffix = ".tar"
	unpacking    = ".unpack-" // and the ID: a folder that is being filled
	mostPacked   = 5_000_000  // names in one archive
)

// Pack packs the tasks in dir, each as a file in the folder to, and returns these by the name under which Unpack finds
// them in dir. What a running call writes meanwhile may be in it in part. A task that cannot be packed is logged and
// left out.
func Pack(ctx context.Context, dir, to string, log *slog.Logger) (files map[string]string, err error) {
	m := New(Options{Dir: dir, Log: log})
	list, err := m.List(true)
	if err != nil {
		return nil, err
	}
	files = map[string]string{}
	for _, t := range list {
		name := packedPrefix + t.ID + packedSuffix
		file := filepath.Join(to, name)
		err := m.locked(t.ID, func(t *Task, _ bool) error { return t.pack(ctx, file) })
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if err != nil {
			log.Error("a staged task is not in the backup", "task", t.ID, "err", err)
			os.Remove(file)
			continue
		}
		files[name] = file
	}
	return files, nil
}

// Unpack unpacks the tasks that a restored backup has put into dir. A task that is there already stays as it is. One
// that cannot be unpacked is logged, and its archive is kept under another name. A crash in between loses nothing: the
// next call begins again.
func Unpack(dir string, log *slog.Logger) error {
	packed, err := filepath.Glob(filepath.Join(dir, packedPrefix+"*"+packedSuffix))
	if err != nil || len(packed) == 0 {
		return err
	}
	lock, err := filelock.Try(filepath.Join(dir, "unpack.lock"), filelock.Exclusive)
	if errors.Is(err, filelock.ErrHeld) {
		return nil // another host unpacks them
	}
	if err != nil {
		return err
	}
	defer lock.Release()
	for _, file := range packed {
		id := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(file), packedPrefix), packedSuffix)
		final := filepath.Join(dir, id)
		if _, err := os.Lstat(final); err == nil && strings.HasPrefix(id, "st_") {
			log.Warn("a staged task of the backup is left out: the task is there", "task", id)
		} else if err := unpackTo(dir, id, file); err != nil {
			log.Error("a staged task of the backup cannot be unpacked", "task", id, "err", err)
			if err := os.Rename(file, file+".damaged"); err != nil {
				return err
			}
			continue
		} else {
			log.Info("staged task restored", "task", id)
		}
		if err := os.Remove(file); err != nil {
			return err
		}
	}
	return nil
}

// unpackTo unpacks one task, so that its folder is complete or absent after a crash.
func unpackTo(dir, id, file string) error {
	if !strings.HasPrefix(id, "st_") {
		return fmt.Errorf("%q is no ID of a task", id)
	}
	temp := filepath.Join(dir, unpacking+id)
	if err := errors.Join(os.RemoveAll(temp), os.Mkdir(temp, 0o700)); err != nil {
		return err
	}
	root, err := os.OpenRoot(temp)
	if err != nil {
		return err
	}
	err = errors.Join(unpack(root, file), root.Close())
	if err == nil {
		if _, err = os.Stat(filepath.Join(temp, taskFile)); err != nil {
			err = errors.New("the archive has no task")
		}
	}
	if err != nil {
		return errors.Join(err, os.RemoveAll(temp))
	}
	if err := syncFileSystem(dir); err != nil {
		return err
	}
	if err := os.Rename(temp, filepath.Join(dir, id)); err != nil {
		return err
	}
	return syncFileSystem(dir)
}
