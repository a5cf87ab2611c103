package interpreter

import (
	"context"
	"io"
	"testing"

	"gatehouse/internal/sandbox"
)

// dying is a sandbox in which an interpreter takes a request and then ends with
// the sandbox, as the driver says it did.
type dying struct {
	sandbox.Sandbox
	end sandbox.Result
}

func (dying) Limits() sandbox.Limits { return sandbox.Limits{OutputBytes: 1000} }

func (d dying) Exec(_ context.Context, c sandbox.Command) (sandbox.Process, error) {
	p := died{d.end, make(chan struct{})}
	go func() {
		defer close(p.over)
		c.Stdout.Write([]byte("r\x00\x00\x00\x00"))
		c.Stdin.Read(make([]byte, 1)) // of the request
		c.Stdin.(io.Closer).Close()
	}()
	return p, nil
}

type died struct {
	end  sandbox.Result
	over chan struct{}
}

func (p died) Done() <-chan struct{}         { return p.over }
func (died) Signal(int) error                { return nil }
func (died) Resize(sandbox.Size) error       { return nil }
func (p died) Wait() (sandbox.Result, error) { <-p.over; return p.end, nil }

// An end without a status is never a success.
func TestCodeThatEndsWithItsSandboxIsNotOK(t *testing.T) {
	for _, c := range []struct {
		end  sandbox.Result
		want sandbox.Outcome
	}{
		{sandbox.Result{Outcome: sandbox.OutOfMemory}, sandbox.OutOfMemory},
		{sandbox.Result{Outcome: sandbox.Lost}, sandbox.Lost},
		{sandbox.Result{}, sandbox.Lost},
		{sandbox.Result{Outcome: sandbox.Signalled, Signal: 9}, sandbox.Signalled},
		{sandbox.Result{Outcome: sandbox.Failed, Code: 3}, sandbox.Failed},
		{sandbox.Result{Outcome: sandbox.OK}, sandbox.OK},
	} {
		for _, l := range []Language{Python, Node} {
			r, err := RunOnce(t.Context(), dying{end: c.end}, l, Code{Timeout: -1})
			if r.Outcome != c.want {
				t.Errorf("%s that ended with %+v: %+v, %v, want %s", l, c.end, r.Result, err, c.want)
			}
		}
	}
}
