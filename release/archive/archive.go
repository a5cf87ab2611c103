// Package archive writes archives whose bytes follow from their content alone:
// files in order of their names, one time, no owners.
package archive

import (
	"archive/tar"
	"archive/zip"
	"cmp"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/klauspost/compress/flate"
	"github.com/klauspost/compress/gzip"
)

// Level is how much archives are compressed: 9 for the smallest, 1 for the fastest.
type Level int

// File is a file of an archive. A name that ends with a slash is a folder.
type File struct {
	Name string // with slashes
	Mode fs.FileMode
	Body []byte
	Link string // what a symbolic link leads to; "" for all other files; tar archives alone have links
}

// Read reads a file from disk. Its mode is 0755 for programs, or else 0644.
func Read(name, from string, program bool) (File, error) {
	body, err := os.ReadFile(from)
	f := File{Name: name, Mode: 0o644, Body: body}
	if program {
		f.Mode = 0o755
	}
	return f, err
}

// ReadFolder reads the regular files of a folder and of those below it, with names
// that begin with prefix.
func ReadFolder(prefix, dir string) (all []File, err error) {
	err = filepath.WalkDir(dir, func(at string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(dir, at)
		if err != nil {
			return err
		}
		f, err := Read(path.Join(prefix, filepath.ToSlash(rel)), at, false)
		all = append(all, f)
		return err
	})
	return all, err
}

func sorted(files []File) []File {
	return slices.SortedFunc(slices.Values(files), func(a, b File) int { return cmp.Compare(a.Name, b.Name) })
}

// Tar writes files to w as a tar archive.
func Tar(w io.Writer, files []File, at time.Time) error {
	t := tar.NewWriter(w)
	for _, f := range sorted(files) {
		h := &tar.Header{
			Typeflag: tar.TypeReg,
			Name:     f.Name,
			Mode:     tarMode(f.Mode),
			Size:     int64(len(f.Body)),
			ModTime:  at,
			Format:   tar.FormatUSTAR,
		}
		if len(f.Name) > 100 {
			h.Format = tar.FormatPAX
		}
		if strings.HasSuffix(f.Name, "/") {
			h.Typeflag = tar.TypeDir
		}
		if f.Link != "" {
			h.Typeflag, h.Linkname, h.Mode, h.Format = tar.TypeSymlink, f.Link, 0o777, tar.FormatPAX
		}
		if err := t.WriteHeader(h); err != nil {
			return err
		}
		if _, err := t.Write(f.Body); err != nil {
			return err
		}
	}
	return t.Close()
}

func tarMode(m fs.FileMode) int64 {
	mode := int64(m.Perm())
	if m&fs.ModeSticky != 0 {
		mode |= 0o1000
	}
	return mode
}

// TarGz writes files to a new file as a compressed tar archive.
func TarGz(name string, files []File, at time.Time, l Level) error {
	return create(name, func(w io.Writer) error { return TarGzTo(w, files, at, l) })
}

// TarGzTo writes files to w as a compressed tar archive.
func TarGzTo(w io.Writer, files []File, at time.Time, l Level) error {
	z, err := gzip.NewWriterLevel(w, int(l))
	if err != nil {
		return err
	}
	z.OS = 255 // unknown
	if err := Tar(z, files, at); err != nil {
		return err
	}
	return z.Close()
}

// Zip writes files to a new file as a zip archive.
func Zip(name string, files []File, at time.Time, l Level) error {
	return create(name, func(w io.Writer) error { return zipTo(w, sorted(files), at, l) })
}

func zipTo(w io.Writer, files []File, at time.Time, l Level) error {
	z := zip.NewWriter(w)
	z.RegisterCompressor(zip.Deflate, func(w io.Writer) (io.WriteCloser, error) {
		return flate.NewWriter(w, int(l))
	})
	for _, f := range files {
		h := &zip.FileHeader{Name: f.Name, Method: zip.Deflate, Modified: at.UTC()}
		h.SetMode(f.Mode)
		to, err := z.CreateHeader(h)
		if err != nil {
			return err
		}
		if _, err := to.Write(f.Body); err != nil {
			return err
		}
	}
	return z.Close()
}

// create creates a file, which is removed again if write returns an error.
func create(name string, write func(io.Writer) error) (err error) {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	defer func() {
		if e := f.Close(); err == nil {
			err = e
		}
		if err != nil {
			os.Remove(name)
		}
	}()
	return write(f)
}
