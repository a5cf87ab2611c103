//go:build linux && (amd64 || arm64)

package guest

import (
	"bytes"
	"compress/bzip2"
	"compress/gzip"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"

	"github.com/klauspost/compress/zstd"
)

const (
	payloadAt   = 0x248       // offset of the packed kernel's position in the header
	unpackWait  = time.Minute // for an unpacking program
	setupSects  = 0x1f1
	defaultSect = 4
)

// compressions are the compression formats of kernels and modules, by their first bytes.
var compressions = []struct {
	begins string
	unpack func(ctx context.Context, r io.Reader, w io.Writer) error
}{
	{"\x1f\x8b", func(_ context.Context, r io.Reader, w io.Writer) error {
		z, err := gzip.NewReader(r)
		if err != nil {
			return err
		}
		z.Multistream(false)
		return copyAll(w, z)
	}},
	{"\x28\xb5\x2f\xfd", func(_ context.Context, r io.Reader, w io.Writer) error {
		z, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.IgnoreChecksum(false))
		if err != nil {
			return err
		}
		defer z.Close()
		return copyAll(w, z)
	}},
	{"BZh", func(_ context.Context, r io.Reader, w io.Writer) error { return copyAll(w, bzip2.NewReader(r)) }},
	{"\xfd7zXZ\x00", unpackWith("xz", "--decompress", "--stdout", "--single-stream")},
	{"\x5d\x00\x00", unpackWith("xz", "--decompress", "--stdout", "--format=lzma")},
	{"\x02\x21\x4c\x18", unpackWith("lz4", "-dc")},
}

func copyAll(w io.Writer, r io.Reader) error {
	n, err := io.Copy(w, io.LimitReader(r, largestKernel))
	if n == largestKernel {
		err = errors.New("the unpacked data is larger than a kernel can be")
	}
	return err
}

// unpackWith unpacks with an installed program.
func unpackWith(name string, args ...string) func(context.Context, io.Reader, io.Writer) error {
	return func(ctx context.Context, r io.Reader, w io.Writer) error {
		ctx, cancel := context.WithTimeout(ctx, unpackWait)
		defer cancel()
		cmd := exec.CommandContext(ctx, name, args...)
		var said bytes.Buffer
		cmd.Stdin, cmd.Stdout, cmd.Stderr = r, w, &said
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("%s: %w: %s", name, err, bytes.TrimSpace(said.Bytes()))
		}
		return nil
	}
}

// unpack returns the content of b, which may be packed.
func unpack(ctx context.Context, b []byte) ([]byte, error) {
	for _, p := range compressions {
		if bytes.HasPrefix(b, []byte(p.begins)) {
			var out bytes.Buffer
			err := p.unpack(ctx, bytes.NewReader(b), &out)
			return out.Bytes(), err
		}
	}
	return b, nil
}

// Vmlinux returns the path of the kernel as an ELF file, which some hypervisors require. It unpacks the kernel
// if necessary.
func (g *Cache) Vmlinux(ctx context.Context) (string, error) {
	if g.kernel.ELF {
		return g.kernel.Path, nil
	}
	b, err := os.ReadFile(g.kernel.Path)
	if err != nil {
		return "", err
	}
	return g.pin(ctx, "vmlinux", string(b), func(path string) error {
		payload, err := payload(b)
		if err == nil {
			b, err = unpack(ctx, payload)
		}
		if err == nil && !bytes.HasPrefix(b, []byte("\x7fELF")) {
			err = errors.New("the unpacked kernel is not an ELF file")
		}
		if err != nil {
			return fmt.Errorf("unpack %s: %w", g.kernel.Path, err)
		}
		return os.WriteFile(path, b, 0o444)
	})
}

// payload returns the packed kernel in a kernel for boot loaders. It omits the last four bytes, which are the
// unpacked size.
func payload(b []byte) ([]byte, error) {
	if len(b) < payloadAt+8 || string(b[setupMagic:setupMagic+4]) != "HdrS" {
		return nil, errors.New("not a kernel for boot loaders: it has no HdrS")
	}
	sectors := int(b[setupSects])
	if sectors == 0 {
		sectors = defaultSect
	}
	begin := uint64(sectors+1)*512 + uint64(binary.LittleEndian.Uint32(b[payloadAt:]))
	size := uint64(binary.LittleEndian.Uint32(b[payloadAt+4:]))
	if size < 4 || begin+size > uint64(len(b)) {
		return nil, errors.New("its header points outside the file")
	}
	return b[begin : begin+size-4], nil
}
