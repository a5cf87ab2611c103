package proc

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"unsafe"
)

// group is the job object of a child. Processes that the child starts before it is assigned to the job
// stay outside.
type group struct {
	cmd *exec.Cmd
	job syscall.Handle
	err error
}

var (
	kernel32           = syscall.NewLazyDLL("kernel32.dll")
	createJobObject    = kernel32.NewProc("CreateJobObjectW")
	setInformation     = kernel32.NewProc("SetInformationJobObject")
	assignProcess      = kernel32.NewProc("AssignProcessToJobObject")
	terminateJobObject = kernel32.NewProc("TerminateJobObject")
	consoleCtrlEvent   = kernel32.NewProc("GenerateConsoleCtrlEvent")
)

// extendedLimits is JOBOBJECT_EXTENDED_LIMIT_INFORMATION.
type extendedLimits struct {
	perProcessTime, perJobTime int64
	flags                      uint32
	minWorkingSet              uintptr
	maxWorkingSet              uintptr
	activeProcesses            uint32
	affinity                   uintptr
	priority, scheduling       uint32
	io                         [6]uint64
	processMemory, jobMemory   uintptr
	peakProcess, peakJob       uintptr
}

func (g *group) prepare(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{CreationFlags: syscall.CREATE_NEW_PROCESS_GROUP}
}

// start assigns the child to a job that the system ends when the last handle to it is closed, which is
// when the host ends. If that fails, the child is ended at once.
func (g *group) start(cmd *exec.Cmd, _ int) (err error) {
	g.cmd = cmd
	defer func() {
		if err != nil {
			cmd.Process.Kill()
			cmd.Wait()
			g.close()
		}
	}()
	h, _, e := createJobObject.Call(0, 0)
	if h == 0 {
		return fmt.Errorf("make a job object: %w", e)
	}
	g.job = syscall.Handle(h)
	const extendedLimitInformation, killOnJobClose = 9, 0x2000
	limits := extendedLimits{flags: killOnJobClose}
	if ok, _, e := setInformation.Call(h, extendedLimitInformation, uintptr(unsafe.Pointer(&limits)),
		unsafe.Sizeof(limits)); ok == 0 {
		return fmt.Errorf("limit a job object: %w", e)
	}
	const setQuotaAndTerminate = 0x0100 | 0x0001
	p, err := syscall.OpenProcess(setQuotaAndTerminate, false, uint32(cmd.Process.Pid))
	if err != nil {
		return nil // it has ended already
	}
	defer syscall.CloseHandle(p)
	if ok, _, e := assignProcess.Call(h, uintptr(p)); ok == 0 && !errors.Is(e, syscall.ERROR_ACCESS_DENIED) {
		return fmt.Errorf("put the process into a job object: %w", e)
	}
	return nil
}

// requestEnd sends Ctrl-Break, which only console programs receive.
func (g *group) requestEnd() {
	consoleCtrlEvent.Call(syscall.CTRL_BREAK_EVENT, uintptr(g.cmd.Process.Pid))
}

func (g *group) hangUp() {}

func (g *group) kill() {
	terminateJobObject.Call(uintptr(g.job), 1)
	g.cmd.Process.Kill() // for a child that is not in the job
}

func (g *group) await() { g.err = g.cmd.Wait() }

func (g *group) reap() error { return g.err }

func (g *group) close() {
	if g.job != 0 {
		syscall.CloseHandle(g.job)
		g.job = 0
	}
}

func signalOf(*os.ProcessState) string { return "" }

// isPipeGone reports whether an error means that a pipe has no reader.
func isPipeGone(err error) bool {
	const noData = syscall.Errno(232)
	return errors.Is(err, syscall.ERROR_BROKEN_PIPE) || errors.Is(err, noData)
}
