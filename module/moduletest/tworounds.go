package moduletest

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"

	"gatehouse/module"
	"gatehouse/tool"
)

// TwoRounds makes the fourth probe: a tool that asks, does something once, and
// asks again, two questions at a time. effect is what it does; it is told how
// often it has been run.
//
// The tool says each of three things once over all rounds: as progress 1, 2
// and 3, and as log messages "asking", "working" and "done".
func TwoRounds(effect func() (times int, err error)) module.New {
	ask := func(_ context.Context, c *tool.Call, in twoIn) (twoOut, error) { return twoRounds(c, effect) }
	return Fixed(&module.Offer{
		Tools: []tool.Tool{
			tool.New(tool.Def{
				Name: "two_rounds", Effects: tool.Writes,
				Description: "Asks who you are, does something once, and asks two things more.",
			}, ask),
			tool.New(tool.Def{
				Name: "two_rounds_task", Effects: tool.Writes, Task: tool.TaskAlways,
				Description: "Does the same as a task, where the client can follow one.",
			}, ask),
		},
		Prompts: []module.Prompt{{
			Name: "two_prompt", Description: "Asks who you are before it says anything.",
			Get: askingPrompt,
		}},
	})
}

type twoIn struct {
	Note string `json:"note,omitempty" doc:"comes back untouched" default:"none"`
}

type twoOut struct {
	Name   string `json:"name"`
	Colour string `json:"colour"`
	Roots  int    `json:"roots"`
	Times  int    `json:"times" doc:"how often the effect had been run when this call ran it"`
}

var (
	askName = tool.Elicit(
		"name",
		"Who are you?",
		json.RawMessage(`{"type":"object","properties":{"name":{"type":"string","minLength":1}},"required":["name"]}`),
	)
	askColour = tool.Elicit(
		"colour",
		"Which colour?",
		json.RawMessage(
			`{"type":"object","properties":{"colour":{"type":"string","enum":["red","green"]}},"required":["colour"]}`,
		),
	)
	askRoots = tool.ListRoots("roots")
)

func twoRounds(c *tool.Call, effect func() (int, error)) (out twoOut, err error) {
	reportStep(c, 1, "asking")
	first, err := c.Peer.Ask(askName)
	if err != nil {
		return out, err
	}
	if err := accepted(first["name"], &out); err != nil {
		return out, err
	}
	if out.Times, err = tool.Once(c, "effect", effect); err != nil {
		return out, err
	}
	reportStep(c, 2, "working")
	then, err := c.Peer.Ask(askColour, askRoots)
	if err != nil {
		return out, err
	}
	if err := accepted(then["colour"], &out); err != nil {
		return out, err
	}
	var roots struct{ Roots []json.RawMessage }
	if err := json.Unmarshal(then["roots"], &roots); err != nil {
		return out, err
	}
	out.Roots = len(roots.Roots)
	reportStep(c, 3, "done")
	return out, nil
}

func reportStep(c *tool.Call, step float64, what string) {
	c.Peer.Progress(step, 3, what)
	c.Peer.Log(slog.LevelInfo, what)
}

// accepted decodes an answer, and refuses when the person would not answer.
func accepted(a tool.Answer, into any) error {
	action, err := tool.Elicited(a, into)
	if err == nil && action != "accept" {
		return tool.Refuse(tool.CodeDeclined, "the person would not say (%s)", action)
	}
	return err
}

func askingPrompt(_ context.Context, c *tool.Call) (tool.Result, error) {
	answers, err := c.Peer.Ask(askName)
	if err != nil {
		return tool.Result{}, err
	}
	var out twoOut
	if err := accepted(answers["name"], &out); err != nil {
		return tool.Result{}, err
	}
	return tool.Result{
		Messages: []tool.Message{{Role: "user", Content: tool.Text(fmt.Sprintf("I am %s.", out.Name))}},
	}, nil
}
