// Package spool stores output that is too long to send. An item belongs to an owner, has a size limit, expires,
// and is read by offset.
//
// Each item is one file in one folder, named after its unguessable handle. A limit never blocks a writer: bytes
// that do not fit are dropped and counted. An item expires some time after its writer was closed; it stays while
// it is written. Items survive a restart of the host but are not synced to disk, so a power failure may lose the
// newest of them. A folder belongs to one Spool at a time.
package spool

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/base32"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"
)

var (
	// ErrNotFound means that the owner has no such item; an item of another owner gives the same error.
	ErrNotFound = errors.New("no such output; it may have expired")
	// ErrFull means that there is no space for another item.
	ErrFull = errors.New("no space for more output: wait until older output expires, or remove some")
)

const (
	itemCost   = 4096 // what an item costs its owner besides its bytes, so that empty ones are capped too
	sweepEvery = time.Minute
	maxHandle  = 128 // bytes
	maxOwner   = 1 << 10
	maxMIME    = 256
	suffix     = ".spool"
)

// Options configures a Spool. The zero value is usable.
type Options struct {
	MaxItem  int64         // bytes of one item; 0 means 256 MiB
	MaxOwner int64         // bytes of one owner's items, each costing 4 KiB more; 0 means 1 GiB
	MaxTotal int64         // the same for all owners together; 0 means 4 GiB
	Keep     time.Duration // how long an item stays after it was closed; 0 means 1 h
	Log      *slog.Logger  // nil means none
	// an unguessable handle of letters, digits, "-", "_" and "."; nil means 128 random bits in base32
	NewID func() string
}

// Spool is a folder of items. It is safe for concurrent use.
type Spool struct {
	o    Options
	root *os.Root

	// mu is acquired after an item's lock, never before it.
	mu    sync.Mutex
	items map[string]*item
	used  map[string]int64 // cost by owner
	total int64
}

// Open opens the folder dir, which it creates with mode 0700 if necessary, and finds the items that an earlier
// host left there.
func Open(dir string, o Options) (*Spool, error) {
	o.MaxItem = cmp.Or(o.MaxItem, 256<<20)
	o.MaxOwner = cmp.Or(o.MaxOwner, 1<<30)
	o.MaxTotal = cmp.Or(o.MaxTotal, 4<<30)
	o.Keep = cmp.Or(o.Keep, time.Hour)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.NewID == nil {
		o.NewID = newID
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("open spool: %w", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("open spool: %w", err)
	}
	s := &Spool{o: o, root: root, items: map[string]*item{}, used: map[string]int64{}}
	if err := s.recover(); err != nil {
		root.Close()
		return nil, fmt.Errorf("open spool: %w", err)
	}
	return s, nil
}

func newID() string {
	var b [16]byte
	rand.Read(b[:]) // never fails
	return strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(b[:]))
}

// Create starts an item of an owner; an empty mime means text/plain. The error is ErrFull if the owner, or all
// owners together, have reached the limit.
func (s *Spool) Create(owner, mime string) (*Writer, error) {
	if mime == "" {
		mime = "text/plain"
	}
	if len(owner) > maxOwner || len(mime) > maxMIME {
		return nil, errors.New("spool: the owner or the type is too long")
	}
	now := time.Now()
	it := &item{handle: s.o.NewID(), owner: owner, mime: mime, created: now, expires: now.Add(s.o.Keep)}
	if !goodHandle(it.handle) {
		return nil, errors.New("spool: NewID made a handle that cannot be a file name")
	}
	if err := s.addItem(it); err != nil {
		return nil, err
	}
	if err := it.openFile(s.root); err != nil {
		s.dropItem(it)
		return nil, fmt.Errorf("spool: %w", err)
	}
	return &Writer{s, it}, nil
}

// Put stores data as a complete item and returns its handle. Bytes above a limit are dropped, as with Create.
func (s *Spool) Put(owner, mime string, data []byte) (string, error) {
	w, err := s.Create(owner, mime)
	if err != nil {
		return "", err
	}
	w.Write(data)
	return w.Handle(), w.Close()
}

// Remove removes an item, even while it is written or read.
func (s *Spool) Remove(owner, handle string) error {
	it := s.findItem(owner, handle)
	if it == nil {
		return ErrNotFound
	}
	return s.removeItem(it)
}

// EndOwned removes the items that match accepts, even while they are written or read, and returns a line for each
// owner that had any.
func (s *Spool) EndOwned(match func(owner string, made time.Time) bool) (ended []string) {
	of := map[string]int{}
	for _, it := range s.all() {
		if !match(it.owner, it.created) {
			continue
		}
		if err := s.removeItem(it); err != nil {
			s.o.Log.Warn("cannot remove output of a removed user, which stays until it expires", "error", err)
			continue
		}
		of[it.owner]++
	}
	for _, n := range of {
		ended = append(ended, fmt.Sprintf("kept output of %d calls", n))
	}
	return ended
}

// HandOver gives closed items to the owner that heir names for them, under the same handles, and returns a line
// for each previous owner. Items that do not fit into the new owner's limit stay, and so do items that are being
// written.
func (s *Spool) HandOver(heir func(owner string, made time.Time) string) (handed []string) {
	of := map[string]int{}
	for _, it := range s.all() {
		to := heir(it.owner, it.created)
		if to == "" || len(to) > maxOwner {
			continue
		}
		switch given, err := s.changeOwner(it, to); {
		case err != nil:
			s.o.Log.Warn("output is not handed over", "error", err)
		case given:
			of[it.owner]++
		}
	}
	for _, n := range of {
		handed = append(handed, fmt.Sprintf("kept output of %d calls", n))
	}
	return handed
}

// changeOwner replaces an item by one of another owner. The owner is in the header line, whose length depends on
// it, so the file is written anew.
func (s *Spool) changeOwner(it *item, to string) (given bool, err error) {
	it.mu.Lock()
	open, removed := it.file != nil || it.head == 0, it.removed
	next := &item{
		handle: it.handle, owner: to, mime: it.mime, created: it.created,
		size: it.size, dropped: it.dropped, full: it.full, expires: it.expires,
	}
	head := it.head
	it.mu.Unlock()
	if open || removed {
		return false, nil
	}
	line := next.header(true).encodeFirst()
	next.head = int64(len(line))
	const unfinished = ".handed" // no handle ends so, and a file that a killed host leaves is not read as an item
	name := it.handle + unfinished
	defer s.root.Remove(name)
	if err := s.copyItem(it.handle+suffix, head, name, line); err != nil {
		return false, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.items[it.handle] != it || s.o.MaxOwner-s.used[to] < it.cost {
		return false, nil
	}
	if err := s.root.Rename(name, it.handle+suffix); err != nil {
		return false, err
	}
	cost := it.cost
	s.refundBytes(it, -cost)
	if s.used[it.owner] == 0 {
		delete(s.used, it.owner)
	}
	s.items[it.handle] = next
	s.refundBytes(next, cost)
	return true, nil
}

// copyItem copies the data of an item after another header line.
func (s *Spool) copyItem(from string, head int64, to string, line []byte) (err error) {
	in, err := s.root.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	if _, err := in.Seek(head, io.SeekStart); err != nil {
		return err
	}
	out, err := s.root.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if e := out.Close(); err == nil {
			err = e
		}
	}()
	if _, err := out.Write(line); err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return err
}

// Run removes expired items, every minute, until ctx is done.
func (s *Spool) Run(ctx context.Context) error {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		s.removeExpired(time.Now())
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// Close closes all writers and the folder. The items stay for the next Open.
func (s *Spool) Close() error {
	for _, it := range s.all() {
		it.closeItem(s.o.Keep)
	}
	return s.root.Close()
}

func (s *Spool) removeExpired(now time.Time) {
	for _, it := range s.all() {
		if it.expired(now) {
			if err := s.removeItem(it); err != nil {
				s.o.Log.Warn("cannot remove expired output", "error", err)
			}
		}
	}
}

// findItem returns nil for an item that is unknown, belongs to another owner, or has expired.
func (s *Spool) findItem(owner, handle string) *item {
	s.mu.Lock()
	it := s.items[handle]
	s.mu.Unlock()
	if it == nil || it.owner != owner || it.expired(time.Now()) {
		return nil
	}
	return it
}

func (s *Spool) all() []*item {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]*item, 0, len(s.items))
	for _, it := range s.items {
		list = append(list, it)
	}
	return list
}

// addItem adds an item, if there is space for its cost.
func (s *Spool) addItem(it *item) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.items[it.handle] != nil {
		return errors.New("spool: NewID made the same handle twice")
	}
	if s.space(it.owner) < itemCost {
		return ErrFull
	}
	s.items[it.handle] = it
	s.refundBytes(it, itemCost)
	return nil
}

// charge reserves space for up to n more bytes and returns how many it reserved.
func (s *Spool) charge(it *item, n int64) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	n = max(0, min(n, s.space(it.owner)))
	s.refundBytes(it, n)
	return n
}

// dropItem removes an item and releases its cost.
func (s *Spool) dropItem(it *item) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.items[it.handle] != it {
		return
	}
	delete(s.items, it.handle)
	s.refundBytes(it, -it.cost)
	if s.used[it.owner] == 0 {
		delete(s.used, it.owner)
	}
}

// space and refundBytes require that the lock is held.
func (s *Spool) space(owner string) int64 {
	return min(s.o.MaxOwner-s.used[owner], s.o.MaxTotal-s.total)
}

func (s *Spool) refundBytes(it *item, n int64) {
	it.cost += n
	s.used[it.owner] += n
	s.total += n
}

func (s *Spool) removeItem(it *item) error {
	it.closeFile()
	s.dropItem(it)
	if err := s.root.Remove(it.handle + suffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// goodHandle reports whether a handle is a plain file name on every system.
func goodHandle(h string) bool {
	if h == "" || len(h) > maxHandle || h[0] == '.' {
		return false
	}
	return !strings.ContainsFunc(h, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_.", r))
	})
}
