//go:build linux && (amd64 || arm64)

package agent

import (
	"bytes"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// releaseCode releases the pages of this program that were only needed to set up a sandbox or to start a program. They
// stay in the file, which all agents share; what is executed again is mapped again, page by page. It is about memory
// alone, so errors are ignored.
func releaseCode() {
	program, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return
	}
	program, _, _ = strings.Cut(program, " ")
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return
	}
	for line := range bytes.Lines(maps) {
		f := bytes.Fields(line)
		if len(f) < 6 || string(f[5]) != program || f[1][1] == 'w' {
			continue
		}
		from, to, _ := bytes.Cut(f[0], []byte("-"))
		first, err1 := strconv.ParseUint(string(from), 16, 64)
		last, err2 := strconv.ParseUint(string(to), 16, 64)
		if err1 != nil || err2 != nil || last <= first {
			continue
		}
		for _, advice := range []uintptr{unix.MADV_DONTNEED, unix.MADV_RANDOM} {
			unix.Syscall(unix.SYS_MADVISE, uintptr(first), uintptr(last-first), advice)
		}
	}
}
