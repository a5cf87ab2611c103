// Package backup writes the data of a host to one encrypted file, in a folder, an
// S3 bucket or an SMB share, and restores it.
//
// A backup is a tar archive, compressed with zstd and encrypted with age. Its first
// member is the manifest. A database is copied as a SQLite snapshot while hosts use
// it: each database is consistent in itself, not with the others. An interrupted
// backup leaves nothing that List returns.
//
// A restore unpacks files beside the current ones. It takes effect when the next
// host starts while no other host runs; see Enter. The replaced files are kept until
// the next restore.
package backup

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"gatehouse/internal/access/secret"
)

// Errors of a Manager.
var (
	ErrBusy     = errors.New("another backup or restore is in progress")
	ErrNoTarget = errors.New("no such backup target")
	ErrNoBackup = errors.New("no such backup")
	ErrPassword = errors.New("the password is wrong, or the backup is encrypted to another key")
	ErrDamaged  = errors.New("the backup is damaged")
	ErrNoFile   = errors.New("no such file in the backup")
)

// Invalid is an error in the arguments of a call.
type Invalid struct{ Message string }

func (e *Invalid) Error() string { return e.Message }

func invalid(format string, args ...any) error { return &Invalid{fmt.Sprintf(format, args...)} }

// DefaultSecret is the name of the secret with the password of backups, if no other
// is given.
const DefaultSecret = "BACKUP_PASSWORD"

// Host identifies the host of a backup.
type Host struct {
	ID   string `json:"id"`
	Name string `json:"name,omitempty"`
}

// Options of a Manager. Folders is required.
type Options struct {
	Folders Folders
	Secrets *secret.Store                       // nil means that there are none
	Host    func(context.Context) (Host, error) // required to create backups
	// Packages returns the records of the installed packages by id; nil means that
	// there are none.
	Packages func(context.Context) (map[string]json.RawMessage, error)
	Version  string       // of the program
	Log      *slog.Logger // nil discards the log

	now  func() time.Time
	work int // of scrypt: the logarithm of its cost
	part int // bytes of one part of an upload
}

// Manager creates and restores backups, one at a time. It is safe for concurrent
// use.
type Manager struct {
	o Options

	mu     sync.Mutex
	holder *Hold // of the backup or restore in progress or reserved; nil means none
	mounts map[string]*activeMount
	closed bool
}

// New returns a Manager. It opens nothing.
func New(o Options) *Manager {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.now == nil {
		o.now = time.Now
	}
	if o.work == 0 {
		o.work = scryptWork
	}
	if o.part == 0 {
		o.part = partSize
	}
	return &Manager{o: o}
}

// Progress receives the progress of a phase in bytes. A total of 0 is unknown. It is
// called from one goroutine and must not block.
type Progress func(phase string, done, total int64)

// Phases of Create and Restore, in order.
const (
	PhaseSnapshot = "snapshot"
	PhaseWrite    = "write"
	PhaseTidy     = "remove old backups"
	PhaseRead     = "read"
)

// Made is a backup that was created.
type Made struct {
	Entry
	Manifest *Manifest
	Removed  []string // older backups of this host that the target does not keep
	Left     error    // why older ones could not be removed; the new backup is complete
}

// Create writes a backup of everything to a target. If it returns an error, it leaves
// nothing in the target.
func (r *Manager) Create(ctx context.Context, target string, key Key, progress Progress) (Made, error) {
	h, err := r.Reserve()
	if err != nil {
		return Made{}, err
	}
	defer h.Release()
	return h.Create(ctx, target, nil, key, progress)
}

// Create writes a backup to a target: of everything or, with ids, of these packages
// only. If it returns an error, it leaves nothing in the target.
func (h *Hold) Create(
	ctx context.Context,
	target string,
	packages []string,
	key Key,
	progress Progress,
) (made Made, err error) {
	if err := h.use(); err != nil {
		return made, err
	}
	r := h.manager
	recipients, err := key.recipients(r.o.work)
	if err != nil {
		return made, err
	}
	t, s, err := r.openTarget(ctx, target)
	if err != nil {
		return made, err
	}
	defer s.close()
	host, err := r.o.Host(ctx)
	if err != nil {
		return made, fmt.Errorf("identify this host: %w", err)
	}
	records, err := r.records(ctx, packages)
	if err != nil {
		return made, err
	}
	c, err := collect(ctx, r.o.Folders, chosenFiles(packages), progress, r.o.Log)
	if err != nil {
		return made, err
	}
	defer c.closeFiles()
	at := r.o.now().UTC().Truncate(time.Second)
	m := &Manifest{Format: format, Created: at, Host: host, Version: r.o.Version, Files: c.files, Packages: records}
	if len(packages) > 0 {
		m.Format = formatPackages
	}
	name := newName(host.ID, at, len(packages) > 0)
	up, err := s.create(ctx, name)
	if err != nil {
		return made, fmt.Errorf("start the backup in %s: %w", t.Name, err)
	}
	defer up.abort()
	count := &counter{w: up}
	if err := writeArchive(ctx, count, recipients, m, c, progress); err != nil {
		return made, fmt.Errorf("write the backup: %w", err)
	}
	if err := ctx.Err(); err != nil {
		return made, context.Cause(ctx)
	}
	if err := up.commit(ctx); err != nil {
		return made, fmt.Errorf("finish the backup in %s: %w", t.Name, err)
	}
	made.Entry, made.Manifest = Entry{Name: name, Created: at, Size: count.n, Own: true}, m
	progress.report(PhaseTidy, 0, 0)
	if len(packages) > 0 {
		return made, nil // it must not replace a backup of everything
	}
	made.Removed, made.Left = r.removeOld(ctx, t, s, host)
	return made, nil
}

// removeOld removes the oldest backups of this host if there are more than the target
// keeps. It never removes the newest, nor backups of packages only.
func (r *Manager) removeOld(ctx context.Context, t Target, s store, host Host) (removed []string, err error) {
	if t.Keep <= 0 {
		return nil, nil
	}
	all, err := s.list(ctx)
	if err != nil {
		return nil, err
	}
	mine := slices.DeleteFunc(all, func(e Entry) bool {
		return !strings.HasPrefix(e.Name, prefixOf(host.ID)) || OfPackages(e.Name)
	})
	slices.SortFunc(mine, newestFirst)
	for _, e := range mine[min(t.Keep, len(mine)):] {
		if e := s.remove(ctx, e.Name); e != nil && !errors.Is(e, fs.ErrNotExist) {
			err = errors.Join(err, e)
			continue
		}
		removed = append(removed, e.Name)
	}
	return removed, err
}

// List returns the backups of all hosts in a target, newest first.
func (r *Manager) List(ctx context.Context, target string) ([]Entry, error) {
	_, s, err := r.openTarget(ctx, target)
	if err != nil {
		return nil, err
	}
	defer s.close()
	all, err := s.list(ctx)
	if err != nil {
		return nil, err
	}
	if host, err := r.o.Host(ctx); err == nil {
		for i := range all {
			all[i].Own = strings.HasPrefix(all[i].Name, prefixOf(host.ID))
		}
	}
	slices.SortFunc(all, newestFirst)
	return all, nil
}

func newestFirst(a, b Entry) int {
	if c := b.Created.Compare(a.Created); c != 0 {
		return c
	}
	return strings.Compare(b.Name, a.Name)
}

// Info returns the manifest of a backup. It reads only the beginning. name "" means
// the newest.
func (r *Manager) Info(ctx context.Context, target, name string, key Key) (Entry, *Manifest, error) {
	return r.backupInfo(ctx, target, name, false, key)
}

func (r *Manager) backupInfo(ctx context.Context, target, name string, whole bool, key Key) (Entry, *Manifest, error) {
	e, body, done, err := r.readBackup(ctx, target, name, whole)
	if err != nil {
		return e, nil, err
	}
	defer done()
	a, err := openArchive(body, key)
	if err != nil {
		return e, nil, body.explain(err)
	}
	defer a.closeArchive()
	return e, a.manifest, nil
}

// ReadFile calls use once with the content of a file in a backup. path is the Member
// of a File. If reading fails, use has read the beginning of a damaged file. The
// backup is read from its beginning up to the file, because it is one stream.
func (r *Manager) ReadFile(
	ctx context.Context,
	target, name, path string,
	key Key,
	use func(Entry, File, io.Reader) error,
) error {
	e, body, done, err := r.readBackup(ctx, target, name, false)
	if err != nil {
		return err
	}
	defer done()
	a, err := openArchive(body, key)
	if err != nil {
		return body.explain(err)
	}
	defer a.closeArchive()
	if !slices.ContainsFunc(a.manifest.Files, func(f File) bool { return f.Member() == path }) {
		return fmt.Errorf("%.300s: %w", path, ErrNoFile)
	}
	for {
		f, content, err := a.nextFile()
		if err != nil {
			return body.explain(err)
		}
		if f.Member() == path {
			return body.explain(use(e, f, &member{content}))
		}
	}
}

// Restore unpacks a backup beside the current files. It takes effect when a host
// starts while no other runs. It replaces an earlier restore that has not taken
// effect. name "" means the newest backup of everything.
func (r *Manager) Restore(
	ctx context.Context,
	target, name string,
	key Key,
	progress Progress,
) (Entry, *Manifest, error) {
	h, err := r.Reserve()
	if err != nil {
		return Entry{}, nil, err
	}
	defer h.Release()
	return h.Restore(ctx, target, name, nil, key, progress)
}

// Restore is like Manager.Restore. With ids it restores only the programs, data and
// records of these packages, and name "" means the newest backup of any kind. From a
// backup of packages it restores the packages it holds.
func (h *Hold) Restore(
	ctx context.Context,
	target, name string,
	packages []string,
	key Key,
	progress Progress,
) (Entry, *Manifest, error) {
	if err := h.use(); err != nil {
		return Entry{}, nil, err
	}
	r := h.manager
	e, body, done, err := r.readBackup(ctx, target, name, len(packages) == 0)
	if err != nil {
		return e, nil, err
	}
	defer done()
	m, err := stage(ctx, r.o.Folders, &reporting{r: body, total: e.Size, progress: progress}, key, e.Name, packages)
	return e, m, body.explain(err)
}

// readBackup opens a backup. name "" means the newest; if whole is true, the newest of
// those that hold everything.
func (r *Manager) readBackup(
	ctx context.Context,
	target, name string,
	whole bool,
) (e Entry, body *delivery, done func(), err error) {
	_, s, err := r.openTarget(ctx, target)
	if err != nil {
		return e, nil, nil, err
	}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if name == "" {
		all, err := s.list(ctx)
		if err != nil {
			return e, nil, nil, err
		}
		if whole {
			all = slices.DeleteFunc(all, func(e Entry) bool { return OfPackages(e.Name) })
		}
		if len(all) == 0 {
			return e, nil, nil, fmt.Errorf("target %s is empty: %w", target, ErrNoBackup)
		}
		name = slices.MinFunc(all, newestFirst).Name
	}
	if e.Created, err = createdOf(name); err != nil {
		return e, nil, nil, err
	}
	file, size, err := s.open(ctx, name)
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%s: %w", name, ErrNoBackup)
	}
	if err != nil {
		return e, nil, nil, err
	}
	e.Name, e.Size = name, size
	return e, &delivery{r: &interruptible{ctx, file}, size: size}, func() { file.Close(); s.close() }, nil
}

// delivery reads a backup from its target and records errors of the transport, which
// are not damage of the backup.
type delivery struct {
	r         io.Reader
	got, size int64 // size is 0 if it is not known
	err       error // of the transport
}

func (d *delivery) Read(p []byte) (int, error) {
	n, err := d.r.Read(p)
	d.got += int64(n)
	if errors.Is(err, io.EOF) && d.got < d.size {
		err = io.ErrUnexpectedEOF
	}
	if err != nil && err != io.EOF {
		d.err = err
	}
	return n, err
}

// explain replaces ErrDamaged by the error of the transport, if there was one.
func (d *delivery) explain(err error) error {
	if d.err == nil || !errors.Is(err, ErrDamaged) {
		return err
	}
	return fmt.Errorf("only %d of %d bytes of the backup arrived: %w; try again", d.got, d.size, d.err)
}

// reporting reports how much was read.
type reporting struct {
	r           io.Reader
	done, total int64
	progress    Progress
}

func (r *reporting) Read(p []byte) (int, error) {
	n, err := r.r.Read(p)
	r.done += int64(n)
	r.progress.report(PhaseRead, r.done, r.total)
	return n, err
}

func (p Progress) report(phase string, done, total int64) {
	if p != nil {
		p(phase, done, total)
	}
}

// interruptible fails reads when its context is done.
type interruptible struct {
	// ctx is there because io.Reader has none.
	ctx context.Context
	r   io.Reader
}

func (i *interruptible) Read(p []byte) (int, error) {
	if i.ctx.Err() != nil {
		return 0, context.Cause(i.ctx)
	}
	return i.r.Read(p)
}

type counter struct {
	w io.Writer
	n int64
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}
