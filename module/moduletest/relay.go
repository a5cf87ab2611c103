package moduletest

import (
	"context"
	"encoding/json"
	"fmt"

	"gatehouse/module"
	"gatehouse/tool"
)

// What the Relay probe lists, with members that no revision knows, numbers
// that no float64 holds, and members in an unsorted order.
const (
	RelayedTool = `{"x-first":[1,2.50,12345678901234567890],"title":"Get \u0026 give","name":"up.get-input",` +
		`"inputSchema":{"type":"object","x-hint":{"b":1,"a":-0.0},"properties":{"n":{"type":"integer","x-big":1e400}},"additionalProperties":true},` +
		`"description":"Relayed <verbatim>.","annotations":{"readOnlyHint":true,"x-mood":"calm"},"_meta":{"up.example/z":1,"up.example/a":null}}`
	RelayedPrompt   = `{"zeta":true,"name":"up.prompt","description":"Relayed.","arguments":[{"name":"q","x-kind":7}],"alpha":12345678901234567890}`
	RelayedResource = `{"x-etag":"\"1\"","uri":"up:///thing","name":"thing","size":12345678901234567890,"_meta":{"b":1,"a":2}}`
)

// RelayedResult is what the tool of the Relay probe gives, after the member
// params, in which the client finds its own.
const RelayedResult = `"zeta":{"b":12345678901234567890,"a":1.0e+2},"content":[{"type":"text","x-lang":"fr","text":"\u00e9t\u00e9 <é>"},` +
	`{"type":"x-new-kind","payload":{"y":-0.10,"x":[]}}],"structuredContent":{"n":12345678901234567890,"f":0.1000},` +
	`"isError":false,"alpha":null,"_meta":{"up.example/trace":"\/"}`

// RelayedPromptResult and RelayedContents are what its prompt and its
// resource give.
const (
	RelayedPromptResult = `{"x":12345678901234567890,"messages":[{"role":"user","content":{"type":"text","text":"q","y":1},"z":2}],"a":{}}`
	RelayedContents     = `{"contents":[{"uri":"up:///thing","x-size":12345678901234567890,"text":"<thing>"}],"extra":[1.50]}`
)

// RelayState is what the relay keeps for an upstream that asks: no text.
var RelayState = []byte{0, 0xff, '"', '<', 0x80}

// Relay is the second probe: it stands for a server that it forwards
// everything to and from, and types nothing of it.
func Relay(ctx context.Context, d module.Deps) (module.Module, error) {
	return Fixed(&module.Offer{
		Tools: []tool.Tool{
			{Def: tool.Def{Name: "relay_get", Raw: json.RawMessage(RelayedTool)}, Run: relayTool},
			{
				Def: tool.Def{
					Name:        "relay_ask",
					Description: "Passes a question of its upstream on.",
					Input:       json.RawMessage(`{"type":"object"}`),
				},
				Run: relayQuestion,
			},
			{
				Def: tool.Def{
					Name:        "relay_ask_task",
					Description: "Does the same as a task.",
					Task:        tool.TaskAlways,
					Input:       json.RawMessage(`{"type":"object"}`),
				},
				Run: relayQuestion,
			},
			{
				Def: tool.Def{
					Name:        "relay_fail",
					Description: "Passes an error of its upstream on.",
					Input:       json.RawMessage(`{"type":"object"}`),
				},
				Run: relayError,
			},
		},
		Prompts: []module.Prompt{{
			Name: "relay_prompt", Raw: json.RawMessage(RelayedPrompt),
			Get: raw(RelayedPromptResult),
		}},
		Resources: []module.Resource{{
			URI: "up:///thing", Raw: json.RawMessage(RelayedResource),
			Read: raw(RelayedContents),
		}},
		Methods: map[string]tool.Handler{"up.example/echo": func(_ context.Context, c *tool.Call) (tool.Result, error) {
			return tool.Result{
				Raw: json.RawMessage(`{"params":` + string(c.Params) + `,"n":12345678901234567890}`),
			}, nil
		}},
	})(ctx, d)
}

func raw(result string) tool.Handler {
	return func(context.Context, *tool.Call) (tool.Result, error) {
		return tool.Result{Raw: json.RawMessage(result)}, nil
	}
}

func relayTool(_ context.Context, c *tool.Call) (tool.Result, error) {
	return tool.Result{Raw: json.RawMessage(`{"params":` + string(c.Params) + `,` + RelayedResult + `}`)}, nil
}

func relayError(context.Context, *tool.Call) (tool.Result, error) {
	return tool.Result{}, &tool.WireError{
		Code:    -31999,
		Message: "upstream says <no>",
		Data:    json.RawMessage(`{"z":12345678901234567890,"a":"\u003c"}`),
	}
}

// relayQuestion asks what its upstream asks, one question after the other,
// and gives the answers back as they came, together with the state it had
// kept and the params of the last round.
func relayQuestion(_ context.Context, c *tool.Call) (tool.Result, error) {
	var all []tool.Answer
	for _, key := range []string{"first", "second"} {
		q := tool.Elicit(
			key,
			"What is "+key+"?",
			json.RawMessage(`{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]}`),
		)
		answers, err := c.Peer.Ask(q)
		if err != nil {
			return tool.Result{
				Input: &tool.Input{State: append(RelayState[:len(RelayState):len(RelayState)], key...)},
			}, err
		}
		all = append(all, answers[key])
	}
	state, err := json.Marshal(c.State)
	if err != nil {
		return tool.Result{}, err
	}
	return tool.Result{
		Raw: json.RawMessage(
			fmt.Sprintf(`{"content":[],"answers":[%s,%s],"state":%s,"params":%s}`, all[0], all[1], state, c.Params),
		),
	}, nil
}
