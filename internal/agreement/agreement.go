// Package agreement asks the person behind a call before something is done
// that cannot be undone.
package agreement

import (
	"encoding/json"
	"fmt"

	"gatehouse/tool"
)

// Ask asks whether to go on. A client that cannot ask has to repeat the call
// with what it has asked about, thing, as confirm. The error is to be returned
// by the handler; nothing may have been done before.
func Ask(c *tool.Call, thing, question, confirm string) error {
	if c.Caller.Can&tool.CanElicit == 0 {
		if confirm == thing {
			return nil
		}
		return &tool.Refusal{Code: "unconfirmed", Message: "nothing was done: this needs the agreement of the person, and this client cannot ask",
			Next: fmt.Sprintf("Ask the person yourself: %s If they agree, repeat the call with confirm set to %q.", question, thing)}
	}
	answers, err := c.Peer.Ask(tool.Elicit("confirm", question, json.RawMessage(`{"type":"object","properties":{"confirm":{"type":"boolean","title":"Do it"}},"required":["confirm"]}`)))
	if err != nil {
		return err
	}
	var said struct{ Confirm bool }
	action, err := tool.Elicited(answers["confirm"], &said)
	if err != nil {
		return err
	}
	if action != "accept" || !said.Confirm {
		return &tool.Refusal{Code: "declined", Message: "nothing was done: the person did not agree"}
	}
	return nil
}
