// Package backup puts everything a host keeps into one encrypted file, in a
// folder, an S3 bucket or a share, and brings it back.
//
// A backup is an age file around a zstd stream around a tar archive, whose
// first member says what is in it. Databases go in as SQLite shows them at one
// moment, while hosts go on; each is whole in itself. A backup that is
// interrupted leaves nothing that looks like one.
//
// A restore unpacks beside what is there and takes effect when the next host
// starts and no other one runs; see Enter. What was there before is kept until
// the restore after that.
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

// Errors of a Room.
var (
	ErrBusy     = errors.New("a backup or a restore is at work")
	ErrNoTarget = errors.New("there is no such target")
	ErrNoBackup = errors.New("there is no such backup")
	ErrPassword = errors.New("the password is wrong, or the backup is encrypted to a key that is not here")
	ErrDamaged  = errors.New("the backup is damaged")
	ErrNoFile   = errors.New("there is no such file in the backup")
)

// Invalid is a mistake in what was asked for.
type Invalid struct{ Message string }

func (e *Invalid) Error() string { return e.Message }

func invalid(format string, args ...any) error { return &Invalid{fmt.Sprintf(format, args...)} }

// DefaultSecret is the name of the secret that holds the password of backups,
// where no other is named.
const DefaultSecret = "BACKUP_PASSWORD"

// Host is whose backup it is.
type Host struct {
	ID   string `json:"id"`
	Name string `json:"name,omitempty"`
}

// Options of a Room. Folders is needed.
type Options struct {
	Folders Folders
	Secrets *secret.Store                       // nil: there are none
	Host    func(context.Context) (Host, error) // needed to create
	// Packages gives the records of the packages that are installed, by id; nil
	// means that there are none.
	Packages func(context.Context) (map[string]json.RawMessage, error)
	Version  string       // of the program
	Log      *slog.Logger // nil drops what is said

	now  func() time.Time
	work int // of scrypt, as a power of two
	part int // bytes of one part of an upload
}

// Room makes and restores backups. One thing is done at a time. Safe for
// concurrent use.
type Room struct {
	o Options

	mu     sync.Mutex
	holder *Hold // makes or restores a backup, or is about to; nil: nothing is done
}

// New makes a room; nothing is opened.
func New(o Options) *Room {
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
	return &Room{o: o}
}

// Tell is told how far something is: bytes of a phase, total 0 while nobody
// knows. It is called from one goroutine and does not block.
type Tell func(phase string, done, total int64)

// Phases of Create and Restore, in their order.
const (
	PhaseSnapshot = "snapshot"
	PhaseWrite    = "write"
	PhaseTidy     = "remove old backups"
	PhaseRead     = "read"
)

// Made is a backup that was made.
type Made struct {
	Entry
	Manifest *Manifest
	Removed  []string // older backups of this host that the target does not keep
	Left     error    // why older ones could not be removed; the backup is there
}

// Create makes a backup of everything in a target. When ctx ends nothing is left
// of it.
func (r *Room) Create(ctx context.Context, target string, key Key, tell Tell) (Made, error) {
	h, err := r.Reserve()
	if err != nil {
		return Made{}, err
	}
	defer h.Release()
	return h.Create(ctx, target, nil, key, tell)
}

// Create makes a backup in a target: of everything or, with ids, of those
// packages alone. When ctx ends nothing is left of it.
func (h *Hold) Create(ctx context.Context, target string, packages []string, key Key, tell Tell) (made Made, err error) {
	if err := h.begin(); err != nil {
		return made, err
	}
	r := h.room
	recipients, err := key.recipients(r.o.work)
	if err != nil {
		return made, err
	}
	t, s, err := r.open(ctx, target)
	if err != nil {
		return made, err
	}
	defer s.close()
	host, err := r.o.Host(ctx)
	if err != nil {
		return made, fmt.Errorf("find out whose backup it is: %w", err)
	}
	records, err := r.records(ctx, packages)
	if err != nil {
		return made, err
	}
	c, err := collect(ctx, r.o.Folders, chosenFiles(packages), tell)
	if err != nil {
		return made, err
	}
	defer c.close()
	at := r.o.now().UTC().Truncate(time.Second)
	m := &Manifest{Format: format, Created: at, Host: host, Version: r.o.Version, Files: c.files, Packages: records}
	if len(packages) > 0 {
		m.Format = formatPackages
	}
	name := newName(host.ID, at, len(packages) > 0)
	up, err := s.create(ctx, name)
	if err != nil {
		return made, fmt.Errorf("begin the backup in %s: %w", t.Name, err)
	}
	defer up.abort()
	count := &counter{w: up}
	if err := write(ctx, count, recipients, m, c, tell); err != nil {
		return made, fmt.Errorf("write the backup: %w", err)
	}
	if err := ctx.Err(); err != nil {
		return made, context.Cause(ctx)
	}
	if err := up.commit(ctx); err != nil {
		return made, fmt.Errorf("finish the backup in %s: %w", t.Name, err)
	}
	made.Entry, made.Manifest = Entry{Name: name, Created: at, Size: count.n, Own: true}, m
	tell.say(PhaseTidy, 0, 0)
	if len(packages) > 0 {
		return made, nil // it must not push a backup of everything out
	}
	made.Removed, made.Left = r.tidy(ctx, t, s, host)
	return made, nil
}

// tidy removes the oldest backups of this host that are more than a target
// keeps, never the newest. Those of packages alone stay.
func (r *Room) tidy(ctx context.Context, t Target, s store, host Host) (removed []string, err error) {
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

// List gives the backups in a target, the newest first, of all hosts.
func (r *Room) List(ctx context.Context, target string) ([]Entry, error) {
	_, s, err := r.open(ctx, target)
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

// Info says what is in a backup, of which only the beginning is read. name ""
// means the newest.
func (r *Room) Info(ctx context.Context, target, name string, key Key) (Entry, *Manifest, error) {
	return r.info(ctx, target, name, false, key)
}

func (r *Room) info(ctx context.Context, target, name string, whole bool, key Key) (Entry, *Manifest, error) {
	e, body, done, err := r.read(ctx, target, name, whole)
	if err != nil {
		return e, nil, err
	}
	defer done()
	a, err := openArchive(body, key)
	if err != nil {
		return e, nil, body.explain(err)
	}
	defer a.close()
	return e, a.manifest, nil
}

// ReadFile reads one file out of a backup. path is as Manifest has it, with the
// folder in front. use is called once; what it reads before an error may be the
// beginning of a damaged file. The backup is read from its beginning up to the
// file, because it is one stream.
func (r *Room) ReadFile(ctx context.Context, target, name, path string, key Key, use func(Entry, File, io.Reader) error) error {
	e, body, done, err := r.read(ctx, target, name, false)
	if err != nil {
		return err
	}
	defer done()
	a, err := openArchive(body, key)
	if err != nil {
		return body.explain(err)
	}
	defer a.close()
	if !slices.ContainsFunc(a.manifest.Files, func(f File) bool { return f.Member() == path }) {
		return fmt.Errorf("%.300s: %w", path, ErrNoFile)
	}
	for {
		f, content, err := a.next()
		if err != nil {
			return body.explain(err)
		}
		if f.Member() == path {
			return body.explain(use(e, f, &member{content}))
		}
	}
}

// Restore unpacks a backup beside what is there. It takes effect when a host
// starts and no other runs; one that waits for that already is replaced. name ""
// means the newest backup of everything.
func (r *Room) Restore(ctx context.Context, target, name string, key Key, tell Tell) (Entry, *Manifest, error) {
	h, err := r.Reserve()
	if err != nil {
		return Entry{}, nil, err
	}
	defer h.Release()
	return h.Restore(ctx, target, name, nil, key, tell)
}

// Restore is Room.Restore. With ids those packages alone are brought back,
// programs, data and records, and everything else stays as it is; the newest
// backup is then the newest of all. A backup of packages alone brings back those
// it holds.
func (h *Hold) Restore(ctx context.Context, target, name string, packages []string, key Key, tell Tell) (Entry, *Manifest, error) {
	if err := h.begin(); err != nil {
		return Entry{}, nil, err
	}
	r := h.room
	e, body, done, err := r.read(ctx, target, name, len(packages) == 0)
	if err != nil {
		return e, nil, err
	}
	defer done()
	m, err := stage(ctx, r.o.Folders, &reporting{r: body, total: e.Size, tell: tell}, key, e.Name, packages)
	return e, m, body.explain(err)
}

// read opens a backup of a target. name "" means the newest, with whole only of
// those that hold everything.
func (r *Room) read(ctx context.Context, target, name string, whole bool) (e Entry, body *delivery, done func(), err error) {
	_, s, err := r.open(ctx, target)
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
			return e, nil, nil, fmt.Errorf("%s is empty: %w", target, ErrNoBackup)
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

// delivery is a backup on its way from its target. What goes wrong on the way
// is no damage of the backup.
type delivery struct {
	r         io.Reader
	got, size int64 // size is 0 where it is not known
	err       error // on the way
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

// explain says of an error in what was read whether it came about on the way.
func (d *delivery) explain(err error) error {
	if d.err == nil || !errors.Is(err, ErrDamaged) {
		return err
	}
	return fmt.Errorf("the backup did not come whole, %d of %d bytes: %w; try again", d.got, d.size, d.err)
}

// reporting tells how much was read.
type reporting struct {
	r           io.Reader
	done, total int64
	tell        Tell
}

func (r *reporting) Read(p []byte) (int, error) {
	n, err := r.r.Read(p)
	r.done += int64(n)
	r.tell.say(PhaseRead, r.done, r.total)
	return n, err
}

func (t Tell) say(phase string, done, total int64) {
	if t != nil {
		t(phase, done, total)
	}
}

// interruptible stops reading when its context ends.
type interruptible struct {
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
