package moduletest_test

import (
	"context"
	"testing"

	"gatehouse/module"
	"gatehouse/module/moduletest"
	"gatehouse/tool"
)

// greeter is a whole module: one tool, which asks whom to greet when it is
// not told.
func greeter(ctx context.Context, d module.Deps) (module.Module, error) {
	greet := tool.New(tool.Def{
		Name:        "greeter_greet",
		Description: "Greets a person by name, and asks for the name if there is none.",
		Effects:     tool.Reads,
	}, func(_ context.Context, c *tool.Call, in greetIn) (greetOut, error) {
		if in.Name == "" {
			answers, err := c.Peer.Ask(tool.Elicit("name", "Whom shall I greet?",
				[]byte(`{"type":"object","properties":{"name":{"type":"string"}},"required":["name"]}`)))
			if err != nil {
				return greetOut{}, err
			}
			if _, err := tool.Elicited(answers["name"], &in); err != nil {
				return greetOut{}, err
			}
		}
		return greetOut{in.Greeting + ", " + in.Name}, nil
	})
	return moduletest.Fixed(&module.Offer{Tools: []tool.Tool{greet}})(ctx, d)
}

type greetIn struct {
	Name     string `json:"name,omitempty" doc:"whom to greet"`
	Greeting string `json:"greeting" doc:"what to say" default:"Hello"`
}

type greetOut struct {
	Text string `json:"text"`
}

// The contract of every module, in one line.
func testContract(t *testing.T) {
	moduletest.Run(t, greeter, moduletest.Options{})
}

// What this module does, with a person behind the call.
func testGreet(t *testing.T) {
	m, err := greeter(t.Context(), moduletest.NewHost(t).Deps())
	if err != nil {
		t.Fatal(err)
	}
	c := moduletest.NewCall(t, "greeting", "Good morning")
	c.Peer.Answers["name"] = moduletest.Accept(map[string]string{"name": "Ada"})

	res, err := c.Tool(t.Context(), moduletest.Tool(t, m, "greeter_greet"))
	if want := (greetOut{"Good morning, Ada"}); err != nil || res.Structured != want {
		t.Errorf("got %v, %v, want %v", res.Structured, err, want)
	}
}

// A module's test file holds the module to its contract with Run, and tries
// its tools with NewCall.
func Example() {
	tests := map[string]func(*testing.T){
		"TestContract": testContract,
		"TestGreet":    testGreet,
	}
	_ = tests // go test finds functions of these names
}
