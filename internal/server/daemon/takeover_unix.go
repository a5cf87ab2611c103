//go:build unix

package daemon

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// envResume is the variable with the descriptor from which a process reads the state of the process
// that it has replaced.
const envResume = "GATEHOUSE_STDIO_RESUME"

const longestState = 1 << 30

// Replace replaces this process by the program at path, with the same arguments, and passes it a
// forwarder's state. It returns only with an error.
func Replace(path, folder string, state []byte) error {
	f, err := os.CreateTemp(folder, "stdio-*")
	if err != nil {
		return fmt.Errorf("hand the client over: %w", err)
	}
	defer f.Close()
	if err := os.Remove(f.Name()); err != nil {
		return fmt.Errorf("hand the client over: %w", err)
	}
	if _, err := f.Write(state); err != nil {
		return fmt.Errorf("hand the client over: %w", err)
	}
	if _, err := unix.FcntlInt(f.Fd(), unix.F_SETFD, 0); err != nil { // the new program must inherit it
		return fmt.Errorf("hand the client over: %w", err)
	}
	env := append(os.Environ(), envResume+"="+strconv.Itoa(int(f.Fd())))
	return fmt.Errorf("hand the client over to %s: %w", path, syscall.Exec(path, os.Args, env))
}

// Resumed returns the state that the previous program has passed to this one; nil if there was none.
func Resumed(getenv func(string) string) ([]byte, error) {
	text := getenv(envResume)
	if text == "" {
		return nil, nil
	}
	os.Unsetenv(envResume)
	fd, err := strconv.Atoi(text)
	if err != nil || fd <= 2 {
		return nil, fmt.Errorf("%s is %q, which is not a descriptor", envResume, text)
	}
	f := os.NewFile(uintptr(fd), "state")
	if f == nil {
		return nil, errors.New("the state of the previous process is missing")
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || info.Size() > longestState {
		return nil, fmt.Errorf("the state of the previous process cannot be read: %v", err)
	}
	state := make([]byte, info.Size())
	if _, err := io.ReadFull(io.NewSectionReader(f, 0, info.Size()), state); err != nil {
		return nil, fmt.Errorf("the state of the previous process cannot be read: %w", err)
	}
	return state, nil
}
