// Package cpushare has the programs of a host share the processors: where they want the same ones, the programs of one
// principal together get as much as those of another, and all programs together less than one thread of the host. A
// priority alone does not do that, because it is one of each process: a principal who runs many would have most of the
// machine.
//
// It promises nothing where the host cannot make control groups with the controller cpu, of version 1 or 2.
package cpushare

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"gatehouse/internal/exec/procid"
)

const (
	prefix   = "gatehouse-"
	suffix   = "cpu"
	keptName = prefix + "kept-" + suffix // for programs that outlive their host

	// Weight is that of all programs together for each processor: a third of one thread of the host, which has 1024.
	Weight = 335
	// WeightV2 is the same in version 2, where the host is in a group of its own, which has 100 for all processors.
	WeightV2 = 33

	sweepWait  = time.Second // for the kernel to release groups of processes that were killed
	sweepPause = time.Millisecond
)

// Folder is a control group with the controller cpu in which groups can be made.
type Folder struct {
	Path   string
	V2     bool // of version 2
	Counts bool // it also has the controller pids; of version 2
}

// Share is a control group that counts the processor time of a principal's programs. A Share is used by one program.
type Share struct {
	dir   string
	leave func()
}

// groups are the groups that programs use, and how many do.
var groups = struct {
	mu    sync.Mutex
	users map[string]int
}{users: map[string]int{}}

// Join makes the group of a principal, if there is none. In version 1 a program is started in it, in version 2 in a group
// in it. kept says that the program outlives this host. The caller must call Leave when the program has ended.
func Join(at Folder, owner string, kept bool) (*Share, error) {
	sum := sha256.Sum256([]byte(owner))
	return join(at, programs(at.Path, kept), hex.EncodeToString(sum[:8]))
}

// JoinPrograms is Join, in version 1, for groups that the caller makes itself, and removes before it calls Leave.
func JoinPrograms(at string) (*Share, error) { return join(Folder{Path: at}, programs(at, false), "") }

// programs is the group of all programs.
func programs(at string, kept bool) string {
	if kept {
		return Kept(at)
	}
	return filepath.Join(at, prefix+procid.Self()+"-"+suffix)
}

func join(at Folder, all, name string) (*Share, error) {
	groups.mu.Lock()
	defer groups.mu.Unlock()
	dir := filepath.Join(all, name)
	err := at.makeGroup(all, true)
	if err == nil && name != "" {
		err = at.makeGroup(dir, false)
	}
	if err != nil {
		os.Remove(all)
		return nil, fmt.Errorf("make a control group: %w", err)
	}
	groups.users[dir]++
	return &Share{dir, sync.OnceFunc(func() { leave(all, dir) })}, nil
}

// makeGroup makes a group, if it is not there: that of all programs, or that of a principal in it, which has the weight
// of its siblings.
func (f Folder) makeGroup(dir string, all bool) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		if errors.Is(err, os.ErrExist) {
			return nil
		}
		return err
	}
	files := [][2]string{}
	switch {
	case f.V2 && all:
		files = append(files, [2]string{"cpu.weight", strconv.Itoa(WeightV2)}, [2]string{"cgroup.subtree_control", "+cpu"})
	case all:
		files = append(files, [2]string{"cpu.shares", strconv.Itoa(Weight * runtime.NumCPU())})
	}
	if f.Counts {
		files = append(files, [2]string{"cgroup.subtree_control", "+pids"})
	}
	for _, file := range files {
		if err := os.WriteFile(filepath.Join(dir, file[0]), []byte(file[1]), 0); err != nil {
			os.Remove(dir)
			return err
		}
	}
	return nil
}

func leave(all, dir string) {
	groups.mu.Lock()
	defer groups.mu.Unlock()
	if groups.users[dir]--; groups.users[dir] > 0 {
		return
	}
	delete(groups.users, dir)
	os.Remove(dir)
	if groups.users[all] == 0 {
		os.Remove(all) // fails as long as there are groups in it
	}
}

// Dir is the group.
func (s *Share) Dir() string { return s.dir }

// Leave removes the group with its last program. It may be called more than once.
func (s *Share) Leave() {
	if s != nil {
		s.leave()
	}
}

// Sweep removes the groups of ended hosts in a folder, and those of programs that outlived a host and have ended. The
// processes in the former are killed in version 2, and were killed in version 1.
func Sweep(at string) {
	if at == "" {
		return
	}
	removeBelow(Kept(at))
	entries, _ := os.ReadDir(at)
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), "-"+suffix) || !procid.Left(prefix, e.Name()) {
			continue
		}
		if f, err := os.OpenFile(filepath.Join(at, e.Name(), "cgroup.kill"), os.O_WRONLY, 0); err == nil { // version 2
			f.WriteString("1")
			f.Close()
		}
		for end := time.Now().Add(sweepWait); !removeBelow(filepath.Join(at, e.Name())) &&
			time.Now().Before(end); time.Sleep(sweepPause) {
		}
	}
}

// Kept is the group in a folder that has those of programs that outlive a host.
func Kept(at string) string { return filepath.Join(at, keptName) }

// removeBelow removes the groups in a group, and the group. It reports whether the group is gone.
func removeBelow(dir string) bool {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if e.IsDir() {
			removeBelow(filepath.Join(dir, e.Name()))
		}
	}
	err := os.Remove(dir)
	return err == nil || errors.Is(err, os.ErrNotExist)
}
