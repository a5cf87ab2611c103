//go:build linux && (amd64 || arm64)

package supervisor

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// traps are ways to start a program. Each is run by this test's program in a line: "trap NAME PROGRAM ARGS...".
var traps = map[string]func(argv []string) error{
	"memfd":         execMemory,
	"memfd-path":    execMemoryPath,
	"deleted":       execDeleted,
	"empty-path":    execEmptyPath,
	"vfork":         spawn(nil),
	"untraced":      spawn(&syscall.SysProcAttr{Cloneflags: unix.CLONE_UNTRACED}),
	"ptrace-child":  spawn(&syscall.SysProcAttr{Ptrace: true}),
	"session":       spawn(&syscall.SysProcAttr{Setsid: true}),
	"userns":        spawn(&syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER}),
	"thread":        execByThread,
	"undumpable":    execUndumpable,
	"flip-name":     execFlippedName,
	"flip-argument": execFlippedArgument,
	"x32":           execX32,
	"i386":          execI386,
	"own-filter":    execBelowFilter,
	"daemon":        execDaemon,
}

func TestMain(m *testing.M) {
	name := filepath.Base(os.Args[0])
	if name == "busybox" || name == "zap" || name == "zop" {
		os.Exit(multi(name, os.Args))
	}
	if len(os.Args) == 4 && os.Args[1] == "wall" {
		fmt.Println(behindWall(os.Args[2], os.Args[3]))
		os.Exit(1)
	}
	if len(os.Args) > 3 && os.Args[1] == "trap" {
		runtime.LockOSThread()
		if err := traps[os.Args[2]](os.Args[3:]); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// multi is a program that does what it is called by: zap removes files.
func multi(name string, args []string) int {
	if name == "busybox" && len(args) > 1 {
		name, args = args[1], args[1:]
	}
	if name == "zap" {
		for _, f := range args[1:] {
			os.Remove(f)
		}
	}
	fmt.Println("did", name)
	return 0
}

func path0(argv []string) string {
	p, err := exec.LookPath(argv[0])
	if err != nil {
		panic(err)
	}
	return p
}

func inMemory(argv []string) (int, error) {
	fd, err := unix.MemfdCreate("x", 0)
	if err != nil {
		return -1, err
	}
	content, err := os.ReadFile(path0(argv))
	if err != nil {
		return -1, err
	}
	_, err = unix.Write(fd, content)
	return fd, err
}

func execMemory(argv []string) error {
	fd, err := inMemory(argv)
	if err != nil {
		return err
	}
	return execAt(fd, "", argv, unix.AT_EMPTY_PATH)
}

func execMemoryPath(argv []string) error {
	fd, err := inMemory(argv)
	if err != nil {
		return err
	}
	return unix.Exec(fmt.Sprintf("/proc/self/fd/%d", fd), argv, os.Environ())
}

func execDeleted(argv []string) error {
	content, err := os.ReadFile(path0(argv))
	if err == nil {
		err = os.WriteFile("deleted", append(content, 0), 0o755)
	}
	if err != nil {
		return err
	}
	fd, err := unix.Open("deleted", unix.O_RDONLY, 0)
	if err != nil {
		return err
	}
	os.Remove("deleted")
	return unix.Exec(fmt.Sprintf("/proc/self/fd/%d", fd), argv, os.Environ())
}

func execEmptyPath(argv []string) error {
	fd, err := unix.Open(path0(argv), unix.O_RDONLY, 0)
	if err != nil {
		return err
	}
	return execAt(fd, "", argv, unix.AT_EMPTY_PATH)
}

func execAt(dir int, name string, argv []string, flags int) error {
	path, _ := unix.BytePtrFromString(name)
	args, _ := syscall.SlicePtrFromStrings(argv)
	env, _ := syscall.SlicePtrFromStrings(os.Environ())
	_, _, errno := unix.RawSyscall6(unix.SYS_EXECVEAT, uintptr(dir), uintptr(unsafe.Pointer(path)),
		uintptr(unsafe.Pointer(&args[0])), uintptr(unsafe.Pointer(&env[0])), uintptr(flags), 0)
	return errno
}

func spawn(attr *syscall.SysProcAttr) func([]string) error {
	return func(argv []string) error {
		pid, err := syscall.ForkExec(path0(argv), argv, &syscall.ProcAttr{Env: os.Environ(), Sys: attr,
			Files: []uintptr{0, 1, 2}})
		if err != nil {
			return err
		}
		if attr != nil && attr.Ptrace {
			syscall.Wait4(pid, nil, 0, nil)
			syscall.PtraceCont(pid, 0)
		}
		_, err = syscall.Wait4(pid, nil, 0, nil)
		return err
	}
}

func execByThread(argv []string) error {
	failed := make(chan error)
	for range 3 {
		go func() { // of other threads that are at work meanwhile
			for {
				time.Sleep(time.Millisecond)
			}
		}()
	}
	go func() {
		runtime.LockOSThread()
		failed <- unix.Exec(path0(argv), argv, os.Environ())
	}()
	return <-failed
}

func execUndumpable(argv []string) error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return err
	}
	return unix.Exec(path0(argv), argv, os.Environ())
}

// execFlippedName starts /bin/true or the program, whichever a second thread has written last.
func execFlippedName(argv []string) error {
	names := [2][]byte{append([]byte("/usr/bin/true"), 0), append([]byte(path0(argv)), 0)}
	buf := make([]byte, 64)
	go func() {
		for i := 0; ; i++ {
			copy(buf, names[i%2])
		}
	}()
	args, _ := syscall.SlicePtrFromStrings(argv)
	env, _ := syscall.SlicePtrFromStrings(os.Environ())
	runtime.Gosched()
	_, _, errno := unix.RawSyscall(unix.SYS_EXECVE, uintptr(unsafe.Pointer(&buf[0])),
		uintptr(unsafe.Pointer(&args[0])), uintptr(unsafe.Pointer(&env[0])))
	return errno
}

// execFlippedArgument does the same with the first argument, "harmless" or the one that is given.
func execFlippedArgument(argv []string) error {
	names := [2][]byte{append([]byte("harmless"), 0), append([]byte(argv[1]), 0)}
	buf := make([]byte, 64)
	go func() {
		for i := 0; ; i++ {
			copy(buf, names[i%2])
		}
	}()
	file, _ := unix.BytePtrFromString(path0(argv))
	args, _ := syscall.SlicePtrFromStrings(argv)
	args[1] = &buf[0]
	env, _ := syscall.SlicePtrFromStrings(os.Environ())
	runtime.Gosched()
	_, _, errno := unix.RawSyscall(unix.SYS_EXECVE, uintptr(unsafe.Pointer(file)), uintptr(unsafe.Pointer(&args[0])),
		uintptr(unsafe.Pointer(&env[0])))
	return errno
}

// execX32 uses the number of execve for the x32 ABI.
func execX32(argv []string) error {
	const x32Execve = 0x40000000 + 520
	file, _ := unix.BytePtrFromString(path0(argv))
	args, _ := syscall.SlicePtrFromStrings(argv)
	_, _, errno := unix.RawSyscall(x32Execve, uintptr(unsafe.Pointer(file)), uintptr(unsafe.Pointer(&args[0])), 0)
	return errno
}

// execBelowFilter installs a filter that allows every call.
func execBelowFilter(argv []string) error {
	code := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW}}
	prog := unix.SockFprog{Len: 1, Filter: &code[0]}
	if err := unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER,
		uintptr(unsafe.Pointer(&prog)), 0, 0); err != nil {
		return err
	}
	return unix.Exec(path0(argv), argv, os.Environ())
}

// execDaemon leaves a process behind that starts the program when its parents have ended.
func execDaemon(argv []string) error {
	line := "sleep 0.3; exec " + strings.Join(argv, " ")
	cmd := exec.Command("setsid", "sh", "-c", "("+line+") &")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	err := cmd.Run()
	time.Sleep(700 * time.Millisecond)
	return err
}

// trapPrograms are what a trap may start: by one file, and by one argument.
func trapLine(t *testing.T, name string) string {
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	argv := "rm victim"
	switch name {
	case "flip-argument":
		return "i=0; while [ $i -lt 150 ]; do " + program + " trap " + name + " touch forbidden; i=$((i+1)); done; " +
			"test -e forbidden && rm victim"
	case "flip-name":
		return "i=0; while [ $i -lt 150 ]; do " + program + " trap " + name + " rm victim; i=$((i+1)); done"
	}
	return program + " trap " + name + " " + argv
}

//redteam:attack Lists of commands are judged by the kernel: memfd, deleted files, AT_EMPTY_PATH, i386 and x32 calls, threads, vfork, CLONE_UNTRACED, own tracers and filters, daemons, names and arguments that are rewritten during the call
func TestNoTrapGetsADeniedProgramRun(t *testing.T) {
	needed(t)
	for name := range traps {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if runtime.GOARCH != "amd64" && (name == "x32" || name == "i386") {
				t.Skip("an architecture without other calls")
			}
			dir := t.TempDir()
			victim := filepath.Join(dir, "victim")
			if err := os.WriteFile(victim, nil, 0o644); err != nil {
				t.Fatal(err)
			}
			deny := []string{"rm", "touch forbidden"}
			got := runLine(t, Spec{Deny: deny, Dir: dir}, trapLine(t, name))
			if _, err := os.Stat(victim); err != nil {
				t.Errorf("the program was executed: %+v", got)
			}
			if _, err := os.Stat(filepath.Join(dir, "forbidden")); err == nil {
				t.Errorf("the program was executed with the denied argument: %+v", got)
			}
			if len(got.Refused) == 0 && name != "x32" && name != "i386" && name != "ptrace-child" {
				t.Errorf("nothing was refused: %+v", got)
			}
			if strings.HasPrefix(name, "flip") {
				refused := 0
				for _, p := range got.Programs {
					if p.Refused != "" {
						refused++
					}
				}
				t.Logf("%d of 150 starts were refused", refused)
			}
		})
	}
}

// The traps are real: without a supervisor they start the program.
func TestTheTrapsRunAlone(t *testing.T) {
	for name := range traps {
		t.Run(name, func(t *testing.T) {
			if name == "x32" || name == "i386" || name == "userns" {
				t.Skip("many kernels have no such call")
			}
			t.Parallel()
			dir := t.TempDir()
			victim := filepath.Join(dir, "victim")
			if err := os.WriteFile(victim, nil, 0o644); err != nil {
				t.Fatal(err)
			}
			cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c", trapLine(t, name))
			cmd.Dir = dir
			out, _ := cmd.CombinedOutput()
			if _, err := os.Stat(victim); err == nil {
				t.Errorf("the program was not executed: %s", out)
			}
		})
	}
}

func copyFile(t *testing.T, from, to string, mode os.FileMode) {
	t.Helper()
	in, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, mode)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(out, in); err != nil {
		t.Fatal(err)
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
}

//redteam:attack Lists of commands are judged by the kernel: a program that is many (busybox) under another name, by its first argument, by a link and as a copy
func TestAMultiCallProgramIsJudgedByWhatItIsCalled(t *testing.T) {
	needed(t)
	bin, dir := t.TempDir(), t.TempDir()
	program, _ := os.Executable()
	copyFile(t, program, filepath.Join(bin, "busybox"), 0o755)
	for _, name := range []string{"zap", "zop", "sh"} {
		if err := os.Link(filepath.Join(bin, "busybox"), filepath.Join(bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	env := []string{"PATH=" + bin + ":/usr/bin:/bin"}
	for line, want := range map[string]string{
		"zop victim":                                       "did zop\n",
		"busybox zop victim":                               "did zop\n",
		"zap victim":                                       "",
		"busybox zap victim":                               "",
		"busybox busybox zap victim":                       "",
		"ln -s " + bin + "/zop zap; ./zap victim":          "",
		"ln -s " + bin + "/zap zop; ./zop victim":          "", // the file is zap's
		"cp " + bin + "/zop busybox; ./busybox zap victim": "",
		"cp " + bin + "/zop zap; ./zap victim":             "",
		"bash -c 'exec -a zap zop victim'":                 "",
		"bash -c 'exec -a zop zap victim'":                 "",
		"busybox sh -c 'zap victim'":                       "",
	} {
		os.WriteFile(filepath.Join(dir, "victim"), nil, 0o644)
		got := runLine(t, Spec{Deny: []string{"zap"}, Dir: dir, Env: env, Writable: []string{dir}}, line)
		refused := len(got.Refused) > 0
		if _, err := os.Stat(filepath.Join(dir, "victim")); err != nil || refused != (want == "") ||
			!refused && got.out != want {
			t.Errorf("%s: %q, refused %v, want %q; %v", line, got.out, got.Refused, want, err)
		}
		exec.Command("find", dir, "-mindepth", "1", "-delete").Run()
	}
	// With an allow list, the names of links count.
	for line, allowed := range map[string]bool{"zop x": true, "zap x": false, "busybox zap x": false,
		"busybox zop x": true} {
		got := runLine(t, Spec{Allow: []string{"zop"}, Dir: dir, Env: env, Writable: []string{dir}}, line)
		if refused := len(got.Refused) > 0; refused == allowed {
			t.Errorf("%s: allowed is %v: %+v", line, !refused, got)
		}
	}
}
