package overlay

import (
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// escapes are attempts to change something outside of the view, each of which says "escaped" if it could. R is the path
// of the folder, O that of a file outside, and P the number of a process of the host.
const escapes = `
import fcntl, json, os, socket, ctypes, stat, sys
R, O, P = sys.argv[1], sys.argv[2], sys.argv[3]
libc = ctypes.CDLL(None, use_errno=True)
def escaped(what): print("escaped:", what)
def tries(what):
    def run(f):
        try:
            if f() is not False: escaped(what)
        except (OSError, ValueError): pass
    return run
def write(p):
    fd = os.open(p, os.O_WRONLY | os.O_APPEND)
    os.write(fd, b"x")

@tries("writes a file outside")
def _(): write(O)
@tries("makes a file beside one outside")
def _(): os.open(O + ".new", os.O_WRONLY | os.O_CREAT)
@tries("removes a file outside")
def _(): os.remove(O)
@tries("gives a file outside another name in the view")
def _(): os.link(O, R + "/linked"); write(R + "/linked")
@tries("changes the mode of a file outside")
def _(): os.chmod(O, 0o777)
@tries("changes the time of a file outside")
def _(): os.utime(O, (1, 1))
@tries("writes through a link")
def _(): os.symlink(O, R + "/link"); write(R + "/link")
for root in ("/proc/1/root", "/proc/%s/root" % P, "/proc/%d/root" % os.getppid(), "/proc/%s/cwd/../../../../../../.." % P):
    @tries("writes through " + root)
    def _(): write(root + O)
@tries("writes the memory of a process of the host")
def _(): os.open("/proc/%s/mem" % P, os.O_RDWR)
@tries("traces a process of the host")
def _(): return libc.ptrace(16, int(P), 0, 0) == 0
for fd in os.listdir("/proc/self/fd"):
    @tries("has a folder of the host open")
    def _(): return int(fd) > 2 and stat.S_ISDIR(os.fstat(int(fd)).st_mode)
for flags, what in ((0x1000, "binds a folder"), (32 | 4096, "mounts again for writing"), (0, "mounts a file system")):
    @tries(what)
    def _(): return libc.mount(b"none", b"/", b"tmpfs", flags, None) == 0
@tries("takes the view away")
def _(): return libc.umount2(R.encode(), 2) == 0
for ns in ("mnt", "user", "pid", "net"):
    @tries("enters the namespace " + ns + " of the host")
    def _(): return libc.setns(os.open("/proc/%s/ns/%s" % (P, ns), os.O_RDONLY), 0) == 0
@tries("changes its root")
def _(): os.chroot("/proc/%s/root" % P); write(O)
for dirpath in ("/dev",):
    for name in os.listdir(dirpath):
        p = dirpath + "/" + name
        is_device = stat.S_ISBLK(os.lstat(p).st_mode) or stat.S_ISCHR(os.lstat(p).st_mode)
        if is_device and name not in ("null", "zero", "full", "random", "urandom", "tty", "ptmx"):
            @tries("opens the device " + p)
            def _():
                s = os.fstat(os.open(p, os.O_WRONLY | os.O_NONBLOCK))
                return s.st_rdev != os.stat("/dev/null").st_rdev
@tries("makes a disk")
def _():
    d = os.stat("/").st_dev
    os.mknod(R + "/disk", 0o600 | stat.S_IFBLK, d); os.open(R + "/disk", os.O_RDONLY)
for p in ("/proc/kcore",):
    @tries("opens " + p)
    def _(): os.open(p, os.O_RDWR)
for p in ("/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/proc/sys/kernel/modprobe", "/sys/kernel/uevent_helper",
    "/proc/sys/vm/drop_caches", "/sys/fs/cgroup/release_agent") + (() if os.getuid() else ("/proc/%s/oom_score_adj" % P,)):
    @tries("opens " + p + " for writing")
    def _(): os.open(p, os.O_WRONLY)
@tries("opens a file by its handle")
def _():
    h = (ctypes.c_char * 136)(*bytes([128]))
    n = ctypes.c_int()
    if libc.name_to_handle_at(-100, O.encode(), h, ctypes.byref(n), 0) != 0: return False
    return libc.open_by_handle_at(os.open("/", os.O_RDONLY), h, os.O_WRONLY) >= 0
@tries("loads a module")
def _(): return libc.syscall(175, b"", 0, b"") == 0
@tries("reaches a listener of the host")
def _(): return sys.argv[4] != "0" and socket.create_connection(("127.0.0.1", int(sys.argv[4])), 2) is not None
@tries("reaches an abstract socket of the host")
def _(): socket.socket(socket.AF_UNIX).connect("\0" + sys.argv[5])
def connects(p, kind=socket.SOCK_STREAM):
    s = socket.socket(socket.AF_UNIX, kind); s.settimeout(2); s.connect(p); s.close()
for p in json.loads(sys.argv[6]):
    @tries("connects to " + p)
    def _(): connects(p)
    @tries("connects to a link to " + p)
    def _():
        at = "%s/socket%d" % (R, len(os.listdir(R))); os.symlink(p, at); connects(at)
    @tries("connects by an open folder to " + p)
    def _(): os.chdir(os.path.dirname(p)); connects(os.path.basename(p))
    os.chdir(R)
    for root in ("/proc/1/root", "/proc/%s/root" % P, "/proc/self/root/..", "/..", "/proc/thread-self/root"):
        @tries("connects through %s to %s" % (root, p))
        def _(): connects(root + p)
    @tries("connects to a hard link to " + p)
    def _(): os.link(p, R + "/hard"); connects(R + "/hard")
@tries("sends a datagram to " + sys.argv[7])
def _(): socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b"x", sys.argv[7])
@tries("writes to a pipe of the host")
def _(): os.write(os.open(sys.argv[8], os.O_WRONLY | os.O_NONBLOCK), b"x")
@tries("shares locks of files with the host")
def _():
    try: fcntl.flock(os.open(O, os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB); return False
    except BlockingIOError: return True
@tries("has shared memory of the host")
def _(): return libc.shmget(int(sys.argv[9]), 1, 0o600) >= 0
if int(sys.argv[10]): # Landlock keeps it from them
    @tries("sends a signal to a process of the host")
    def _(): os.kill(int(P), 10)
for name in (R + "/own", "/tmp/own", "/dev/shm/own"): # what a task makes itself is reached
    own = socket.socket(socket.AF_UNIX); own.bind(name); own.listen(5); connects(name); own.close(); os.remove(name)
own = socket.socket(socket.AF_UNIX); own.bind("\\0own" + P); own.listen(5); connects("\\0own" + P)
@tries("becomes another user by a file")
def _(): return os.system("command -v sudo >/dev/null && sudo -n true 2>/dev/null") == 0 and os.getuid() != 0
import pty
pty.openpty()
for p in ("/dev/null", "/dev/zero", "/dev/urandom"): os.close(os.open(p, os.O_RDWR if p == "/dev/null" else os.O_RDONLY))
print("tried")
`

// outside is what a program in a view must not reach.
type outside struct {
	dir      string
	file     string
	sockets  []string
	datagram string
	pipe     string
	shared   int // key of shared memory
}

// newOutside makes files, listeners, a pipe and shared memory of the host in a folder that is not in the view.
func newOutside(t *testing.T) *outside {
	t.Helper()
	cache, err := os.UserCacheDir() // a temporary folder is the view's own
	if err == nil {
		err = os.MkdirAll(cache, 0o700)
	}
	if err != nil {
		t.Skip(err)
	}
	o := &outside{}
	if o.dir, err = os.MkdirTemp(cache, "gatehouse-"); err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { os.RemoveAll(o.dir) })
	o.file, o.datagram, o.pipe = filepath.Join(o.dir, "file"), filepath.Join(o.dir, "datagram"), filepath.Join(o.dir, "pipe")
	if err := os.WriteFile(o.file, []byte("kept"), 0o644); err != nil {
		t.Fatal(err)
	}
	lock, err := os.Open(o.file)
	if err == nil {
		err = unix.Flock(int(lock.Fd()), unix.LOCK_EX)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { lock.Close() })
	o.listen(t, filepath.Join(o.dir, "early"))
	d, err := net.ListenPacket("unixgram", o.datagram)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	if err := unix.Mkfifo(o.pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	reader, err := os.OpenFile(o.pipe, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { reader.Close() })
	o.shared = 1<<20 + os.Getpid()
	id, err := unix.SysvShmGet(o.shared, 1, unix.IPC_CREAT|0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.SysvShmCtl(id, unix.IPC_RMID, nil) })
	return o
}

// listen listens at a path until the test ends.
func (o *outside) listen(t *testing.T, path string) {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	o.sockets = append(o.sockets, path)
}

// A program in a view does not get out of it by what escapes from sandboxes try.
//
//redteam:attack Staged calls change nothing: what escapes from sandboxes try, such as devices, handles, other processes, sockets
func TestEscapesFromAView(t *testing.T) {
	t.Run("without a network", func(t *testing.T) { escapesFromAView(t, false) })
	t.Run("with the network of the host", func(t *testing.T) { escapesFromAView(t, true) })
}

func escapesFromAView(t *testing.T, network bool) {
	python, err := exec.Command("python3", "-c", "import sys; print(sys.executable)").Output()
	if err != nil {
		t.Skip(err)
	}
	o := newOutside(t)
	real, h := view(t, Plan{Network: network})
	run(t, h, real, ":") // what children see is mounted
	o.listen(t, filepath.Join(o.dir, "late"))
	o.listen(t, filepath.Join(real, "inside")) // not by the task
	before, err := os.Stat(o.file)
	if err != nil {
		t.Fatal(err)
	}
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	name := "gatehouse-escape-" + filepath.Base(o.dir)
	abstract, err := net.Listen("unix", "@"+name)
	if err != nil {
		t.Fatal(err)
	}
	defer abstract.Close()
	other := exec.Command("sleep", "60")
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { other.Process.Kill(); other.Wait() }()
	if err := os.WriteFile(filepath.Join(real, "escapes.py"), []byte(escapes), 0o644); err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(tcp.Addr().String())
	if network {
		port = "0"
	}
	signals := "0"
	if landlockVersion() >= scoped {
		signals = "1"
	}
	sockets, _ := json.Marshal(o.sockets)
	got := run(t, h, real, strings.Join([]string{strings.TrimSpace(string(python)), "escapes.py", real, o.file,
		strconv.Itoa(other.Process.Pid), port, name, "'" + string(sockets) + "'", o.datagram, o.pipe,
		strconv.Itoa(o.shared), signals}, " "))
	if strings.Contains(got, "escaped") || !strings.Contains(got, "tried") {
		t.Errorf("got\n%s", got)
	}
	if after, err := os.Stat(o.file); err != nil || after.ModTime() != before.ModTime() || after.Mode() != before.Mode() ||
		after.Size() != before.Size() {
		t.Errorf("the file outside is %v, %v", after, err)
	}
	if names, _ := os.ReadDir(real); len(names) != 3 {
		t.Errorf("the folder has %v", names)
	}
	for _, path := range o.sockets { // the test can reach what the program could not
		c, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
	}
}

// A program reaches a socket that was granted, also in a folder that is covered, and one that its view has; no other.
func TestGrantedSockets(t *testing.T) {
	python, err := exec.Command("python3", "-c", "import sys; print(sys.executable)").Output()
	if err != nil {
		t.Skip(err)
	}
	o := newOutside(t)
	covered := filepath.Join(o.dir, "covered")
	if err := os.Mkdir(covered, 0o700); err != nil {
		t.Fatal(err)
	}
	o.listen(t, filepath.Join(covered, "granted"))
	o.listen(t, filepath.Join(covered, "other"))
	link := filepath.Join(o.dir, "link")
	if err := os.Symlink(o.sockets[0], link); err != nil {
		t.Fatal(err)
	}
	real, h := view(t, Plan{Covers: []string{covered}, Sockets: []string{link, o.sockets[1], filepath.Join(o.dir, "none")}})
	const line = `
import socket, sys
for p in sys.argv[1:]:
    try:
        socket.socket(socket.AF_UNIX).connect(p); print("reached")
    except OSError as e: print(e.strerror)
`
	if err := os.WriteFile(filepath.Join(real, "connect.py"), []byte(line), 0o644); err != nil {
		t.Fatal(err)
	}
	got := strings.Fields(run(t, h, real, strings.TrimSpace(string(python))+" connect.py "+
		strings.Join(append(o.sockets, link), " ")))
	if want := "reached reached No such file or directory reached"; strings.Join(got, " ") != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// The same where other file systems are mounted: one in memory, an overlay, and an overlay of that, of which the kernel
// makes no further one, so that a program sees nothing in it.
func TestEscapesFromAViewOfMounts(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounts")
	}
	o := newOutside(t)
	const script = `set -e
mount -t tmpfs x .; cd "$PWD"
mkdir l u w m e top deep
mount -t overlay o -o lowerdir=l,upperdir=u,workdir=w m
mount -t overlay o -o ro,lowerdir=e:m top
mount --bind top deep
echo content >m/file
for home in . m; do HOME=$PWD/$home "$0" -test.run '^TestEscapesFromAView$'; done
GATEHOUSE_LEFT=$PWD/deep "$0" -test.run '^TestWhatIsLeftOut$'`
	cmd := exec.Command("unshare", "-m", "sh", "-c", script, os.Args[0])
	cmd.Dir = o.dir
	if out, err := cmd.CombinedOutput(); err != nil || strings.Contains(string(out), "no tests") {
		t.Errorf("%v: %s", err, out)
	}
}

// TestWhatIsLeftOut is run by TestEscapesFromAViewOfMounts.
func TestWhatIsLeftOut(t *testing.T) {
	deep := os.Getenv("GATEHOUSE_LEFT")
	if deep == "" {
		t.Skip("TestEscapesFromAViewOfMounts runs it")
	}
	real, h := view(t, Plan{})
	if !slices.Contains(h.Left(), deep) {
		t.Errorf("left out are %q, want %s", h.Left(), deep)
	}
	if got := run(t, h, real, "ls "+deep+"; cat "+filepath.Dir(deep)+"/m/file"); got != "content\n" {
		t.Errorf("a program sees %q", got)
	}
}
