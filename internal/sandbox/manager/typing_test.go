package manager

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"

	"gatehouse/internal/sandbox"
)

// endless is a process that ends when the test says so.
type endless struct{ done chan struct{} }

func (endless) Signal(int) error          { return nil }
func (endless) Resize(sandbox.Size) error { return nil }
func (p endless) Done() <-chan struct{}   { return p.done }
func (p endless) Wait() (sandbox.Result, error) {
	<-p.done
	return sandbox.Result{}, nil
}

// typist is a process in the background, and what it reads from.
func typist() (g *Background, in *io.PipeReader, end func()) {
	r, w := io.Pipe()
	p := endless{make(chan struct{})}
	g = &Background{p: p, typing: newTyping(w), log: newJournal(1)}
	go g.typing.pass(p)
	return g, r, func() {
		close(p.done)
		w.Close()
	}
}

// The bubble of the test ends only when no goroutine is left.
func TestAProcessThatDoesNotReadIsTypedToWithinLimits(t *testing.T) {
	for name, text := range map[string]string{"bytes": strings.Repeat("x", mostTyped/4), "texts": "x"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g, in, end := typist()
				defer end()
				waiting, refused := 0, 0
				for range 2 * mostTexts {
					switch err := g.Type(t.Context(), []byte(text), false); {
					case err == errNotRead:
						refused++
					case err != nil && strings.Contains(err.Error(), "the text waits"):
						waiting++
					default:
						t.Fatal(err)
					}
				}
				want := 4
				if name == "texts" {
					want = mostTexts + 1 // one is being read
				}
				if waiting != want || waiting+refused != 2*mostTexts || g.typing.bytes.Load() > mostTyped {
					t.Errorf("%d wait, want %d; %d were refused", waiting, want, refused)
				}
				got := make([]byte, want*len(text))
				if _, err := io.ReadFull(in, got); err != nil || strings.Trim(string(got), "x") != "" {
					t.Error(err)
				}
				synctest.Wait()
				if n := g.typing.bytes.Load(); n != 0 {
					t.Errorf("%d bytes wait when all are read", n)
				}
			})
		})
	}
}

func TestWhatIsTypedIsReadInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, in, end := typist()
		var got bytes.Buffer
		read := make(chan error, 1)
		go func() {
			_, err := got.ReadFrom(in)
			read <- err
		}()
		large := strings.Repeat("y", 2*mostTyped) // alone it may be
		for _, one := range []string{"a\n", "", large, "b\n"} {
			if err := g.Type(t.Context(), []byte(one), one == "b\n"); err != nil {
				t.Error(err)
			}
		}
		if err := <-read; err != nil || got.String() != "a\n"+large+"b\n" {
			t.Errorf("%v, %d bytes", err, got.Len())
		}
		if err := g.Type(t.Context(), []byte("c"), false); err == nil || !strings.Contains(err.Error(), "closed") {
			t.Errorf("after its end: %v", err)
		}
		end()
		if err := g.Type(t.Context(), []byte("c"), false); err != errHasEnded {
			t.Errorf("after that of the process: %v", err)
		}
	})
}

func TestWhoTypesDoesNotWaitLongerThanAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, _, end := typist()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := g.Type(ctx, []byte("a"), false); !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
		done := make(chan error, 1)
		go func() { done <- g.Type(t.Context(), []byte("b"), false) }()
		synctest.Wait()
		end()
		if err := <-done; err != errHasEnded {
			t.Errorf("%v", err)
		}
	})
}
