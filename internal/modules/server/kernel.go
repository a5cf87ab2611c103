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
	if err := s.rules.Check(c, "read the kernel log"); err != nil {
		return pageOut{}, err
	}
	return page(ctx, kernel{}, in)
}

const (
	kernelFile       = "/dev/kmsg"
	kernelRecord     = 16 << 10 // bytes of one record; twice the kernel's limit
	maxKernelRecords = 50_000   // records in memory
	kernelLook       = time.Second
	kernelTimeout    = 20 * time.Millisecond // without a record means the end,
	maxKernelIdle    = 2                     // after this many timeouts in a row
)

// kernel is the kernel log of the machine.
type kernel struct{}

// readAll implements journal. Each read of the file returns one record; the last one
// returns that it would block.
func (kernel) readAll(ctx context.Context) (boot string, all []entry, wait func(context.Context), err error) {
	if runtime.GOOS != "linux" {
		return "", nil, nil, tool.Refuse(
			tool.CodeUnsupported, "the kernel log is available on Linux only; this is %s", runtime.GOOS,
		)
	}
	f, err := os.OpenFile(kernelFile, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return "", nil, nil, kernelRefusal(err)
	}
	defer f.Close()
	booted := bootTime(ctx)
	buf := make([]byte, kernelRecord)
	idle := 0
	for len(all) < maxKernelRecords && ctx.Err() == nil {
		f.SetReadDeadline(time.Now().Add(kernelTimeout)) // ignored if the file has no deadlines; then it does not block
		n, err := f.Read(buf)
		if errors.Is(err, os.ErrDeadlineExceeded) && idle < maxKernelIdle {
			idle++ // on a busy machine the deadline may have passed before the read
			continue
		}
		switch {
		case errors.Is(err, syscall.EPIPE): // the kernel overwrote the oldest records: continue with the next
			continue
		case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, syscall.EAGAIN), err == nil && n == 0:
			return bootID(), all, waitPoll, nil
		case err != nil:
			return "", nil, nil, kernelRefusal(err)
		}
		if e, ok := parseRecord(string(buf[:n]), booted); ok {
			all = append(all, e)
		}
		idle = 0
	}
	return bootID(), all, waitPoll, ctx.Err()
}

// waitPoll waits for the interval between two reads of the log.
func waitPoll(ctx context.Context) {
	select {
	case <-time.After(kernelLook):
	case <-ctx.Done():
	}
}

func kernelRefusal(err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return tool.Refuse(tool.CodeUnsupported, "this system has no %s, as in most containers", kernelFile)
	case errors.Is(err, fs.ErrPermission):
		return &tool.Refusal{
			Code:    tool.CodeDenied,
			Message: "the system does not let this host's user read the kernel log",
			Next: "An administrator of the machine can give the host the capability CAP_SYSLOG, or set " +
				"kernel.dmesg_restrict to 0.",
		}
	}
	return fmt.Errorf("read %s: %w", kernelFile, err)
}

// bootID returns the id of the present boot of the machine.
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

// kernelLevels are the levels for the priorities of syslog, beginning with 0,
// emergency.
var kernelLevels = [...]string{"error", "error", "error", "error", "warn", "info", "info", "debug"}

// parseRecord parses one record of the kernel log: priority, sequence number,
// microseconds since the boot and flags, a semicolon, the message, and lines
// with details, which begin with a blank.
func parseRecord(text string, booted time.Time) (e entry, ok bool) {
	head, body, found := strings.Cut(text, ";")
	fields := strings.Split(head, ",")
	if !found || len(fields) < 3 {
		return e, false
	}
	priority, err1 := strconv.ParseUint(fields[0], 10, 32)
	seq, err2 := strconv.ParseUint(fields[1], 10, 64)
	micros, err3 := strconv.ParseInt(fields[2], 10, 64)
	if errors.Join(err1, err2, err3) != nil || micros < 0 || micros > int64(200*365*24*time.Hour/time.Microsecond) ||
		seq == ^uint64(0) {
		return e, false
	}
	message, rest, _ := strings.Cut(body, "\n")
	// The kernel counts from 0; a cursor of 0 means before the first record.
	e = entry{
		seq:     seq + 1,
		at:      booted.Add(time.Duration(micros) * time.Microsecond),
		level:   kernelLevels[priority&7],
		message: cut(unescape(message)),
	}
	e.attrs = details(rest)
	return e, true
}

// unescape decodes \xNN, with which the kernel escapes the backslash and bytes that
// are not printable ASCII.
func unescape(s string) string {
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
			all[key] = unescape(value)
		}
	}
	if len(all) == 0 {
		return nil
	}
	b, err := json.Marshal(all) // cannot fail; invalid UTF-8 is replaced
	if err != nil || len(b) > maxMessage {
		return nil
	}
	return b
}
