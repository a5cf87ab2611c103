package backup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"filippo.io/age"
)

const (
	blockSize    = 128 << 10 // bytes that are read and kept at once
	keptBlocks   = 256       // 32 MiB
	mostStreams  = 3
	streamIdle   = time.Minute // until an unused stream is closed
	discardPiece = 1 << 20     // bytes between two looks at the context
)

// contents reads the files of one backup in any order. A backup is one stream, so a
// file is reached through all before it. To make that rare, contents keeps streams
// open where they are, and blocks that were read last.
type contents struct {
	open     func() (*archiveStream, error)
	manifest *Manifest
	entry    Entry

	turn    chan struct{} // holds a value while a reader uses what follows
	streams []*archiveStream
	blocks  map[blockKey]*block
	clock   int64 // counts uses of blocks
}

type blockKey struct {
	file  int
	index int64
}

type block struct {
	data []byte
	used int64
}

// archiveStream is a backup that is read up to a place.
type archiveStream struct {
	a     *archive
	body  *delivery
	close func()

	file int       // index of the current file; -1 before the first
	at   int64     // place in it
	r    io.Reader // of the rest of it
	used time.Time
}

// openContents opens a backup to read its files until the returned function is
// called. ctx limits the opening only.
func (r *Manager) openContents(ctx context.Context, target, name string, key Key) (*contents, func(), error) {
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	ids, err := key.identities()
	if err != nil {
		end()
		return nil, nil, err
	}
	c := &contents{turn: make(chan struct{}, 1), blocks: map[blockKey]*block{}}
	once := &unwrapOnce{all: ids}
	c.open = func() (*archiveStream, error) {
		e, body, done, err := r.readBackup(life, target, name, false)
		if err != nil {
			return nil, err
		}
		a, err := openArchiveWith(body, once)
		if err != nil {
			done()
			return nil, body.explain(err)
		}
		name = e.Name // also if a newer one comes
		if c.manifest == nil {
			c.entry, c.manifest = e, a.manifest
		} else if !sameFiles(a.manifest, c.manifest) {
			a.closeArchive()
			done()
			return nil, fmt.Errorf("%w: %s was replaced while it was open", ErrDamaged, name)
		}
		return &archiveStream{a: a, body: body, close: func() { a.closeArchive(); done() }, file: -1}, nil
	}
	stop := context.AfterFunc(ctx, end)
	s, err := c.open()
	stop()
	if err != nil {
		end()
		return nil, nil, err
	}
	s.used = time.Now()
	c.streams = []*archiveStream{s}
	return c, func() {
		end()
		c.turn <- struct{}{}
		c.closeIdle(0)
		<-c.turn
	}, nil
}

func sameFiles(a, b *Manifest) bool {
	return a.Created.Equal(b.Created) && slices.EqualFunc(a.Files, b.Files, func(x, y File) bool {
		return x.Member() == y.Member() && x.Size == y.Size
	})
}

// readAt fills p with the content of a file from off on. p must end in the file.
func (c *contents) readAt(ctx context.Context, file int, p []byte, off int64) error {
	for len(p) > 0 {
		index := off / blockSize
		data, err := c.block(ctx, blockKey{file, index})
		if err != nil {
			return err
		}
		n := copy(p, data[off-index*blockSize:])
		p, off = p[n:], off+int64(n)
	}
	return nil
}

// block returns a block, which is not changed later.
func (c *contents) block(ctx context.Context, key blockKey) ([]byte, error) {
	select {
	case c.turn <- struct{}{}:
		defer func() { <-c.turn }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if b := c.blocks[key]; b != nil {
		c.clock++
		b.used = c.clock
		return b.data, nil
	}
	s, err := c.nearest(key)
	if err != nil {
		return nil, err
	}
	for {
		at, data, err := s.nextBlock(ctx, key)
		if err == nil && data != nil {
			c.cacheBlock(at, data)
		}
		if err != nil {
			if errors.Is(err, errGaveUp) {
				return nil, context.Cause(ctx)
			}
			c.drop(s) // its place is not known
			return nil, s.body.explain(err)
		}
		if at == key {
			return data, nil
		}
	}
}

// nearest returns the stream that is the shortest way before a block, or a new one.
func (c *contents) nearest(key blockKey) (best *archiveStream, err error) {
	start := key.index * blockSize
	for _, s := range c.streams {
		if s.file > key.file || s.file == key.file && s.at > start {
			continue
		}
		if best == nil || s.file > best.file || s.file == best.file && s.at > best.at {
			best = s
		}
	}
	if best == nil {
		if len(c.streams) >= mostStreams {
			c.drop(slices.MinFunc(c.streams, func(a, b *archiveStream) int { return a.used.Compare(b.used) }))
		}
		if best, err = c.open(); err != nil {
			return nil, err
		}
		c.streams = append(c.streams, best)
	}
	best.used = time.Now()
	return best, nil
}

func (c *contents) drop(s *archiveStream) {
	c.streams = slices.DeleteFunc(c.streams, func(o *archiveStream) bool { return o == s })
	s.close()
}

// closeIdle closes the streams that were not used for some time. The caller has the
// turn.
func (c *contents) closeIdle(idle time.Duration) {
	for _, s := range slices.Clone(c.streams) {
		if time.Since(s.used) >= idle {
			c.drop(s)
		}
	}
}

// cacheBlock keeps a block instead of the one that was not used for longest.
func (c *contents) cacheBlock(key blockKey, data []byte) {
	if len(c.blocks) >= keptBlocks {
		var oldest blockKey
		least := int64(-1)
		for k, b := range c.blocks {
			if least < 0 || b.used < least {
				oldest, least = k, b.used
			}
		}
		delete(c.blocks, oldest)
	}
	c.clock++
	c.blocks[key] = &block{data, c.clock}
}

// errGaveUp means that the reader went away; the stream stays where it is.
var errGaveUp = errors.New("the reader went away")

// nextBlock goes on to the file of a block, and reads the next block there. If the
// context ends the stream stays usable.
func (s *archiveStream) nextBlock(ctx context.Context, key blockKey) (blockKey, []byte, error) {
	for s.file < key.file {
		if s.r != nil {
			if err := s.discardRest(ctx); err != nil {
				return key, nil, err
			}
		}
		_, r, err := s.a.nextFile()
		if err != nil {
			return key, nil, broken(err)
		}
		s.file, s.at, s.r = s.file+1, 0, &member{r}
	}
	if ctx.Err() != nil {
		return key, nil, errGaveUp
	}
	size := s.a.manifest.Files[s.file].Size
	at := blockKey{s.file, s.at / blockSize}
	data := make([]byte, min(blockSize, size-s.at))
	n, err := io.ReadFull(s.r, data)
	s.at += int64(n)
	if err != nil {
		return at, nil, broken(err)
	}
	return at, data, nil
}

// discardRest reads to the end of the current file.
func (s *archiveStream) discardRest(ctx context.Context) error {
	size := s.a.manifest.Files[s.file].Size
	for s.at < size {
		if ctx.Err() != nil {
			return errGaveUp
		}
		// A piece ends where a block does, so that the stream can go on with one.
		n, err := io.CopyN(io.Discard, s.r, min(discardPiece, size-s.at))
		s.at += n
		if err != nil {
			return broken(err)
		}
	}
	return nil
}

// unwrapOnce is an identity that finds the key of a backup once: with a password that
// takes a second on purpose.
type unwrapOnce struct {
	all []age.Identity
	mu  sync.Mutex
	key []byte
}

// Unwrap implements age.Identity. What it returned once it returns again, also for
// another file: that does not decrypt it.
func (u *unwrapOnce) Unwrap(stanzas []*age.Stanza) ([]byte, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.key != nil {
		return slices.Clone(u.key), nil
	}
	for _, id := range u.all {
		key, err := id.Unwrap(stanzas)
		if errors.Is(err, age.ErrIncorrectIdentity) {
			continue
		}
		if err == nil {
			u.key = slices.Clone(key)
		}
		return key, err
	}
	return nil, age.ErrIncorrectIdentity
}
