package packages

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"time"

	"gatehouse/internal/dispatch/jobs"
	"gatehouse/internal/packages"
	"gatehouse/tool"
)

const (
	// taskTimeout is for tools that their servers run as tasks alone, which are long by nature.
	taskTimeout = 24 * time.Hour

	absence    = time.Minute      // how long a server with a task may be away
	lookTime   = 10 * time.Second // how long it may take to say how the task is
	absentPoll = time.Second

	taskKey     = "task"     // records the server's ID of the task of a call
	answeredKey = "answered" // records the keys of the questions that were answered
)

// followTask follows a task of a server until it has ended, and returns its result. Its
// questions are asked of the client of the call. If the call ends before, the task is
// cancelled; between the rounds of a call it goes on, and so it does if this host stops,
// because the next one follows it.
func (k *manager) followTask(ctx context.Context, c *tool.Call, id, task string) (json.RawMessage, error) {
	kept := false
	raw, err := k.pollTask(ctx, c, id, task, &kept)
	goesOn := kept && errors.Is(context.Cause(ctx), jobs.ErrStopping)
	if err != nil && !errors.Is(err, tool.ErrAsked) && !goesOn {
		if _, ended := errors.AsType[*tool.WireError](err); !ended || ctx.Err() != nil {
			k.cfg.Packages.CancelTask(ctx, id, task, askedNothing(c))
		}
	}
	return raw, err
}

// unavailable reports whether a server could not be reached.
func unavailable(err error) bool {
	ref, ok := errors.AsType[*tool.Refusal](err)
	return ok && ref.Code == tool.CodeUnavailable
}

// pollTask sets kept once the next host would follow the task. Until then each look tries, because the call can become
// a job at any time.
func (k *manager) pollTask(ctx context.Context, c *tool.Call, id, task string, kept *bool) (json.RawMessage, error) {
	last, seen := "", time.Now()
	for looks := 1; ; looks++ {
		*kept = *kept || tool.Keep(c)
		t, err := k.look(ctx, c, id, task)
		switch {
		case err == nil:
			seen = time.Now()
		case !unavailable(err) || ctx.Err() != nil || time.Since(seen) > absence:
			return nil, err
		default: // a server that restarts may still have the task
			t.Poll, t.Message = absentPoll, err.Error()
		}
		switch t.Status {
		case "completed":
			return t.Result, nil
		case "cancelled":
			return nil, tool.Refuse(tool.CodeFailed, "the server of package %s has cancelled the task", id)
		case "input_required":
			if err := k.askForTask(ctx, c, id, t); err != nil {
				return nil, err
			}
		}
		if t.Message != last {
			last = t.Message
			c.Peer.Progress(float64(looks), 0, last)
		}
		timer := time.NewTimer(t.Poll)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, context.Cause(ctx)
		}
	}
}

// look returns the state of a task. A server that takes longer than lookTime is unavailable.
func (k *manager) look(ctx context.Context, c *tool.Call, id, task string) (packages.Task, error) {
	soon, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	t, err := k.cfg.Packages.Task(soon, id, task, askedNothing(c))
	if err != nil && soon.Err() != nil && ctx.Err() == nil {
		err = tool.Refuse(tool.CodeUnavailable, "the server of package %s does not say how its task is", id)
	}
	return t, err
}

// askForTask asks the client what a task asks, except for what it has answered, and passes the
// answers on. A server may still list answered questions for a while.
func (k *manager) askForTask(ctx context.Context, c *tool.Call, id string, t packages.Task) error {
	var answered []string
	if raw, ok := c.Peer.Recall(answeredKey); ok {
		json.Unmarshal(raw, &answered) // it is this module's own
	}
	var open []tool.Question
	for _, key := range slices.Sorted(maps.Keys(t.Questions)) {
		if !slices.Contains(answered, key) {
			open = append(open, t.Questions[key])
		}
	}
	if len(open) == 0 {
		return nil
	}
	answers, err := c.Peer.Ask(open...)
	if err == nil {
		err = k.cfg.Packages.AnswerTask(ctx, id, t.ID, answers, askedNothing(c))
	}
	if err != nil {
		return err
	}
	return c.Peer.Record(answeredKey, append(answered, slices.Collect(maps.Keys(answers))...))
}
