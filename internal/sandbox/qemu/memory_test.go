//go:build linux && amd64

package qemu

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// ofPages is a file in memory with so many pages, of which those hold a letter.
func ofPages(t *testing.T, count int64, letters map[int64]byte) *os.File {
	t.Helper()
	f, err := memoryFile("memory", count*pageSize)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	for at, letter := range letters {
		if _, err := f.WriteAt(bytes.Repeat([]byte{letter}, pageSize), at*pageSize); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

func TestOfAMemoryWithHolesOnlyTheRestIsKept(t *testing.T) {
	const count = 2000
	from := ofPages(t, count, map[int64]byte{0: 'a', 1: 'b', 700: 'c', count - 1: 'd'})
	runs, err := filled(from)
	if want := []run{{0, 2 * pageSize}, {700 * pageSize, pageSize},
		{(count - 1) * pageSize, pageSize}}; err != nil || !slices.Equal(runs, want) {
		t.Fatalf("%v, %v, want %v", runs, err, want)
	}
	kept, err := os.Create(filepath.Join(t.TempDir(), "kept"))
	if err != nil {
		t.Fatal(err)
	}
	defer kept.Close()
	p, err := copyOut(from, runs, kept)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := kept.Stat(); err != nil || info.Size() != 4*pageSize {
		t.Errorf("%v, %v", info.Size(), err)
	}
	to := ofPages(t, count, nil)
	if err := p.copyIn(to); err != nil {
		t.Fatal(err)
	}
	if was, is := all(t, from), all(t, to); !bytes.Equal(was, is) {
		t.Error("it came back as something else")
	}
	if err := kept.Truncate(pageSize); err != nil {
		t.Fatal(err)
	}
	if err := p.copyIn(to); err == nil {
		t.Error("what is not there any more came back")
	}
	if _, err := copyOut(from, []run{{(count - 1) * pageSize, 2 * pageSize}}, kept); err == nil {
		t.Error("more was kept than there is")
	}
}

func all(t *testing.T, f *os.File) []byte {
	t.Helper()
	b, err := io.ReadAll(io.NewSectionReader(f, 0, 1<<40))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// This process stands for one of QEMU, which has memory mapped in pieces.
func TestWhatAMachineChangedIsFound(t *testing.T) {
	const count = 9000 // more than are looked at together
	file := ofPages(t, count, map[int64]byte{5: 'a', 6: 'b', 8500: 'c'})
	if err := seal(file); err != nil {
		t.Fatal(err)
	}
	mapped, err := unix.Mmap(int(file.Fd()), 0, count*pageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(mapped)
	if err := unix.Madvise(mapped[4000*pageSize:], unix.MADV_DONTDUMP); err != nil { // in two parts
		t.Fatal(err)
	}
	self, err := os.FindProcess(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	v, err := (&machine{process: self, memory: file}).openView()
	if err != nil {
		t.Fatal(err)
	}
	defer v.closeView()
	if len(v.parts) != 2 {
		t.Fatalf("%+v", v.parts)
	}
	if runs, err := v.changed(); err != nil || len(runs) != 0 {
		t.Errorf("at first: %v, %v", runs, err)
	}
	seen := byte(0)
	for at := 0; at < len(mapped); at += pageSize {
		seen |= mapped[at] // to have read it changes nothing
	}
	mapped[5*pageSize] = 'x'
	mapped[6*pageSize] = 'b'
	mapped[3999*pageSize], mapped[4000*pageSize] = 'y', 'z'
	clear(mapped[8500*pageSize : 8501*pageSize])
	runs, err := v.changed()
	if want := []run{{5 * pageSize, 2 * pageSize}, {3999 * pageSize, 2 * pageSize},
		{8500 * pageSize, pageSize}}; err != nil || seen == 0 || !slices.Equal(runs, want) {
		t.Errorf("%v, %v, want %v", runs, err, want)
	}
	kept, err := os.Create(filepath.Join(t.TempDir(), "kept"))
	if err != nil {
		t.Fatal(err)
	}
	defer kept.Close()
	p, err := copyOut(v, runs, kept)
	if err != nil {
		t.Fatal(err)
	}
	was := bytes.Clone(mapped)
	clear(mapped[5*pageSize : 7*pageSize])
	mapped[8500*pageSize] = 100
	if err := p.copyIn(v); err != nil || !bytes.Equal(was, mapped) {
		t.Errorf("what was kept is not what there is again: %v", err)
	}
}

func TestMemoryThatIsNotMappedAsAWholeIsNoMachines(t *testing.T) {
	const head = "10000-20000 r--p 00000000 08:01 77 /usr/bin/qemu\n"
	line := func(from, to, at int64, how string) string {
		return fmt.Sprintf("%x-%x %s %08x 00:01 42 /memfd:memory (deleted)\n", from<<12, to<<12, how, at<<12)
	}
	for name, c := range map[string]struct {
		maps string
		want []part
	}{
		"all of it": {head + line(100, 108, 0, "rw-p"), []part{{0, 8 << 12, 100 << 12}}},
		"two parts, turned": {line(100, 104, 4, "rw-p") + line(200, 204, 0, "rw-p"),
			[]part{{0, 4 << 12, 200 << 12}, {4 << 12, 4 << 12, 100 << 12}}},
		"a part is missing":     {line(100, 107, 0, "rw-p"), nil},
		"there is a gap":        {line(100, 102, 0, "rw-p") + line(200, 206, 3, "rw-p"), nil},
		"a part is there twice": {line(100, 108, 0, "rw-p") + line(200, 208, 0, "rw-p"), nil},
		"others could see it":   {line(100, 108, 0, "rw-s"), nil},
		"it can only be read":   {line(100, 108, 0, "r--p"), nil},
		"not at all":            {head, nil},
	} {
		parts, err := partsOf(c.maps, unix.Stat_t{Dev: 1, Ino: 42, Size: 8 << 12})
		if (err == nil) != (c.want != nil) || !slices.Equal(parts, c.want) {
			t.Errorf("%s: %v, %v, want %v", name, parts, err, c.want)
		}
	}
}

func FuzzPartsOf(f *testing.F) {
	f.Add("64000-6c000 rw-p 00000000 00:01 42   /memfd:memory (deleted)\n")
	f.Add("64000-68000 rw-p 00004000 00:01 42\n70000-74000 rw-p 00000000 00:01 42 /x\n")
	f.Add("0-ffffffffffffffff rw-p 0 00:01 42\n")
	f.Fuzz(func(t *testing.T, maps string) {
		const size = 8 << 12
		parts, err := partsOf(maps, unix.Stat_t{Dev: 1, Ino: 42, Size: size})
		if err != nil {
			return
		}
		end := int64(0)
		for _, p := range parts {
			if p.at != end || p.size <= 0 || p.address < 0 {
				t.Fatalf("%+v of %q", parts, maps)
			}
			end += p.size
		}
		if end != size {
			t.Fatalf("%+v of %q", parts, maps)
		}
	})
}
