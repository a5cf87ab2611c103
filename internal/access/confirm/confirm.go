// Package confirm asks the person behind a call before something is done
// that cannot be undone.
package confirm

import (
	"encoding/json"
	"fmt"

	"gatehouse/tool"
)

// Needed is the code of the refusal by which a handler asks for an operator's
// approval of its call. Its message is the question.
const Needed = tool.CodeNeedsApproval

// Given is the key under which a call that runs again finds that an operator
// has approved of it.
const Given = "gatehouse/agreed"

// Key is that of the question to the person behind a client.
const Key = "confirm"

// Ask asks whether to go on. Where the client cannot ask, or an operator has to
// agree, the call waits for an operator's approval and runs again after it;
// where the settings let the caller's word stand for that, the caller repeats
// the call with what it has asked about, thing, as confirm. The error is to be
// returned by the handler; nothing may have been done before.
func Ask(c *tool.Call, thing, question, confirm string) error {
	can := c.Caller.Can
	if can&tool.CanElicit == 0 || can&tool.OnlyOperator != 0 {
		if _, ok := c.Peer.Recall(Given); ok {
			return nil
		}
		if can&tool.WordCounts == 0 || can&tool.OnlyOperator != 0 {
			return &tool.Refusal{Code: Needed, Message: question,
				Next: "Nothing was done. An operator has to agree, or a person at a client that can ask: the settings of this host let no caller agree for them."}
		}
		if confirm == thing {
			return nil
		}
		return &tool.Refusal{
			Code:    tool.CodeUnconfirmed,
			Message: "nothing was done: this needs the agreement of the person, and this client cannot ask",
			Next: fmt.Sprintf(
				"Ask the person yourself: %s If they agree, repeat the call with confirm set to %q.",
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
		return &tool.Refusal{Code: tool.CodeDeclined, Message: "nothing was done: the person did not agree"}
	}
	return nil
}
