// Command fixtureclient is what the official suites test of the client engine: for one
// scenario it connects to the server of a suite, lists what there is, and makes the calls
// that the scenario observes.
//
//	MCP_CONFORMANCE_SCENARIO=tools_call fixtureclient URL
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"gatehouse/internal/mcp/client"
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	scenario := os.Getenv("MCP_CONFORMANCE_SCENARIO")
	if len(os.Args) != 2 || scenario == "" {
		fmt.Fprintln(os.Stderr, "usage: MCP_CONFORMANCE_SCENARIO=NAME fixtureclient URL")
		os.Exit(2)
	}
	if err := play(ctx, scenario, os.Args[1]); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", scenario, err)
		os.Exit(1)
	}
}

// told is what a suite passes to the client of a scenario.
type told struct {
	ToolCalls []struct {
		Name      string          `json:"name"`
		Arguments json.RawMessage `json:"arguments"`
	} `json:"toolCalls"`
}

func play(ctx context.Context, scenario, url string) error {
	var with told
	if raw := os.Getenv("MCP_CONFORMANCE_CONTEXT"); raw != "" {
		if err := json.Unmarshal([]byte(raw), &with); err != nil {
			return err
		}
	}
	c, err := client.DialHTTP(ctx, url, client.Options{Name: "fixtureclient", Version: "1", Ask: acceptDefaults})
	if err != nil {
		return err
	}
	defer c.Close()
	tools, err := c.Tools(ctx)
	if err != nil {
		return err
	}
	switch scenario {
	case "http-custom-headers":
		for _, call := range with.ToolCalls {
			for _, t := range tools {
				if t.Name == call.Name {
					callTool(ctx, c, t, call.Arguments)
				}
			}
		}
	case "json-schema-2020-12-preservation":
		return echoSchema(ctx, c, tools)
	case "http-standard-headers":
		callEach(ctx, c, tools)
		return readAndPrompt(ctx, url)
	default:
		callEach(ctx, c, tools)
	}
	return nil
}

// callEach calls every tool with arguments that fit the tools of the suites.
func callEach(ctx context.Context, c *client.Client, tools []client.Tool) {
	for _, t := range tools {
		args := map[string]any{}
		for _, p := range t.Input.Properties {
			if len(p.Type) == 1 && (p.Type[0] == "number" || p.Type[0] == "integer") {
				args[p.Name] = 3
			} else {
				args[p.Name] = "us-west1"
			}
		}
		b, err := json.Marshal(args)
		if err == nil {
			callTool(ctx, c, t, b)
		}
	}
}

// callTool calls a tool. Some tools of the suites fail by design, so a failure is only
// printed: the suite judges what it has received.
func callTool(ctx context.Context, c *client.Client, t client.Tool, args json.RawMessage) {
	if _, err := c.Call(ctx, t, args); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", t.Name, err)
	}
}

// acceptDefaults fills in a form with the defaults of its fields.
func acceptDefaults(q client.Question) (string, map[string]any) {
	content := map[string]any{}
	for _, p := range q.Form.Properties {
		var v any
		switch {
		case p.Default != nil && json.Unmarshal(p.Default, &v) == nil:
			content[p.Name] = v
		case len(p.Type) == 1 && p.Type[0] == "boolean":
			content[p.Name] = true
		}
	}
	return "accept", content
}

// echoSchema sends the schema of one tool back as another's argument.
func echoSchema(ctx context.Context, c *client.Client, tools []client.Tool) error {
	var focal struct {
		Schema json.RawMessage `json:"inputSchema"`
	}
	for _, t := range tools {
		if t.Name == "json_schema_2020_12_tool" {
			if err := json.Unmarshal(t.Raw, &focal); err != nil {
				return err
			}
		}
	}
	for _, t := range tools {
		if t.Name == "json_schema_echo" {
			callTool(ctx, c, t, fmt.Appendf(nil, `{"schema":%s}`, focal.Schema))
		}
	}
	return nil
}

// readAndPrompt reads the first resource and gets the first prompt.
func readAndPrompt(ctx context.Context, url string) error {
	c := client.NewHTTP(url, client.HTTPOptions{}, client.ConnOptions{Name: "fixtureclient", Version: "1"})
	defer c.Close()
	if err := c.Connect(ctx, ""); err != nil {
		return err
	}
	for _, of := range []struct{ list, member, key, get string }{
		{"resources/list", "resources", "uri", "resources/read"}, {"prompts/list", "prompts", "name", "prompts/get"},
	} {
		raw, err := c.Do(ctx, client.Request{Method: of.list})
		if err != nil {
			return err
		}
		var all map[string]json.RawMessage
		var entries []map[string]any
		if err := json.Unmarshal(raw, &all); err != nil {
			return err
		}
		if err := json.Unmarshal(all[of.member], &entries); err != nil || len(entries) == 0 {
			return fmt.Errorf("%s: %s, %w", of.list, raw, err)
		}
		name, _ := entries[0][of.key].(string)
		if _, err := c.Do(ctx, client.Request{
			Method: of.get, Name: name, Params: fmt.Appendf(nil, `{%q:%q}`, of.key, name),
		}); err != nil {
			return err
		}
	}
	return nil
}
