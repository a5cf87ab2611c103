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
	payloadAt   = 0x248       // where the head says where the packed kernel is
	unpackWait  = time.Minute // for a program that unpacks
	setupSects  = 0x1f1
	defaultSect = 4
)

// packings are how a kernel or a module may be packed, by how it begins.
var packings = []struct {
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
	{"\xfd7zXZ\x00", by("xz", "--decompress", "--stdout", "--single-stream")},
	{"\x5d\x00\x00", by("xz", "--decompress", "--stdout", "--format=lzma")},
	{"\x02\x21\x4c\x18", by("lz4", "-dc")},
}

func copyAll(w io.Writer, r io.Reader) error {
	n, err := io.Copy(w, io.LimitReader(r, largestKernel))
	if n == largestKernel {
		err = errors.New("it unpacks to more than any kernel")
	}
	return err
}

// by unpacks with a program that the system has.
func by(name string, args ...string) func(context.Context, io.Reader, io.Writer) error {
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

// unpack is what b holds, packed or not.
func unpack(ctx context.Context, b []byte) ([]byte, error) {
	for _, p := range packings {
		if bytes.HasPrefix(b, []byte(p.begins)) {
			var out bytes.Buffer
			err := p.unpack(ctx, bytes.NewReader(b), &out)
			return out.Bytes(), err
		}
	}
	return b, nil
}

// Vmlinux is the path of the kernel as a plain program, which is what some
// machine monitors boot. It is unpacked when need be.
func (g *Guest) Vmlinux(ctx context.Context) (string, error) {
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
			err = errors.New("what is in it is no ELF program")
		}
		if err != nil {
			return fmt.Errorf("unpack %s: %w", g.kernel.Path, err)
		}
		return os.WriteFile(path, b, 0o444)
	})
}

// payload is the packed kernel in one that is for boot loaders. Its last four
// bytes are the size of what it unpacks to.
func payload(b []byte) ([]byte, error) {
	if len(b) < payloadAt+8 || string(b[setupMagic:setupMagic+4]) != "HdrS" {
		return nil, errors.New("it is no kernel for boot loaders")
	}
	sectors := int(b[setupSects])
	if sectors == 0 {
		sectors = defaultSect
	}
	begin := uint64(sectors+1)*512 + uint64(binary.LittleEndian.Uint32(b[payloadAt:]))
	size := uint64(binary.LittleEndian.Uint32(b[payloadAt+4:]))
	if size < 4 || begin+size > uint64(len(b)) {
		return nil, errors.New("its head leads out of it")
	}
	return b[begin : begin+size-4], nil
}
