// Package update replaces this program by a newer release of it, and back.
//
// A release is a folder, on disk or on a web server, with manifest.json, its
// signature manifest.json.minisig, and the programs the manifest names.
// Nothing is believed that the key in the settings has not signed: the
// signature covers the manifest, the manifest has the digest of each program.
// The one that ran before is kept beside the new one, and each change is one
// rename, so that there is a whole program at every moment.
package update

import (
	"cmp"
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
	"strconv"
	"strings"
	"sync"
	"time"
)

// Errors of an Updater.
var (
	ErrNone     = errors.New("there is no newer release")
	ErrNoSource = errors.New("the settings name no source of releases")
	ErrNoBuild  = errors.New("the release has no program for this machine")
	ErrWaiting  = errors.New("the release is in place already; it runs when the host is started again")
	ErrNoPrior  = errors.New("no earlier program is kept")
	ErrBusy     = errors.New("an update is at work")
)

// Limits.
const (
	maxManifest  = 1 << 20
	maxSignature = 4 << 10
	maxProgram   = 1 << 30
)

// Release is what a manifest says.
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
	Name   string `json:"name"` // beside the manifest
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"`
}

// Options of an Updater. All are needed but Source and Key.
type Options struct {
	Source  string // a folder from the top, or a URL; "" for an Updater that only rolls back
	Key     Key    // of the source
	Current string // version that runs
	Program string // the file that is replaced
	// Try runs a program and gives the version it says it is.
	Try func(ctx context.Context, program string) (version string, err error)
}

// Updater replaces one program. Safe for concurrent use.
type Updater struct {
	o    Options
	busy sync.Mutex
}

// New makes an updater; nothing is looked at.
func New(o Options) *Updater { return &Updater{o: o} }

// Tell is told how far something is.
type Tell func(phase string, done, total int64)

// Phases of Apply, in their order.
const (
	PhaseCheck    = "check"
	PhaseDownload = "download"
	PhaseTry      = "try"
	PhaseReplace  = "replace"
)

// Check reads the newest release and verifies its signature. newer reports
// whether it is newer than the program that runs.
func (u *Updater) Check(ctx context.Context) (r Release, newer bool, err error) {
	if u.o.Source == "" {
		return r, false, ErrNoSource
	}
	s, err := open(u.o.Source)
	if err != nil {
		return r, false, err
	}
	text, err := s.read(ctx, "manifest.json", maxManifest)
	if err != nil {
		return r, false, fmt.Errorf("read the manifest: %w", err)
	}
	signature, err := s.read(ctx, "manifest.json.minisig", maxSignature)
	if err != nil {
		return r, false, fmt.Errorf("read the manifest's signature: %w", err)
	}
	if _, err := u.o.Key.Verify(text, signature); err != nil {
		return r, false, err
	}
	if err := json.Unmarshal(text, &r); err != nil {
		return r, false, fmt.Errorf("the manifest cannot be read: %w", err)
	}
	if err := r.check(); err != nil {
		return r, false, err
	}
	order, err := Compare(r.Version, u.o.Current)
	return r, order > 0, err
}

var (
	fileName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)
	digest   = regexp.MustCompile(`^[0-9a-f]{64}$`)
)

// check refuses what no manifest says, signed or not.
func (r *Release) check() error {
	if _, err := parse(r.Version); err != nil {
		return err
	}
	for _, f := range r.Files {
		if !fileName.MatchString(f.Name) || !digest.MatchString(f.SHA256) || f.Size <= 0 || f.Size > maxProgram {
			return fmt.Errorf("the manifest names a file that cannot be: %.100q", f.Name)
		}
	}
	return nil
}

// Compare orders two versions: three numbers, and perhaps a dash with what
// comes before the release of that number.
func Compare(a, b string) (int, error) {
	x, err := parse(a)
	y, e := parse(b)
	if err = errors.Join(err, e); err != nil {
		return 0, err
	}
	if c := slices.Compare(x.numbers[:], y.numbers[:]); c != 0 {
		return c, nil
	}
	switch {
	case x.before == y.before:
		return 0, nil
	case x.before == "":
		return 1, nil
	case y.before == "":
		return -1, nil
	}
	return comparePre(x.before, y.before), nil
}

// comparePre orders what is behind the dash, part by part: numbers before
// words, and fewer parts first.
func comparePre(a, b string) int {
	return slices.CompareFunc(strings.Split(a, "."), strings.Split(b, "."), func(x, y string) int {
		m, err := strconv.ParseUint(x, 10, 63)
		n, e := strconv.ParseUint(y, 10, 63)
		switch {
		case err == nil && e == nil:
			return cmp.Compare(m, n)
		case err == nil:
			return -1
		case e == nil:
			return 1
		}
		return strings.Compare(x, y)
	})
}

type version struct {
	numbers [3]uint64
	before  string
}

var versionShape = regexp.MustCompile(`^v?([0-9]{1,9})\.([0-9]{1,9})\.([0-9]{1,9})(?:-([0-9A-Za-z.-]{1,60}))?(?:\+[0-9A-Za-z.-]{1,60})?$`)

func parse(text string) (v version, err error) {
	m := versionShape.FindStringSubmatch(text)
	if m == nil {
		return v, fmt.Errorf("%.60q is no version; expected one such as 1.4.0", text)
	}
	for i := range v.numbers {
		v.numbers[i], _ = strconv.ParseUint(m[i+1], 10, 64) // the shape says that it is one
	}
	v.before = m[4]
	return v, nil
}

// Apply fetches the newest release, verifies and tries it, and puts it in the
// program's place. What ran before is kept for Rollback. It runs when the host
// is started again. After an error everything is as it was.
func (u *Updater) Apply(ctx context.Context, tell Tell) (Release, error) {
	if !u.busy.TryLock() {
		return Release{}, ErrBusy
	}
	defer u.busy.Unlock()
	tell.say(PhaseCheck, 0, 0)
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
	fresh, err := u.fetch(ctx, f, tell)
	if err != nil {
		return r, err
	}
	defer os.Remove(fresh)
	tell.say(PhaseTry, 0, 0)
	if err := u.try(ctx, fresh, r.Version); err != nil {
		return r, err
	}
	tell.say(PhaseReplace, 0, 0)
	return r, u.replace(fresh)
}

// try has a program say that it is what it should be.
func (u *Updater) try(ctx context.Context, program, want string) error {
	got, err := u.o.Try(ctx, program)
	if err != nil {
		return fmt.Errorf("the new program does not run here: %w", err)
	}
	if want != "" && got != strings.TrimPrefix(want, "v") {
		return fmt.Errorf("the new program says it is %.60q, and the manifest %q", got, want)
	}
	return nil
}

// fetch brings a program beside the one that runs, where a rename can put it
// in its place.
func (u *Updater) fetch(ctx context.Context, f File, tell Tell) (path string, err error) {
	s, err := open(u.o.Source)
	if err != nil {
		return "", err
	}
	was, err := os.Stat(u.o.Program)
	if err != nil {
		return "", err
	}
	to, err := os.CreateTemp(filepath.Dir(u.o.Program), "."+filepath.Base(u.o.Program)+".new-*")
	if err != nil {
		return "", fmt.Errorf("the program's folder cannot be written: %w", err)
	}
	defer func() {
		if err != nil {
			os.Remove(to.Name())
		}
	}()
	sum := sha256.New()
	n, err := s.copy(ctx, f.Name, io.MultiWriter(to, sum), f.Size, func(n int64) { tell.say(PhaseDownload, n, f.Size) })
	if err == nil && (n != f.Size || hex.EncodeToString(sum.Sum(nil)) != f.SHA256) {
		err = fmt.Errorf("%s is not the file the manifest names: its size or digest is another", f.Name)
	}
	if err == nil {
		err = to.Chmod(was.Mode().Perm() | 0o100)
	}
	return to.Name(), errors.Join(err, to.Sync(), to.Close())
}

// previous is where the program that ran before is kept.
func (u *Updater) previous() string { return u.o.Program + ".previous" }

// replace puts a program in the place of the one there, which is kept. There
// is a whole program at every moment.
func (u *Updater) replace(fresh string) error {
	aside := u.o.Program + ".aside"
	if err := os.Remove(aside); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Link(u.o.Program, aside); err != nil {
		if err := copyFile(u.o.Program, aside); err != nil { // where there are no links
			return errors.Join(err, os.Remove(aside))
		}
	}
	if err := os.Rename(aside, u.previous()); err != nil {
		return errors.Join(err, os.Remove(aside))
	}
	if err := os.Rename(fresh, u.o.Program); err != nil {
		return err
	}
	return syncFolder(filepath.Dir(u.o.Program))
}

// Rollback puts the program that ran before back in its place, and keeps the
// other one, so that a second rollback undoes the first. It gives the version
// that runs when the host is started again.
func (u *Updater) Rollback(ctx context.Context) (version string, err error) {
	if !u.busy.TryLock() {
		return "", ErrBusy
	}
	defer u.busy.Unlock()
	back := u.o.Program + ".back"
	if _, err := os.Stat(u.previous()); err != nil {
		// A rollback that was interrupted has left it there.
		if err := os.Rename(back, u.previous()); err != nil {
			return "", ErrNoPrior
		}
	}
	if version, err = u.o.Try(ctx, u.previous()); err != nil {
		return "", fmt.Errorf("the earlier program does not run: %w", err)
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

// Prior is the version of the program that is kept; "" when there is none, or
// it does not run.
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

func syncFolder(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	d.Sync() // where the system can
	return d.Close()
}

func (t Tell) say(phase string, done, total int64) {
	if t != nil {
		t(phase, done, total)
	}
}
