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

// run is a part of a machine's memory, in bytes.
type run struct{ at, size int64 }

// pages are parts of a machine's memory, stored one after the other in a file.
type pages struct {
	file *os.File
	runs []run
}

// copyOut writes parts of a memory to a file.
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

// copyIn writes the pages to where they were.
func (p *pages) copyIn(memory io.WriterAt) error {
	buffer := make([]byte, piece)
	from := int64(0)
	for _, r := range p.runs {
		for done := int64(0); done < r.size; {
			part := buffer[:min(r.size-done, piece)]
			if _, err := p.file.ReadAt(part, from); err != nil {
				return fmt.Errorf("read the memory of a snapshot: %w", err)
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

// filled returns the parts of a file that are not holes.
func filled(f *os.File) (runs []run, err error) {
	for at := int64(0); ; {
		from, err := unix.Seek(int(f.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return runs, nil // no data follows
		}
		if err == nil {
			at, err = unix.Seek(int(f.Fd()), from, unix.SEEK_HOLE)
		}
		if err != nil {
			return nil, fmt.Errorf("seek in a machine's memory: %w", err)
		}
		runs = append(runs, run{from, at - from})
	}
}

// view gives access to a machine's memory through its process, which shares unchanged pages with other
// machines. The caller must call close.
type view struct {
	mem, pagemap *os.File // /proc/PID/mem and /proc/PID/pagemap
	parts        []part   // sorted by their position in the machine's memory
}

// part is the address range of a part of the machine's memory in the process.
type part struct{ at, size, address int64 }

// openView opens a view of the machine. It returns fs.ErrPermission if this process may not access the memory of
// others.
func (m *machine) openView() (_ *view, err error) {
	v := &view{}
	defer func() {
		if err != nil {
			v.closeView()
		}
	}()
	file := func(name string) string { return fmt.Sprintf("/proc/%d/%s", m.process.Pid, name) }
	if v.mem, err = os.OpenFile(file("mem"), os.O_RDWR, 0); err != nil {
		return nil, err
	}
	if v.pagemap, err = os.Open(file("pagemap")); err != nil {
		return nil, err
	}
	maps, err := os.ReadFile(file("maps"))
	if err != nil {
		return nil, err
	}
	// If the process still exists, its id was not reused while the files were opened.
	if err := m.process.Signal(syscall.Signal(0)); err != nil {
		return nil, fmt.Errorf("QEMU exited: %w", err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(m.memory.Fd()), &st); err != nil {
		return nil, &os.PathError{Op: "fstat", Path: m.memory.Name(), Err: err}
	}
	v.parts, err = partsOf(string(maps), st)
	return v, err
}

// partsOf finds the private mappings of a file in a process's list of mappings. They must cover the whole
// file.
func partsOf(maps string, file unix.Stat_t) (parts []part, err error) {
	device := fmt.Sprintf("%02x:%02x", unix.Major(file.Dev), unix.Minor(file.Dev))
	mark := fmt.Sprintf(" %s %d", device, file.Ino)
	for line := range strings.Lines(maps) {
		if !strings.Contains(line, mark) {
			continue // skips most of hundreds of lines, whose parsing is slow
		}
		var from, to, at int64
		var inode uint64
		var how, on string
		if n, _ := fmt.Sscanf(line, "%x-%x %s %x %s %d", &from, &to, &how, &at, &on, &inode); n != 6 ||
			on != device || inode != file.Ino {
			continue
		}
		if how != "rw-p" {
			return nil, fmt.Errorf("QEMU has mapped the machine's memory as %s; expected rw-p", how)
		}
		parts = append(parts, part{at, to - from, from})
	}
	slices.SortFunc(parts, func(a, b part) int { return cmp.Compare(a.at, b.at) })
	left := file.Size
	for _, p := range parts {
		if p.at != file.Size-left || p.size <= 0 || p.size > left || p.address < 0 {
			return nil, errors.New("QEMU has mapped parts of the machine's memory more than once or not at all")
		}
		left -= p.size
	}
	if left != 0 {
		return nil, errors.New("QEMU has mapped only part of the machine's memory")
	}
	return parts, nil
}

func (v *view) closeView() {
	for _, f := range []*os.File{v.mem, v.pagemap} {
		if f != nil {
			f.Close()
		}
	}
}

// Flags of an entry in pagemap, see Documentation/admin-guide/mm/pagemap.rst of the kernel.
const (
	present = 1 << 63
	swapped = 1 << 62
	ofFile  = 1 << 61 // the page belongs to the file and is unchanged
)

// changed returns the parts of the memory that differ from the file. The machine must be paused.
func (v *view) changed() (runs []run, err error) {
	const entry = 8 // bytes
	buffer := make([]byte, 64<<10)
	for _, p := range v.parts {
		for done := int64(0); done < p.size; {
			some := buffer[:min((p.size-done)/pageSize*entry, int64(len(buffer)))]
			if _, err := v.pagemap.ReadAt(some, (p.address+done)/pageSize*entry); err != nil {
				return nil, fmt.Errorf("read the page map of a machine: %w", err)
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

// WriteAt writes the machine's memory.
func (v *view) WriteAt(b []byte, at int64) (int, error) { return v.each(b, at, v.mem.WriteAt) }

func (v *view) each(b []byte, at int64, do func([]byte, int64) (int, error)) (done int, err error) {
	for _, p := range v.parts {
		if in := at - p.at; in >= 0 && in < p.size && len(b) > 0 {
			n, err := do(b[:min(int64(len(b)), p.size-in)], p.address+in)
			done += n
			if err != nil {
				return done, fmt.Errorf("access the memory of a machine's process: %w", err)
			}
			b, at = b[n:], at+int64(n)
		}
	}
	if len(b) > 0 {
		return done, io.EOF
	}
	return done, nil
}
