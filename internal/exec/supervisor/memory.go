//go:build linux && (amd64 || arm64)

package supervisor

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	maxArguments = 1024     // that are read of a program
	maxArgBytes  = 64 << 10 // of all of them
	page         = 4096
	execFilename = 31 // AT_EXECFN: where the name is by which the program was started
)

var errUnreadable = errors.New("the memory of the process cannot be read")

// readMemory reads the memory of a process up to the end of a page.
func readMemory(pid int, at uint64, into []byte) (int, error) {
	if at == 0 {
		return 0, errUnreadable
	}
	n := min(len(into), int(page-at%page))
	local := unix.Iovec{Base: &into[0]}
	local.SetLen(n)
	got, err := unix.ProcessVMReadv(pid, []unix.Iovec{local}, []unix.RemoteIovec{{Base: uintptr(at), Len: n}}, 0)
	if err != nil || got <= 0 {
		return 0, errUnreadable
	}
	return got, nil
}

// readText reads a text that ends with a zero.
func readText(pid int, at uint64, most int) (string, error) {
	var text []byte
	buf := make([]byte, 512)
	for len(text) < most {
		n, err := readMemory(pid, at, buf)
		if err != nil {
			return "", err
		}
		if i := bytes.IndexByte(buf[:n], 0); i >= 0 {
			return string(append(text, buf[:i]...)), nil
		}
		text = append(text, buf[:n]...)
		at += uint64(n)
	}
	return "", errUnreadable
}

// readArguments reads the arguments that a process gives to execve.
func readArguments(pid int, at uint64) (args []string, cut bool, err error) {
	size := 0
	words := make([]byte, 64*8)
	for at != 0 {
		n, err := readMemory(pid, at, words)
		if err != nil || n < 8 {
			return nil, false, errUnreadable
		}
		n &^= 7
		at += uint64(n)
		for _, text := range unsafe.Slice((*uint64)(unsafe.Pointer(&words[0])), n/8) {
			if text == 0 {
				return args, false, nil
			}
			a, err := readText(pid, text, maxArgBytes)
			if err != nil {
				return args, true, nil
			}
			size += len(a)
			if args = append(args, a); len(args) == maxArguments || size > maxArgBytes {
				return args, true, nil
			}
		}
	}
	return args, false, nil
}

// readProc reads a file of /proc that belongs to a process, as far as the buffer goes. It is done
// several times for each program, so it goes without what os.File adds.
func readProc(pid int, name string, buf []byte) (n int, err error) {
	fd, err := unix.Open("/proc/"+strconv.Itoa(pid)+"/"+name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, &os.PathError{Op: "open", Path: name, Err: err}
	}
	defer unix.Close(fd)
	for n < len(buf) {
		got, err := unix.Read(fd, buf[n:])
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || got == 0 {
			return n, err
		}
		n += got
	}
	return n, nil
}

// commandLine reads the arguments of a program that was loaded.
func commandLine(pid int, buf []byte) (args []string, cut bool, err error) {
	n, err := readProc(pid, "cmdline", buf)
	if err != nil {
		return nil, false, err
	}
	if n == 0 {
		return nil, false, errUnreadable
	}
	args = strings.Split(strings.TrimSuffix(string(buf[:n]), "\x00"), "\x00")
	if cut = n == len(buf) || len(args) > maxArguments; cut {
		args = args[:min(len(args), maxArguments)]
	}
	return args, cut, nil
}

// startedAs returns the name by which a loaded program was started, which is the script's for a script.
func startedAs(pid int, buf []byte) (string, error) {
	n, err := readProc(pid, "auxv", buf)
	if err != nil {
		return "", err
	}
	const word = 8
	for b := buf[:n]; len(b) >= 2*word; b = b[2*word:] {
		if binary.NativeEndian.Uint64(b) == execFilename {
			return readText(pid, binary.NativeEndian.Uint64(b[word:]), unix.PathMax)
		}
	}
	return "", errUnreadable
}

// leaderOf returns the process of a thread.
func leaderOf(tid int) int {
	if unix.Tgkill(tid, tid, 0) == nil {
		return tid
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", tid))
	if err != nil {
		return tid
	}
	_, rest, _ := strings.Cut(string(b), "\nTgid:\t")
	number, _, _ := strings.Cut(rest, "\n")
	if pid, err := strconv.Atoi(number); err == nil {
		return pid
	}
	return tid
}
