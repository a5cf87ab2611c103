package sandboxtest

import (
	"errors"
	"testing"
	"time"

	"gatehouse/internal/sandbox"
)

// A kernel in user space is one process of the host that holds the whole sandbox: when memory runs out, the host's
// kernel ends it as a whole. What the code reaches belongs to that kernel and not to the host's.

func (s suite) userKernel() bool { return s.driver.Capabilities().Tier == sandbox.UserKernel }

// together reports whether memory is limited for the sandbox as a whole.
func (s suite) together() bool {
	held := s.driver.Capabilities().Memory
	return held == sandbox.ByCgroup1 || held == sandbox.ByCgroup2
}

// after returns a sandbox that can be used after a call which may have used up the memory: the same one, or, if that
// has ended, another one with the probe in it.
func (s suite) after(t *testing.T, b sandbox.Sandbox, r ran) sandbox.Sandbox {
	t.Helper()
	if !s.userKernel() || r.Outcome != sandbox.OutOfMemory || !errors.Is(r.err, sandbox.ErrClosed) {
		alive(t, b)
		return b
	}
	select {
	case <-b.Done():
	case <-time.After(patience):
		t.Error("a sandbox whose memory ran out says that it is gone, and is not done")
	}
	how := "the sandbox ends with its memory"
	s.other.Store(&how)
	b = s.probed(t, sandbox.Spec{Limits: b.Limits()})
	alive(t, b)
	return b
}

// foreignWait is how long a program may try to enter the kernel in a foreign way. A kernel in user space does not
// know these ways, and the program hangs.
func (s suite) foreignWait() time.Duration {
	if s.userKernel() {
		return 3 * time.Second
	}
	return patience
}
