package relaytest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"gatehouse"
	"gatehouse/internal/mcp/rawjson"
	"gatehouse/internal/packages"
	"gatehouse/internal/tests/hosttest"
	"gatehouse/module"
	"gatehouse/tool"
)

// asker is a module whose tools, resource and prompt ask their client.
type asker struct{}

func newAsker(context.Context, module.Deps) (module.Module, error) { return asker{}, nil }

func (asker) Close(context.Context) error { return nil }

type tokenIn struct {
	Token string `json:"token"`
}

var nameForm = json.RawMessage(`{"type":"object","properties":{"name":{"type":"string"}},"required":["name"]}`)

// askName asks for a name and returns it behind a token.
func askName(c *tool.Call, token string) (string, error) {
	answers, err := c.Peer.Ask(tool.Elicit("name", "Who is "+token+"?", nameForm))
	if err != nil {
		return "", err
	}
	var in struct{ Name string }
	action, err := tool.Elicited(answers["name"], &in)
	return token + " " + action + " " + in.Name, err
}

func (asker) Offer(context.Context, module.Audience) (*module.Offer, error) {
	return &module.Offer{
		Tools: []tool.Tool{
			tool.New(tool.Def{Name: "asks_name", Description: "Asks for a name.", Effects: tool.Reads},
				func(_ context.Context, c *tool.Call, in tokenIn) (string, error) {
					c.Peer.Progress(1, 2, "about to ask")
					return askName(c, in.Token)
				}),
			tool.New(tool.Def{Name: "asks_url", Description: "Sends to an address.", Effects: tool.Reads},
				func(_ context.Context, c *tool.Call, in tokenIn) (string, error) {
					answers, err := c.Peer.Ask(tool.ElicitURL("visit", "Visit it", "https://example.com/"+in.Token))
					if err != nil {
						return "", err
					}
					action, err := tool.Elicited(answers["visit"], nil)
					return in.Token + " " + action, err
				}),
			tool.New(tool.Def{Name: "asks_pid", Description: "Names its process.", Effects: tool.Reads},
				func(context.Context, *tool.Call, tokenIn) (string, error) { return fmt.Sprint(os.Getpid()), nil }),
		},
		Resources: []module.Resource{{
			URI: "test://asking", Name: "asking",
			Read: func(_ context.Context, c *tool.Call) (tool.Result, error) {
				said, err := askName(c, "resource")
				return tool.Result{Content: []tool.Content{tool.TextResource("test://asking", "text/plain", said)}}, err
			},
		}},
		Prompts: []module.Prompt{{
			Name: "asks_prompt",
			Get: func(_ context.Context, c *tool.Call) (tool.Result, error) {
				said, err := askName(c, "prompt")
				return tool.Result{Messages: []tool.Message{{Role: "user", Content: tool.Text(said)}}}, err
			},
		}},
	}, nil
}

// withoutDiscovery makes standard input that of a server that has never heard of
// server/discover.
func withoutDiscovery() error {
	in := os.Stdin
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	os.Stdin = r
	go func() {
		defer w.Close()
		lines := bufio.NewReaderSize(in, 1<<20)
		for {
			line, err := lines.ReadBytes('\n')
			if err != nil {
				return
			}
			if method, _ := rawjson.Get(line, "method"); rawjson.Equal(method, "server/discover") {
				id, _ := rawjson.Get(line, "id")
				fmt.Printf(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"no such method"}}`+"\n", id)
				continue
			}
			if _, err := w.Write(line); err != nil {
				return
			}
		}
	}()
	return nil
}

// serveAsker serves the asking server over HTTP, with legacy as one that does not know
// server/discover.
func serveAsker(t *testing.T, legacy bool) string {
	t.Helper()
	s, err := newFixture(gatehouse.WithModule("asks", newAsker))
	if err != nil {
		t.Fatal(err)
	}
	h := s.Handler()
	at := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		if legacy && bytes.Contains(body, []byte(`"server/discover"`)) {
			http.Error(w, "Bad Request: no session", http.StatusBadRequest)
			return
		}
		h.ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		at.CloseClientConnections()
		at.Close()
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		s.Shutdown(ctx)
	})
	return at.URL + "/mcp"
}

func askerChild(t *testing.T, how string) packages.Record {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return packages.Record{
		Source: packages.Source{Kind: packages.Command}, Command: self,
		Env: childEnv(t, how),
	}
}

// askers are servers that ask, of both eras and over both transports.
func askers(t *testing.T) map[string]packages.Record {
	remote := func(legacy bool) packages.Record {
		return packages.Record{Source: packages.Source{Kind: packages.URL, From: serveAsker(t, legacy)}}
	}
	return map[string]packages.Record{
		"modern child": askerChild(t, "asker"), "legacy child": askerChild(t, "legacy asker"),
		"modern http": remote(false), "legacy http": remote(true),
	}
}

// answerAll answers every question, and records the methods.
func answerAll(asked *[]string) hosttest.Answer {
	return func(method string, params json.RawMessage) json.RawMessage {
		mode, _ := rawjson.Get(params, "mode")
		if rawjson.Equal(mode, "url") {
			method += " url"
		}
		*asked = append(*asked, method)
		switch method {
		case "elicitation/create":
			said := `{"name":"Ann","color":"red","ok":true}`
			if schema := string(params); !strings.Contains(schema, `"color"`) && strings.Contains(schema, `"name"`) {
				said = `{"name":"Ann"}`
			} else if strings.Contains(schema, `"color"`) {
				said = `{"color":"red"}`
			}
			return json.RawMessage(`{"action":"accept","content":` + said + `}`)
		case "elicitation/create url":
			return json.RawMessage(`{"action":"accept"}`)
		case "sampling/createMessage":
			return json.RawMessage(`{"role":"assistant","model":"m","content":{"type":"text","text":"Paris"}}`)
		case "roots/list":
			return json.RawMessage(`{"roots":[{"uri":"file:///work/here","name":"here"}]}`)
		}
		return nil
	}
}

// What a server asks in the middle of a call, a read or a prompt reaches its caller and is
// answered, whichever eras the server and the client are of.
func TestAServersQuestionsReachItsCaller(t *testing.T) {
	for name, r := range askers(t) {
		t.Run(name, func(t *testing.T) {
			m, make := install(t, r, nil)
			if info, err := m.Info("up"); err != nil ||
				(info.Server.Protocol == "2026-07-28") != strings.HasPrefix(name, "modern") {
				t.Fatalf("the server speaks %q (%v)", info.Server.Protocol, err)
			}
			for _, h := range hosttest.Harnesses()[:2] {
				t.Run(h.Name, func(t *testing.T) {
					checkQuestions(t, h.Make(t, hosttest.Options{Modules: map[string]module.New{"package": make}}))
				})
			}
		})
	}
}

func checkQuestions(t *testing.T, h hosttest.Harness) {
	for _, c := range []struct{ tool, args, want, asked string }{
		{"up_asks_name", `{"token":"x"}`, "x accept Ann", "elicitation/create"},
		{"up_asks_url", `{"token":"x"}`, "x accept", "elicitation/create url"},
		{"up_test_input_required_result_sampling", `{}`, "Paris", "sampling/createMessage"},
		{"up_test_input_required_result_list_roots", `{}`, "Roots: file:///work/here (here)", ""},
		{"up_test_input_required_result_multi_round", `{}`, "Ann likes red", "elicitation/create elicitation/create"},
		{"up_test_input_required_result_multiple_inputs", `{}`, "Paris to Ann in file:///work/here (here)",
			"elicitation/create sampling/createMessage"},
	} {
		var asked []string
		r := hosttest.Call(h, c.tool, c.args, answerAll(&asked))
		if r.Error != nil || r.IsError() || strings.Trim(r.Text(), `"`) != c.want {
			t.Errorf("%s: got %s %v, want %q", c.tool, r.Result, r.Error, c.want)
		}
		// at any call, if not known
		asked = slices.DeleteFunc(asked, func(method string) bool { return method == "roots/list" })
		if strings.Contains(c.tool, "multiple") {
			slices.Sort(asked) // a server may ask all at once
		}
		if got := strings.Join(asked, " "); got != c.asked {
			t.Errorf("%s asked %q, want %q", c.tool, got, c.asked)
		}
	}
	var asked []string
	if r := h.Do("resources/read", `{"uri":"package://up/test://asking"}`,
		answerAll(&asked)); !strings.Contains(string(r.Result), "resource accept Ann") {
		t.Errorf("resource: %s %v", r.Result, r.Error)
	}
	if r := h.Do("prompts/get", `{"name":"up_asks_prompt"}`, answerAll(&asked)); !strings.Contains(string(r.Result),
		"prompt accept Ann") {
		t.Errorf("prompt: %s %v", r.Result, r.Error)
	}
}
