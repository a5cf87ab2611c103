package jobs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"time"

	"gatehouse/internal/access/displaytext"
	"gatehouse/tool"
)

const saveEvery = time.Second // the shortest interval at which notes and progress are written to disk

// Running is one round of a job, used by the goroutine that runs it. It is ended once, by Finish, Fail or Ask;
// afterwards these return ErrSettled and the other methods do nothing. It is safe for concurrent use.
type Running struct {
	j     *Manager
	id    string
	round int64
	// ctx is that of the round, not of the call that began it; see Context.
	ctx    context.Context
	cancel context.CancelCauseFunc
}

// ID returns the id of the job.
func (run *Running) ID() string { return run.id }

// Context ends when the job is cancelled (ErrCancelled), the host stops (ErrStopping) or the round has ended
// (ErrSettled); the error in parentheses is its cause. It is not derived from the request that created the job.
func (run *Running) Context() context.Context { return run.ctx }

// Record returns the current state of the job, or a record with only its ID if the job was removed.
func (run *Running) Record() Record {
	if r, ok := run.j.running(run.id); ok {
		return r
	}
	r, err := run.j.store.readRow(run.id)
	if err != nil {
		return Record{ID: run.id}
	}
	return r.Record
}

// Note sets a short text about what the job currently does. Watchers receive it at once; it is written to disk at
// most once per second.
func (run *Running) Note(text string) {
	run.j.updateLive(run, func(r *row) { r.Note = displaytext.Cut(text, maxText, "") })
}

// Progress reports the job's progress, as Note does; total 0 means unknown, and an empty note keeps the last one.
func (run *Running) Progress(done, total float64, note string) {
	if math.IsNaN(done+total) || math.IsInf(done+total, 0) {
		return // not a number in JSON
	}
	run.j.updateLive(run, func(r *row) {
		r.Done, r.Total = done, total
		if note != "" {
			r.Note = displaytext.Cut(note, maxText, "")
		}
	})
}

// Finish completes the job. The result is a JSON object, which may state that the tool failed. A result that is
// too large fails the job with ErrTooLarge.
func (run *Running) Finish(result json.RawMessage) error {
	err := run.finishAs(func(r *row) error {
		r.markEnded(Completed)
		r.Result, r.fresh = result, true
		return nil
	})
	return run.orFail(err)
}

// Fail ends the job with an error for the client program; nil stands for an internal error.
func (run *Running) Fail(e *tool.WireError) error {
	if e == nil {
		e = internalError("internal error")
	}
	err := run.finishAs(func(r *row) error {
		r.markEnded(Failed)
		r.Error, r.Note = e, displaytext.Cut(e.Message, maxText, "")
		return nil
	})
	return run.orFail(err)
}

// Keep stores recorded for the next round, and that this round may run again: if the host ends during it, the next
// one runs it with these values.
func (run *Running) Keep(recorded map[string]json.RawMessage) error {
	err := run.storeEnd(func(r *row) error {
		r.Recorded, r.Repeatable = recorded, true
		return nil
	})
	if err == nil {
		err = run.j.share(run.id, func(*row) error { return nil })
	}
	return err
}

// Interrupt ends a round because the host stops while it runs. The job fails, unless its round may run again on the
// next host.
func (run *Running) Interrupt() error {
	if r := run.Record(); run.j.survives(r) {
		return nil
	}
	return run.Fail(internalError(stopText))
}

// survives reports whether a working job is left to the next host on the file.
func (m *Manager) survives(r Record) bool {
	return r.Status == Working && r.Repeatable && m.store.file.Path != ""
}

// Ask ends the round with questions, at least one and each with its own key. The next round receives recorded,
// with the answers added under the questions' keys, and state. If they are too large the job fails with
// ErrTooLarge.
func (run *Running) Ask(q []tool.Question, recorded map[string]json.RawMessage, state []byte) error {
	keys := map[string]bool{}
	for _, q := range q {
		keys[q.Key] = true
	}
	if len(q) == 0 || len(keys) != len(q) {
		return fmt.Errorf(
			"jobs: %d questions with %d keys: ask at least one, each under its own key",
			len(q),
			len(keys),
		)
	}
	err := run.finishAs(func(r *row) error {
		r.Status, r.Questions, r.Recorded, r.State = InputRequired, q, recorded, state
		return nil
	})
	return run.orFail(err)
}

// finishAs ends the round, unless it has ended. If the end cannot be stored the job fails, in memory if need be,
// so that no caller waits for it, and finishAs returns why.
func (run *Running) finishAs(f func(*row) error) error {
	if err := run.j.share(run.id, f); err != nil {
		return err
	}
	err := run.storeEnd(f)
	if err == nil || errors.Is(err, ErrSettled) || errors.Is(err, ErrTooLarge) {
		return err
	}
	text := displaytext.Cut("the outcome of this job could not be stored; it may have done its work: "+err.Error(),
		maxText, "")
	fail := func(r *row) {
		r.markEnded(Failed)
		r.Result, r.fresh = nil, false
		r.Error, r.Note = internalError(text), text
	}
	// A failure is small and may fit where the outcome did not.
	if again := run.storeEnd(func(r *row) error { fail(r); return nil }); again != nil && again != ErrSettled {
		run.j.failInMemory(run, fail)
	}
	return err
}

// storeEnd stores a change of the round, mostly its end, unless it has ended.
func (run *Running) storeEnd(f func(*row) error) error {
	_, err := run.j.changeJob(run.id, func(r *row) error {
		if r.Status != Working || r.Round != run.round {
			return ErrSettled
		}
		return f(r)
	})
	if errors.Is(err, ErrNotFound) { // it ended in another process, and expired
		return ErrSettled
	}
	return err
}

// orFail fails a round that could not be stored because of its size.
func (run *Running) orFail(err error) error {
	if errors.Is(err, ErrTooLarge) {
		err = errors.Join(err, run.finishAs(func(r *row) error {
			r.markEnded(Failed)
			r.Error = internalError(ErrTooLarge.Error())
			r.Note = ErrTooLarge.Error()
			return nil
		}))
	}
	return err
}

func internalError(text string) *tool.WireError {
	return &tool.WireError{Code: -32603, Message: text}
}
