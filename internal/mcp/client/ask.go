package client

import (
	"context"
	"encoding/json"
	"fmt"
)

// Ask puts a server's question to a user. It returns accept with the content of the form, decline, or
// cancel.
type Ask func(Question) (action string, content map[string]any)

// Question is a form that a server asks the user to fill in.
type Question struct {
	Message string `json:"message"`
	Form    Schema `json:"requestedSchema"`
	Mode    string `json:"mode"`
}

// maxRounds limits how often one call may ask.
const maxRounds = 10

// answerQuestion returns the result of elicitation/create.
func (o Options) answerQuestion(params json.RawMessage) json.RawMessage {
	var q Question
	said := map[string]any{"action": "cancel"}
	if json.Unmarshal(params, &q) == nil && (q.Mode == "" || q.Mode == "form") {
		action, content := o.Ask(q)
		said["action"] = action
		if action == "accept" {
			said["content"] = content
		}
	}
	b, err := json.Marshal(said)
	if err != nil {
		return json.RawMessage(`{"action":"cancel"}`)
	}
	return b
}

// rounds calls a tool again with the answers to its questions until it asks no more.
func (c *Client) rounds(
	ctx context.Context,
	name string,
	params map[string]any,
	headers map[string]string,
) (json.RawMessage, error) {
	for range maxRounds {
		raw, err := c.request(ctx, "tools/call", name, params, headers)
		if err != nil || c.opts.Ask == nil {
			return raw, err
		}
		var r struct {
			Kind  string  `json:"resultType"`
			State *string `json:"requestState"`
			Asks  map[string]struct {
				Method string          `json:"method"`
				Params json.RawMessage `json:"params"`
			} `json:"inputRequests"`
		}
		if json.Unmarshal(raw, &r) != nil || r.Kind != "input_required" {
			return raw, nil
		}
		answers := map[string]json.RawMessage{}
		for key, ask := range r.Asks {
			if ask.Method != "elicitation/create" {
				return raw, nil
			}
			answers[key] = c.opts.answerQuestion(ask.Params)
		}
		params["inputResponses"] = answers
		if delete(params, "requestState"); r.State != nil {
			params["requestState"] = *r.State
		}
	}
	return nil, fmt.Errorf("%s asks more than %d times", name, maxRounds)
}
