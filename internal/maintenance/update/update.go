// Package update replaces this program with a newer release, and can restore the
// previous one.
//
// A release is a folder, on disk or on a web server, with manifest.json, its
// minisign signature manifest.json.minisig, and the programs that the manifest
// names. Only releases signed with the key of the settings are installed: the
// signature covers the manifest, and the manifest holds the digest of each
// program. The previous program is kept beside the new one. Each change is one
// rename, so that the program's file is complete at every moment.
package update

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/mod/semver"

	"gatehouse/internal/files/atomicfile"
)

// Errors of an Updater.
var (
	ErrNone     = errors.New("there is no newer release")
	ErrNoSource = errors.New("the settings name no source of releases")
	ErrNoBuild  = errors.New("the release has no program for this machine")
	ErrWaiting  = errors.New("the release is already installed; restart the host to run it")
	ErrNoPrior  = errors.New("no earlier program is kept")
	ErrBusy     = errors.New("another update is in progress")
)

// Limits in bytes.
const (
	maxManifest  = 1 << 20
	maxSignature = 4 << 10
	maxProgram   = 1 << 30
)

// Release is the content of a manifest.
type Release struct {
	Version  string    `json:"version"` // such as 1.4.0
	Released time.Time `json:"released"`
	Notes    string    `json:"notes,omitempty"`
	Files    []File    `json:"files"`
}

// File is one program of a release.
type File struct {
	OS     string `json:"os"`   // as Go names it
	Arch   string `json:"arch"` // as Go names it
	Name   string `json:"name"` // in the folder of the manifest
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"`
}

// Options of an Updater. Current, Program and Try are required.
type Options struct {
	Source  string // an absolute folder or a URL; "" for an Updater that only rolls back
	Key     Key    // that releases of Source are signed with
	Current string // the running version
	Program string // the file that is replaced
	// Try runs a program and returns the version that it prints.
	Try func(ctx context.Context, program string) (version string, err error)
}

// Updater replaces one program. Safe for concurrent use.
type Updater struct {
	o    Options
	busy sync.Mutex
}

// New returns an Updater. It does not access the source.
func New(o Options) *Updater { return &Updater{o: o} }

// Progress receives the progress of a phase in bytes. A total of 0 is unknown.
type Progress func(phase string, done, total int64)

// Phases of Apply, in order.
const (
	PhaseCheck    = "check"
	PhaseDownload = "download"
	PhaseTry      = "try"
	PhaseReplace  = "replace"
)

// Check reads the newest release and verifies its signature. newer reports
// whether it is newer than the running program.
func (u *Updater) Check(ctx context.Context) (r Release, newer bool, err error) {
	s, err := openSource(u.o.Source)
	if err != nil {
		return r, false, err
	}
	text, err := readFile(ctx, s, "manifest.json", maxManifest)
	if err != nil {
		return r, false, fmt.Errorf("read the manifest: %w", err)
	}
	signature, err := readFile(ctx, s, "manifest.json.minisig", maxSignature)
	if err != nil {
		return r, false, fmt.Errorf("read the signature of the manifest: %w", err)
	}
	if err := u.o.Key.Verify(text, signature); err != nil {
		return r, false, err
	}
	if err := json.Unmarshal(text, &r); err != nil {
		return r, false, fmt.Errorf("decode the manifest: %w", err)
	}
	if err := r.validate(); err != nil {
		return r, false, err
	}
	order, err := Compare(r.Version, u.o.Current)
	return r, order > 0, err
}

var (
	fileName = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)
	})
	digest = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[0-9a-f]{64}$`) })
)

// validate refuses values that no manifest may hold, even if it is signed.
func (r *Release) validate() error {
	if _, err := parseVersion(r.Version); err != nil {
		return err
	}
	for _, f := range r.Files {
		switch {
		case !fileName().MatchString(f.Name):
			return fmt.Errorf("the manifest names the file %.100q, which is not a valid name", f.Name)
		case !digest().MatchString(f.SHA256):
			return fmt.Errorf("the manifest has no valid SHA-256 digest of %s", f.Name)
		case f.Size <= 0 || f.Size > maxProgram:
			return fmt.Errorf("the manifest gives %s a size of %d bytes; expected 1 to %d", f.Name, f.Size, maxProgram)
		}
	}
	return nil
}

// Compare compares two versions in the order of Semantic Versioning 2.0.0, with or
// without a leading v: it returns -1, 0 or 1.
func Compare(a, b string) (int, error) {
	x, err := parseVersion(a)
	y, e := parseVersion(b)
	return semver.Compare(x, y), errors.Join(err, e)
}

// parseVersion returns a version as package semver wants it, with a leading v. Versions
// with fewer than three numbers are invalid.
func parseVersion(text string) (string, error) {
	v := "v" + strings.TrimPrefix(text, "v")
	if len(v) > 150 || !semver.IsValid(v) || semver.Canonical(v)+semver.Build(v) != v {
		return "", fmt.Errorf("%.60q is not a version; expected one such as 1.4.0", text)
	}
	return v, nil
}

// Apply downloads the newest release, verifies it, runs it for its version, and
// replaces the program with it. The previous program is kept for Rollback. The
// new one runs when the host is restarted. If Apply returns an error, nothing has
// changed.
func (u *Updater) Apply(ctx context.Context, progress Progress) (Release, error) {
	if !u.busy.TryLock() {
		return Release{}, ErrBusy
	}
	defer u.busy.Unlock()
	progress.report(PhaseCheck, 0, 0)
	r, newer, err := u.Check(ctx)
	if err != nil {
		return r, err
	}
	if !newer {
		return r, ErrNone
	}
	i := slices.IndexFunc(r.Files, func(f File) bool { return f.OS == runtime.GOOS && f.Arch == runtime.GOARCH })
	if i < 0 {
		return r, fmt.Errorf("%w (%s/%s)", ErrNoBuild, runtime.GOOS, runtime.GOARCH)
	}
	f := r.Files[i]
	if sum, err := digestOf(u.o.Program); err == nil && sum == f.SHA256 {
		return r, ErrWaiting
	}
	fresh, err := u.download(ctx, f, progress)
	if err != nil {
		return r, err
	}
	defer os.Remove(fresh)
	progress.report(PhaseTry, 0, 0)
	if err := u.try(ctx, fresh, r.Version); err != nil {
		return r, err
	}
	progress.report(PhaseReplace, 0, 0)
	return r, u.replace(fresh)
}

// try runs a program, which must print the version want.
func (u *Updater) try(ctx context.Context, program, want string) error {
	got, err := u.o.Try(ctx, program)
	if err != nil {
		return fmt.Errorf("the new program does not run on this machine: %w", err)
	}
	if want != "" && got != strings.TrimPrefix(want, "v") {
		return fmt.Errorf("the new program reports version %.60q, but the manifest says %q", got, want)
	}
	return nil
}

// download writes a program to a file in the folder of the running one, so that a
// rename can replace it.
func (u *Updater) download(ctx context.Context, f File, progress Progress) (path string, err error) {
	s, err := openSource(u.o.Source)
	if err != nil {
		return "", err
	}
	was, err := os.Stat(u.o.Program)
	if err != nil {
		return "", err
	}
	to, err := os.CreateTemp(filepath.Dir(u.o.Program), "."+filepath.Base(u.o.Program)+".new-*")
	if err != nil {
		return "", fmt.Errorf("create a file in the folder of the program: %w", err)
	}
	defer func() {
		if err != nil {
			os.Remove(to.Name())
		}
	}()
	sum := sha256.New()
	n, err := s.copy(
		ctx,
		f.Name,
		io.MultiWriter(to, sum),
		f.Size,
		func(n int64) { progress.report(PhaseDownload, n, f.Size) },
	)
	if err == nil && (n != f.Size || hex.EncodeToString(sum.Sum(nil)) != f.SHA256) {
		err = fmt.Errorf("%s has another size or digest than the manifest says", f.Name)
	}
	if err == nil {
		err = to.Chmod(was.Mode().Perm() | 0o100)
	}
	return to.Name(), errors.Join(err, to.Sync(), to.Close())
}

// previous returns the path at which the previous program is kept.
func (u *Updater) previous() string { return u.o.Program + ".previous" }

// replace renames fresh to the program's path and keeps the program that was there.
// The path holds a complete program at every moment.
func (u *Updater) replace(fresh string) error {
	aside := u.o.Program + ".aside"
	if err := os.Remove(aside); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Link(u.o.Program, aside); err != nil {
		if err := copyFile(u.o.Program, aside); err != nil { // the file system may have no hard links
			return errors.Join(err, os.Remove(aside))
		}
	}
	if err := os.Rename(aside, u.previous()); err != nil {
		return errors.Join(err, os.Remove(aside))
	}
	if err := os.Rename(fresh, u.o.Program); err != nil {
		return err
	}
	return atomicfile.SyncFolder(filepath.Dir(u.o.Program))
}

// Rollback restores the previous program and keeps the current one, so that a
// second rollback undoes the first. It returns the version that runs when the host
// is restarted.
func (u *Updater) Rollback(ctx context.Context) (version string, err error) {
	if !u.busy.TryLock() {
		return "", ErrBusy
	}
	defer u.busy.Unlock()
	back := u.o.Program + ".back"
	if _, err := os.Stat(u.previous()); err != nil {
		// An interrupted rollback left it there.
		if err := os.Rename(back, u.previous()); err != nil {
			return "", ErrNoPrior
		}
	}
	if version, err = u.o.Try(ctx, u.previous()); err != nil {
		return "", fmt.Errorf("the previous program does not run: %w", err)
	}
	if err := os.Remove(back); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	if err := os.Rename(u.previous(), back); err != nil {
		return "", err
	}
	if err := u.replace(back); err != nil {
		return "", errors.Join(err, os.Rename(back, u.previous()))
	}
	return version, nil
}

// Prior returns the version of the previous program, or "" if none is kept or it
// does not run.
func (u *Updater) Prior(ctx context.Context) string {
	if _, err := os.Stat(u.previous()); err != nil {
		return ""
	}
	v, err := u.o.Try(ctx, u.previous())
	if err != nil {
		return ""
	}
	return v
}

func digestOf(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	sum := sha256.New()
	_, err = io.Copy(sum, f)
	return hex.EncodeToString(sum.Sum(nil)), err
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, info.Mode().Perm())
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Sync(), out.Close())
}

func (p Progress) report(phase string, done, total int64) {
	if p != nil {
		p(phase, done, total)
	}
}
