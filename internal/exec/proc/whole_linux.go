package proc

import (
	"bytes"
	"crypto/rand"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"gatehouse/internal/exec/cpushare"
	"gatehouse/internal/exec/keeper"
)

// A cgroup of its own holds a child and everything that comes of it, whatever
// groups and sessions that makes. It is made in version 2 of the hierarchy, and
// the child is born in it. Where processes are to be counted and only version 1
// does that, or there is no version 2, the thread that starts the child enters a
// group there for that moment, so that the child inherits it: moving a thread is
// quick, moving the process would take milliseconds.
//
// Where no cgroup can be made, a keeper is above the child, which is the reaper of
// orphans (PR_SET_CHILD_SUBREAPER): what comes of the child are its descendants.
// The host itself is not, because that would hold for the whole host, and every
// orphan of every part would have to be told apart and waited for. The child's
// environment is marked as well, for what is left if the keeper is killed.

// mark is the name of the variable in the environment.
const mark = "GATEHOUSE_TREE"

const (
	sweeps    = 200              // searches for remaining processes before giving up
	sweepWait = time.Millisecond // between two of them
	emptyWait = 5 * time.Second  // for the kernel to release a group
)

// whole manages all descendants of one child.
type whole struct {
	in     cgroups
	v2, v1 string   // the child's group, in one of the two; "" for none
	dir    *os.File // v2, while the child is being started
	marked string   // "" if there is a group
	limit  bool     // Spec.Processes holds
	kept   bool     // it outlives the host

	share *cpushare.Share // of the processors; nil for none

	guarded bool         // it is to have a keeper
	keeper  *keeper.Kept // nil if it has none
	left    atomic.Bool  // by the keeper
	end     keeper.End
}

// Contained reports whether a cgroup contains the child, and whether the number of its processes is
// limited.
func (p *Process) Contained() (cgroup, limited bool) {
	return p.whole.v2 != "" || p.whole.v1 != "", p.whole.limit
}

// prepare makes the groups. It continues without a group that cannot be made.
func (w *whole) prepare(cmd *exec.Cmd, spec *Spec) {
	if w.in = hostGroups(); spec.cgroups != nil {
		w.in = *spec.cgroups
	}
	if w.in.v2 != "" || w.in.pids != "" || w.in.cpu != "" {
		watchGroups() // before this thread enters a group
	}
	name := leafName()
	if w.kept {
		name = keptPrefix + rand.Text()
	}
	byV1 := spec.Processes > 0 && !w.in.counts && w.in.pids != ""
	if w.in.v2 != "" && !byV1 {
		w.makeV2(cmd, name, spec.Owner, spec.Processes)
	}
	if w.in.pids != "" && w.v2 == "" {
		w.makeV1(name, spec.Processes)
	}
	if w.v2 == "" && w.v1 == "" {
		w.mark(cmd)
	}
}

// mark marks the environment of the child. A later host knows by the mark that what
// has it was left by this one, unless it is to be left.
func (w *whole) mark(cmd *exec.Cmd) {
	w.guarded = !w.kept && !w.in.noKeeper
	w.marked = mark + "=" + leafName()
	if w.kept {
		w.marked = mark + "=" + keptPrefix + rand.Text()
	}
	cmd.Env = append(slices.Clip(cmd.Env), w.marked)
}

func (w *whole) makeV2(cmd *exec.Cmd, name, owner string, most int) {
	parent := w.in.v2
	if w.in.divides {
		share, err := cpushare.Join(cpushare.Folder{Path: parent, V2: true, Counts: w.in.counts}, owner, w.kept)
		if err == nil {
			w.share, parent = share, share.Dir()
		}
	}
	path := filepath.Join(parent, name)
	if os.Mkdir(path, 0o755) != nil {
		return
	}
	dir, err := os.Open(path)
	if err != nil {
		os.Remove(path)
		return
	}
	w.v2, w.dir = path, dir
	w.limit = most > 0 && put(path, "pids.max", strconv.Itoa(most)) == nil
	cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(dir.Fd())
}

// makeV1 moves this thread into a group. The thread counts as a process until it leaves.
func (w *whole) makeV1(name string, most int) {
	path := filepath.Join(w.in.pids, name)
	if os.Mkdir(path, 0o755) != nil {
		return
	}
	limit := most > 0 && put(path, "pids.max", strconv.Itoa(most+1)) == nil
	if put(path, "tasks", "0") != nil {
		os.Remove(path)
		return
	}
	w.v1, w.limit = path, limit || w.limit
}

// SharesProcessors returns what divides the processors among principals, or "".
func SharesProcessors() string {
	switch g := hostGroups(); {
	case g.divides:
		return "control groups (version 2)"
	case g.cpu != "":
		return "control groups (version 1)"
	}
	return ""
}

// enterShare moves this thread into the group that divides the processors among principals, so that the child inherits
// it. It continues without a group that cannot be made.
func (w *whole) enterShare(owner string) {
	if w.in.cpu == "" {
		return
	}
	share, err := cpushare.Join(cpushare.Folder{Path: w.in.cpu}, owner, w.kept)
	if err != nil {
		return
	}
	if put(share.Dir(), "tasks", "0") != nil {
		share.Leave()
		return
	}
	w.share = share
}

// withdraw reports whether starting without a group may succeed after it failed in one, because a
// system may have cgroups but refuse to start processes in them.
func (w *whole) withdraw(cmd *exec.Cmd) bool {
	if w.dir == nil {
		return false
	}
	w.dir.Close()
	os.Remove(w.v2)
	w.share.Leave()
	w.dir, w.v2 = nil, ""
	cmd.SysProcAttr.UseCgroupFD = false
	w.limit = false
	w.mark(cmd)
	return true
}

// started moves this thread out of the child's group.
func (w *whole) started(*exec.Cmd) {
	if w.dir != nil {
		w.dir.Close()
		w.dir = nil
	}
	if w.v1 != "" {
		put(w.in.pids, "tasks", "0")
	}
	if w.share != nil && w.in.cpu != "" {
		put(w.in.cpu, "tasks", "0")
	}
}

// requestEnd requests the end of all processes.
func (w *whole) requestEnd() {
	for _, pid := range w.members() {
		syscall.Kill(pid, syscall.SIGTERM)
	}
}

// kill kills all processes, including those that are being started meanwhile.
func (w *whole) kill() {
	if w.keeper != nil {
		w.keeper.End()
		return
	}
	if w.gone() {
		return
	}
	if w.v1 != "" {
		put(w.v1, "pids.max", "0")
	}
	if w.v2 != "" && put(w.v2, "cgroup.kill", "1") == nil {
		return
	}
	for range sweeps {
		left := w.members()
		if len(left) == 0 {
			return
		}
		for _, pid := range left {
			syscall.Kill(pid, syscall.SIGKILL)
		}
		time.Sleep(sweepWait)
	}
}

// gone reports whether there was a group without processes. It tries to remove the group, which is the
// fastest test.
func (w *whole) gone() bool {
	path := w.v2 + w.v1
	return path != "" && syscall.Rmdir(path) == nil
}

// close removes the groups, which become empty within a moment.
func (w *whole) close() {
	if w.dir != nil {
		w.dir.Close()
		w.dir = nil
	}
	if path := w.v2 + w.v1; path != "" {
		for end, pause := time.Now().Add(emptyWait), 50*time.Microsecond; ; pause = min(2*pause, 20*time.Millisecond) {
			if err := syscall.Rmdir(path); err == nil || errors.Is(err, syscall.ENOENT) || time.Now().After(end) {
				break
			}
			time.Sleep(pause)
		}
	}
	w.share.Leave()
}

// members returns the running processes, except this one.
func (w *whole) members() []int {
	switch {
	case w.v2 != "":
		return inGroup(w.v2)
	case w.v1 != "":
		return inGroup(w.v1)
	case w.keeper != nil && !w.left.Load():
		if all := descendants(w.keeper.Cmd.Process.Pid); len(all) > 0 {
			return all
		}
	}
	if w.marked != "" {
		return withMark(w.marked)
	}
	return nil
}

func inGroup(path string) (pids []int) {
	b, _ := os.ReadFile(filepath.Join(path, "cgroup.procs"))
	for f := range strings.FieldsSeq(string(b)) {
		if pid, err := strconv.Atoi(f); err == nil && pid > 1 && pid != os.Getpid() {
			pids = append(pids, pid)
		}
	}
	return pids
}

// withMark returns all readable processes with the mark.
func withMark(m string) (pids []int) {
	for pid := range processes {
		b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
		if err == nil && pid > 1 && pid != os.Getpid() &&
			slices.ContainsFunc(bytes.Split(b, []byte{0}), func(v []byte) bool { return string(v) == m }) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// processes yields the numbers of all processes.
func processes(yield func(int) bool) {
	d, err := os.Open("/proc")
	if err != nil {
		return
	}
	defer d.Close()
	names, _ := d.Readdirnames(-1)
	for _, n := range names {
		if pid, err := strconv.Atoi(n); err == nil && !yield(pid) {
			return
		}
	}
}

// put writes to a kernel file. It avoids the overhead of os.File, because it is called several times
// for each child.
func put(dir, file, value string) error {
	fd, err := syscall.Open(dir+"/"+file, syscall.O_WRONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer syscall.Close(fd)
	_, err = syscall.Write(fd, []byte(value))
	return err
}
