// Package image provides root file systems for sandboxes, made of images: folders of the host, image layouts
// and archives on it, and images in registries.
//
// An image that is pulled or read from a file is verified against its digests while it is unpacked into a
// cache folder of the host, once for all requests. Until then it is not trusted: no entry of a layer leaves
// its folder, and sizes, depth and counts are limited.
//
// Of an image's configuration the environment is used, in particular PATH. Its user, entry point, command,
// working directory, volumes and ports are ignored: the caller decides what runs, and as which user. File
// owners are not kept; the code sees files with the permissions of others.
package image

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"gatehouse/internal/sandbox"
)

var (
	// ErrClosed is returned by a Store after Close.
	ErrClosed = errors.New("images are unavailable: the host is stopping")
	// ErrNotAllowed is matched by the error for a registry that the settings do not name.
	ErrNotAllowed = errors.New("the registry is not allowed")
	// ErrInUse is matched by the error for removing an image that sandboxes use.
	ErrInUse = errors.New("the image is in use")
	// ErrUnknown is matched by the error for removing an image that does not exist.
	ErrUnknown = errors.New("the image does not exist")
)

// Options are for New. Folder is required.
type Options struct {
	// Folder is the cache for unpacked images; New creates it. Several hosts of one user may share it.
	Folder string
	// Registries are the hosts, with their ports, that images may be pulled from. The prefix http:// allows a
	// registry without TLS. An empty list allows none.
	Registries []string
	// Logins are the credentials, by the registry's host and port.
	Logins map[string]Login
	// Limits limits one image. Tests set it, because images at the default limits are gigabytes.
	Limits Limits
	// TotalBytes is the most bytes of all unpacked images on disk; 0 means 20 GiB. The least recently used are
	// removed first.
	TotalBytes int64
	// Timeout bounds finding, pulling and unpacking one image; 0 means 15 minutes.
	Timeout time.Duration

	Log *slog.Logger // nil means none
}

// Limits limits an image. Zero fields take the defaults.
type Limits struct {
	Bytes   int64 // on disk, and of all layers unpacked; 0 means 8 GiB
	File    int64 // of one file; 0 means 4 GiB
	Entries int   // files, folders and links of all layers; 0 means 500,000
	Depth   int   // nesting of folders; 0 means 64
	Ratio   int   // most times its size that a layer may unpack to, if that is more than 16 MiB; 0 means 250
}

func (o *Options) setDefaults() error {
	if !filepath.IsAbs(o.Folder) {
		return fmt.Errorf("the folder of images is %q; expected an absolute path", o.Folder)
	}
	o.Limits.Bytes = cmp.Or(o.Limits.Bytes, 8<<30)
	o.Limits.File = cmp.Or(o.Limits.File, 4<<30)
	o.Limits.Entries = cmp.Or(o.Limits.Entries, 500_000)
	o.Limits.Depth = cmp.Or(o.Limits.Depth, 64)
	o.Limits.Ratio = cmp.Or(o.Limits.Ratio, 250)
	o.TotalBytes = cmp.Or(o.TotalBytes, 20<<30)
	o.Timeout = cmp.Or(o.Timeout, 15*time.Minute)
	o.Limits.Bytes = min(o.Limits.Bytes, o.TotalBytes)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return nil
}

// Store provides the images of a host. It is safe for concurrent use.
type Store struct {
	o          Options
	registries registries
	cache      *cache
	ctx        context.Context // ends with Close; unpacking outlives the call that started it
	stop       context.CancelFunc
	running    sync.WaitGroup

	mu        sync.Mutex
	closed    bool
	unpacking map[string]*unpacking // by digest of the image
}

// New opens the folder of images and removes unfinished ones of hosts that were killed.
func New(o Options) (*Store, error) {
	if err := o.setDefaults(); err != nil {
		return nil, err
	}
	may, err := readRegistries(o.Registries)
	if err != nil {
		return nil, err
	}
	c, err := openCache(o.Folder, o.Log)
	if err != nil {
		return nil, fmt.Errorf("open the folder of images: %w", err)
	}
	s := &Store{o: o, registries: may, cache: c, unpacking: map[string]*unpacking{}}
	s.ctx, s.stop = context.WithCancel(context.Background())
	return s, nil
}

// Get finds an image, pulls and unpacks it if necessary, and keeps it until release is called. A tag is
// resolved by its registry each time; if the registry does not answer, the last known image of the tag is
// used. Concurrent calls for one image share one unpacking, which is cancelled when no caller waits for it.
// progress, which may be nil, is called now and then with the bytes read so far and in total, by the goroutine
// that called Get.
func (s *Store) Get(ctx context.Context, ref string, progress func(done, total int64)) (*sandbox.Image, func(), error) {
	r, err := ParseRef(ref)
	if err != nil {
		return nil, nil, err
	}
	if !s.countUser() {
		return nil, nil, ErrClosed
	}
	defer s.running.Done()
	if r.Kind == Folder {
		img, err := folderImage(r)
		return img, func() {}, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, s.o.Timeout,
		fmt.Errorf("it took longer than the %v that the settings of images allow", s.o.Timeout))
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	if progress == nil {
		progress = func(int64, int64) {}
	}
	img, release, err := s.getImage(ctx, r, progress)
	if err != nil {
		if s.ctx.Err() != nil {
			err = ErrClosed
		}
		return nil, nil, fmt.Errorf("image %s: %w", r, err)
	}
	return img, release, nil
}

// countUser counts a caller, unless the store is closed.
func (s *Store) countUser() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.running.Add(1)
	}
	return !s.closed
}

// folderImage returns a folder of the host as an image.
func folderImage(r Ref) (*sandbox.Image, error) {
	real, err := filepath.EvalSymlinks(r.Path)
	if err != nil {
		return nil, fmt.Errorf("image %s: %w", r, err)
	}
	info, err := os.Stat(real)
	if err != nil || !info.IsDir() {
		return nil, errors.Join(fmt.Errorf("image %s: expected a folder to use as / in the sandbox", r), err)
	}
	return &sandbox.Image{ID: string(Folder) + ":" + real, Root: real}, nil
}

func (s *Store) getImage(ctx context.Context, r Ref, progress func(done, total int64)) (*sandbox.Image, func(), error) {
	if img, release, err := s.known(ctx, r, r.Digest != ""); img != nil || err != nil {
		return img, release, err
	}
	for range 3 {
		img, release, err := s.findImage(ctx, r, progress)
		if img != nil || err != nil {
			return img, release, err
		}
	}
	return nil, nil, errors.New("the image was removed each time it was unpacked: the images in use leave no space")
}

// findImage resolves a reference and unpacks the image if necessary. It returns nil if the image was removed again
// at once.
func (s *Store) findImage(
	ctx context.Context, r Ref, progress func(done, total int64),
) (*sandbox.Image, func(), error) {
	src, err := s.openSource(r)
	if err != nil {
		return nil, nil, err
	}
	job := &unpacking{src: src}
	defer job.closeUnused() // closes the source unless unpacking has started
	if job.what, err = src.find(ctx); err != nil {
		if img, release, _ := s.lastMeant(ctx, r, err); img != nil {
			return img, release, nil
		}
		return nil, nil, err
	}
	id := job.what.id.String()
	img, release, err := s.cache.use(ctx, id)
	if img == nil && err == nil {
		if err = s.awaitUnpacking(ctx, job, progress); err == nil {
			img, release, err = s.cache.use(ctx, id)
		}
	}
	if img == nil || err != nil {
		return nil, nil, err
	}
	if r.Kind == Registry {
		if err := s.cache.remember(r.text, id); err != nil {
			release()
			return nil, nil, err
		}
	}
	progress(job.what.size(), job.what.size())
	return img, release, nil
}

// known returns the image that a reference of a registry last resolved to.
func (s *Store) known(ctx context.Context, r Ref, good bool) (*sandbox.Image, func(), error) {
	if _, allowed := s.registries[strings.ToLower(r.Host)]; r.Kind != Registry || !allowed || !good {
		return nil, nil, nil
	}
	id := s.cache.recall(r.text)
	if id == "" {
		return nil, nil, nil
	}
	return s.cache.use(ctx, id)
}

func (s *Store) lastMeant(ctx context.Context, r Ref, why error) (*sandbox.Image, func(), error) {
	img, release, err := s.known(ctx, r, temporary(why) && ctx.Err() == nil)
	if img != nil {
		s.o.Log.WarnContext(ctx, "the registry does not answer; the last known image is used", "image", r.text,
			"id", img.ID, "err", why)
	}
	return img, release, err
}

func (s *Store) openSource(r Ref) (source, error) {
	switch r.Kind {
	case Layout:
		return openLayout(r)
	case Archive:
		return openArchive(r)
	}
	return s.openRegistry(r)
}

// unpacking is an image that is being unpacked.
type unpacking struct {
	src  source
	what *found

	started bool
	waiting int // guarded by Store.mu
	cancel  context.CancelCauseFunc
	done    chan struct{}
	err     error // set before done is closed
	read    atomic.Int64
}

// closeUnused closes the source if unpacking has not started.
func (m *unpacking) closeUnused() {
	if !m.started {
		m.src.Close()
	}
}

// awaitUnpacking waits until an image is unpacked. It starts that unless another caller has.
func (s *Store) awaitUnpacking(ctx context.Context, mine *unpacking, progress func(done, total int64)) error {
	m := s.shareUnpacking(mine)
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	last := int64(-1)
	for {
		select {
		case <-m.done:
			return m.err
		case <-ctx.Done():
			s.stopWaiting(m)
			return context.Cause(ctx)
		case <-tick.C:
			if n := m.read.Load(); n != last {
				last = n
				progress(n, m.what.size())
			}
		}
	}
}

// shareUnpacking returns the unpacking of an image in progress, or starts this one.
func (s *Store) shareUnpacking(mine *unpacking) *unpacking {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := mine.what.id.String()
	if m, ok := s.unpacking[key]; ok {
		m.waiting++
		return m
	}
	m := mine
	m.started, m.waiting, m.done = true, 1, make(chan struct{})
	ctx, cancel := context.WithCancelCause(s.ctx)
	m.cancel = cancel
	s.unpacking[key] = m
	s.running.Go(func() { s.unpackImage(ctx, key, m) })
	return m
}

// stopWaiting removes a waiting caller. The last one cancels the unpacking.
func (s *Store) stopWaiting(m *unpacking) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m.waiting--; m.waiting == 0 {
		m.cancel(errors.New("no caller waits for the image"))
		s.drop(m)
	}
}

// drop makes the next call start again. The caller holds s.mu.
func (s *Store) drop(m *unpacking) {
	if key := m.what.id.String(); s.unpacking[key] == m {
		delete(s.unpacking, key)
	}
}

// unpackImage unpacks an image into the cache.
func (s *Store) unpackImage(ctx context.Context, key string, m *unpacking) {
	defer close(m.done)
	ctx, cancel := context.WithTimeout(ctx, s.o.Timeout)
	defer cancel()
	began := time.Now()
	m.err = s.cache.addImage(ctx, key, m.what, s.o.Limits, s.o.TotalBytes, func(n int) { m.read.Add(int64(n)) })
	m.err = scrub(m.err)
	m.src.Close()
	m.cancel(nil)
	s.mu.Lock()
	s.drop(m)
	s.mu.Unlock()
	if m.err == nil {
		s.o.Log.InfoContext(ctx, "image unpacked", "id", key, "bytes", m.what.size(), "took",
			time.Since(began).Round(time.Millisecond))
	}
}

// List returns the unpacked images, the last used first.
func (s *Store) List() ([]Info, error) { return s.cache.listImages() }

// Remove removes an image, by its ID or by the reference to a registry it was last requested with.
func (s *Store) Remove(idOrRef string) error {
	id := idOrRef
	if _, ok := hexOf(id); !ok {
		id = s.cache.recall(idOrRef)
	}
	return s.cache.removeImage(id, idOrRef)
}

// Close cancels unpacking and waits for its end. Images in use stay until they are released.
func (s *Store) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.stop()
	s.running.Wait()
	return nil
}
