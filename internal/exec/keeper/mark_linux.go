package keeper

import (
	"hash/fnv"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"
)

// What comes of a kept program has a mark that it cannot remove: the hard limit RLIMIT_RTTIME. Children inherit it, and
// a process without CAP_SYS_RESOURCE can lower it but not raise it. The limit is the time in microseconds that a thread
// with a real-time policy may run without a pause; the values used here are over 100,000 years.
//
// The value names the host: its number, the end of its start time, a hash of its PID namespace, and how many hosts are
// above it, so that the next host can tell whether that host is alive.
const (
	rlimitRTTime = 15

	markBit   = 1 << 62
	pidAt     = 40 // 22 bits
	startAt   = 18 // 22 bits
	spaceAt   = 8  // 10 bits
	depthMask = 1<<8 - 1
)

// hardLimit returns the hard limit of a process. It fails for processes of other users and those that do not exist.
func hardLimit(pid int) (limit uint64, ok bool) {
	var old syscall.Rlimit
	_, _, e := syscall.RawSyscall6(syscall.SYS_PRLIMIT64, uintptr(pid), rlimitRTTime, 0, uintptr(unsafe.Pointer(&old)),
		0, 0)
	return old.Max, e == 0
}

// setLimit marks this process.
func setLimit(limit uint64) {
	l := syscall.Rlimit{Cur: limit, Max: limit}
	syscall.RawSyscall6(syscall.SYS_PRLIMIT64, 0, rlimitRTTime, uintptr(unsafe.Pointer(&l)), 0, 0, 0)
}

// ownMark is the mark of what this host starts; 0 if there is none.
var ownMark = sync.OnceValue(func() uint64 {
	limit, ok := hardLimit(os.Getpid())
	start := startOf(os.Getpid())
	switch {
	case !ok || start < 0:
		return 0
	case isMark(limit): // a host below another one
		if limit&depthMask == 0 {
			return 0
		}
		return limit - 1
	case limit <= markBit*2-1: // another limit is set already
		return 0
	}
	return markBit | uint64(
		os.Getpid()&(1<<22-1),
	)<<pidAt | uint64(start&(1<<22-1))<<startAt | space()<<spaceAt | depthMask
})

func isMark(limit uint64) bool { return limit&markBit != 0 && limit < 2*markBit }

// sameHost reports whether a limit is a mark or that of a host below the marked one.
func sameHost(limit, mark uint64) bool { return mark != 0 && limit>>8 == mark>>8 && limit <= mark }

// space is a hash of the PID namespace of this process.
func space() uint64 {
	link, _ := os.Readlink("/proc/self/ns/pid")
	h := fnv.New32a()
	h.Write([]byte(link))
	return uint64(h.Sum32() & (1<<10 - 1))
}

// startOf is when a process started, in ticks since the boot; -1 if there is none.
func startOf(pid int) int64 {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return -1
	}
	f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	if len(f) < 20 {
		return -1
	}
	n, err := strconv.ParseInt(f[19], 10, 64)
	if err != nil {
		return -1
	}
	return n
}

// hostLives reports whether the host of a mark may be alive.
func hostLives(limit uint64) bool {
	if limit>>spaceAt&(1<<10-1) != space() {
		return true // its number says nothing here
	}
	start := startOf(int(limit >> pidAt & (1<<22 - 1)))
	return start >= 0 && uint64(start&(1<<22-1)) == limit>>startAt&(1<<22-1)
}

// running are the keepers of this process. A keeper is started while starting is held for reading,
// so that the code that holds it for writing knows them all.
var (
	starting sync.RWMutex
	running  struct {
		sync.Mutex
		pids map[int]bool
	}
)

func registerMark(pid int) {
	running.Lock()
	defer running.Unlock()
	if running.pids == nil {
		running.pids = map[int]bool{}
	}
	running.pids[pid] = true
}

func unregister(pid int) {
	running.Lock()
	defer running.Unlock()
	delete(running.pids, pid)
}

// endStrays ends what has the mark of this host and has lost its keeper.
func endStrays() {
	mark := ownMark()
	if mark == 0 {
		return
	}
	starting.Lock() // a keeper that is being started has the mark already
	defer starting.Unlock()
	running.Lock()
	keepers := make(map[int]bool, len(running.pids))
	for pid := range running.pids {
		keepers[pid] = true
	}
	running.Unlock()
	endMarked(func(pid int, limit uint64) bool { return sameHost(limit, mark) && !isKept(pid, keepers) })
}

// Sweep ends what hosts that are gone have left below keepers that are gone too. Call it when a host starts.
func Sweep() {
	endMarked(func(_ int, limit uint64) bool { return isMark(limit) && !hostLives(limit) })
}

// endMarked ends the processes that match, and what they start meanwhile: all are stopped before one is killed.
func endMarked(match func(pid int, limit uint64) bool) {
	stopped := map[int]bool{}
	for end := time.Now().Add(endWait); time.Now().Before(end); {
		fresh := false
		var all []int
		for _, pid := range processes() {
			limit, ok := hardLimit(pid)
			if !ok || pid == os.Getpid() || !match(pid, limit) {
				continue
			}
			if _, alive := parentOf(pid); !alive {
				continue
			}
			all = append(all, pid)
			if !stopped[pid] {
				stopped[pid], fresh = true, true
				syscall.Kill(pid, syscall.SIGSTOP)
			}
		}
		switch {
		case fresh:
			continue
		case len(all) == 0:
			return
		}
		for _, pid := range all {
			syscall.Kill(pid, syscall.SIGKILL)
		}
		time.Sleep(endPause)
	}
}

// mostParents limits how many ancestors are looked at, and how often that begins again.
const mostParents = 1000

// isKept reports whether a process is a keeper or below one. A parent that ends meanwhile is looked for again: what is
// below a keeper becomes the child of the keeper then.
func isKept(pid int, keepers map[int]bool) bool {
	for up, steps := pid, 0; steps < mostParents; steps++ {
		if keepers[up] {
			return true
		}
		parent, ok := parentOf(up)
		switch {
		case ok && parent <= 1:
			return false
		case ok:
			up = parent
		case up == pid:
			return false // it has ended itself
		default:
			up = pid
		}
	}
	return true // nothing is ended that may be kept
}
