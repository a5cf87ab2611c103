//go:build linux

package rootfs

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"strings"
	"time"

	"gatehouse/internal/sandbox"
)

// A Range are the ids of the host that files of sandboxes with users of their own have: user 0 is the user of this
// process, and user i is UID+i-1. Only such sandboxes use them.
type Range struct {
	UID, GID         int
	uidmap, gidmap   string // the programs newuidmap and newgidmap; "" if this process writes maps itself
	ownUID, ownGroup int
}

const mapWait = 10 * time.Second // for newuidmap and newgidmap

// KeptRange returns the range of this host, or why it has none and what to do about it.
func (u *Users) KeptRange() (Range, error) {
	r := Range{ownUID: os.Getuid(), ownGroup: os.Getgid()}
	if !u.Single {
		first := firstID + slots*idRange
		r.UID, r.GID = first+1, first+1
		return r, nil
	}
	if os.Geteuid() == 0 {
		return r, errors.New("this host runs as root without the ids of the machine, as in a container with few ids; " +
			"run it outside, or as an ordinary user with a range of subordinate ids")
	}
	var err error
	if r.uidmap, err = exec.LookPath("newuidmap"); err == nil {
		r.gidmap, err = exec.LookPath("newgidmap")
	}
	if err != nil {
		return r, errors.New("newuidmap and newgidmap are not installed: apt-get install uidmap (Debian, Ubuntu), " +
			"dnf install shadow-utils (Fedora), apk add shadow-subids (Alpine)")
	}
	name := strconv.Itoa(r.ownUID)
	if me, err := user.LookupId(name); err == nil {
		name = me.Username
	}
	for _, f := range []struct {
		file  string
		first *int
	}{{"/etc/subuid", &r.UID}, {"/etc/subgid", &r.GID}} {
		if *f.first, err = subordinate(f.file, name, r.ownUID); err != nil {
			return r, fmt.Errorf("%w: as root, usermod --add-subuids 100000-165535 --add-subgids 100000-165535 %s", err,
				name)
		}
	}
	return r, nil
}

// subordinate returns the first id of the first range of a user that is large enough.
func subordinate(file, name string, uid int) (first int, err error) {
	f, err := os.Open(file)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		part := strings.Split(strings.TrimSpace(lines.Text()), ":")
		if len(part) != 3 || part[0] != name && part[0] != strconv.Itoa(uid) {
			continue
		}
		first, err1 := strconv.Atoi(part[1])
		count, err2 := strconv.Atoi(part[2])
		if errors.Join(err1, err2) == nil && first > 0 && count >= sandbox.UserIDs-1 {
			return first, nil
		}
	}
	return 0, fmt.Errorf("%s has no range of %d ids for %s", file, sandbox.UserIDs, name)
}

// Write has newuidmap and newgidmap write the maps of a user namespace: its user 0 is the user of this process, and the
// others are the range.
func (r Range) Write(pid int) error {
	ctx, cancel := context.WithTimeout(context.Background(), mapWait)
	defer cancel()
	for _, m := range []struct {
		program    string
		own, first int
	}{{r.uidmap, r.ownUID, r.UID}, {r.gidmap, r.ownGroup, r.GID}} {
		c := exec.CommandContext(ctx, m.program, strconv.Itoa(pid), "0", strconv.Itoa(m.own), "1",
			"1", strconv.Itoa(m.first), strconv.Itoa(sandbox.UserIDs-1))
		c.Env = []string{}
		if out, err := c.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %.300s", m.program, err, strings.TrimSpace(string(out)))
		}
	}
	return nil
}
