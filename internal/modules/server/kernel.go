package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/shirou/gopsutil/v4/host"

	"gatehouse/tool"
)

func (s *server) kernelLogs(ctx context.Context, c *tool.Call, in pageIn) (pageOut, error) {
	if err := s.rules.Check(c, "read what the kernel says"); err != nil {
		return pageOut{}, err
	}
	return page(ctx, kernel{}, in)
}

const (
	kernelFile   = "/dev/kmsg"
	kernelRecord = 16 << 10 // bytes; the kernel's own limit is half of it
	kernelMost   = 50_000   // records
	kernelLook   = time.Second
	kernelPause  = 20 * time.Millisecond // after which nothing more is there,
	kernelIdle   = 2                     // but for so many of them in a row
)

// kernel is the log of the machine's kernel.
type kernel struct{}

// read implements journal. Each read of the file gives one record, and the
// last one says that it would have to wait.
func (kernel) read(ctx context.Context) (boot string, all []entry, wait func(context.Context), err error) {
	if runtime.GOOS != "linux" {
		return "", nil, nil, tool.Refuse("unsupported", "messages of the kernel are read on Linux only; this is %s", runtime.GOOS)
	}
	f, err := os.OpenFile(kernelFile, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return "", nil, nil, kernelRefusal(err)
	}
	defer f.Close()
	booted := bootTime(ctx)
	buf := make([]byte, kernelRecord)
	idle := 0
	for len(all) < kernelMost && ctx.Err() == nil {
		f.SetReadDeadline(time.Now().Add(kernelPause)) // where it can be waited for; otherwise it does not wait
		n, err := f.Read(buf)
		if errors.Is(err, os.ErrDeadlineExceeded) && idle < kernelIdle {
			idle++ // a busy machine is late to ask, which looks the same
			continue
		}
		switch {
		case errors.Is(err, syscall.EPIPE): // the oldest have just gone: go on with what is there
			continue
		case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, syscall.EAGAIN), err == nil && n == 0:
			return bootID(), all, again, nil
		case err != nil:
			return "", nil, nil, kernelRefusal(err)
		}
		if e, ok := parseRecord(string(buf[:n]), booted); ok {
			all = append(all, e)
		}
		idle = 0
	}
	return bootID(), all, again, ctx.Err()
}

// again waits until it is time to look again.
func again(ctx context.Context) {
	select {
	case <-time.After(kernelLook):
	case <-ctx.Done():
	}
}

func kernelRefusal(err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return tool.Refuse("unsupported", "there is no %s here, as in most containers", kernelFile)
	case errors.Is(err, fs.ErrPermission):
		return &tool.Refusal{Code: "denied", Message: "the system keeps the kernel's messages from this host's user", Next: "Give it the capability CAP_SYSLOG, or set kernel.dmesg_restrict to 0."}
	}
	return fmt.Errorf("read %s: %w", kernelFile, err)
}

// bootID names the present start of the machine.
func bootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "boot"
	}
	return strings.ReplaceAll(strings.TrimSpace(string(b)), "-", "")
}

func bootTime(ctx context.Context) time.Time {
	seconds, err := host.BootTimeWithContext(ctx)
	if err != nil {
		return time.Time{}
	}
	return time.Unix(int64(seconds), 0)
}

// kernelLevels are those of syslog, from emergencies on.
var kernelLevels = [...]string{"error", "error", "error", "error", "warn", "info", "info", "debug"}

// parseRecord reads one record of the kernel's log: priority, sequence number,
// microseconds since the start and flags, a semicolon, the message, and lines
// with details that begin with a blank.
func parseRecord(text string, booted time.Time) (e entry, ok bool) {
	head, body, found := strings.Cut(text, ";")
	fields := strings.Split(head, ",")
	if !found || len(fields) < 3 {
		return e, false
	}
	priority, err1 := strconv.ParseUint(fields[0], 10, 32)
	seq, err2 := strconv.ParseUint(fields[1], 10, 64)
	micros, err3 := strconv.ParseInt(fields[2], 10, 64)
	if errors.Join(err1, err2, err3) != nil || micros < 0 || micros > int64(200*365*24*time.Hour/time.Microsecond) || seq == ^uint64(0) {
		return e, false
	}
	message, rest, _ := strings.Cut(body, "\n")
	// The first is 0 for the kernel, and before the first for our cursors.
	e = entry{seq: seq + 1, at: booted.Add(time.Duration(micros) * time.Microsecond), level: kernelLevels[priority&7], message: cut(unescaped(message))}
	e.attrs = details(rest)
	return e, true
}

// unescaped reverses what the kernel does to bytes that are not printable
// ASCII, and to the backslash: \x and two hexadecimal digits stand for each.
func unescaped(s string) string {
	if !strings.Contains(s, `\x`) {
		return strings.ToValidUTF8(s, "\uFFFD")
	}
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if i+4 <= len(s) && s[i] == '\\' && s[i+1] == 'x' {
			if v, err := strconv.ParseUint(s[i+2:i+4], 16, 8); err == nil {
				b = append(b, byte(v))
				i += 3
				continue
			}
		}
		b = append(b, s[i])
	}
	return strings.ToValidUTF8(string(b), "\uFFFD")
}

func details(lines string) json.RawMessage {
	all := map[string]string{}
	for line := range strings.Lines(lines) {
		key, value, found := strings.Cut(strings.TrimSpace(line), "=")
		if found && key != "" {
			all[key] = unescaped(value)
		}
	}
	if len(all) == 0 {
		return nil
	}
	b, err := json.Marshal(all) // invalid UTF-8 is replaced
	if err != nil || len(b) > mostMessage {
		return nil
	}
	return b
}
