package sandboxtest

import (
	"errors"
	"testing"
	"time"

	"gatehouse/internal/sandbox"
)

// A kernel in user space is a process of the host with all of the sandbox in
// it: the host's kernel ends it as a whole when memory runs out. What the code
// reaches is that kernel's, and not the host's.

func (s suite) userKernel() bool { return s.driver.Capabilities().Tier == sandbox.UserKernel }

// together reports whether memory is limited for all of a sandbox.
func (s suite) together() bool {
	held := s.driver.Capabilities().Memory
	return held == sandbox.ByCgroup1 || held == sandbox.ByCgroup2
}

// after is a sandbox that is of use after a call that may have used up the
// memory: the same one, or where that ended, another one with the probe in it.
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

// foreignWait is how long a program may try a foreign way into the kernel. A
// kernel in user space does not know those ways, and the program stands still.
func (s suite) foreignWait() time.Duration {
	if s.userKernel() {
		return 3 * time.Second
	}
	return patience
}
