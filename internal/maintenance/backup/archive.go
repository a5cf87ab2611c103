package backup

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"

	"filippo.io/age"
	"github.com/klauspost/compress/zstd"
)

const (
	format = 1
	// formatPackages is the format of a backup of packages only. It has a number of
	// its own so that older releases refuse it: they would replace everything with it.
	formatPackages = 2

	manifestName = "manifest.json"
	maxManifest  = 256 << 20
	maxTail      = 1 << 20  // bytes after the last file
	maxWindow    = 32 << 20 // bytes, of zstd, because the backup may be hostile
)

// Manifest lists the content of a backup.
type Manifest struct {
	Format  int       `json:"format"`
	Created time.Time `json:"created"`
	Host    Host      `json:"host"`
	Version string    `json:"version"` // of the program that created it
	Files   []File    `json:"files"`
	// Packages are the records of the packages in the backup by id, as the host
	// stores them. Backups of earlier releases have none.
	Packages map[string]json.RawMessage `json:"packages,omitempty"`
}

// OfPackages reports whether the backup holds packages only.
func (m *Manifest) OfPackages() bool { return m.Format == formatPackages }

// Bytes returns the total size of the files.
func (m *Manifest) Bytes() (n int64) {
	for _, f := range m.Files {
		n += f.Size
	}
	return n
}

// Below is an entry of a folder in a backup.
type Below struct {
	Name string // of a folder, with a slash at the end
	Size int64  // bytes of the file, or of all files below the folder
}

// Folder returns the entries of a folder, unsorted; path "" means the top. It
// returns none if the folder does not exist.
func (m *Manifest) Folder(path string) []Below {
	if path != "" {
		path += "/"
	}
	size := map[string]int64{}
	for _, f := range m.Files {
		rest, ok := strings.CutPrefix(f.Member(), path)
		if !ok {
			continue
		}
		if name, _, folder := strings.Cut(rest, "/"); folder {
			rest = name + "/"
		}
		size[rest] += f.Size
	}
	var all []Below
	for name, n := range size {
		all = append(all, Below{name, n})
	}
	return all
}

// validate returns an error for a manifest that this program does not write.
func (m *Manifest) validate() error {
	if m.Format != format && !m.OfPackages() {
		return fmt.Errorf(
			"the backup has format %d, but this release reads %d and %d: restore it with release %.40q, "+
				"which created it",
			m.Format,
			format,
			formatPackages,
			m.Version,
		)
	}
	seen := make(map[string]bool, len(m.Files))
	for id := range m.Packages {
		if !packageID.MatchString(id) {
			return fmt.Errorf("%w: it names the package %.100q, which is not a valid id", ErrDamaged, id)
		}
	}
	for _, f := range m.Files {
		member := f.Member()
		known := f.Folder == dataFolder || f.Folder == configFolder || f.Folder == stateFolder ||
			f.Folder == keyFolder && f.Path == keyFolder
		if !known || !fs.ValidPath(f.Path) || f.Path == "." || f.Size < 0 || seen[member] || ours(f.Path) ||
			m.OfPackages() && !m.inPackage(f) {
			return fmt.Errorf("%w: it names the file %.100q, which no backup may hold", ErrDamaged, member)
		}
		seen[member] = true
	}
	return nil
}

// Member returns the name of a file in a backup: its folder, a slash and its path.
func (f File) Member() string { return f.Folder + "/" + f.Path }

// writeArchive writes a backup to w.
func writeArchive(
	ctx context.Context, w io.Writer, to []age.Recipient, m *Manifest, c *collection, progress Progress,
) error {
	sealed, err := age.Encrypt(w, to...)
	if err != nil {
		return err
	}
	packed, err := zstd.NewWriter(sealed, zstd.WithEncoderConcurrency(1))
	if err != nil {
		return err
	}
	defer packed.Close() // ends its goroutines
	files := tar.NewWriter(packed)
	head, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if err := addMember(files, manifestName, int64(len(head)), m.Created, bytes.NewReader(head)); err != nil {
		return err
	}
	done := int64(0)
	for i, f := range m.Files {
		progress.report(PhaseWrite, done, c.bytes)
		if err := addFile(ctx, files, f, c.from[i],
			func(n int64) { progress.report(PhaseWrite, done+n, c.bytes) }); err != nil {
			return err
		}
		done += f.Size
	}
	progress.report(PhaseWrite, c.bytes, c.bytes)
	for _, end := range []io.Closer{files, packed, sealed} {
		if err := end.Close(); err != nil {
			return err
		}
	}
	return nil
}

func addFile(ctx context.Context, to *tar.Writer, f File, from string, seen func(int64)) error {
	file, err := os.Open(from)
	if err != nil {
		return err
	}
	defer file.Close()
	read := &telling{r: &interruptible{ctx, file}, told: seen}
	err = addMember(to, f.Member(), f.Size, f.Modified, io.LimitReader(read, f.Size))
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%s became shorter during the backup; try again", from)
	}
	return err
}

type telling struct {
	r    io.Reader
	n    int64
	told func(int64)
}

func (t *telling) Read(p []byte) (int, error) {
	n, err := t.r.Read(p)
	t.n += int64(n)
	t.told(t.n)
	return n, err
}

func addMember(to *tar.Writer, name string, size int64, modified time.Time, from io.Reader) error {
	if err := to.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: size, Mode: 0o600,
		ModTime: modified.Truncate(time.Second), Format: tar.FormatPAX}); err != nil {
		return err
	}
	n, err := io.Copy(to, from)
	if err == nil && n < size {
		err = io.ErrUnexpectedEOF
	}
	return err
}

// archive reads a backup.
type archive struct {
	manifest *Manifest
	packed   *zstd.Decoder
	files    *tar.Reader
	at       int
}

// openArchive decrypts a backup and reads its manifest.
func openArchive(r io.Reader, key Key) (*archive, error) {
	by, err := key.identities()
	if err != nil {
		return nil, err
	}
	return openArchiveWith(r, by...)
}

func openArchiveWith(r io.Reader, by ...age.Identity) (*archive, error) {
	plain, err := age.Decrypt(r, by...)
	if _, wrong := errors.AsType[*age.NoIdentityMatchError](err); wrong {
		return nil, ErrPassword
	}
	if err != nil {
		return nil, broken(err)
	}
	return openPlain(plain)
}

// openPlain reads the manifest of a decrypted backup.
func openPlain(plain io.Reader) (a *archive, err error) {
	a = &archive{}
	if a.packed, err = zstd.NewReader(plain, zstd.WithDecoderConcurrency(1),
		zstd.WithDecoderMaxWindow(maxWindow)); err != nil {
		return nil, broken(err)
	}
	a.files = tar.NewReader(a.packed)
	if err := a.readManifest(); err != nil {
		a.closeArchive()
		return nil, err
	}
	return a, nil
}

// broken returns an error that matches ErrDamaged, unless err is the end of a context.
func broken(err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrDamaged, err)
}

func (a *archive) readManifest() error {
	h, err := a.files.Next()
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return broken(err)
	}
	if h.Name != manifestName || h.Size > maxManifest {
		return fmt.Errorf("%w: its first member is not %s", ErrDamaged, manifestName)
	}
	a.manifest = &Manifest{}
	if err := json.NewDecoder(io.LimitReader(a.files, maxManifest)).Decode(a.manifest); err != nil {
		return broken(err)
	}
	return a.manifest.validate()
}

// nextFile returns the next file, which must be the next one of the manifest. It returns
// io.EOF after the last file if the stream ends correctly.
func (a *archive) nextFile() (File, io.Reader, error) {
	h, err := a.files.Next()
	if errors.Is(err, io.EOF) && a.at == len(a.manifest.Files) {
		// age authenticates the end of the stream only when it is read.
		n, err := io.Copy(io.Discard, io.LimitReader(a.packed, maxTail))
		if err == nil && n == maxTail {
			err = errors.New("data follows the last file")
		}
		if err != nil {
			return File{}, nil, broken(err)
		}
		return File{}, nil, io.EOF
	}
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return File{}, nil, broken(err)
	}
	if a.at == len(a.manifest.Files) {
		return File{}, nil, fmt.Errorf("%w: it holds %.100q, which its manifest does not name", ErrDamaged, h.Name)
	}
	f := a.manifest.Files[a.at]
	if a.at++; h.Name != f.Member() || h.Size != f.Size || h.Typeflag != tar.TypeReg {
		return File{}, nil, fmt.Errorf(
			"%w: it holds %.100q, expected %.100q of its manifest",
			ErrDamaged,
			h.Name,
			f.Member(),
		)
	}
	return f, a.files, nil
}

// member is a file of an archive. Its read errors match ErrDamaged.
type member struct{ r io.Reader }

func (m *member) Read(p []byte) (int, error) {
	n, err := m.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = broken(err)
	}
	return n, err
}

func (a *archive) closeArchive() { a.packed.Close() }
