package idelink

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// family is how many parents are looked at: editors write their main process and listen in one of its children, or the
// other way round.
const family = 8

// ownsPort returns an error if the port of a lock file is not listened to by its process or a relative of it, so that
// the secret is not sent to a program that has taken the port over.
func ownsPort(l Lock) error {
	if l.Windows {
		return nil // the process is outside of this system
	}
	inode, uid, err := listener(l.Port)
	if err != nil {
		return err
	}
	if uid != os.Geteuid() {
		return fmt.Errorf("port %d belongs to user %d: another program has taken it over", l.Port, uid)
	}
	owners, err := filepath.Glob("/proc/[0-9]*/fd")
	if err != nil {
		return err
	}
	for _, dir := range owners {
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(dir)))
		if err != nil || !descends(pid, l.PID) && !descends(l.PID, pid) {
			continue
		}
		files, err := os.ReadDir(dir)
		if err != nil {
			continue // it has ended, or belongs to another user
		}
		for _, f := range files {
			if to, err := os.Readlink(filepath.Join(dir, f.Name())); err == nil && to == "socket:["+inode+"]" {
				return nil
			}
		}
	}
	return fmt.Errorf("port %d does not belong to process %d of the lock file: another program has taken it over",
		l.Port, l.PID)
}

// listener returns the socket that listens on a port of this machine, and the user to whom it belongs.
func listener(port int) (inode string, uid int, err error) {
	for _, name := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		f, err := os.Open(name)
		if err != nil {
			continue
		}
		defer f.Close()
		for lines := bufio.NewScanner(f); lines.Scan(); {
			fields := strings.Fields(lines.Text())
			if len(fields) < 10 || fields[3] != "0A" || !strings.HasSuffix(fields[1], fmt.Sprintf(":%04X", port)) {
				continue
			}
			uid, err := strconv.Atoi(fields[7])
			return fields[9], uid, err
		}
	}
	return "", 0, fmt.Errorf("no program listens on port %d: the lock file was left behind", port)
}

// descends reports whether a process is another, or has it among its parents.
func descends(pid, from int) bool {
	for range family {
		if pid == from {
			return true
		}
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return false
		}
		fields := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
		if len(fields) < 2 {
			return false
		}
		if pid, err = strconv.Atoi(fields[1]); err != nil || pid <= 1 {
			return false
		}
	}
	return false
}
