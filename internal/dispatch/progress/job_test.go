package progress

import (
	"context"
	"errors"
	"slices"
	"testing"

	"gatehouse/module/moduletest"
	"gatehouse/tool"
)

// The progress of a job is shown under its title until the job ends, and sent to the client that follows it.
func TestAJobIsShownUntilItEnds(t *testing.T) {
	fell := errors.New("the barrow fell over")
	for name, fails := range map[string]error{"done": nil, "failed": fell} {
		t.Run(name, func(t *testing.T) {
			var steps []State // of the whole
			var ends []error
			var shown string
			show := Show(func(who tool.Caller, job, title string) (func(Progress), func(error)) {
				shown = who.Principal + " " + job + " " + title
				return func(p Progress) { steps = append(steps, p.Overall.State) },
					func(err error) { ends = append(ends, err) }
			})
			host := moduletest.NewHost(t)
			var notes []string
			var peer *moduletest.Peer
			call := moduletest.NewCall(t)
			started, err := show.Start(
				host.Deps(),
				&call.Call,
				"moving",
				func(_ context.Context, c *tool.Call, tell func(Progress)) (any, error) {
					track := New(tell, "load", "carry")
					track.At("load", 0, 0, "")
					track.At("carry", 5, 10, "bytes")
					peer = c.Peer.(*moduletest.Peer)
					for _, p := range peer.Progressed {
						notes = append(notes, p.Note)
					}
					if fails == nil {
						track.Finish()
					}
					return "moved", fails
				},
			)
			if err != nil {
				t.Fatal(err)
			}
			res, err := host.Wait(started.Job)
			if !errors.Is(err, fails) || res.Structured != "moved" {
				t.Errorf("ended with %v, %v", res.Structured, err)
			}
			last := peer.Progressed[len(peer.Progressed)-1]
			if all := last.Done == last.Total; all != (fails == nil) || last.Total != 2 {
				t.Errorf("told last %v of %v", last.Done, last.Total)
			}
			want := []State{Running, Running}
			if fails == nil {
				want = append(want, Done)
			}
			if !slices.Equal(steps, want) || len(ends) != 1 || ends[0] != fails ||
				shown != "anonymous "+started.Job+" moving" ||
				started.Status != "working" {
				t.Errorf("shown %q: steps %v, ends %v, %+v", shown, steps, ends, started)
			}
			if want := []string{"load", "carry: 5 of 10 bytes"}; !slices.Equal(notes, want) {
				t.Errorf("told %q, want %q", notes, want)
			}
		})
	}
}

func TestAJobNeedNotBeShown(t *testing.T) {
	host, call := moduletest.NewHost(t), moduletest.NewCall(t)
	started, err := Show(
		nil,
	).Start(host.Deps(), &call.Call, "moving", func(_ context.Context, _ *tool.Call, tell func(Progress)) (any, error) {
		New(tell, "load").Finish()
		return nil, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := host.Wait(started.Job); err != nil {
		t.Error(err)
	}
}
