// Command fixtureclient is what the official suites test of the client engine: for one
// scenario it connects to the server of a suite, lists what there is, and makes the calls
// that the scenario observes.
//
//	MCP_CONFORMANCE_SCENARIO=tools_call fixtureclient URL
package main

import (
	"context"
	"crypto"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"gatehouse/internal/mcp/client"
	"gatehouse/internal/mcp/client/oauth"
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
	ID        string `json:"client_id"`
	Secret    string `json:"client_secret"`
	Key       string `json:"private_key_pem"`
	ToolCalls []struct {
		Name      string          `json:"name"`
		Arguments json.RawMessage `json:"arguments"`
	} `json:"toolCalls"`
}

func play(ctx context.Context, scenario, address string) error {
	var with told
	if raw := os.Getenv("MCP_CONFORMANCE_CONTEXT"); raw != "" {
		if err := json.Unmarshal([]byte(raw), &with); err != nil {
			return err
		}
	}
	o := client.Options{Name: "fixtureclient", Version: "1", Ask: acceptDefaults}
	if strings.HasPrefix(scenario, "auth/") {
		t, err := with.transport(scenario, address)
		if err != nil {
			return err
		}
		o.HTTP = &http.Client{Transport: t}
	}
	c, err := client.DialHTTP(ctx, address, o)
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
		return readAndPrompt(ctx, address)
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
func readAndPrompt(ctx context.Context, address string) error {
	c := client.NewHTTP(address, client.HTTPOptions{}, client.ConnOptions{Name: "fixtureclient", Version: "1"})
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

// transport returns what authorizes the requests of a scenario. A user approves at once.
func (with *told) transport(scenario, address string) (*oauth.Transport, error) {
	c := oauth.Config{
		ID: with.ID, Secret: with.Secret, Name: "fixtureclient", Redirect: "http://localhost:3000/callback",
		MetadataURL: "https://conformance-test.local/client-metadata.json", Authorize: approve,
		OwnCredentials: strings.HasPrefix(scenario, "auth/client-credentials"),
	}
	if with.Key != "" {
		block, _ := pem.Decode([]byte(with.Key))
		if block == nil {
			return nil, errors.New("the key is no PEM")
		}
		key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
		if err != nil {
			return nil, err
		}
		c.Key, _ = key.(crypto.Signer)
	}
	return &oauth.Transport{Resource: address, Config: c}, nil
}

// approve requests the page on which a user approves. The authorization servers of the suites
// redirect at once.
func approve(ctx context.Context, address string) (url.Values, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	hc := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := hc.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	back, err := resp.Location()
	if err != nil {
		return nil, fmt.Errorf("the authorization server answered %d: %w", resp.StatusCode, err)
	}
	return back.Query(), nil
}
