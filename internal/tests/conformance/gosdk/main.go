// Command gosdk has the official Go SDK's client try a server and prints what
// it got as one JSON object. It is a Go module of its own, so that the SDK
// stays out of the product's.
//
//	gosdk 2026-07-28 http URL
//	gosdk 2025-11-25 stdio COMMAND ARGS...
//	gosdk -plain 2024-11-05 http URL
//	gosdk oauth 2025-11-25 registers URL
//
// With -plain it leaves out what the two oldest revisions do not have.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var got any
	var err error
	switch {
	case len(os.Args) > 1 && os.Args[1] == "oauth":
		got, err = admit(ctx, os.Args[2:])
	case len(os.Args) > 1 && os.Args[1] == "issued":
		got, err = issue(ctx, os.Args[2:])
	default:
		got, err = try(ctx, os.Args[1:])
	}
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(got)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "gosdk:", err)
		os.Exit(1)
	}
}

// report has the members that client.mjs prints as well.
type report struct {
	Revision   string    `json:"revision"`
	Tools      []string  `json:"tools"`
	Prompts    []string  `json:"prompts"`
	Resources  []string  `json:"resources"`
	Templates  []string  `json:"templates"`
	Read       string    `json:"read"`
	Prompt     string    `json:"prompt"`
	Completed  []string  `json:"completed"`
	Simple     string    `json:"simple"`
	Mixed      []string  `json:"mixed"`
	Structured any       `json:"structured"`
	Header     string    `json:"header"`
	Failed     bool      `json:"failed"`
	Invalid    bool      `json:"invalid"`
	Unknown    int64     `json:"unknown"`
	Progress   []float64 `json:"progress"`
	Elicited   string    `json:"elicited"`
	Rounds     string    `json:"rounds"`
	Three      string    `json:"three"`
	Sampled    string    `json:"sampled"`
	State      string    `json:"state"`
	Forms      []string  `json:"forms"`
	Changed    bool      `json:"changed"`
}

type trial struct {
	ctx      context.Context
	session  *mcp.ClientSession
	got      report
	forms    chan string
	progress chan float64
	changed  chan struct{}
	err      error // the first; nothing is tried after it
}

func try(ctx context.Context, args []string) (*report, error) {
	plain := len(args) > 0 && args[0] == "-plain"
	if plain {
		args = args[1:]
	}
	if len(args) < 3 {
		return nil, errors.New("want a revision, a door and where it is")
	}
	t := &trial{
		ctx:      ctx,
		forms:    make(chan string, 16),
		progress: make(chan float64, 16),
		changed:  make(chan struct{}, 16),
	}
	session, err := t.client().
		Connect(ctx, transport(args[1], args[2:]), &mcp.ClientSessionOptions{ProtocolVersion: args[0]})
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	t.session = session
	t.got.Revision = session.InitializeResult().ProtocolVersion
	t.lists()
	t.reads()
	t.calls()
	if !plain {
		t.modern()
		t.asks()
	}
	t.watches()
	return &t.got, errors.Join(t.err, session.Close())
}

func transport(door string, args []string) mcp.Transport {
	if door == "http" {
		return &mcp.StreamableClientTransport{Endpoint: args[0]}
	}
	return &mcp.CommandTransport{Command: exec.Command(args[0], args[1:]...)}
}

func (t *trial) client() *mcp.Client {
	c := mcp.NewClient(&mcp.Implementation{Name: "go-client", Version: "1.8.0"}, &mcp.ClientOptions{
		CreateMessageHandler: func(context.Context, *mcp.CreateMessageRequest) (*mcp.CreateMessageResult, error) {
			return &mcp.CreateMessageResult{
				Role:    "assistant",
				Model:   "none",
				Content: &mcp.TextContent{Text: "a completion"},
			}, nil
		},
		ElicitationHandler: t.fillIn,
		ToolListChangedHandler: func(context.Context, *mcp.ToolListChangedRequest) {
			t.changed <- struct{}{}
		},
		ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
			t.progress <- r.Params.Progress
		},
	})
	c.AddRoots(&mcp.Root{URI: "file:///srv/project", Name: "project"})
	return c
}

// fillIn answers every form: true where a truth value is wanted, words
// everywhere else.
func (t *trial) fillIn(_ context.Context, r *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
	t.forms <- r.Params.Message
	b, err := json.Marshal(r.Params.RequestedSchema)
	if err != nil {
		return nil, err
	}
	var schema struct {
		Properties map[string]struct{ Type string }
	}
	if err := json.Unmarshal(b, &schema); err != nil {
		return nil, err
	}
	content := map[string]any{}
	for name, p := range schema.Properties {
		content[name] = "typed " + name
		if p.Type == "boolean" {
			content[name] = true
		}
	}
	return &mcp.ElicitResult{Action: "accept", Content: content}, nil
}

// check remembers the first error and reports whether there is none yet.
func (t *trial) check(what string, err error) bool {
	if err != nil && t.err == nil {
		t.err = fmt.Errorf("%s: %w", what, err)
	}
	return t.err == nil
}

func (t *trial) lists() {
	if r, err := t.session.ListTools(t.ctx, nil); t.check("list tools", err) {
		for _, x := range r.Tools {
			t.got.Tools = append(t.got.Tools, x.Name)
		}
	}
	if r, err := t.session.ListPrompts(t.ctx, nil); t.check("list prompts", err) {
		for _, x := range r.Prompts {
			t.got.Prompts = append(t.got.Prompts, x.Name)
		}
	}
	if r, err := t.session.ListResources(t.ctx, nil); t.check("list resources", err) {
		for _, x := range r.Resources {
			t.got.Resources = append(t.got.Resources, x.URI)
		}
	}
	if r, err := t.session.ListResourceTemplates(t.ctx, nil); t.check("list templates", err) {
		for _, x := range r.ResourceTemplates {
			t.got.Templates = append(t.got.Templates, x.URITemplate)
		}
	}
}

func (t *trial) reads() {
	if r, err := t.session.ReadResource(t.ctx, &mcp.ReadResourceParams{URI: "test://template/77/data"}); t.check(
		"read",
		err,
	) {
		t.got.Read = r.Contents[0].Text
	}
	const prompt = "test_prompt_with_arguments"
	if r, err := t.session.GetPrompt(t.ctx, &mcp.GetPromptParams{
		Name: prompt, Arguments: map[string]string{"arg1": "one", "arg2": "two"},
	}); t.check("get prompt", err) {
		if c, ok := r.Messages[0].Content.(*mcp.TextContent); ok {
			t.got.Prompt = c.Text
		}
	}
	if r, err := t.session.Complete(t.ctx, &mcp.CompleteParams{
		Ref:      &mcp.CompleteReference{Type: "ref/prompt", Name: prompt},
		Argument: mcp.CompleteParamsArgument{Name: "arg1", Value: "pa"},
	}); t.check("complete", err) {
		t.got.Completed = r.Completion.Values
	}
}

func (t *trial) call(name string, args map[string]any) *mcp.CallToolResult {
	if args == nil {
		args = map[string]any{}
	}
	r, err := t.session.CallTool(t.ctx, &mcp.CallToolParams{Name: name, Arguments: args})
	if !t.check("call "+name, err) {
		return &mcp.CallToolResult{}
	}
	return r
}

func words(r *mcp.CallToolResult) string {
	var all []string
	for _, c := range r.Content {
		if c, ok := c.(*mcp.TextContent); ok {
			all = append(all, c.Text)
		}
	}
	return strings.Join(all, "\n")
}

func (t *trial) calls() {
	t.got.Simple = words(t.call("test_simple_text", nil))
	for _, c := range t.call("test_multiple_content_types", nil).Content {
		switch c.(type) {
		case *mcp.TextContent:
			t.got.Mixed = append(t.got.Mixed, "text")
		case *mcp.ImageContent:
			t.got.Mixed = append(t.got.Mixed, "image")
		case *mcp.EmbeddedResource:
			t.got.Mixed = append(t.got.Mixed, "resource")
		}
	}
	t.got.Failed = t.call("test_error_handling", nil).IsError
	t.got.Invalid = t.call("greet", nil).IsError
	_, err := t.session.CallTool(t.ctx, &mcp.CallToolParams{Name: "no_such_tool", Arguments: map[string]any{}})
	var wire *jsonrpc.Error
	if errors.As(err, &wire) {
		t.got.Unknown = wire.Code
	}
	p := &mcp.CallToolParams{Name: "test_tool_with_progress", Arguments: map[string]any{}}
	p.SetProgressToken("progress-1")
	_, err = t.session.CallTool(t.ctx, p)
	t.check("call with progress", err)
	for {
		select {
		case done := <-t.progress:
			t.got.Progress = append(t.got.Progress, done)
			if len(t.got.Progress) == 3 {
				return
			}
		case <-time.After(5 * time.Second):
			return
		}
	}
}

func (t *trial) modern() {
	t.got.Structured = t.call("test_structured_content", nil).StructuredContent
	t.got.Header = words(
		t.call("test_x_mcp_header", map[string]any{"region": "Zürich", "priority": 7, "query": "weather"}),
	)
}

func (t *trial) asks() {
	t.got.Elicited = words(t.call("test_elicitation", map[string]any{"message": "Who are you?"}))
	t.got.Rounds = words(t.call("test_input_required_result_multi_round", nil))
	t.got.Three = words(t.call("test_input_required_result_multiple_inputs", nil))
	t.got.Sampled = words(t.call("test_sampling", map[string]any{"prompt": "Say something"}))
	t.got.State = words(t.call("test_input_required_result_request_state", nil))
	close(t.forms)
	for f := range t.forms {
		t.got.Forms = append(t.got.Forms, f)
	}
}

// watches waits for the news that a tool was added or removed.
func (t *trial) watches() {
	t.call("test_trigger_tool_change", nil)
	select {
	case <-t.changed:
		t.got.Changed = true
	case <-time.After(10 * time.Second):
	}
}
