package backup

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"gatehouse/internal/files/atomicfile"
	"gatehouse/internal/files/filelock"
	"gatehouse/internal/files/fusemount"
)

const (
	mostMounts      = 8 // of one Manager
	mostMountsOwner = 4
	// IdleMount is how long a mount is kept that no process uses.
	IdleMount     = 30 * time.Minute
	mostIdleMount = 24 * time.Hour
	mountTick     = 10 * time.Second
)

// Errors of mounts.
var (
	ErrNoMount    = errors.New("no such mount")
	ErrMountUsed  = fusemount.ErrInUse
	ErrMountLimit = errors.New("too many backups are mounted")
)

// CanMount returns nil if backups can be mounted here, or an error that names what
// is missing and how to install it.
func CanMount() error { return fusemount.Supported() }

// MountRequest describes what to mount.
type MountRequest struct {
	Target, Backup string // Backup "" means the newest
	Key            Key
	Owner          string            // counts the mounts of one owner
	Hide           func(string) bool // Member names of files that are left out; nil hides none
	Idle           time.Duration     // without use, after which it is unmounted; 0 means IdleMount
}

// Mounted is a backup that is mounted.
type Mounted struct {
	ID      string    `json:"id"`
	Path    string    `json:"path"` // the folder
	Target  string    `json:"target"`
	Backup  string    `json:"backup"`
	Created time.Time `json:"created"` // time of the backup
	Since   time.Time `json:"since"`
	Owner   string    `json:"owner,omitempty"`
	Files   int       `json:"files"`
	Bytes   int64     `json:"bytes"`
	Idle    string    `json:"idle"` // unused for that long it is unmounted
}

// activeMount is a mount of this process.
type activeMount struct {
	Mounted
	idle  time.Duration
	mount *fusemount.Mount
	lock  *filelock.Lock
	ended chan struct{} // closed when nothing is left of it
	ready bool          // guarded by Manager.mu; the other fields change before it is set
}

// Mount mounts a backup read-only in a folder below the data folder. Files are
// decrypted when they are read. The mount ends with Unmount, Close, the end of the
// process, or when it was not used for some time.
func (r *Manager) Mount(ctx context.Context, q MountRequest) (Mounted, error) {
	if err := CanMount(); err != nil {
		return Mounted{}, err
	}
	if q.Idle == 0 {
		q.Idle = IdleMount
	}
	if q.Idle < time.Second || q.Idle > mostIdleMount {
		return Mounted{}, invalid("the idle time is %v: expected 1s to %v", q.Idle, mostIdleMount)
	}
	m := &activeMount{idle: q.Idle, ended: make(chan struct{})}
	m.ID, m.Owner, m.Target, m.Since = "mount_"+strings.ToLower(rand.Text()[:10]), q.Owner, q.Target, r.o.now().UTC()
	m.Idle = q.Idle.String()
	if err := r.reserveMount(m); err != nil {
		return Mounted{}, err
	}
	c, err := r.startMount(ctx, m, q)
	if err != nil {
		r.forgetMount(m)
		return Mounted{}, err
	}
	r.mu.Lock()
	m.ready = true
	stopping := r.closed
	r.mu.Unlock()
	go r.watchMount(m, c)
	if stopping {
		return Mounted{}, errors.Join(errStopping, m.mount.Unmount(true))
	}
	return m.Mounted, nil
}

var errStopping = errors.New("the host is stopping")

func (r *Manager) reserveMount(m *activeMount) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	own := 0
	for _, other := range r.mounts {
		if other.Owner == m.Owner {
			own++
		}
	}
	switch {
	case r.closed:
		return errStopping
	case own >= mostMountsOwner:
		return fmt.Errorf("%w: this owner has %d, which is the limit", ErrMountLimit, own)
	case len(r.mounts) >= mostMounts:
		return fmt.Errorf("%w: %d, which is the limit", ErrMountLimit, len(r.mounts))
	}
	if r.mounts == nil {
		r.mounts = map[string]*activeMount{}
	}
	r.mounts[m.ID] = m
	return nil
}

func (r *Manager) forgetMount(m *activeMount) {
	r.mu.Lock()
	delete(r.mounts, m.ID)
	r.mu.Unlock()
	close(m.ended)
}

// openMount is what a mount reads from.
type openMount struct {
	*contents
	close func()
}

// startMount opens the backup, and mounts it. If it returns an error it leaves
// nothing.
func (r *Manager) startMount(ctx context.Context, m *activeMount, q MountRequest) (c *openMount, err error) {
	from, done, err := r.openContents(ctx, q.Target, q.Backup, q.Key)
	if err != nil {
		return nil, err
	}
	c = &openMount{from, done}
	defer func() {
		if err != nil {
			c.close()
		}
	}()
	var files []fusemount.File
	var index []int // of the files in the manifest
	for i, f := range c.manifest.Files {
		if q.Hide == nil || !q.Hide(f.Member()) {
			files, index = append(files, fusemount.File{Path: f.Member(), Size: f.Size,
				Modified: f.Modified}), append(index, i)
			m.Bytes += f.Size
		}
	}
	m.Backup, m.Created, m.Files = c.entry.Name, c.manifest.Created, len(files)
	if err := m.makeFolder(r.o.Folders); err != nil {
		return nil, err
	}
	m.mount, err = fusemount.New(fusemount.Options{
		Folder: m.Path, Files: files, Log: r.o.Log,
		Read: func(ctx context.Context, file int, p []byte, off int64) error {
			return c.readAt(ctx, index[file], p, off)
		},
	})
	if err != nil {
		return nil, errors.Join(err, m.removeFolder())
	}
	return c, nil
}

// makeFolder makes the folder, and beside it a description and a lock that is held
// while this process lives.
func (m *activeMount) makeFolder(f Folders) (err error) {
	if f.Data == "" {
		return errors.New("this host keeps nothing on disk")
	}
	top := filepath.Join(f.Data, mountsFolder)
	m.Path = filepath.Join(top, m.ID)
	if err := os.MkdirAll(top, 0o700); err != nil {
		return err
	}
	if m.lock, err = filelock.Try(m.Path+lockEnd, filelock.Exclusive); err != nil {
		return err
	}
	text, err := json.Marshal(m.Mounted)
	if err == nil {
		err = errors.Join(os.Mkdir(m.Path, 0o700), atomicfile.Write(m.Path+recordEnd, text))
	}
	if err != nil {
		return errors.Join(err, m.removeFolder())
	}
	return nil
}

// releaseWait is how long the kernel may hold the folder of a mount that has ended.
const releaseWait = 5 * time.Second

const (
	lockEnd   = ".lock"
	recordEnd = ".json"
)

// removeFolder removes the folder of a mount that has ended, with its description and lock. The kernel may still
// hold the folder for a moment after the file system has ended.
func (m *activeMount) removeFolder() error {
	err := removeMountFolder(m.Path)
	for end := time.Now().Add(releaseWait); errors.Is(err, syscall.EBUSY) && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
		err = removeMountFolder(m.Path)
	}
	return errors.Join(err, m.lock.Remove())
}

// removeMountFolder removes what belongs to a mount that has ended. It never removes
// the content of a folder, since something may be mounted there.
func removeMountFolder(path string) error {
	for _, p := range []string{path, path + recordEnd} {
		if err := os.Remove(p); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

// watchMount ends a mount that is not used, and removes what is left of one that has
// ended.
func (r *Manager) watchMount(m *activeMount, c *openMount) {
	tick := time.NewTicker(min(mountTick, m.idle/4))
	defer tick.Stop()
	for ended := false; !ended; {
		select {
		case <-m.mount.Done():
			ended = true
		case <-tick.C:
			select {
			case c.turn <- struct{}{}:
				c.closeIdle(streamIdle)
				<-c.turn
			default:
			}
			if time.Since(m.mount.LastUse()) < m.idle {
				continue
			}
			// A process that stays in it without reading keeps it.
			if err := m.mount.Unmount(false); err != nil && !errors.Is(err, ErrMountUsed) {
				r.o.Log.Warn("an unused mount of a backup stays", "path", m.Path, "err", err)
			}
		}
	}
	c.close()
	if err := m.removeFolder(); err != nil {
		r.o.Log.Warn("the folder of a mount stays", "path", m.Path, "err", err)
	}
	r.forgetMount(m)
}

// Unmount ends a mount below the data folder, also one of another process. which is
// its id or path. It returns ErrMountUsed while a process uses the mount, unless
// force is true: then that process gets errors.
func (r *Manager) Unmount(which string, force bool) (Mounted, error) {
	r.mu.Lock()
	var own *activeMount
	for _, m := range r.mounts {
		if m.ready && (m.ID == which || m.Path == filepath.Clean(which)) {
			own = m
		}
	}
	r.mu.Unlock()
	if own != nil {
		if err := own.mount.Unmount(force); err != nil && !errors.Is(err, fusemount.ErrNotMounted) {
			return own.Mounted, err
		}
		<-own.ended
		return own.Mounted, nil
	}
	for _, m := range Mounts(r.o.Folders) {
		if m.ID == which || m.Path == filepath.Clean(which) {
			return m, fusemount.Unmount(m.Path, force)
		}
	}
	return Mounted{}, ErrNoMount
}

// WaitMount waits until a mount of this Manager has ended, or until ctx is done.
func (r *Manager) WaitMount(ctx context.Context, id string) error {
	r.mu.Lock()
	m := r.mounts[id]
	r.mu.Unlock()
	if m == nil {
		return nil
	}
	select {
	case <-m.ended:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Mounts returns the mounts below the data folder, of all processes, oldest first.
func Mounts(f Folders) (all []Mounted) {
	for _, path := range mountFolders(f) {
		l, err := filelock.Try(path+lockEnd, filelock.Exclusive)
		if err == nil { // its process has ended
			l.Release()
			continue
		}
		text, err := atomicfile.Read(path+recordEnd, 1<<20)
		var m Mounted
		if err == nil && json.Unmarshal(text, &m) == nil && m.Path == path {
			all = append(all, m)
		}
	}
	slices.SortFunc(all, func(a, b Mounted) int { return a.Since.Compare(b.Since) })
	return all
}

// mountFolders returns the folders of mounts that have a lock.
func mountFolders(f Folders) (all []string) {
	if f.Data == "" {
		return nil
	}
	locks, _ := os.ReadDir(filepath.Join(f.Data, mountsFolder))
	for _, e := range locks {
		if id, ok := strings.CutSuffix(e.Name(), lockEnd); ok {
			all = append(all, filepath.Join(f.Data, mountsFolder, id))
		}
	}
	return all
}

// CleanMounts removes the mounts of processes that were killed.
func CleanMounts(f Folders, log *slog.Logger) {
	for _, path := range mountFolders(f) {
		l, err := filelock.Try(path+lockEnd, filelock.Exclusive)
		if err != nil {
			continue // it is served, or no lock can be had
		}
		err = fusemount.Unmount(path, true)
		if errors.Is(err, fusemount.ErrNotMounted) {
			err = nil
		}
		if err == nil {
			err = removeMountFolder(path)
		}
		if err != nil {
			log.Warn("the mount of a process that was killed stays", "path", path, "err", err)
			l.Release()
			continue
		}
		l.Remove()
	}
}

// Close unmounts what this Manager mounted, also if it is used, and refuses further
// mounts. It waits until ctx is done.
func (r *Manager) Close(ctx context.Context) error {
	r.mu.Lock()
	r.closed = true
	ready := map[*activeMount]bool{}
	for _, m := range r.mounts {
		ready[m] = m.ready
	}
	r.mu.Unlock()
	var errs []error
	for m, is := range ready {
		if is { // else Mount ends it
			if err := m.mount.Unmount(true); err != nil && !errors.Is(err, fusemount.ErrNotMounted) {
				errs = append(errs, err)
				continue
			}
		}
		select {
		case <-m.ended:
		case <-ctx.Done():
			errs = append(errs, context.Cause(ctx))
		}
	}
	return errors.Join(errs...)
}
