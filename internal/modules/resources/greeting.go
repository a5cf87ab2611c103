package resources

import (
	"context"
	"encoding/json"

	"gatehouse/module"
	"gatehouse/tool"
)

// Greeting makes the module with the prompt of the default context.
func Greeting(context.Context, module.Deps) (module.Module, error) { return greeting{}, nil }

type greeting struct{}

func (greeting) Close(context.Context) error { return nil }

func (greeting) Offer(context.Context, module.Audience) (*module.Offer, error) {
	return &module.Offer{Prompts: []module.Prompt{{
		Name: "greeting", Title: "Greeting", Description: "Asks for a greeting by name.",
		Args: []module.PromptArg{
			{Name: "name", Title: "Name", Description: "The name of the person to greet.", Required: true},
		},
		Get: greet,
	}}}, nil
}

func greet(_ context.Context, c *tool.Call) (tool.Result, error) {
	var in struct{ Name string }
	if err := json.Unmarshal(c.Args, &in); err != nil {
		return tool.Result{}, err
	}
	return tool.Result{
		Description: "A greeting for " + in.Name,
		Messages: []tool.Message{
			{Role: "user", Content: tool.Text("Greet " + in.Name + " by name and offer your help.")},
		},
	}, nil
}
