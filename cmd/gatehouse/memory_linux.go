package main

import (
	"bufio"
	"bytes"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// unmapProgram takes the pages of the program's file that are in memory out of this process. Most were needed by its
// start alone, and the kernel maps whole neighbourhoods of each page that is touched, so that two thirds of the file
// count as memory of an idle host. The pages stay in the page cache, which all processes share, and come back when
// they are touched. Mappings that were written to, such as those with a debugger's breakpoints, stay.
func unmapProgram() {
	path, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return
	}
	smaps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		return
	}
	for _, m := range cleanMappings(smaps, path) {
		// It is advice: a kernel that does not follow it changes nothing.
		_, _, _ = syscall.Syscall(syscall.SYS_MADVISE, m.start, m.end-m.start, syscall.MADV_DONTNEED)
	}
}

// mapping is a range of addresses.
type mapping struct{ start, end uintptr }

// cleanMappings returns the mappings of a file that this process can only read or execute, and of which no page
// differs from the file.
func cleanMappings(smaps []byte, path string) (all []mapping) {
	var now *mapping
	for lines := bufio.NewScanner(bytes.NewReader(smaps)); lines.Scan(); {
		name, value, isCount := strings.Cut(lines.Text(), ":")
		if !isCount || strings.Contains(name, " ") {
			now = header(lines.Text(), path)
			continue
		}
		// Dirty pages are those of a file that was just written; anonymous ones are copies of this process.
		if now != nil && name == "Anonymous" && strings.TrimSpace(value) == "0 kB" {
			all = append(all, *now)
		}
	}
	return all
}

// header reads the first line about a mapping, and returns nil if it is not one of the file, or can be written.
func header(line, path string) *mapping {
	f := strings.Fields(line)
	if len(f) < 6 || strings.Join(f[5:], " ") != path || strings.Contains(f[1], "w") {
		return nil
	}
	from, to, _ := strings.Cut(f[0], "-")
	start, err := strconv.ParseUint(from, 16, 64)
	if err != nil {
		return nil
	}
	end, err := strconv.ParseUint(to, 16, 64)
	if err != nil || end <= start {
		return nil
	}
	return &mapping{uintptr(start), uintptr(end)}
}
