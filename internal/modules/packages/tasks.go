package packages

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"time"

	"gatehouse/internal/packages"
	"gatehouse/tool"
)

const (
	// taskTimeout is for tools that their servers run as tasks alone, which are long by nature.
	taskTimeout = 24 * time.Hour

	taskKey     = "task"     // records the server's ID of the task of a call
	answeredKey = "answered" // records the keys of the questions that were answered
)

// followTask follows a task of a server until it has ended, and returns its result. Its
// questions are asked of the client of the call. If the call ends before, the task is
// cancelled; between the rounds of a call it goes on.
func (k *manager) followTask(ctx context.Context, c *tool.Call, id, task string) (json.RawMessage, error) {
	raw, err := k.pollTask(ctx, c, id, task)
	if err != nil && !errors.Is(err, tool.ErrAsked) {
		if _, ended := errors.AsType[*tool.WireError](err); !ended || ctx.Err() != nil {
			k.cfg.Packages.CancelTask(ctx, id, task, askedNothing(c))
		}
	}
	return raw, err
}

func (k *manager) pollTask(ctx context.Context, c *tool.Call, id, task string) (json.RawMessage, error) {
	last := ""
	for looks := 1; ; looks++ {
		t, err := k.cfg.Packages.Task(ctx, id, task, askedNothing(c))
		if err != nil {
			return nil, err
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
