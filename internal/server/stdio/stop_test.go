package stdio

import (
	"context"
	"io"
	"strings"
	"testing"
	"time"
)

// When the context ends, running calls may finish for a while, as with the other listeners.
func TestStopAnswersWhatRuns(t *testing.T) {
	for name, finishes := range map[string]bool{"a call that ends": true, "a call that does not": false} {
		t.Run(name, func(t *testing.T) {
			h, release := newHost(t)
			in, w := io.Pipe()
			defer w.Close()
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			out := &output{}
			done := make(chan error, 1)
			wait := time.Minute
			if !finishes {
				wait = 50 * time.Millisecond
			}
			go func() { done <- Serve(ctx, h.Engine, anonymous, in, out, Options{Stop: wait}) }()
			io.WriteString(w, hello+"\n"+hold+"\n"+ping+"\n")
			for !strings.Contains(out.all(), `"id":3`) { // from then on the call runs
				time.Sleep(time.Millisecond)
			}
			stop()
			if finishes {
				release <- "in time"
			}
			select {
			case err := <-done:
				if err != nil {
					t.Error(err)
				}
			case <-time.After(time.Minute):
				t.Fatal("it does not stop")
			}
			if got := strings.Contains(out.all(), "in time"); got != finishes {
				t.Errorf("got %s", out.all())
			}
		})
	}
}
