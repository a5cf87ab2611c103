package bus

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"gatehouse/tool"
)

func answer(text string) Handler {
	return func(context.Context, *Request, Notes) (Outcome, error) {
		return Outcome{Result: tool.Result{Content: []tool.Content{tool.Text(text)}}}, nil
	}
}

func TestNobodyThereIsNotRun(t *testing.T) {
	b := New()
	if _, err := b.Do(t.Context(), &Request{Module: "m"}, nil); !errors.Is(err, ErrAbsent) {
		t.Fatalf("got %v, want ErrAbsent", err)
	}
}

func TestSecondGenerationTakesOverAndTheFirstDrains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New()
		release := make(chan struct{})
		stop, _ := b.Serve("m", func(context.Context, *Request, Notes) (Outcome, error) {
			<-release
			return Outcome{}, nil
		})
		go b.Do(t.Context(), &Request{Module: "m"}, nil)
		synctest.Wait()
		if _, err := b.Serve("m", answer("new")); err != nil {
			t.Fatal(err)
		}
		out, err := b.Do(t.Context(), &Request{Module: "m"}, nil)
		if err != nil || out.Result.Content[0].Text != "new" {
			t.Fatalf("got %v, %v, want the second generation", out, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := stop(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("stop returned %v while a call ran", err)
		}
		close(release)
		synctest.Wait()
		if err := stop(t.Context()); err != nil {
			t.Fatal(err)
		}
		if out, _ := b.Do(t.Context(), &Request{Module: "m"}, nil); out.Result.Content[0].Text != "new" {
			t.Fatal("stopping the old generation removed the new one")
		}
	})
}

func TestSlowFollowerLosesTheOldestAndIsTold(t *testing.T) {
	b := New()
	facts := b.Follow(t.Context(), "call.*", 2)
	for range 5 {
		b.Publish(Event{Subject: "call.finished"})
	}
	b.Publish(Event{Subject: "session.created"})
	var got, lost int
	for f := range facts {
		got++
		lost += f.Lost
		if got == 2 {
			break
		}
	}
	if got != 2 || lost != 3 {
		t.Fatalf("got %d facts and %d lost, want 2 and 3", got, lost)
	}
}

func TestSubjects(t *testing.T) {
	for _, c := range []struct {
		pattern, subject string
		want             bool
	}{
		{"call.finished", "call.finished", true},
		{"call.*", "call.finished", true},
		{"call.*", "call.finished.late", false},
		{"call.>", "call.finished.late", true},
		{"call.>", "call", false},
		{">", "anything.at.all", true},
		{"*", "call", true},
		{"call", "caller", false},
	} {
		b := New()
		ctx, cancel := context.WithCancel(t.Context())
		seq := b.Follow(ctx, c.pattern, 1)
		b.Publish(Event{Subject: c.subject})
		cancel()
		got := false
		for range seq {
			got = true
		}
		if got != c.want {
			t.Errorf("%q follows %q: %v, want %v", c.pattern, c.subject, got, c.want)
		}
	}
}

// Followed is computed again when another reader follows.
func TestFollowedIsForgotten(t *testing.T) {
	b := New()
	for range 2 { // the second answer is cached
		if b.Followed("call.finished") {
			t.Error("nobody listens")
		}
	}
	ctx, leave := context.WithCancel(t.Context())
	facts := b.Follow(ctx, "call.*", 1)
	if !b.Followed("call.finished") || b.Followed("session.ended") {
		t.Error("only calls are followed")
	}
	leave()
	for range facts { // ends once it has left
	}
	if b.Followed("call.finished") {
		t.Error("there are no followers any more")
	}
	for i := range 2 * mostRemembered {
		if b.Followed(fmt.Sprint("some.", i)) {
			t.Error("none of many is followed")
		}
	}
	if n := len(*b.followed.Load()); n > mostRemembered+1 {
		t.Errorf("%d subjects are cached", n)
	}
}
