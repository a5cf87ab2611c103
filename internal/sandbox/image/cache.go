package image

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"gatehouse/internal/files/atomicfile"
	"gatehouse/internal/files/filelock"
	"gatehouse/internal/sandbox"
)

// Info describes an unpacked image.
type Info struct {
	ID      string
	Refs    []string // references to registries that last resolved to it
	Bytes   int64    // on disk
	Entries int      // files, folders and links in its layers
	Used    time.Time
	InUse   bool // by a host of this user
}

// cache is the folder that images are unpacked into:
//
//	images/<hex>/root        an image
//	images/<hex>/image.json  its description
//	making/<hex>/            the same while it is being unpacked or removed
//	locks/<hex>              locked shared by users of the image, exclusively while it is made or removed
//	refs/<hash>.json         what a reference to a registry last resolved to
//
// The locks are the kernel's, so that they end with their host. An entry of making whose lock is free was left
// by a host that was killed.
type cache struct {
	folder string
	log    *slog.Logger
}

const notes = "image.json"

// note is the content of image.json.
type note struct {
	ID      string   `json:"id"`
	Env     []string `json:"env"`
	Bytes   int64    `json:"bytes"`
	Entries int      `json:"entries"`
}

func openCache(folder string, log *slog.Logger) (*cache, error) {
	c := &cache{folder, log}
	for _, dir := range []string{"", "images", "making", "locks", "refs"} {
		if err := os.MkdirAll(filepath.Join(folder, dir), 0o700); err != nil {
			return nil, err
		}
	}
	return c, c.sweepImages()
}

func (c *cache) path(parts ...string) string {
	return filepath.Join(append([]string{c.folder}, parts...)...)
}

// hexOf returns the part of an ID that names folders.
func hexOf(id string) (string, bool) {
	hex, ok := strings.CutPrefix(id, "sha256:")
	return hex, ok && len(hex) == 2*sha256.Size && strings.Trim(hex, "0123456789abcdef") == ""
}

// sweepImages removes unfinished images.
func (c *cache) sweepImages() error {
	left, err := os.ReadDir(c.path("making"))
	if err != nil {
		return err
	}
	for _, e := range left {
		l, err := c.tryLock(e.Name(), filelock.Exclusive)
		if err != nil {
			return err
		}
		if l == nil {
			continue // another host is working on it
		}
		err = os.RemoveAll(c.path("making", e.Name()))
		c.unlock(l, true)
		if err != nil {
			return err
		}
		c.log.Info("an unfinished image was removed", "id", e.Name())
	}
	return nil
}

// use returns a cached image, or nil. The caller must call release.
func (c *cache) use(ctx context.Context, id string) (img *sandbox.Image, release func(), err error) {
	hex, ok := hexOf(id)
	if _, err := os.Stat(c.path("images", hex, notes)); !ok || err != nil {
		return nil, nil, nil
	}
	l, err := c.lock(ctx, hex, filelock.Shared)
	if err != nil {
		return nil, nil, err
	}
	n, err := c.readNote(hex)
	if err != nil {
		c.unlock(l, false)
		return nil, nil, nil // removed meanwhile, or damaged and to be unpacked again
	}
	c.touch(hex)
	img = &sandbox.Image{ID: n.ID, Root: c.path("images", hex, "root"), Env: n.Env}
	return img, sync.OnceFunc(func() {
		c.touch(hex)
		c.unlock(l, false)
	}), nil
}

// touch records that an image was used.
func (c *cache) touch(hex string) {
	now := time.Now()
	if err := os.Chtimes(c.path("images", hex, notes), now, now); err != nil && !errors.Is(err, fs.ErrNotExist) {
		c.log.Warn("cannot record the use of an image", "id", hex, "err", err)
	}
}

func (c *cache) readNote(hex string) (n note, err error) {
	text, err := os.ReadFile(c.path("images", hex, notes))
	if err != nil {
		return n, err
	}
	if err = json.Unmarshal(text, &n); err == nil && n.ID != "sha256:"+hex {
		err = fmt.Errorf("image.json of %s describes %s", hex, n.ID)
	}
	return n, err
}

// addImage unpacks an image. It appears whole or not at all, even if the host or the machine crashes.
func (c *cache) addImage(ctx context.Context, id string, what *found, most Limits, together int64,
	came func(int)) (err error) {
	hex, ok := hexOf(id)
	if !ok {
		return fmt.Errorf("%q is not a sha256 digest", id)
	}
	if runtime.GOOS == "windows" {
		return fmt.Errorf("images cannot be unpacked on this system: %w", errors.ErrUnsupported)
	}
	l, err := c.lock(ctx, hex, filelock.Exclusive)
	if err != nil {
		return err
	}
	defer func() { c.unlock(l, err != nil) }()
	if _, err := c.readNote(hex); err == nil {
		return nil // another host has unpacked it
	}
	if n := what.size(); n > most.Bytes {
		return fmt.Errorf("the layers have %d bytes; an image may have %d", n, most.Bytes)
	}
	at := c.path("making", hex)
	if err := os.RemoveAll(at); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(at))
		}
	}()
	n, err := c.fillImage(ctx, at, id, what, most, came)
	if err != nil {
		return err
	}
	if err := c.makeRoom(n.Bytes, together); err != nil {
		return err
	}
	if err := os.RemoveAll(c.path("images", hex)); err != nil { // a damaged one
		return err
	}
	if err := os.Rename(at, c.path("images", hex)); err != nil {
		return err
	}
	return atomicfile.SyncFolder(c.path("images"))
}

// fillImage creates the folder of an image and syncs it to disk.
func (c *cache) fillImage(
	ctx context.Context, at, id string, what *found, most Limits, came func(int),
) (n note, err error) {
	top := filepath.Join(at, "root")
	if err := os.MkdirAll(top, 0o700); err != nil {
		return n, err
	}
	root, err := os.OpenRoot(top)
	if err != nil {
		return n, err
	}
	defer root.Close()
	u, err := unpack(ctx, root, what.layers, most, false, came)
	if err != nil {
		return n, err
	}
	n = note{ID: id, Env: what.env, Bytes: u.bytes, Entries: u.entries}
	text, err := json.Marshal(n)
	if err != nil {
		return n, err
	}
	if err := os.WriteFile(filepath.Join(at, notes), text, 0o600); err != nil {
		return n, err
	}
	return n, syncTree(at)
}

// makeRoom removes unused images, the least recently used first, until one more fits.
func (c *cache) makeRoom(size, together int64) error {
	all, err := c.unpacked()
	if err != nil {
		return err
	}
	for _, i := range all {
		size += i.Bytes
	}
	for _, i := range slices.Backward(all) {
		if size <= together {
			return nil
		}
		switch err := c.removeImage(i.ID, i.ID); {
		case err == nil:
			c.log.Info("an image was removed to make space", "id", i.ID, "bytes", i.Bytes)
			size -= i.Bytes
		case errors.Is(err, ErrUnknown):
			size -= i.Bytes
		case !errors.Is(err, ErrInUse):
			return err
		}
	}
	if size > together {
		return fmt.Errorf("the images in use and the new one have %d bytes together; they may have %d: end "+
			"sandboxes of other images, or raise image_bytes in the settings", size, together)
	}
	return nil
}

// removeImage removes an image unless it is in use. called is the caller's name for it, for errors.
func (c *cache) removeImage(id, called string) error {
	hex, ok := hexOf(id)
	if _, err := os.Stat(c.path("images", hex)); !ok || err != nil {
		return fmt.Errorf("%.200q: %w", called, ErrUnknown)
	}
	// held locks an image for a moment, so wait a little.
	ctx, cancel := context.WithTimeoutCause(context.Background(), 30*time.Millisecond, ErrInUse)
	defer cancel()
	l, err := c.lock(ctx, hex, filelock.Exclusive)
	if err != nil {
		return fmt.Errorf("%.200q: %w", called, err)
	}
	defer c.unlock(l, true)
	going := c.path("making", hex)
	if err := os.RemoveAll(going); err != nil {
		return err
	}
	if err := os.Rename(c.path("images", hex), going); err != nil {
		return err
	}
	return errors.Join(os.RemoveAll(going), c.forgetRefs(id))
}

// listImages returns the images, the last used first.
func (c *cache) listImages() ([]Info, error) {
	all, err := c.unpacked()
	refs := map[string][]string{}
	for ref, id := range c.meanings() {
		refs[id] = append(refs[id], ref)
	}
	for i := range all {
		hex, _ := hexOf(all[i].ID)
		slices.Sort(refs[all[i].ID])
		all[i].Refs, all[i].InUse = refs[all[i].ID], c.held(hex)
	}
	return all, err
}

// unpacked is list without references and users.
func (c *cache) unpacked() (all []Info, err error) {
	there, err := os.ReadDir(c.path("images"))
	for _, e := range there {
		n, err := c.readNote(e.Name())
		info, serr := os.Stat(c.path("images", e.Name(), notes))
		if err != nil || serr != nil {
			continue // being removed
		}
		all = append(all, Info{ID: n.ID, Bytes: n.Bytes, Entries: n.Entries, Used: info.ModTime()})
	}
	slices.SortFunc(all, func(a, b Info) int { return b.Used.Compare(a.Used) })
	return all, err
}

// held reports whether an image is in use.
func (c *cache) held(hex string) bool {
	l, err := c.tryLock(hex, filelock.Exclusive)
	if err != nil || l == nil {
		return true
	}
	c.unlock(l, false)
	return false
}
