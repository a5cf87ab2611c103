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

// envResume names the descriptor from which a process goes on with the client
// of the one whose place it has taken.
const envResume = "GATEHOUSE_STDIO_RESUME"

const longestState = 1 << 30

// Replace puts the program at path in the place of this process, with the same
// arguments, and hands it a forwarder's state. It returns only with an error.
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
	if _, err := unix.FcntlInt(f.Fd(), unix.F_SETFD, 0); err != nil { // it is to stay open
		return fmt.Errorf("hand the client over: %w", err)
	}
	env := append(os.Environ(), envResume+"="+strconv.Itoa(int(f.Fd())))
	return fmt.Errorf("hand the client over to %s: %w", path, syscall.Exec(path, os.Args, env))
}

// Resumed is the state that another process has handed to this one; nil when
// there was none.
func Resumed(getenv func(string) string) ([]byte, error) {
	text := getenv(envResume)
	if text == "" {
		return nil, nil
	}
	os.Unsetenv(envResume)
	fd, err := strconv.Atoi(text)
	if err != nil || fd <= 2 {
		return nil, fmt.Errorf("%s is %q, which is no descriptor", envResume, text)
	}
	f := os.NewFile(uintptr(fd), "state")
	if f == nil {
		return nil, errors.New("the state of the process before is not there")
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || info.Size() > longestState {
		return nil, fmt.Errorf("the state of the process before cannot be read: %v", err)
	}
	state := make([]byte, info.Size())
	if _, err := io.ReadFull(io.NewSectionReader(f, 0, info.Size()), state); err != nil {
		return nil, fmt.Errorf("the state of the process before cannot be read: %w", err)
	}
	return state, nil
}
