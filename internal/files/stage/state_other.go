//go:build !linux || portable

package stage

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"syscall"
	"time"

	"gatehouse/internal/files/merged"
)

// What is here works on every system by package os alone. A build with the tag portable uses it on Linux, so that the
// suite can be run there.

// coarse is how much older a file's time may be than its change: the longest tick of Windows.
const coarse = 16 * time.Millisecond

// keepsAll means that pipes and the times of links are accepted too.
const keepsAll = false

// manyMost is that of manyOps: there is no sync of a file system, so each file is made durable by itself.
const manyMost = 1 << 40

// fileClock returns a time so that a change that begins later is dated at it or later.
func fileClock() time.Time { return time.Now().Add(-coarse) }

// stateOf returns the state of a name. It reads small files, to compare their content.
func stateOf(root *os.Root, name string) (s State, err error) {
	for range mostReads {
		info, err := root.Lstat(name)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
			return State{Type: None}, nil
		}
		if err != nil {
			return State{}, err
		}
		s = stateIn(info)
		switch s.Type {
		case Link:
			s.Target, err = root.Readlink(name)
			return s, err
		case File:
		default:
			return s, nil
		}
		if s.Size > hashMost {
			nextTick(info.ModTime()) // its time stands for its content, so a later change must get another one
			return s, nil
		}
		if s.Hash, err = hashOf(root, name); err != nil {
			return s, err
		}
		if again, err := root.Lstat(name); err == nil && again.Size() == info.Size() &&
			again.ModTime().Equal(info.ModTime()) && os.SameFile(again, info) {
			return s, nil
		}
	}
	s.Hash = "it changes " + rand.Text() // equals none
	return s, nil
}

// mostReads limits how often a file is read that changes while it is read.
const mostReads = 5

func hashOf(root *os.Root, name string) (string, error) {
	f, err := root.Open(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	_, err = io.Copy(h, io.LimitReader(f, hashMost+1))
	return hex.EncodeToString(h.Sum(nil)), err
}

// openState returns the state of an open file without its content.
func openState(f *os.File) (State, error) {
	info, err := f.Stat()
	if err != nil {
		return State{}, err
	}
	return stateIn(info), nil
}

// stateIn returns what is known of a name without opening it.
func stateIn(info fs.FileInfo) State {
	m := info.Mode()
	s := State{Mode: uint32(m.Perm()), Size: info.Size(), MTime: info.ModTime().UnixNano(), Links: 1}
	s.CTime = s.MTime
	for bit, unix := range map[fs.FileMode]uint32{fs.ModeSetuid: 0o4000, fs.ModeSetgid: 0o2000, fs.ModeSticky: 0o1000} {
		if m&bit != 0 {
			s.Mode |= unix
		}
	}
	switch {
	case m.IsRegular():
		s.Type = File
	case m.IsDir():
		s.Type, s.Size = Folder, 0
	case m&fs.ModeSymlink != 0:
		s.Type = Link
	case m&fs.ModeNamedPipe != 0:
		s.Type = Pipe
	case m&fs.ModeSocket != 0:
		s.Type = Socket
	default:
		s.Type = Device
	}
	fromSystem(&s, info)
	return s
}

// fromSystem adds what Unix systems tell. The fields are read by name, because they differ between systems.
func fromSystem(s *State, info fs.FileInfo) {
	v := reflect.Indirect(reflect.ValueOf(info.Sys()))
	if v.Kind() != reflect.Struct {
		return
	}
	number := func(name string) uint64 {
		switch f := v.FieldByName(name); {
		case !f.IsValid():
		case f.CanUint():
			return f.Uint()
		case f.CanInt():
			return uint64(f.Int())
		}
		return 0
	}
	s.Dev, s.Ino, s.Links = number("Dev"), number("Ino"), max(number("Nlink"), 1)
	s.UID, s.GID = int(number("Uid")), int(number("Gid"))
	for _, name := range []string{"Ctimespec", "Ctim"} {
		if f := v.FieldByName(name); f.IsValid() && f.Kind() == reflect.Struct && f.NumField() >= 2 &&
			f.Field(0).CanInt() && f.Field(1).CanInt() {
			s.CTime = time.Unix(f.Field(0).Int(), f.Field(1).Int()).UnixNano()
		}
	}
}

// dress gives a name, which is open, the mode and the time of a state.
func dress(root *os.Root, name string, f *os.File, s State) error {
	mode := fs.FileMode(s.Mode & 0o777)
	for bit, unix := range map[fs.FileMode]uint32{fs.ModeSetuid: 0o4000, fs.ModeSetgid: 0o2000, fs.ModeSticky: 0o1000} {
		if s.Mode&unix != 0 {
			mode |= bit
		}
	}
	if runtime.GOOS != "windows" || s.Type == File {
		if err := f.Chmod(mode); err != nil {
			return err
		}
	}
	at := time.Unix(0, s.MTime)
	return root.Chtimes(name, at, at)
}

// syncFolder makes the names in an open folder durable, where the system can.
func syncFolder(d *os.File) error {
	if runtime.GOOS == "windows" {
		return nil // it writes names in order
	}
	return d.Sync()
}

// moveNew renames a name to one that does not exist. A name that another program makes meanwhile may be replaced.
func moveNew(root *os.Root, from, to string) error {
	if _, err := root.Lstat(to); err == nil {
		return fs.ErrExist
	}
	return root.Rename(from, to)
}

// sizeOf returns the bytes of the files in a folder.
func sizeOf(dir string) (total int64) {
	filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			if info, err := d.Info(); err == nil {
				total += info.Size()
			}
		}
		return nil
	})
	return total
}

func exchange(*os.Root, string, string) error { return errors.ErrUnsupported }
func makePipe(*os.Root, string, uint32) error {
	return errors.New("a pipe is not copied to the folder here")
}
func linkTime(*os.Root, string, int64) error { return nil }
func clone(to, from *os.File) error          { return merged.CopyContent(to, from) }
func mountsWithin(string) string             { return "" }
func giveTo(string, fs.FileInfo)             {}
func syncFileSystem(string) error            { return nil }

func readDir(d *os.File) ([]fs.DirEntry, error) { return d.ReadDir(-1) }

func attributesOf(*os.File) (map[string][]byte, marks, error) { return nil, marks{}, nil }
