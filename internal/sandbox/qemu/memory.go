//go:build linux && amd64

package qemu

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	pageSize = 4096    // bytes
	piece    = 1 << 20 // bytes of memory that are copied at once
)

// run is a part of a machine's memory, in bytes from its beginning.
type run struct{ at, size int64 }

// pages are parts of a machine's memory, one after the other in a file.
type pages struct {
	file *os.File
	runs []run
}

// copyOut writes these parts of a memory to a file.
func copyOut(memory io.ReaderAt, runs []run, file *os.File) (*pages, error) {
	out := bufio.NewWriterSize(struct{ io.Writer }{file}, piece)
	for _, r := range runs {
		if n, err := out.ReadFrom(io.NewSectionReader(memory, r.at, r.size)); err != nil {
			return nil, err
		} else if n != r.size {
			return nil, fmt.Errorf("a machine's memory ends at %#x, before %#x", r.at+n, r.at+r.size)
		}
	}
	return &pages{file, runs}, out.Flush()
}

// copyIn puts them where they were.
func (p *pages) copyIn(memory io.WriterAt) error {
	buffer := make([]byte, piece)
	from := int64(0)
	for _, r := range p.runs {
		for done := int64(0); done < r.size; {
			part := buffer[:min(r.size-done, piece)]
			if _, err := p.file.ReadAt(part, from); err != nil {
				return fmt.Errorf("what a snapshot has of a machine's memory: %w", err)
			}
			if _, err := memory.WriteAt(part, r.at+done); err != nil {
				return err
			}
			done += int64(len(part))
			from += int64(len(part))
		}
	}
	return nil
}

// filled are the parts of a file that are not holes.
func filled(f *os.File) (runs []run, err error) {
	for at := int64(0); ; {
		from, err := unix.Seek(int(f.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return runs, nil // there is no more
		}
		if err == nil {
			at, err = unix.Seek(int(f.Fd()), from, unix.SEEK_HOLE)
		}
		if err != nil {
			return nil, fmt.Errorf("lseek of a machine's memory: %w", err)
		}
		runs = append(runs, run{from, at - from})
	}
}

// view is a machine's memory as its process has it, which shares what it has
// not changed with others. Whoever has one calls close.
type view struct {
	mem, marks *os.File // of the kernel: the memory of the process, and what it is made of
	parts      []part   // in the order of the machine's memory
}

// part is where some of the machine's memory is in the process.
type part struct{ at, size, address int64 }

// look gives a view of the machine. Errors that are fs.ErrPermission mean that
// this process may not look into others.
func (m *machine) look() (_ *view, err error) {
	v := &view{}
	defer func() {
		if err != nil {
			v.close()
		}
	}()
	file := func(name string) string { return fmt.Sprintf("/proc/%d/%s", m.process.Pid, name) }
	if v.mem, err = os.OpenFile(file("mem"), os.O_RDWR, 0); err != nil {
		return nil, err
	}
	if v.marks, err = os.Open(file("pagemap")); err != nil {
		return nil, err
	}
	maps, err := os.ReadFile(file("maps"))
	if err != nil {
		return nil, err
	}
	// It was this process all the time, and not another one with its number.
	if err := m.process.Signal(syscall.Signal(0)); err != nil {
		return nil, fmt.Errorf("QEMU ended: %w", err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(m.memory.Fd()), &st); err != nil {
		return nil, &os.PathError{Op: "fstat", Path: m.memory.Name(), Err: err}
	}
	v.parts, err = partsOf(string(maps), st)
	return v, err
}

// partsOf finds in a process's list of what it has mapped all of a file, mapped
// so that changes are its own.
func partsOf(maps string, file unix.Stat_t) (parts []part, err error) {
	device := fmt.Sprintf("%02x:%02x", unix.Major(file.Dev), unix.Minor(file.Dev))
	mark := fmt.Sprintf(" %s %d", device, file.Ino)
	for line := range strings.Lines(maps) {
		if !strings.Contains(line, mark) {
			continue // most of hundreds, which would take their time to read
		}
		var from, to, at int64
		var inode uint64
		var how, on string
		if n, _ := fmt.Sscanf(line, "%x-%x %s %x %s %d", &from, &to, &how, &at, &on, &inode); n != 6 || on != device || inode != file.Ino {
			continue
		}
		if how != "rw-p" {
			return nil, fmt.Errorf("QEMU has the machine's memory mapped as %s", how)
		}
		parts = append(parts, part{at, to - from, from})
	}
	slices.SortFunc(parts, func(a, b part) int { return cmp.Compare(a.at, b.at) })
	left := file.Size
	for _, p := range parts {
		if p.at != file.Size-left || p.size <= 0 || p.size > left || p.address < 0 {
			return nil, errors.New("QEMU has not mapped each part of the machine's memory once")
		}
		left -= p.size
	}
	if left != 0 {
		return nil, errors.New("QEMU has not mapped all of the machine's memory")
	}
	return parts, nil
}

func (v *view) close() {
	for _, f := range []*os.File{v.mem, v.marks} {
		if f != nil {
			f.Close()
		}
	}
}

// What the kernel marks a page with, see pagemap in its documentation.
const (
	present = 1 << 63
	swapped = 1 << 62
	ofFile  = 1 << 61 // it is the file's, and nobody changed it
)

// changed are the parts of the memory that are not the file's any more. The
// machine is stopped.
func (v *view) changed() (runs []run, err error) {
	const entry = 8 // bytes
	buffer := make([]byte, 64<<10)
	for _, p := range v.parts {
		for done := int64(0); done < p.size; {
			some := buffer[:min((p.size-done)/pageSize*entry, int64(len(buffer)))]
			if _, err := v.marks.ReadAt(some, (p.address+done)/pageSize*entry); err != nil {
				return nil, fmt.Errorf("what a machine changed of its memory: %w", err)
			}
			for ; len(some) > 0; some, done = some[entry:], done+pageSize {
				mark := binary.NativeEndian.Uint64(some)
				if mark&(present|swapped) == 0 || mark&ofFile != 0 {
					continue
				}
				at := p.at + done
				if n := len(runs); n > 0 && runs[n-1].at+runs[n-1].size == at {
					runs[n-1].size += pageSize
				} else {
					runs = append(runs, run{at, pageSize})
				}
			}
		}
	}
	return runs, nil
}

// ReadAt reads the machine's memory.
func (v *view) ReadAt(b []byte, at int64) (int, error) { return v.each(b, at, v.mem.ReadAt) }

// WriteAt changes it.
func (v *view) WriteAt(b []byte, at int64) (int, error) { return v.each(b, at, v.mem.WriteAt) }

func (v *view) each(b []byte, at int64, do func([]byte, int64) (int, error)) (done int, err error) {
	for _, p := range v.parts {
		if in := at - p.at; in >= 0 && in < p.size && len(b) > 0 {
			n, err := do(b[:min(int64(len(b)), p.size-in)], p.address+in)
			done += n
			if err != nil {
				return done, fmt.Errorf("the memory of a machine's process: %w", err)
			}
			b, at = b[n:], at+int64(n)
		}
	}
	if len(b) > 0 {
		return done, io.EOF
	}
	return done, nil
}
