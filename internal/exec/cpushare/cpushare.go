// Package cpushare has the programs of a host share the processors: where they want the same ones, the programs of one
// principal together get as much as those of another, and all programs together less than one thread of the host. A
// priority alone does not do that, because it is one of each process: a principal who runs many would have most of the
// machine.
//
// It promises nothing where the host cannot make control groups with the controller cpu.
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

	// weight is that of all programs together for each processor: a third of one thread of the host, which has 1024.
	weight = 335

	sweepWait  = time.Second // for the kernel to release groups of processes that were killed
	sweepPause = time.Millisecond
)

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

// Join makes the group of a principal, if there is none, in the folder of the controller cpu (version 1) in which this
// process is. kept says that the program outlives this host. The caller must call Leave when the program has ended.
func Join(at, owner string, kept bool) (*Share, error) {
	sum := sha256.Sum256([]byte(owner))
	return join(programs(at, kept), hex.EncodeToString(sum[:8]))
}

// JoinPrograms is Join for groups that the caller makes itself, and removes before it calls Leave.
func JoinPrograms(at string) (*Share, error) { return join(programs(at, false), "") }

// programs is the group of all programs.
func programs(at string, kept bool) string {
	if kept {
		return filepath.Join(at, keptName)
	}
	return filepath.Join(at, prefix+procid.Self()+"-"+suffix)
}

func join(all, name string) (*Share, error) {
	groups.mu.Lock()
	defer groups.mu.Unlock()
	err := os.Mkdir(all, 0o755)
	if err == nil {
		err = os.WriteFile(filepath.Join(all, "cpu.shares"), []byte(strconv.Itoa(weight*runtime.NumCPU())), 0)
	}
	dir := filepath.Join(all, name)
	if (err == nil || errors.Is(err, os.ErrExist)) && name != "" {
		err = os.Mkdir(dir, 0o755)
	}
	if err != nil && !errors.Is(err, os.ErrExist) {
		os.Remove(all)
		return nil, fmt.Errorf("make a control group: %w", err)
	}
	groups.users[dir]++
	return &Share{dir, sync.OnceFunc(func() { leave(all, dir) })}, nil
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
// processes in the former were killed.
func Sweep(at string) {
	if at == "" {
		return
	}
	removeBelow(filepath.Join(at, keptName))
	entries, _ := os.ReadDir(at)
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), "-"+suffix) || !procid.Left(prefix, e.Name()) {
			continue
		}
		for end := time.Now().Add(sweepWait); !removeBelow(filepath.Join(at, e.Name())) &&
			time.Now().Before(end); time.Sleep(sweepPause) {
		}
	}
}

// removeBelow removes the groups in a group, and the group. It reports whether the group is gone.
func removeBelow(dir string) bool {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if e.IsDir() {
			os.Remove(filepath.Join(dir, e.Name()))
		}
	}
	err := os.Remove(dir)
	return err == nil || errors.Is(err, os.ErrNotExist)
}
