package namespaces

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"

	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/sandboxtest"
	"gatehouse/internal/sandbox/toolchannel"
)

// withTools makes sandboxes that have the channel of programs.
type withTools struct {
	sandbox.Driver
	t      *testing.T
	serves sync.WaitGroup
}

func (d *withTools) Create(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	s, err := d.Driver.Create(ctx, spec)
	if err != nil {
		return nil, err
	}
	l, err := s.(interface {
		Listen(context.Context, uint16) (net.Listener, error)
	}).Listen(ctx, 7711)
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	serving, end := context.WithCancel(context.WithoutCancel(ctx))
	go func() {
		<-s.Done()
		end()
	}()
	d.serves.Go(func() { toolchannel.Serve(serving, l, refusing{}) })
	return s, nil
}

// refusing refuses all calls.
type refusing struct{}

func (refusing) Call(_ context.Context, m toolchannel.Message) toolchannel.Response {
	return toolchannel.Response{ID: m.ID, Error: "no", Kind: toolchannel.Failed}
}
func (refusing) Return(toolchannel.Message) error { return nil }

// Every way out that the suite tries is closed in a sandbox that has the channel of programs, too.
//
//redteam:attack Code in a sandbox is shut in several times: every escape of the suite in a sandbox with the channel of programs; driver namespaces
func TestNoEscapeWithTools(t *testing.T) {
	d := &withTools{Driver: driver(t, Options{}), t: t}
	sandboxtest.Escapes(t, d)
	d.serves.Wait()
}
