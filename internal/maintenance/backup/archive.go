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
	// formatPackages is that of a backup of packages alone. A release that knows
	// nothing of them would put it in the place of everything, so it has to refuse.
	formatPackages = 2

	manifestName = "manifest.json"
	maxManifest  = 256 << 20
	maxTail      = 1 << 20  // behind the last file
	maxWindow    = 32 << 20 // of zstd, while reading what somebody else made
)

// Manifest says what is in a backup.
type Manifest struct {
	Format  int       `json:"format"`
	Created time.Time `json:"created"`
	Host    Host      `json:"host"`
	Version string    `json:"version"` // of the program that made it
	Files   []File    `json:"files"`
	// Packages are the records of the packages in it, by id, as the host keeps
	// them. Backups of earlier releases have none.
	Packages map[string]json.RawMessage `json:"packages,omitempty"`
}

// OfPackages reports whether it holds packages alone.
func (m *Manifest) OfPackages() bool { return m.Format == formatPackages }

// Bytes is how much the files hold.
func (m *Manifest) Bytes() (n int64) {
	for _, f := range m.Files {
		n += f.Size
	}
	return n
}

// Below is what lies directly in a folder of a backup.
type Below struct {
	Name string // with a slash at the end where it is a folder
	Size int64  // bytes of the file, or of all files below the folder
}

// Folder gives what lies in a folder, in no order; path "" means the top. It is
// empty where there is no such folder.
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

// check refuses what this program would not have written.
func (m *Manifest) check() error {
	if m.Format != format && !m.OfPackages() {
		return fmt.Errorf("the backup has format %d and this release reads %d and %d: use the release that made it, %.40q", m.Format, format, formatPackages, m.Version)
	}
	seen := make(map[string]bool, len(m.Files))
	for id := range m.Packages {
		if !packageID.MatchString(id) {
			return fmt.Errorf("%w: it holds a package %.100q that cannot be", ErrDamaged, id)
		}
	}
	for _, f := range m.Files {
		member := f.Member()
		known := f.Folder == dataFolder || f.Folder == configFolder || f.Folder == stateFolder || f.Folder == keyFolder && f.Path == keyFolder
		if !known || !fs.ValidPath(f.Path) || f.Path == "." || f.Size < 0 || seen[member] || ours(f.Path) || m.OfPackages() && !m.inPackage(f) {
			return fmt.Errorf("%w: it holds a file %.100q that cannot be", ErrDamaged, member)
		}
		seen[member] = true
	}
	return nil
}

// Member is the name of a file in a backup: its folder, a slash and its path.
func (f File) Member() string { return f.Folder + "/" + f.Path }

// write writes a backup to w.
func write(ctx context.Context, w io.Writer, to []age.Recipient, m *Manifest, c *collection, tell Tell) error {
	sealed, err := age.Encrypt(w, to...)
	if err != nil {
		return err
	}
	packed, err := zstd.NewWriter(sealed, zstd.WithEncoderConcurrency(1))
	if err != nil {
		return err
	}
	defer packed.Close() // it has goroutines
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
		tell.say(PhaseWrite, done, c.bytes)
		if err := addFile(ctx, files, f, c.from[i], func(n int64) { tell.say(PhaseWrite, done+n, c.bytes) }); err != nil {
			return err
		}
		done += f.Size
	}
	tell.say(PhaseWrite, c.bytes, c.bytes)
	for _, end := range []io.Closer{files, packed, sealed} {
		if err := end.Close(); err != nil {
			return err
		}
	}
	return nil
}

func addFile(ctx context.Context, to *tar.Writer, f File, from string, told func(int64)) error {
	file, err := os.Open(from)
	if err != nil {
		return err
	}
	defer file.Close()
	read := &telling{r: &interruptible{ctx, file}, told: told}
	err = addMember(to, f.Member(), f.Size, f.Modified, io.LimitReader(read, f.Size))
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%s became shorter while it was read; try again", from)
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
	if err := to.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: size, Mode: 0o600, ModTime: modified.Truncate(time.Second), Format: tar.FormatPAX}); err != nil {
		return err
	}
	n, err := io.Copy(to, from)
	if err == nil && n < size {
		err = io.ErrUnexpectedEOF
	}
	return err
}

// archive is a backup that is read.
type archive struct {
	manifest *Manifest
	packed   *zstd.Decoder
	files    *tar.Reader
	at       int
}

// openArchive reads the beginning of a backup.
func openArchive(r io.Reader, key Key) (*archive, error) {
	by, err := key.identities()
	if err != nil {
		return nil, err
	}
	plain, err := age.Decrypt(r, by...)
	if _, wrong := errors.AsType[*age.NoIdentityMatchError](err); wrong {
		return nil, ErrPassword
	}
	if err != nil {
		return nil, broken(err)
	}
	return openPlain(plain)
}

// openPlain is openArchive for what was decrypted.
func openPlain(plain io.Reader) (a *archive, err error) {
	a = &archive{}
	if a.packed, err = zstd.NewReader(plain, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow)); err != nil {
		return nil, broken(err)
	}
	a.files = tar.NewReader(a.packed)
	if err := a.readManifest(); err != nil {
		a.close()
		return nil, err
	}
	return a, nil
}

// broken is an error in a stream: damage, unless whoever reads it was stopped.
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
		return fmt.Errorf("%w: it does not begin with %s", ErrDamaged, manifestName)
	}
	a.manifest = &Manifest{}
	if err := json.NewDecoder(io.LimitReader(a.files, maxManifest)).Decode(a.manifest); err != nil {
		return broken(err)
	}
	return a.manifest.check()
}

// next gives the next file, which must be the one the manifest names; io.EOF
// after the last, when the stream has ended as it should.
func (a *archive) next() (File, io.Reader, error) {
	h, err := a.files.Next()
	if errors.Is(err, io.EOF) && a.at == len(a.manifest.Files) {
		// The rest has to be read for its end to be known as the true one.
		n, err := io.Copy(io.Discard, io.LimitReader(a.packed, maxTail))
		if err == nil && n == maxTail {
			err = errors.New("it does not end")
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
		return File{}, nil, fmt.Errorf("%w: it holds %.100q, which its beginning does not name", ErrDamaged, h.Name)
	}
	f := a.manifest.Files[a.at]
	if a.at++; h.Name != f.Member() || h.Size != f.Size || h.Typeflag != tar.TypeReg {
		return File{}, nil, fmt.Errorf("%w: it holds %.100q where %.100q was promised", ErrDamaged, h.Name, f.Member())
	}
	return f, a.files, nil
}

// member is a file of an archive: what cannot be read of it is damage.
type member struct{ r io.Reader }

func (m *member) Read(p []byte) (int, error) {
	n, err := m.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = broken(err)
	}
	return n, err
}

func (a *archive) close() { a.packed.Close() }
