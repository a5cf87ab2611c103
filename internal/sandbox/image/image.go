// Package image makes systems for sandboxes to run out of images: folders of
// the host, image layouts and archives on it, and what registries have.
//
// What is pulled or read from a file is checked against its digests while it is
// unpacked, into a folder of the host's cache, once for each image, whoever
// asks for it and however many at once. It is all hostile until then: nothing
// in a layer reaches out of its folder, and each may only be so large, so deep
// and so much.
//
// Of an image's configuration its environment is used, PATH above all. Its
// user, entry point, command, working folder, volumes and ports are not: what
// runs, and as whom, is said by those who use the sandbox. Owners are not kept.
// The code in a sandbox sees of the files what those see who do not own them.
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
	// ErrClosed is what a Store answers after Close.
	ErrClosed = errors.New("no more images are handed out: the host is stopping")
	// ErrNotAllowed is matched by the error of a registry that the settings do
	// not name.
	ErrNotAllowed = errors.New("images are not pulled from there")
	// ErrInUse is matched by the error of removing what sandboxes use.
	ErrInUse = errors.New("the image is in use")
	// ErrUnknown is matched by the error of removing what is not there.
	ErrUnknown = errors.New("there is no such image")
)

// Options are what a Store needs. Folder has to be set.
type Options struct {
	// Folder is where images are unpacked; it is made if need be. Several
	// hosts of one user may share it.
	Folder string
	// Registries are the hosts, with their ports, that may be pulled from;
	// http:// before one says that it is spoken to without TLS. None means
	// that nothing is pulled.
	Registries []string
	// Logins are who pulls, by the registry's host and port.
	Logins map[string]Login
	// Most is what one image may have.
	// Tests set it, because images at the default limits are gigabytes.
	Most Most
	// Together is how many bytes all unpacked images may have on disk; 0
	// means 20 GiB. Those that were not used for longest go first.
	Together int64
	// Patience is how long finding, pulling and unpacking one may take; 0
	// means 15 minutes.
	Patience time.Duration

	Log *slog.Logger // nil means none
}

// Most is what an image may have. Zero members take the defaults.
type Most struct {
	Bytes   int64 // on disk, and of all its layers unpacked; 0 means 8 GiB
	File    int64 // of one file; 0 means 4 GiB
	Entries int   // files, folders and links of all its layers; 0 means 500,000
	Depth   int   // folders in one another; 0 means 64
	Ratio   int   // how many times its size a layer may unpack to, once that is more than 16 MiB; 0 means 250
}

func (o *Options) fill() error {
	if !filepath.IsAbs(o.Folder) {
		return fmt.Errorf("the folder of images is %q; it has to be an absolute path", o.Folder)
	}
	o.Most.Bytes = cmp.Or(o.Most.Bytes, 8<<30)
	o.Most.File = cmp.Or(o.Most.File, 4<<30)
	o.Most.Entries = cmp.Or(o.Most.Entries, 500_000)
	o.Most.Depth = cmp.Or(o.Most.Depth, 64)
	o.Most.Ratio = cmp.Or(o.Most.Ratio, 250)
	o.Together = cmp.Or(o.Together, 20<<30)
	o.Patience = cmp.Or(o.Patience, 15*time.Minute)
	o.Most.Bytes = min(o.Most.Bytes, o.Together)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return nil
}

// Store has the images of a host. It is safe for concurrent use.
type Store struct {
	o          Options
	registries registries
	cache      *cache
	// ctx ends with Close. A pull outlives the caller that began it, because others wait for the
	// same image.
	ctx     context.Context
	stop    context.CancelFunc
	running sync.WaitGroup

	mu     sync.Mutex
	closed bool
	making map[string]*making // by the image's digest
}

// New opens the folder of images and clears up what hosts that were killed have
// left there half done.
func New(o Options) (*Store, error) {
	if err := o.fill(); err != nil {
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
	s := &Store{o: o, registries: may, cache: c, making: map[string]*making{}}
	s.ctx, s.stop = context.WithCancel(context.Background())
	return s, nil
}

// Get finds an image, pulls and unpacks it where that was not done before, and
// keeps it until release is called. A tag of a registry is asked for each time;
// when the registry does not answer, what the tag meant last will do. Askers
// for one image wait for one unpacking, which ends when none waits any more.
// progress, which may be nil, is told now and then how many bytes of how many
// were read; it is called by the goroutine that called Get.
func (s *Store) Get(ctx context.Context, ref string, progress func(done, total int64)) (*sandbox.Image, func(), error) {
	r, err := ParseRef(ref)
	if err != nil {
		return nil, nil, err
	}
	if !s.enter() {
		return nil, nil, ErrClosed
	}
	defer s.running.Done()
	if r.Kind == Folder {
		img, err := asItIs(r)
		return img, func() {}, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, s.o.Patience, fmt.Errorf("it took longer than %v, which is all the settings of images allow", s.o.Patience))
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	if progress == nil {
		progress = func(int64, int64) {}
	}
	img, release, err := s.get(ctx, r, progress)
	if err != nil {
		if s.ctx.Err() != nil {
			err = ErrClosed
		}
		return nil, nil, fmt.Errorf("image %s: %w", r, err)
	}
	return img, release, nil
}

// enter counts a caller in, unless the store is closed.
func (s *Store) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.running.Add(1)
	}
	return !s.closed
}

// asItIs makes an image of a folder of the host.
func asItIs(r Ref) (*sandbox.Image, error) {
	real, err := filepath.EvalSymlinks(r.Path)
	if err != nil {
		return nil, fmt.Errorf("image %s: %w", r, err)
	}
	info, err := os.Stat(real)
	if err != nil || !info.IsDir() {
		return nil, errors.Join(fmt.Errorf("image %s: expected a folder that is / in the sandbox", r), err)
	}
	return &sandbox.Image{ID: string(Folder) + ":" + real, Root: real}, nil
}

func (s *Store) get(ctx context.Context, r Ref, progress func(done, total int64)) (*sandbox.Image, func(), error) {
	if img, release, err := s.known(ctx, r, r.Digest != ""); img != nil || err != nil {
		return img, release, err
	}
	for range 3 {
		img, release, err := s.find(ctx, r, progress)
		if img != nil || err != nil {
			return img, release, err
		}
	}
	return nil, nil, errors.New("it was removed each time it was unpacked: the images in use leave no room")
}

// find looks an image up and has it unpacked where it is not. It gives none
// when that was removed at once.
func (s *Store) find(ctx context.Context, r Ref, progress func(done, total int64)) (*sandbox.Image, func(), error) {
	src, err := s.open(r)
	if err != nil {
		return nil, nil, err
	}
	job := &making{src: src}
	defer job.leave() // what it has open goes when nobody needs it
	if job.what, err = src.find(ctx); err != nil {
		if img, release, _ := s.lastMeant(ctx, r, err); img != nil {
			return img, release, nil
		}
		return nil, nil, err
	}
	id := job.what.id.String()
	img, release, err := s.cache.use(ctx, id)
	if img == nil && err == nil {
		if err = s.await(ctx, job, progress); err == nil {
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

// known finds what a reference of a registry meant before.
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
	img, release, err := s.known(ctx, r, silent(why) && ctx.Err() == nil)
	if img != nil {
		s.o.Log.WarnContext(ctx, "the registry does not answer; what the image's name meant last is used", "image", r.text, "id", img.ID, "err", why)
	}
	return img, release, err
}

func (s *Store) open(r Ref) (source, error) {
	switch r.Kind {
	case Layout:
		return openLayout(r)
	case Archive:
		return openArchive(r)
	}
	return s.openRegistry(r)
}

// making is an image on its way into the cache.
type making struct {
	src  source
	what *found

	started bool
	waiting int // guarded by Store.mu
	cancel  context.CancelCauseFunc
	done    chan struct{}
	err     error // after done
	read    atomic.Int64
}

// leave closes what nobody started to read.
func (m *making) leave() {
	if !m.started {
		m.src.Close()
	}
}

// await waits until an image is unpacked, which it begins unless somebody has.
func (s *Store) await(ctx context.Context, mine *making, progress func(done, total int64)) error {
	m := s.join(mine)
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	last := int64(-1)
	for {
		select {
		case <-m.done:
			return m.err
		case <-ctx.Done():
			s.part(m)
			return context.Cause(ctx)
		case <-tick.C:
			if n := m.read.Load(); n != last {
				last = n
				progress(n, m.what.size())
			}
		}
	}
}

// join finds the making of an image that is under way, or starts this one.
func (s *Store) join(mine *making) *making {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := mine.what.id.String()
	if m, ok := s.making[key]; ok {
		m.waiting++
		return m
	}
	m := mine
	m.started, m.waiting, m.done = true, 1, make(chan struct{})
	ctx, cancel := context.WithCancelCause(s.ctx)
	m.cancel = cancel
	s.making[key] = m
	s.running.Go(func() { s.make(ctx, key, m) })
	return m
}

// part takes one away from those who wait. The last one ends it.
func (s *Store) part(m *making) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m.waiting--; m.waiting == 0 {
		m.cancel(errors.New("nobody waits for it any more"))
		s.drop(m)
	}
}

// drop lets the next asker begin anew. s.mu is held.
func (s *Store) drop(m *making) {
	if key := m.what.id.String(); s.making[key] == m {
		delete(s.making, key)
	}
}

// make unpacks an image into the cache.
func (s *Store) make(ctx context.Context, key string, m *making) {
	defer close(m.done)
	ctx, cancel := context.WithTimeout(ctx, s.o.Patience)
	defer cancel()
	began := time.Now()
	m.err = s.cache.add(ctx, key, m.what, s.o.Most, s.o.Together, func(n int) { m.read.Add(int64(n)) })
	m.err = told(m.err)
	m.src.Close()
	m.cancel(nil)
	s.mu.Lock()
	s.drop(m)
	s.mu.Unlock()
	if m.err == nil {
		s.o.Log.InfoContext(ctx, "image unpacked", "id", key, "bytes", m.what.size(), "took", time.Since(began).Round(time.Millisecond))
	}
}

// List tells which images are unpacked, those used last first.
func (s *Store) List() ([]Info, error) { return s.cache.list() }

// Remove takes an image away, by its ID or by the name in a registry that it
// was asked for last.
func (s *Store) Remove(idOrRef string) error {
	id := idOrRef
	if _, ok := hexOf(id); !ok {
		id = s.cache.recall(idOrRef)
	}
	return s.cache.remove(id, idOrRef)
}

// Close ends what is under way and returns when it has ended. Images that are
// in use stay until they are released.
func (s *Store) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.stop()
	s.running.Wait()
	return nil
}
