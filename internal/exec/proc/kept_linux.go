package proc

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"gatehouse/internal/exec/keeper"
	"gatehouse/internal/exec/procid"
)

// launchKept starts a command below a keeper, if it is to have one. The error is
// errNotKept if it has to do without.
func (w *whole) launchKept(cmd **exec.Cmd) error {
	if !w.guarded {
		return errNotKept
	}
	for try := 0; ; try++ {
		k, err := keeper.Start(*cmd)
		switch {
		case err == nil:
			w.keeper, *cmd = k, k.Cmd
			return nil
		case errors.Is(err, keeper.ErrNone):
			return errNotKept
		case !errors.Is(err, syscall.ETXTBSY) || try >= busyTries:
			return err
		}
		time.Sleep(busyWait)
	}
}

// leader is the number of the child, which is not the keeper.
func (w *whole) leader(cmd *exec.Cmd) int {
	if w.keeper != nil {
		return w.keeper.Pid()
	}
	return cmd.Process.Pid
}

// await waits for the end of a child that has a keeper.
func (w *whole) await() bool {
	if w.keeper == nil {
		return false
	}
	w.end = w.keeper.Await()
	return true
}

// reap ends the keeper of a child that has one.
func (w *whole) reap() bool {
	if w.keeper == nil {
		return false
	}
	done := w.keeper.Leave()
	w.left.Store(true)
	if !done {
		w.endMarked()
	}
	return true
}

// endMarked ends what has the mark of a child whose keeper was killed.
func (w *whole) endMarked() {
	for range sweeps {
		left := withMark(w.marked)
		if len(left) == 0 {
			return
		}
		for _, pid := range left {
			syscall.Kill(pid, syscall.SIGKILL)
		}
		time.Sleep(sweepWait)
	}
}

// correct says how a child has ended that had a keeper.
func (w *whole) correct(s *State) {
	if w.keeper == nil {
		return
	}
	s.Code, s.Signal, s.CPU = w.end.Code, "", time.Duration(w.end.CPU)
	if w.end.Signal != 0 {
		s.Signal = syscall.Signal(w.end.Signal).String()
	}
}

// descendants are the processes that came of one and have not ended.
func descendants(of int) (all []int) {
	parents := map[int]int{}
	for pid := range processes {
		if parent, zombie, there := parentOf(pid); there && !zombie {
			parents[pid] = parent
		}
	}
	for pid := range parents {
		for up, steps := parents[pid], 0; up > 1 && steps < len(parents); up, steps = parents[up], steps+1 {
			if up == of {
				all = append(all, pid)
				break
			}
		}
	}
	return all
}

// sweepMarked ends the processes that hosts marked which are gone. What was detached
// from them has another mark.
func sweepMarked() {
	for pid := range processes {
		if pid <= 1 || pid == os.Getpid() {
			continue
		}
		b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
		if err != nil {
			continue
		}
		for v := range bytes.SplitSeq(b, []byte{0}) {
			if value, ok := strings.CutPrefix(string(v), mark+"="); ok && procid.Left(leafPrefix, value) {
				syscall.Kill(pid, syscall.SIGKILL)
			}
		}
	}
}
