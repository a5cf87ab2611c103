//go:build linux && (amd64 || arm64)

package namespaces

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"gatehouse/internal/sandbox"
)

// A program whose caller leaves while the sandbox is paused delays no other caller, and
// is gone once the sandbox goes on.
func TestACallThatIsCalledOffWhilePausedIsLost(t *testing.T) {
	const patience = time.Minute
	b, err := driver(t, Options{}).Create(t.Context(), sandbox.Spec{})
	if err != nil {
		t.Skipf("no sandbox can be made here: %v", err)
	}
	still, ok := b.(sandbox.Pausable)
	if !ok {
		t.Skip("nothing can be paused here")
	}
	run := func(ctx context.Context, text string, out io.Writer) sandbox.Process {
		p, err := b.Exec(ctx, sandbox.Command{Argv: []string{"sh", "-c", text}, Stdout: out, Timeout: -1})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	said, say := io.Pipe()
	p := run(ctx, "trap '' TERM; mkfifo held; exec 3<>held; echo begun; while :; do sleep 0.01; done", say)
	if _, err := io.ReadFull(said, make([]byte, len("begun\n"))); err != nil {
		t.Fatal(err)
	}
	if err := still.Pause(t.Context()); err != nil {
		t.Skipf("nothing can be paused here: %v", err)
	}
	leave()
	select {
	case <-p.Done():
	case <-time.After(patience):
		t.Fatal("the call did not return while the sandbox was paused")
	}
	if r, err := p.Wait(); r.Outcome != sandbox.Lost || !errors.Is(err, context.Canceled) {
		t.Errorf("%+v, %v, want lost", r, err)
	}
	if err := still.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	waits, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	// What is read ends once no process has it open for writing any more.
	if r, err := run(waits, "exec 4<>held 5<held 4>&-; cat <&5", nil).Wait(); r.Outcome != sandbox.OK || err != nil {
		t.Errorf("the program is not gone: %+v, %v", r, err)
	}
}
