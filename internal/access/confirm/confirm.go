// Package confirm asks the caller's user for confirmation before an action that cannot be undone.
package confirm

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"

	"gatehouse/tool"
)

// Needed is the code of the refusal with which a handler asks for an operator's approval of its call.
// Its message is the question.
const Needed = tool.CodeNeedsApproval

// Given is the key under which a call that runs again finds that an operator has approved it.
const Given = "gatehouse/agreed"

// Key is the key of the question to the user of a client.
const Key = "confirm"

// Ask asks whether to continue. If the client cannot ask its user, or an operator has to approve, the
// call waits for an operator's approval and runs again after it. If the settings accept the caller's
// word instead, the caller repeats the call with the name of the thing as the argument confirm. The
// handler must return the error and must not have changed anything before.
func Ask(c *tool.Call, thing, question, confirm string) error {
	can := c.Caller.Can
	if can&tool.CanElicit == 0 || can&tool.OnlyOperator != 0 {
		if _, ok := c.Peer.Recall(Given); ok {
			return nil
		}
		if can&tool.WordCounts == 0 || can&tool.OnlyOperator != 0 {
			return &tool.Refusal{Code: Needed, Message: question,
				Next: "Nothing was done. An operator has to approve it, or a user at a client that can ask: " +
					"the settings of this host do not let a caller confirm it."}
		}
		if confirm == thing {
			return nil
		}
		return &tool.Refusal{
			Code:    tool.CodeUnconfirmed,
			Message: "nothing was done: this needs the agreement of the user, and this client cannot ask",
			Next: fmt.Sprintf(
				"Ask the user yourself: %s If they agree, repeat the call with confirm set to %q.",
				question,
				thing,
			),
		}
	}
	answers, err := c.Peer.Ask(
		tool.Elicit(
			Key,
			question,
			json.RawMessage(
				`{"type":"object","properties":{"confirm":{"type":"boolean","title":"Do it"}},"required":["confirm"]}`,
			),
		),
	)
	if err != nil {
		return err
	}
	var said struct{ Confirm bool }
	action, err := tool.Elicited(answers[Key], &said)
	if err != nil {
		return err
	}
	if action != "accept" || !said.Confirm {
		return &tool.Refusal{Code: tool.CodeDeclined, Message: "nothing was done: the user did not agree"}
	}
	return nil
}

type agreedKey struct{}

type agreement struct {
	tool string
	args json.RawMessage
}

// WithAgreed returns a context for one call of a tool from within another, whose handler has asked the user for what the
// tool would ask for, because a call within another cannot ask.
func WithAgreed(ctx context.Context, name string, args json.RawMessage) context.Context {
	return context.WithValue(ctx, agreedKey{}, agreement{name, args})
}

// Agreed reports whether the context was made by WithAgreed for this call.
func Agreed(ctx context.Context, name string, args json.RawMessage) bool {
	a, ok := ctx.Value(agreedKey{}).(agreement)
	return ok && a.tool == name && bytes.Equal(a.args, args)
}
