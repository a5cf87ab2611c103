//go:build linux && (amd64 || arm64)

package supervisor

import (
	"encoding/binary"
	"io"
)

// elfFile is what is to be known of a program in the format ELF. Package debug/elf is not used because of its size in
// the agents of sandboxes, and because it refuses files by their sections, which the kernel does not read.
type elfFile struct {
	shared bool   // of the type of libraries and of programs that can be loaded anywhere
	interp bool   // it names a loader
	loader string // the loader, if it is no longer than 4096 bytes
	pie    bool   // it says that it is a program
}

// Numbers of the format.
const (
	typeShared   = 3
	partDynamic  = 2
	partInterp   = 3
	tagFlags1    = 0x6ffffffb
	flagPIE      = 0x08000000
	mostParts    = 1 << 12
	mostDynamic  = 64 << 10 // bytes of the table that has the flags
	longestPath  = 4096
	headerLength = 64
)

// elfLayout says where the fields of a class of files are, and the size of its words.
type elfLayout struct {
	word, partsAt, partSize, partCount int
	part, fileAt, fileSize             int // the size of a part, and the places of fields in it
}

var elfLayouts = map[byte]elfLayout{
	1: {word: 4, partsAt: 28, partSize: 42, partCount: 44, part: 32, fileAt: 4, fileSize: 16},
	2: {word: 8, partsAt: 32, partSize: 54, partCount: 56, part: 56, fileAt: 8, fileSize: 32},
}

// readELF reads a program; ok is false if it is none of this machine.
func readELF(r io.ReaderAt) (e elfFile, ok bool) {
	head := make([]byte, headerLength)
	if n, _ := r.ReadAt(head, 0); n < 52 || string(head[:4]) != "\x7fELF" || head[5] != 1 {
		return e, false
	}
	l, ok := elfLayouts[head[4]]
	if !ok || int(binary.LittleEndian.Uint16(head[l.partSize:])) != l.part {
		return e, false
	}
	e.shared = binary.LittleEndian.Uint16(head[16:]) == typeShared
	count := int(binary.LittleEndian.Uint16(head[l.partCount:]))
	parts := make([]byte, min(count, mostParts)*l.part)
	if n, _ := r.ReadAt(parts, l.number(head[l.partsAt:])); n < len(parts) {
		return e, false
	}
	for ; len(parts) > 0; parts = parts[l.part:] {
		at, size := l.number(parts[l.fileAt:]), l.number(parts[l.fileSize:])
		switch binary.LittleEndian.Uint32(parts) {
		case partInterp:
			e.interp = true
			if text := readPart(r, at, size, longestPath); int64(len(text)) == size && e.loader == "" {
				e.loader = string(text)
			}
		case partDynamic:
			for table := readPart(r, at, size, mostDynamic); len(table) >= 2*l.word; table = table[2*l.word:] {
				if l.number(table) == tagFlags1 {
					e.pie = e.pie || l.number(table[l.word:])&flagPIE != 0
				}
			}
		}
	}
	return e, true
}

// number reads a word.
func (l elfLayout) number(b []byte) int64 {
	if l.word == 4 {
		return int64(binary.LittleEndian.Uint32(b))
	}
	return int64(binary.LittleEndian.Uint64(b))
}

func readPart(r io.ReaderAt, at, size, most int64) []byte {
	if at < 0 || size < 0 {
		return nil
	}
	b := make([]byte, min(size, most))
	n, _ := r.ReadAt(b, at)
	return b[:n]
}
