package clientconfig

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

const killVariable = "GATEHOUSE_TEST_CHANGE"

func TestMain(m *testing.M) {
	if home := os.Getenv(killVariable); home != "" {
		changeOnce(home)
		return
	}
	os.Exit(m.Run())
}

// changeOnce makes the test's own program one that connects a client, or
// disconnects it if it is connected.
func changeOnce(home string) {
	m := Machine{
		GOOS: "linux", Home: home,
		Getenv: func(string) string { return "" },
		Look:   func(string) bool { return false },
	}
	b := Book{filepath.Join(home, "book")}
	c := FindClient("cursor")
	ch, err := m.PlanPut(c, User, byStdio)
	if err == nil && !ch.Changes() {
		ch, err = m.PlanRemove(b, c, User, byStdio.Name)
	}
	if err == nil {
		_, err = b.Apply(ch)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// However many calls of the kernel a command has made when it is killed, the file
// of the client holds the old text or the new one, and the command makes the
// change when it is run again.
//
//redteam:attack A file of a client: a command is killed between any two system calls
func TestAKillBetweenAnyTwoSystemCalls(t *testing.T) {
	const old = "{\n  // mine\n  \"mcpServers\": {}\n}\n"
	now, err := FindClient("cursor").Put([]byte(old), byStdio)
	if err != nil {
		t.Fatal(err)
	}
	for name, texts := range map[string][2]string{"connect": {old, string(now)}, "disconnect": {string(now), old}} {
		t.Run(name, func(t *testing.T) {
			home := t.TempDir()
			path := filepath.Join(home, ".cursor", "mcp.json")
			for at, done := 1, false; !done; at++ {
				writeFile(t, path, old)
				os.RemoveAll(filepath.Join(home, "book"))
				if name == "disconnect" {
					run(t, home)
				}
				done = killedAt(t, home, at)
				if done && at < 20 {
					t.Fatalf("it made only %d calls", at)
				}
				got := readFile(t, path)
				if got != texts[0] && got != texts[1] {
					t.Fatalf("killed before call %d, the file holds %q", at, got)
				}
				if got == texts[0] {
					run(t, home)
				}
				if got := readFile(t, path); got != texts[1] {
					t.Fatalf("killed before call %d and run again, the file holds %q", at, got)
				}
				if left, _ := filepath.Glob(path + ".*"); len(left) > 0 && got == texts[0] {
					t.Errorf("killed before call %d and run again, %v is left", at, left)
				}
			}
		})
	}
}

func changer(home string) *exec.Cmd {
	program, err := os.Executable()
	if err != nil {
		panic(err) // it is running
	}
	cmd := exec.Command(program)
	cmd.Env = []string{killVariable + "=" + home, "GOMAXPROCS=1", "TMPDIR=" + home}
	return cmd
}

func run(t *testing.T, home string) {
	t.Helper()
	if out, err := changer(home).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// changing are the calls that change files, and those between them.
var changing = map[uint64]bool{
	unix.SYS_OPENAT: true, unix.SYS_WRITE: true, unix.SYS_FSYNC: true, unix.SYS_RENAMEAT: true, unix.SYS_RENAMEAT2: true,
	unix.SYS_UNLINKAT: true, unix.SYS_FCHMODAT: true, unix.SYS_MKDIRAT: true, unix.SYS_FLOCK: true, unix.SYS_CLOSE: true,
	unix.SYS_LINKAT: true, unix.SYS_FTRUNCATE: true,
}

// killedAt runs the command and kills it before it makes the call of this number
// of those that change files. It returns true if there were fewer.
func killedAt(t *testing.T, home string, at int) (ended bool) {
	t.Helper()
	runtime.LockOSThread() // the tracer is one thread
	defer runtime.UnlockOSThread()
	cmd := changer(home)
	cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true}
	if err := cmd.Start(); err != nil {
		if errors.Is(err, syscall.EPERM) {
			t.Skip("no process may be traced here")
		}
		t.Fatal(err)
	}
	main := cmd.Process.Pid
	defer cmd.Process.Release()
	var status unix.WaitStatus
	if _, err := unix.Wait4(main, &status, 0, nil); err != nil || !status.Stopped() {
		t.Fatalf("%v, %v", status, err)
	}
	const options = unix.PTRACE_O_TRACESYSGOOD | unix.PTRACE_O_TRACECLONE | unix.PTRACE_O_EXITKILL
	if err := unix.PtraceSetOptions(main, options); err != nil {
		t.Fatal(err)
	}
	if err := unix.PtraceSyscall(main, 0); err != nil {
		t.Fatal(err)
	}
	calls := 0
	for {
		pid, err := unix.Wait4(-1, &status, unix.WALL, nil)
		if err != nil {
			t.Fatal(err)
		}
		if pid == main && (status.Exited() || status.Signaled()) {
			if !status.Exited() || status.ExitStatus() != 0 {
				t.Fatalf("the command ended with %v", status)
			}
			return true
		}
		if !status.Stopped() {
			continue
		}
		signal := 0
		switch stop := status.StopSignal(); {
		case stop == unix.SIGTRAP|0x80:
			if number, entry := entering(pid); entry && changing[number] {
				if calls++; calls == at {
					endAll(t, main)
					return false
				}
			}
		case stop != unix.SIGTRAP && stop != unix.SIGSTOP:
			signal = int(stop)
		}
		unix.PtraceSyscall(pid, signal) // an error means that it has just ended
	}
}

// endAll kills the process and waits for all of its threads.
func endAll(t *testing.T, main int) {
	t.Helper()
	if err := unix.Kill(main, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, unix.WALL, nil)
		if err != nil || pid == main && status.Signaled() {
			return
		}
	}
}

// entering returns the number of the call that a stopped thread is about to make.
func entering(pid int) (number uint64, entry bool) {
	const (
		getSyscallInfo = 0x420e
		entryStop      = 1
	)
	var info struct {
		op     uint8
		_      [3]uint8
		arch   uint32
		ip, sp uint64
		number uint64
		rest   [8]uint64
	}
	to := uintptr(unsafe.Pointer(&info))
	_, _, e := unix.RawSyscall6(unix.SYS_PTRACE, getSyscallInfo, uintptr(pid), unsafe.Sizeof(info), to, 0, 0)
	return info.number, e == 0 && info.op == entryStop
}

// Two commands at once both succeed or say that the file changed; the file is
// whole.
func TestTwoCommandsAtOnce(t *testing.T) {
	home := t.TempDir()
	path := filepath.Join(home, ".cursor", "mcp.json")
	writeFile(t, path, "{}\n")
	ended := make(chan string, 4)
	for range cap(ended) {
		go func() {
			out, err := changer(home).CombinedOutput()
			if err != nil && !strings.Contains(string(out), ErrModified.Error()) {
				ended <- fmt.Sprintf("%v: %s", err, out)
				return
			}
			ended <- ""
		}()
	}
	for range cap(ended) {
		if wrong := <-ended; wrong != "" {
			t.Error(wrong)
		}
	}
	if _, err := FindClient("cursor").Servers([]byte(readFile(t, path))); err != nil {
		t.Error(err)
	}
}
