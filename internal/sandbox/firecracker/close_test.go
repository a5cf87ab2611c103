//go:build linux && (amd64 || arm64)

package firecracker

import (
	"testing"
	"time"

	"gatehouse/internal/sandbox"
)

// A snapshot delays a change of the network rules; neither holds up the end.
func TestAMachineThatIsBusyIsClosed(t *testing.T) {
	both(t, func(t *testing.T, d *Driver) {
		b := made(t, d, sandbox.Spec{}).(*instance)
		b.settings.Lock()
		kept, told, set := make(chan struct{}), make(chan struct{}), make(chan error, 1)
		go func() { // as one does that waits for Firecracker
			defer close(kept)
			defer b.settings.Unlock()
			<-b.machine.process.ended
		}()
		go func() {
			set <- b.egress.Set(sandbox.Network{Allow: []string{"example.com"}}, func(int64) error {
				close(told)
				b.settings.Lock()
				defer b.settings.Unlock()
				return sandbox.ErrClosed
			})
		}()
		select {
		case <-told:
		case err := <-set:
			t.Fatal(err)
		}
		closed := make(chan error, 1)
		go func() { closed <- b.Close() }()
		select {
		case err := <-closed:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(patience):
			t.Fatal("it does not end")
		}
		<-kept
		if err := <-set; err == nil {
			t.Error("what a closed sandbox may reach was set")
		}
	})
}
