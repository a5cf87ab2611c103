package image

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"

	"github.com/klauspost/compress/zstd"
)

// Compression of a layer.
const (
	plain = iota
	gzipped
	zstandard
)

func packed(magic []byte) int {
	switch {
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
		return gzipped
	case bytes.HasPrefix(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		return zstandard
	}
	return plain
}

const (
	widestWindow = 128 << 20 // bytes of the window of zstd
	ratioFloor   = 16 << 20  // bytes to which every layer may unpack, however small it is
)

// measured counts and hashes what is read through it. It fails when ctx ends or after most bytes.
type measured struct {
	// ctx is a field because io.Reader has no parameter for it.
	ctx  context.Context
	from io.Reader
	most int64
	n    int64
	sum  hash.Hash
	over func() error      // returns the error for more than most bytes
	seen func(n int) error // called with the number of bytes read
}

func (m *measured) Read(p []byte) (int, error) {
	if err := context.Cause(m.ctx); err != nil {
		return 0, err
	}
	n, err := m.from.Read(p)
	m.n += int64(n)
	m.sum.Write(p[:n])
	if m.n > m.most {
		return n, m.over()
	}
	if m.seen != nil {
		if serr := m.seen(n); serr != nil {
			return n, serr
		}
	}
	return n, err
}

func (m *measured) hash() (sum [sha256.Size]byte) {
	m.sum.Sum(sum[:0])
	return sum
}

// readLayer starts reading the tar of a layer. left is how many bytes it may unpack to.
func (l layer) readLayer(ctx context.Context, left int64, ratio int, came func(int)) (*tarball, error) {
	from, err := l.open(ctx)
	if err != nil {
		return nil, err
	}
	t := &tarball{layer: l, closers: []io.Closer{from}}
	t.stored = &measured{ctx: ctx, from: from, most: l.size, sum: sha256.New(),
		over: func() error { return fmt.Errorf("it has more than the declared %d bytes", l.size) },
		seen: func(n int) error { came(n); return nil },
	}
	t.packed = bufio.NewReaderSize(t.stored, 64<<10)
	content, err := t.unpacked()
	if err != nil {
		t.Close()
		return nil, err
	}
	t.content = &measured{ctx: ctx, from: content, most: left, sum: sha256.New(),
		over: func() error { return errTooMuch },
		seen: func(int) error {
			if t.content.n > ratioFloor && t.content.n/int64(ratio) > t.stored.n {
				return fmt.Errorf("it unpacks to more than %d times its size, which no regular layer does", ratio)
			}
			return nil
		},
	}
	return t, nil
}

// errTooMuch is the error for an image with too many bytes.
var errTooMuch = errors.New("the layers have more bytes than an image may have; raise the limit in the " +
	"settings of images")

// tarball is the tar of a layer being read.
type tarball struct {
	layer
	stored, content *measured
	packed          *bufio.Reader
	closers         []io.Closer
}

func (t *tarball) Read(p []byte) (int, error) { return t.content.Read(p) }

// unpacked returns a reader of the tar, after detecting the compression.
func (t *tarball) unpacked() (io.Reader, error) {
	magic, err := t.packed.Peek(4)
	if err != nil && err != io.EOF {
		return nil, err
	}
	switch packed(magic) {
	case gzipped:
		return gzip.NewReader(t.packed)
	case zstandard:
		z, err := zstd.NewReader(t.packed, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
			zstd.WithDecoderMaxWindow(widestWindow))
		if err != nil {
			return nil, err
		}
		t.closers = append(t.closers, z.IOReadCloser())
		return z, nil
	}
	return t.packed, nil
}

// verify reads the rest and compares sizes and digests.
func (t *tarball) verify() error {
	if _, err := io.Copy(io.Discard, t); err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, t.packed); err != nil {
		return err
	}
	if t.stored.n != t.size {
		return fmt.Errorf("it has %d bytes; expected %d", t.stored.n, t.size)
	}
	if t.digest.Hex != "" {
		if err := sameHash(t.digest, t.stored.hash()); err != nil {
			return err
		}
	}
	if err := sameHash(t.layer.content, t.content.hash()); err != nil {
		return fmt.Errorf("uncompressed content: %w", err)
	}
	return nil
}

func (t *tarball) Close() error {
	var errs []error
	for i := len(t.closers) - 1; i >= 0; i-- {
		errs = append(errs, t.closers[i].Close())
	}
	return errors.Join(errs...)
}
