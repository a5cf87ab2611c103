package moduletest

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"gatehouse/module"
	"gatehouse/tool"
)

// Typed is the first probe: tools whose schemas follow from Go types, ways to
// fail, resources, a template and a prompt.
func Typed(ctx context.Context, d module.Deps) (module.Module, error) {
	return Fixed(&module.Offer{
		Tools: []tool.Tool{
			tool.New(tool.Def{
				Name: "typed_repeat", Title: "Repeat", Effects: tool.Reads,
				Description: "Repeats a text. The text of the result is bulk.",
			}, repeat),
			tool.New(tool.Def{
				Name: "typed_number", Effects: tool.Reads,
				Description: "Gives a whole number back, and all whole numbers below it down to it minus four.",
			}, number),
			tool.New(tool.Def{
				Name: "typed_fail", Effects: tool.Reads,
				Description: "Fails in the way it is told to.",
			}, fail),
			tool.New(tool.Def{
				Name: "typed_deaf", Effects: tool.Reads, Timeout: 50 * time.Millisecond,
				Description: "Works for a while and does not listen when its time is over.",
			}, deaf),
			tool.New(tool.Def{
				Name: "typed_wrong", Effects: tool.Reads,
				Description: "Gives an output that its schema does not allow.",
			}, wrong),
		},
		Resources: []module.Resource{
			{
				URI:         "typed:///motd",
				Name:        "motd",
				MIME:        "text/plain",
				Description: "The message of the day.",
				Read:        readText("All doors are open.\n"),
			},
			{
				URI:         "typed:///dot",
				Name:        "dot",
				MIME:        "application/octet-stream",
				Description: "One byte.",
				Size:        1,
				Read:        readDot,
			},
		},
		Templates: []module.Resource{{
			URI: "typed:///page/{book}/{number}", Name: "page", MIME: "text/plain",
			Description: "One page of a book.", Read: readPage, Complete: completeBook,
		}},
		Prompts: []module.Prompt{{
			Name: "typed_letter", Title: "Letter", Description: "Asks for a letter to somebody.",
			Args:     []module.PromptArg{{Name: "to", Description: "whom to write to", Required: true}, {Name: "tone"}},
			Get:      letter,
			Complete: completeTone,
		}},
	})(ctx, d)
}

type repeatIn struct {
	Text  string   `json:"text" doc:"what to repeat" min:"1"`
	Times int      `json:"times" doc:"how often" default:"2" min:"1" max:"100000"`
	Style string   `json:"style" doc:"how to say it" default:"plain" enum:"plain,loud"`
	Tags  []string `json:"tags,omitempty" doc:"passed through"`
}

type repeatOut struct {
	Text  string   `json:"text" text:"product"`
	Times int      `json:"times"`
	Style string   `json:"style"`
	Tags  []string `json:"tags,omitempty"`
}

func repeat(_ context.Context, _ *tool.Call, in repeatIn) (repeatOut, error) {
	line := in.Text + "\n"
	if in.Style == "loud" {
		line = strings.ToUpper(line)
	}
	return repeatOut{strings.Repeat(line, in.Times), in.Times, in.Style, in.Tags}, nil
}

type numberIn struct {
	N int64 `json:"n" doc:"the number"`
}

type numberOut struct {
	N     int64   `json:"n"`
	Below []int64 `json:"below"`
	None  *string `json:"none"`
}

func number(_ context.Context, _ *tool.Call, in numberIn) (numberOut, error) {
	return numberOut{N: in.N, Below: []int64{in.N - 1, in.N - 2, in.N - 3, in.N - 4}}, nil
}

type failIn struct {
	How string `json:"how" doc:"the way" default:"refuse" enum:"refuse,error,wire,panic"`
}

func fail(_ context.Context, _ *tool.Call, in failIn) (tool.Result, error) {
	switch in.How {
	case "error":
		return tool.Result{}, errors.New("the disk is on fire")
	case "wire":
		return tool.Result{}, &tool.WireError{
			Code:    -31055,
			Message: "not on this wire",
			Data:    json.RawMessage(`{"n":12345678901234567890}`),
		}
	case "panic":
		panic("told to")
	}
	return tool.Result{}, &tool.Refusal{Code: tool.CodeBusy, Message: "somebody else is at it", Next: "Wait a little."}
}

type deafIn struct {
	MS int `json:"ms" doc:"how long to work, in milliseconds" default:"0" max:"10000"`
}

func deaf(_ context.Context, _ *tool.Call, in deafIn) (struct{}, error) {
	time.Sleep(time.Duration(in.MS) * time.Millisecond) // on purpose without the context
	return struct{}{}, nil
}

type wrongOut struct {
	Size string `json:"size" enum:"small,large"`
}

func wrong(context.Context, *tool.Call, struct{}) (wrongOut, error) { return wrongOut{"huge"}, nil }

func readText(text string) tool.Handler {
	return func(context.Context, *tool.Call) (tool.Result, error) {
		return tool.Result{Content: []tool.Content{tool.TextResource("", "text/plain", text)}}, nil
	}
}

func readDot(_ context.Context, c *tool.Call) (tool.Result, error) {
	return tool.Result{
		Content: []tool.Content{tool.BlobResource(c.Name, "application/octet-stream", []byte{0xff})},
	}, nil
}

var books = []string{"almanac", "atlas", "dictionary"}

func readPage(_ context.Context, c *tool.Call) (tool.Result, error) {
	var in struct{ Book, Number string }
	if err := json.Unmarshal(c.Args, &in); err != nil {
		return tool.Result{}, err
	}
	for _, b := range books {
		if b == in.Book {
			return tool.Result{
				Content: []tool.Content{tool.TextResource(c.Name, "text/plain", "page "+in.Number+" of the "+b)},
			}, nil
		}
	}
	return tool.Result{}, tool.Refuse(tool.CodeNotFound, "there is no book %s", in.Book)
}

func completeBook(_ context.Context, c *tool.Call) (tool.Result, error) {
	return proposed(c, map[string][]string{"book": books})
}

func completeTone(_ context.Context, c *tool.Call) (tool.Result, error) {
	return proposed(c, map[string][]string{"tone": {"friendly", "formal"}})
}

// proposed gives the values of an argument that begin with what was typed.
func proposed(c *tool.Call, values map[string][]string) (tool.Result, error) {
	var in module.Completing
	if err := json.Unmarshal(c.Args, &in); err != nil {
		return tool.Result{}, err
	}
	out := &tool.Completion{Values: []string{}}
	for _, v := range values[in.Argument] {
		if strings.HasPrefix(v, in.Value) {
			out.Values = append(out.Values, v)
		}
	}
	out.Total = len(out.Values)
	return tool.Result{Completion: out}, nil
}

func letter(_ context.Context, c *tool.Call) (tool.Result, error) {
	var in struct{ To, Tone string }
	if err := json.Unmarshal(c.Args, &in); err != nil {
		return tool.Result{}, err
	}
	if in.Tone == "" {
		in.Tone = "friendly"
	}
	return tool.Result{
		Description: "A letter to " + in.To,
		Messages: []tool.Message{
			{Role: "user", Content: tool.Text("Write a " + in.Tone + " letter to " + in.To + ".")},
			{Role: "assistant", Content: tool.Text("Dear " + in.To + ",")},
		},
	}, nil
}
