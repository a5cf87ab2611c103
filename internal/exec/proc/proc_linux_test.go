package proc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// alive reports whether a process exists and is not a zombie, because the reaper of orphans is outside
// the test's control.
func alive(pid int) bool {
	state, _, ok := stat(strconv.Itoa(pid))
	return ok && state != "Z" && state != "X"
}

// members returns the processes of a group that are not zombies.
func members(group int) (pids []string) {
	list, _ := os.ReadDir("/proc")
	for _, e := range list {
		if state, g, ok := stat(e.Name()); ok && g == group && state != "Z" && state != "X" {
			pids = append(pids, e.Name())
		}
	}
	return pids
}

func stat(pid string) (state string, group int, ok bool) {
	b, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return "", 0, false
	}
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:])) // the name may contain any character
	if len(f) < 3 {
		return "", 0, false
	}
	group, err = strconv.Atoi(f[2])
	return f[0], group, err == nil
}

func openFiles(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// While another thread starts a child, that child holds the files open here, including a program that
// is being written.
func TestAProgramThatIsHeldOpenIsStartedAMomentLater(t *testing.T) {
	path := filepath.Join(t.TempDir(), "program")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o700)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString("#!/bin/sh\nexit 7\n"); err != nil {
		t.Fatal(err)
	}
	if err := exec.Command(path).Run(); !errors.Is(err, syscall.ETXTBSY) {
		t.Skipf("this system runs what is held open: %v", err)
	}
	time.AfterFunc(20*time.Millisecond, func() { f.Close() })
	if s := wait(t, start(t, t.Context(), Spec{Path: path})); s.Code != 7 {
		t.Errorf("%+v", s)
	}
}

func TestWhoLeavesTheGroupCannotHoldUpWait(t *testing.T) {
	out := newLineWriter()
	spec := shell("setsid sh -c 'echo $$; exec sleep 1000' & sleep 0.2; exit 0")
	spec.Stdout = out
	p := start(t, t.Context(), spec)
	pid := out.pid(t)
	defer syscall.Kill(pid, syscall.SIGKILL)
	if s := wait(t, p); !s.Cut || s.Code != 0 {
		t.Errorf("%+v", s)
	}
}

// The parent-death signal kills a child when the thread that started it ends, and a caller's thread may
// end at any time.
func TestAChildOutlivesItsCallersThread(t *testing.T) {
	out := newLineWriter()
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	type started struct {
		tid int
		p   *Process
		err error
	}
	results := make(chan started)
	onOtherThread(func() {
		p, err := Start(t.Context(), Spec{Path: "cat", Stdin: reader, Stdout: out})
		results <- started{syscall.Gettid(), p, err}
	})
	r := <-results
	reader.Close()
	if r.err != nil {
		t.Fatal(r.err)
	}
	eventually(t, "the thread is gone", func() bool {
		_, err := os.Stat(fmt.Sprintf("/proc/self/task/%d", r.tid))
		return err != nil
	})
	fmt.Fprintln(writer, "still here")
	select {
	case got := <-out.lines:
		if got != "still here" {
			t.Errorf("got %q", got)
		}
	case <-r.p.Done():
		s, _ := r.p.Wait()
		t.Errorf("it died: %+v", s)
	}
}

// onOtherThread runs f on a thread that ends with it. The process's first
// thread never ends, so a goroutine that runs there yields.
func onOtherThread(f func()) {
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if syscall.Gettid() != os.Getpid() {
			f()
			return
		}
		defer runtime.UnlockOSThread()
		done := make(chan struct{})
		onOtherThread(func() { f(); close(done) })
		<-done
	}()
}

const hostEnv = "PROC_TEST_HOST"

func TestMain(m *testing.M) {
	if os.Getenv(hostEnv) == "" {
		os.Exit(m.Run())
	}
	p, err := Start(context.Background(), Spec{Path: "sleep", Args: []string{"1000"}})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(p.Pid())
	time.Sleep(time.Hour)
}

func TestAChildDiesWithItsHost(t *testing.T) {
	out := newLineWriter()
	host := exec.Command(os.Args[0])
	host.Env = append(os.Environ(), hostEnv+"=1")
	host.Stdout = out
	if err := host.Start(); err != nil {
		t.Fatal(err)
	}
	defer host.Wait()
	defer host.Process.Kill()
	child := out.pid(t)
	if !alive(child) {
		t.Fatal("the child did not start")
	}
	host.Process.Kill()
	eventually(t, "the child died with its host", func() bool { return !alive(child) })
}
