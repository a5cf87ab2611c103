package overlay

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// escapes are attempts to change something outside of the view, each of which says "escaped" if it could. R is the path of
// the folder, O that of a file outside, and P the number of a process of the host.
const escapes = `
import os, socket, ctypes, stat, sys
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
    "/proc/sys/vm/drop_caches", "/sys/fs/cgroup/release_agent", "/proc/%s/oom_score_adj" % P):
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
def _(): socket.create_connection(("127.0.0.1", int(sys.argv[4])), 2)
@tries("reaches an abstract socket of the host")
def _(): socket.socket(socket.AF_UNIX).connect("\0" + sys.argv[5])
@tries("becomes another user by a file")
def _(): return os.system("command -v sudo >/dev/null && sudo -n true 2>/dev/null") == 0 and os.getuid() != 0
import pty
pty.openpty()
for p in ("/dev/null", "/dev/zero", "/dev/urandom"): os.close(os.open(p, os.O_RDWR if p == "/dev/null" else os.O_RDONLY))
print("tried")
`

// A program in a view does not get out of it by what escapes from sandboxes try.
//
//redteam:attack Staged calls change nothing: what escapes from sandboxes try, such as devices, handles, other processes, sockets
func TestEscapesFromAView(t *testing.T) {
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip(err)
	}
	real, h := view(t)
	cache, err := os.UserCacheDir() // a temporary folder is the view's own
	if err == nil {
		err = os.MkdirAll(cache, 0o700)
	}
	if err != nil {
		t.Skip(err)
	}
	kept, err := os.MkdirTemp(cache, "gatehouse-escapes-")
	if err != nil {
		t.Skip(err)
	}
	defer os.RemoveAll(kept)
	outside := filepath.Join(kept, "outside")
	if err := os.WriteFile(outside, []byte("kept"), 0o644); err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(outside)
	if err != nil {
		t.Fatal(err)
	}
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	name := "gatehouse-escape-" + filepath.Base(filepath.Dir(t.TempDir()))
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
	python, err := exec.Command("python3", "-c", "import sys; print(sys.executable)").Output()
	if err != nil {
		t.Skip(err)
	}
	got := run(t, h, real, strings.Join([]string{strings.TrimSpace(string(python)), "escapes.py", real, outside,
		strconv.Itoa(other.Process.Pid), port, name}, " "))
	if strings.Contains(got, "escaped") || !strings.Contains(got, "tried") {
		t.Errorf("got\n%s", got)
	}
	if after, err := os.Stat(outside); err != nil || after.ModTime() != before.ModTime() || after.Mode() != before.Mode() ||
		after.Size() != before.Size() {
		t.Errorf("the file outside is %v, %v", after, err)
	}
	if names, _ := os.ReadDir(real); len(names) != 2 {
		t.Errorf("the folder has %v", names)
	}
}
