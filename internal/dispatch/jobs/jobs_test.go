package jobs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"gatehouse/tool"
)

func open(t *testing.T, path string, o Options) *Manager {
	t.Helper()
	if o.Log == nil {
		o.Log = slog.New(slog.NewTextHandler(t.Output(), nil))
	}
	j, err := Open(path, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { j.Close(context.Background()) })
	return j
}

// everywhere runs a test in memory and on a file.
func everywhere(t *testing.T, f func(t *testing.T, path string)) {
	t.Run("memory", func(t *testing.T) { f(t, "") })
	t.Run("file", func(t *testing.T) { f(t, filepath.Join(t.TempDir(), "jobs.db")) })
}

func create(t *testing.T, j *Manager, r Record) *Running {
	t.Helper()
	if r.Owner == "" {
		r.Owner = "alice"
	}
	run, err := j.Create(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return run
}

func get(t *testing.T, j *Manager, id string) Record {
	t.Helper()
	r, err := j.Get("alice", id)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

var twoQuestions = []tool.Question{
	{Key: "a", Method: "elicitation/create", Params: json.RawMessage(`{"message":"a?"}`)},
	{Key: "b", Method: "roots/list"},
}

func raw(kv ...string) map[string]json.RawMessage {
	m := map[string]json.RawMessage{}
	for i := 0; i < len(kv); i += 2 {
		m[kv[i]] = json.RawMessage(kv[i+1])
	}
	return m
}

func TestAJobIsMadeWorksAndEnds(t *testing.T) {
	everywhere(t, func(t *testing.T, path string) {
		j := open(t, path, Options{})
		run := create(t, j, Record{Title: "count", Request: json.RawMessage(`{"n":12345678901234567890}`)})
		if r := get(t, j, run.ID()); r.Status != Working || r.Title != "count" || r.TTL != time.Hour ||
			r.Poll != time.Second ||
			len(r.ID) != 26 {
			t.Errorf("at first: %+v", r)
		}
		run.Progress(3, 10, "counting")
		if r := get(t, j, run.ID()); r.Done != 3 || r.Total != 10 || r.Note != "counting" {
			t.Errorf("under way: %+v", r)
		}
		if err := run.Finish(json.RawMessage(`{"sum":1}`)); err != nil {
			t.Fatal(err)
		}
		r := get(t, j, run.ID())
		if r.Status != Completed || string(r.Result) != `{"sum":1}` ||
			string(r.Request) != `{"n":12345678901234567890}` ||
			r.Note != "counting" ||
			r.Done != 3 {
			t.Errorf("at last: %+v", r)
		}
		if err := run.Fail(nil); err != ErrSettled {
			t.Errorf("a second end: %v", err)
		}
		run.Note("too late")
		if again := get(t, j, run.ID()); again.Note != "counting" {
			t.Errorf("changed after its end: %+v", again)
		}
		if context.Cause(run.Context()) != ErrSettled {
			t.Errorf("cause %v", context.Cause(run.Context()))
		}
	})
}

func TestAFailureKeepsItsError(t *testing.T) {
	everywhere(t, func(t *testing.T, path string) {
		j := open(t, path, Options{})
		run := create(t, j, Record{})
		if err := run.Fail(&tool.WireError{Code: -32602, Message: "no", Data: json.RawMessage(`{"x":1}`)}); err != nil {
			t.Fatal(err)
		}
		r := get(t, j, run.ID())
		if r.Status != Failed || r.Error == nil || r.Error.Code != -32602 || string(r.Error.Data) != `{"x":1}` ||
			r.Note != "no" {
			t.Errorf("%+v", r)
		}
	})
}

func TestRoundsGoOnWhenTheLastAnswerCame(t *testing.T) {
	everywhere(t, func(t *testing.T, path string) {
		j := open(t, path, Options{Resume: func(ctx context.Context, r Record, run *Running) {
			if string(r.Request) != `{"x":1}` || string(r.State) != "s" || string(r.Recorded["once"]) != "7" {
				t.Errorf("resumed with %+v", r)
			}
			b, _ := json.Marshal(r.Recorded)
			run.Finish(b)
		}})
		run := create(t, j, Record{Request: json.RawMessage(`{"x":1}`)})
		if err := run.Ask(twoQuestions, raw("once", "7"), []byte("s")); err != nil {
			t.Fatal(err)
		}
		if run.Context().Err() == nil {
			t.Error("the first round's context has not ended")
		}
		if err := run.Finish(nil); err != ErrSettled {
			t.Errorf("the first round ended twice: %v", err)
		}
		r, err := j.Answer("alice", run.ID(), raw("b", `{"roots":[]}`, "other", "1"))
		if err != nil || r.Status != InputRequired || len(r.Questions) != 1 || r.Questions[0].Key != "a" ||
			string(r.Questions[0].Params) != `{"message":"a?"}` {
			t.Fatalf("after one answer: %+v, %v", r, err)
		}
		r, err = j.Answer("alice", run.ID(), raw("b", `"again"`, "a", `{not json`))
		if err != nil || r.Status != InputRequired || len(r.Questions) != 1 {
			t.Fatalf("after no answer: %+v, %v", r, err)
		}
		r, err = j.Answer("alice", run.ID(), raw("a", `{"action":"accept"}`))
		if err != nil || r.Status != Working || len(r.Questions) != 0 {
			t.Fatalf("after the last: %+v, %v", r, err)
		}
		r, err = j.Wait(t.Context(), "alice", run.ID(), func(r Record) bool { return r.Status.Terminal() })
		want := `{"a":{"action":"accept"},"b":{"roots":[]},"once":7}`
		if err != nil || r.Status != Completed || string(r.Result) != want {
			t.Errorf("got %+v, %v", r, err)
		}
		if r, err = j.Answer("alice", run.ID(), raw("a", "1")); err != ErrTerminal || r.Status != Completed {
			t.Errorf("answered after its end: %+v, %v", r, err)
		}
	})
}

func TestARoundThatIsNotSettledFails(t *testing.T) {
	for name, resume := range map[string]Resume{
		"returns": func(context.Context, Record, *Running) {},
		"panics":  func(context.Context, Record, *Running) { panic("secret") },
	} {
		t.Run(name, func(t *testing.T) {
			j := open(t, "", Options{Resume: resume})
			run := create(t, j, Record{})
			run.Ask(twoQuestions[:1], nil, nil)
			if _, err := j.Answer("alice", run.ID(), raw("a", "1")); err != nil {
				t.Fatal(err)
			}
			r, err := j.Wait(t.Context(), "alice", run.ID(), func(r Record) bool { return r.Status == Failed })
			if err != nil || r.Error.Code != -32603 || strings.Contains(r.Error.Message, "secret") {
				t.Errorf("%+v, %v", r, err)
			}
		})
	}
}

func TestWithoutResumeTheLastAnswerIsRefused(t *testing.T) {
	j := open(t, "", Options{})
	run := create(t, j, Record{})
	run.Ask(twoQuestions[:1], nil, nil)
	if r, err := j.Answer("alice", run.ID(), raw("a", "1")); err == nil || len(r.Questions) != 1 {
		t.Errorf("%+v, %v", r, err)
	}
	j.SetResume(func(_ context.Context, _ Record, run *Running) { run.Finish(json.RawMessage(`{}`)) })
	if r, err := j.Answer("alice", run.ID(), raw("a", "1")); err != nil || r.Status != Working {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestAskRefusesWhatCannotBeAnswered(t *testing.T) {
	j := open(t, "", Options{})
	run := create(t, j, Record{})
	for _, q := range [][]tool.Question{nil, {{Key: "a"}, {Key: "a"}}} {
		if err := run.Ask(q, nil, nil); err == nil || get(t, j, run.ID()).Status != Working {
			t.Errorf("%v: %v", q, err)
		}
	}
}

func TestCancelEndsTheRound(t *testing.T) {
	everywhere(t, func(t *testing.T, path string) {
		j := open(t, path, Options{})
		run := create(t, j, Record{})
		if r, err := j.Cancel("alice", run.ID()); err != nil || r.Status != Cancelled {
			t.Fatalf("%+v, %v", r, err)
		}
		if context.Cause(run.Context()) != ErrCancelled {
			t.Errorf("cause %v", context.Cause(run.Context()))
		}
		if r, err := j.Cancel("alice", run.ID()); err != ErrTerminal || r.Status != Cancelled {
			t.Errorf("again: %+v, %v", r, err)
		}
		if err := run.Finish(json.RawMessage(`{}`)); err != ErrSettled {
			t.Errorf("finished after that: %v", err)
		}
		asked := create(t, j, Record{})
		asked.Ask(twoQuestions, raw("once", "1"), []byte("s"))
		if r, err := j.Cancel("alice", asked.ID()); err != nil || r.Questions != nil || r.State != nil ||
			r.Recorded != nil {
			t.Errorf("while it waits: %+v, %v", r, err)
		}
	})
}

func TestForeignAndUnknownLookTheSame(t *testing.T) {
	everywhere(t, func(t *testing.T, path string) {
		j := open(t, path, Options{})
		if _, err := j.Get("alice", "nothing"); err != ErrNotFound {
			t.Errorf("before any job: %v", err)
		}
		run := create(t, j, Record{})
		for _, c := range [][2]string{{"bob", run.ID()}, {"", run.ID()}, {"alice", "nothing"}} {
			_, get := j.Get(c[0], c[1])
			_, cancel := j.Cancel(c[0], c[1])
			_, answer := j.Answer(c[0], c[1], nil)
			_, wait := j.Wait(t.Context(), c[0], c[1], func(Record) bool { return true })
			_, watch := j.Watch(c[0], c[1], func(Record) {})
			for i, err := range []error{get, cancel, answer, wait, watch} {
				if err != ErrNotFound {
					t.Errorf("%v, call %d: %v", c, i, err)
				}
			}
		}
		if list, _, err := j.List("bob", "", 0); err != nil || len(list) != 0 {
			t.Errorf("bob's list: %v, %v", list, err)
		}
	})
}

func TestListPagesTheNewestFirst(t *testing.T) {
	everywhere(t, func(t *testing.T, path string) {
		j := open(t, path, Options{})
		if list, next, err := j.List("alice", "", 10); err != nil || len(list) != 0 || next != "" {
			t.Errorf("before any job: %v, %q, %v", list, next, err)
		}
		want := map[string]bool{}
		for i := range 25 {
			run := create(t, j, Record{Title: fmt.Sprint(i), Request: json.RawMessage(`{}`)})
			run.Note("busy")
			want[run.ID()] = true
		}
		create(t, j, Record{Owner: "bob"})
		var got []Record
		for cursor, page := "", 0; ; page++ {
			list, next, err := j.List("alice", cursor, 10)
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, list...)
			create(t, j, Record{Title: "newer than the list"})
			if cursor = next; cursor == "" {
				break
			}
		}
		if len(got) != 25 {
			t.Fatalf("got %d", len(got))
		}
		for i, r := range got {
			if !want[r.ID] || r.Request != nil || r.Note != "busy" || i > 0 && r.Created.After(got[i-1].Created) {
				t.Errorf("%d: %+v", i, r)
			}
			delete(want, r.ID)
		}
		for _, bad := range []string{"x", "!!", "bm90IGEgY3Vyc29y", strings.Repeat("A", 5000)} {
			if _, _, err := j.List("alice", bad, 10); err != ErrCursor {
				t.Errorf("cursor %q: %v", bad, err)
			}
		}
	})
}

func TestNothingIsOpenedBeforeTheFirstJob(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "jobs.db")
	j := open(t, path, Options{})
	j.Get("alice", "x")
	j.List("alice", "", 0)
	j.Cancel("alice", "x")
	if _, err := os.Stat(filepath.Dir(path)); err == nil {
		t.Error("the folder was created")
	}
	create(t, j, Record{})
	for _, name := range []string{path, path + "-wal"} {
		info, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		if m := info.Mode().Perm(); m != 0o600 && runtime.GOOS != "windows" {
			t.Errorf("%s has mode %o", filepath.Base(name), m)
		}
	}
	if err := j.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if left, _ := filepath.Glob(path + "-*"); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestLimitsPerOwner(t *testing.T) {
	j := open(t, "", Options{MaxPerOwner: 2})
	first := create(t, j, Record{})
	create(t, j, Record{})
	if _, err := j.Create(t.Context(), Record{Owner: "alice"}); err != ErrTooMany {
		t.Errorf("a third: %v", err)
	}
	create(t, j, Record{Owner: "bob"})
	first.Finish(json.RawMessage(`{}`))
	for range 30 {
		create(t, j, Record{}).Finish(json.RawMessage(`{}`))
	}
	list, _, err := j.List("alice", "", 100)
	if err != nil || len(list) != 1+2*keepEnded {
		t.Errorf("%d are kept, %v", len(list), err)
	}
	if _, err := j.Get("alice", first.ID()); err != ErrNotFound {
		t.Errorf("the oldest: %v", err)
	}
}

func TestWhatIsTooLargeFailsTheJob(t *testing.T) {
	j := open(t, "", Options{})
	if _, err := j.Create(t.Context(), Record{Owner: "alice", Request: make([]byte, maxBody+1)}); err != ErrTooLarge {
		t.Errorf("request: %v", err)
	}
	run := create(t, j, Record{})
	if err := run.Finish(make([]byte, maxBody+1)); !errors.Is(err, ErrTooLarge) {
		t.Errorf("result: %v", err)
	}
	if r := get(t, j, run.ID()); r.Status != Failed || r.Error.Code != -32603 || r.Result != nil {
		t.Errorf("%v %v", r.Status, r.Error)
	}
	if long := create(t, j, Record{Title: strings.Repeat("ä", 1000)}); len(get(t, j, long.ID()).Title) != maxText {
		t.Errorf("title of %d bytes", len(get(t, j, long.ID()).Title))
	}
}

func TestRecordsExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := open(t, "", Options{MaxTTL: 2 * time.Hour})
		ctx, stop := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { j.Run(ctx) })

		quick := create(t, j, Record{TTL: 10 * time.Minute})
		late := create(t, j, Record{TTL: 10 * time.Minute})
		asked := create(t, j, Record{TTL: 10 * time.Minute})
		long := create(t, j, Record{TTL: 999 * time.Hour})
		quick.Finish(json.RawMessage(`{}`))
		asked.Ask(twoQuestions, nil, nil)
		if r := get(t, j, long.ID()); r.TTL != 2*time.Hour {
			t.Errorf("TTL %v", r.TTL)
		}
		time.Sleep(10*time.Minute - time.Millisecond)
		get(t, j, quick.ID())
		time.Sleep(time.Millisecond)
		if _, err := j.Get("alice", quick.ID()); err != ErrNotFound {
			t.Errorf("quick: %v", err)
		}
		time.Sleep(10 * time.Minute)
		if r := get(t, j, late.ID()); r.Status != Working {
			t.Errorf("a job that still works is %v", r.Status)
		}
		late.Finish(json.RawMessage(`{}`))
		time.Sleep(linger - time.Second)
		get(t, j, late.ID()) // long enough to be seen
		_, err := j.Wait(ctx, "alice", late.ID(), func(Record) bool { return false })
		if err != ErrTerminal {
			t.Errorf("waiting for what cannot come: %v", err)
		}
		time.Sleep(2 * time.Minute)
		for name, id := range map[string]string{"late": late.ID(), "asked": asked.ID()} {
			if _, err := j.Get("alice", id); err != ErrNotFound {
				t.Errorf("%s: %v", name, err)
			}
		}
		list, _, _ := j.List("alice", "", 0)
		if len(list) != 1 || list[0].ID != long.ID() {
			t.Errorf("left: %+v", list)
		}
		stop()
		wg.Wait()
		if context.Cause(long.Context()) != ErrStopping {
			t.Errorf("cause %v", context.Cause(long.Context()))
		}
		j.Close(context.Background())
	})
}

func TestUnansweredQuestionsFailTheJob(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := open(t, "", Options{})
		go j.Run(t.Context())
		run := create(t, j, Record{TTL: time.Hour})
		run.Ask(twoQuestions, nil, nil)
		var seen []Status
		stop, err := j.Watch("alice", run.ID(), func(r Record) { seen = append(seen, r.Status) })
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour + 30*time.Second)
		r, err := j.Wait(t.Context(), "alice", run.ID(), func(r Record) bool { return r.Status.Terminal() })
		if err != nil || r.Status != Failed || r.Note != "no answer arrived in time" {
			t.Errorf("%+v, %v", r, err)
		}
		synctest.Wait()
		if !slices.Equal(seen, []Status{Failed}) {
			t.Errorf("seen %v", seen)
		}
		stop()
		j.Close(context.Background())
	})
}

func TestWaitEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := open(t, "", Options{})
		go j.Run(t.Context())
		never := func(Record) bool { return false }

		run := create(t, j, Record{})
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, errors.New("patience"))
		defer cancel()
		if _, err := j.Wait(ctx, "alice", run.ID(), never); err == nil || err.Error() != "patience" {
			t.Errorf("with its context: %v", err)
		}
		errs := make(chan error, 2)
		go func() {
			_, err := j.Wait(t.Context(), "alice", run.ID(), never)
			errs <- err
		}()
		synctest.Wait()
		j.forget(run.ID())
		if err := <-errs; err != ErrNotFound {
			t.Errorf("with the record: %v", err)
		}
		run = create(t, j, Record{})
		go func() {
			_, err := j.Wait(t.Context(), "alice", run.ID(), never)
			errs <- err
		}()
		synctest.Wait()
		j.Close(context.Background())
		if err := <-errs; err != ErrStopping {
			t.Errorf("with the host: %v", err)
		}
	})
}

func TestWatchersMissNoQuestionAndNoEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rounds := 0
		j := open(t, "", Options{Resume: func(_ context.Context, r Record, run *Running) {
			for i := range 100 {
				run.Progress(float64(i), 100, "")
			}
			if rounds++; rounds < 5 {
				run.Ask(twoQuestions[:1], r.Recorded, nil)
				return
			}
			run.Finish(json.RawMessage(`{}`))
		}})
		run := create(t, j, Record{})
		var seen []Status
		slow, err := j.Watch("alice", run.ID(), func(r Record) {
			if r.Status != Working {
				seen = append(seen, r.Status)
			}
			time.Sleep(time.Minute)        // slower than anything here
			j.Get("alice", r.ID)           // and it may read
			if r.Status == InputRequired { // and act
				j.Answer("alice", r.ID, raw("a", "1"))
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		run.Ask(twoQuestions[:1], nil, nil)
		time.Sleep(time.Hour)
		synctest.Wait()
		want := []Status{InputRequired, InputRequired, InputRequired, InputRequired, InputRequired, Completed}
		if !slices.Equal(seen, want) {
			t.Errorf("seen %v, want %v", seen, want)
		}
		slow()
		if len(j.live) != 0 {
			t.Errorf("%d are still held", len(j.live))
		}
		j.Close(context.Background())
	})
}

func TestProgressIsSeenAtOnceAndStoredOncePerSecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := open(t, "", Options{})
		run := create(t, j, Record{})
		rev := func() int64 {
			r, err := j.store.readRow(run.ID())
			if err != nil {
				t.Fatal(err)
			}
			return r.rev
		}
		for i := range 100 {
			run.Progress(float64(i), 0, "step")
			if r := get(t, j, run.ID()); r.Done != float64(i) {
				t.Fatalf("done %v, want %d", r.Done, i)
			}
			time.Sleep(100 * time.Millisecond)
		}
		if n := rev() - 1; n < 8 || n > 10 {
			t.Errorf("stored %d times in 10 s", n)
		}
		run.Progress(nan(), 1, "no number")
		if r := get(t, j, run.ID()); r.Note != "step" {
			t.Errorf("took %+v", r)
		}
		j.Close(context.Background())
	})
}

func nan() float64 { z := 0.0; return z / z }

func TestOneEndWins(t *testing.T) {
	everywhere(t, func(t *testing.T, path string) {
		j := open(
			t,
			path,
			Options{
				Resume: func(_ context.Context, _ Record, run *Running) { run.Finish(json.RawMessage(`{"round":2}`)) },
			},
		)
		for range 30 {
			run := create(t, j, Record{})
			run.Ask(twoQuestions[:1], nil, nil)
			var wg sync.WaitGroup
			for range 3 {
				wg.Go(func() { j.Answer("alice", run.ID(), raw("a", "1")) })
			}
			wg.Go(func() { j.Cancel("alice", run.ID()) })
			wg.Go(func() {
				if err := run.Finish(json.RawMessage(`{"round":1}`)); err != ErrSettled {
					t.Errorf("the first round finished late: %v", err)
				}
			})
			wg.Wait()
			r, err := j.Wait(t.Context(), "alice", run.ID(), func(r Record) bool { return r.Status.Terminal() })
			if err != nil || r.Status == Failed || r.Status == Completed && string(r.Result) != `{"round":2}` {
				t.Fatalf("%+v, %v", r, err)
			}
			for range 3 {
				if again := get(t, j, run.ID()); again.Status != r.Status {
					t.Fatalf("%v became %v", r.Status, again.Status)
				}
			}
		}
		j.mu.Lock()
		defer j.mu.Unlock()
		if len(j.live) != 0 {
			t.Errorf("%d are still held", len(j.live))
		}
	})
}

func TestFinishAndCancelRace(t *testing.T) {
	j := open(t, "", Options{})
	for range 200 {
		run := create(t, j, Record{})
		var finish, cancel error
		var wg sync.WaitGroup
		wg.Go(func() { finish = run.Finish(json.RawMessage(`{}`)) })
		wg.Go(func() { _, cancel = j.Cancel("alice", run.ID()) })
		wg.Go(func() { run.Progress(1, 2, "x") })
		wg.Go(func() { j.Get("alice", run.ID()); run.Record() })
		wg.Wait()
		want := Completed
		if finish != nil {
			want = Cancelled
		}
		if (finish == nil) == (cancel == nil) || get(t, j, run.ID()).Status != want {
			t.Fatalf("finish %v, cancel %v, %v", finish, cancel, get(t, j, run.ID()).Status)
		}
	}
}

func TestAStoppedHostStartsNothing(t *testing.T) {
	j := open(t, "", Options{Resume: func(ctx context.Context, _ Record, run *Running) {
		<-ctx.Done()
		run.Fail(&tool.WireError{Code: -32603, Message: context.Cause(ctx).Error()})
	}})
	run, asked := create(t, j, Record{}), create(t, j, Record{})
	asked.Ask(twoQuestions[:1], nil, nil)
	second := create(t, j, Record{})
	second.Ask(twoQuestions[:1], nil, nil)
	j.Answer("alice", second.ID(), raw("a", "1"))

	ctx, stop := context.WithCancel(t.Context())
	stop()
	if err := j.Run(ctx); err != nil { // waits for the second round
		t.Error(err)
	}
	if r := get(t, j, second.ID()); r.Status != Failed || r.Note != ErrStopping.Error() {
		t.Errorf("%+v", r)
	}
	if _, err := j.Create(t.Context(), Record{Owner: "alice"}); err != ErrStopping {
		t.Errorf("create: %v", err)
	}
	if r, err := j.Answer("alice", asked.ID(), raw("a", "1")); err != ErrStopping || len(r.Questions) != 1 {
		t.Errorf("answer: %+v, %v", r, err)
	}
	if err := run.Finish(json.RawMessage(`{}`)); err != nil {
		t.Errorf("a round may still end well: %v", err)
	}
	for range 2 {
		if err := j.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if _, err := j.Get("alice", run.ID()); err == nil {
		t.Error("read after Close")
	}
}

func FuzzCursor(f *testing.F) {
	f.Add(cursorAfter(row{place: 5}))
	f.Add("")
	f.Fuzz(func(t *testing.T, c string) {
		place, err := parseCursor(c)
		if err != nil && err != ErrCursor {
			t.Errorf("unexpected error %v", err)
		}
		if again, err2 := parseCursor(cursorAfter(row{place: place})); err == nil && (err2 != nil || again != place) {
			t.Errorf("%d became %d, %v", place, again, err2)
		}
	})
}

func BenchmarkJob(b *testing.B) {
	for name, path := range map[string]string{"memory": "", "file": filepath.Join(b.TempDir(), "jobs.db")} {
		b.Run(name, func(b *testing.B) {
			j, err := Open(path, Options{})
			if err != nil {
				b.Fatal(err)
			}
			defer j.Close(context.Background())
			for b.Loop() {
				run, err := j.Create(b.Context(), Record{Owner: "alice", Request: json.RawMessage(`{}`)})
				if err != nil {
					b.Fatal(err)
				}
				run.Finish(json.RawMessage(`{}`))
			}
		})
	}
}
