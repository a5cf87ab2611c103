package protocol_test

import (
	"context"
	"strings"
	"testing"

	"gatehouse/internal/hosttest"
	"gatehouse/module"
	"gatehouse/tool"
)

type one struct{ offer *module.Offer }

func (o one) Offer(context.Context, module.Audience) (*module.Offer, error) { return o.offer, nil }
func (one) Close(context.Context) error                                     { return nil }

func offering(ts ...tool.Tool) module.New {
	return func(context.Context, module.Deps) (module.Module, error) {
		return one{&module.Offer{Tools: ts}}, nil
	}
}

type echoIn struct {
	Text string `json:"text" doc:"what to say" min:"1"`
}
type echoOut struct {
	Said string `json:"said"`
}

var echo = tool.New(tool.Def{Name: "m_echo", Description: "Echoes.", Effects: tool.Reads},
	func(_ context.Context, _ *tool.Call, in echoIn) (echoOut, error) { return echoOut{in.Text}, nil })

var asker = tool.New(tool.Def{Name: "m_ask", Description: "Asks.", Effects: tool.Reads},
	func(_ context.Context, c *tool.Call, _ struct{}) (echoOut, error) {
		a, err := c.Peer.Ask(tool.Elicit("name", "Who?", []byte(`{"type":"object","properties":{"name":{"type":"string"}},"required":["name"]}`)))
		if err != nil {
			return echoOut{}, err
		}
		var v struct{ Name string }
		_, err = tool.Elicited(a["name"], &v)
		return echoOut{v.Name}, err
	})

const meta = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{"elicitation":{}}}`

func TestSmoke(t *testing.T) {
	h := hosttest.New(t, hosttest.Options{Modules: map[string]module.New{"m": offering(echo, asker)}})
	c := h.Dial(t)
	say := func(in string) string {
		c.Send(in)
		out := string(c.Next())
		t.Logf("%s\n\t-> %s", in, out)
		return out
	}
	has := func(out, want string) {
		t.Helper()
		if !strings.Contains(out, want) {
			t.Errorf("got %s\nwant %s in it", out, want)
		}
	}
	has(say(`{"jsonrpc":"2.0","id":"a","method":"server/discover","params":{`+meta+`}}`), `"supportedVersions":["2026-07-28"`)
	has(say(`{"jsonrpc":"2.0","id":9007199254740993123,"method":"tools/call","params":{`+meta+`,"name":"m_echo","arguments":{"text":"hi"}}}`), `"id":9007199254740993123,"result":{"content":[{"type":"text","text":"{\"said\":\"hi\"}"}],"structuredContent":{"said":"hi"},"resultType":"complete"`)
	has(say(`{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{`+meta+`,"name":"m_echo","arguments":{"txt":"hi"}}}`), `did you mean`)
	has(say(`{"jsonrpc":"2.0","id":4,"method":"tools/list"}`), `initialize first`)
	has(say(`{"jsonrpc":"2.0","id":5,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{"elicitation":{}}}}`), `"protocolVersion":"2025-06-18"`)
	has(say(`{"jsonrpc":"2.0","id":6,"method":"tools/list"}`), `"name":"m_ask"`)
	q := say(`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"m_ask"}}`)
	has(q, `"method":"elicitation/create"`)
	has(say(`{"jsonrpc":"2.0","id":"gh-1","result":{"action":"accept","content":{"name":"Ada"}}}`), `"said":"Ada"`)
	has(say(`{"jsonrpc":"2.0","id":8,"method":"tools/call","params":{`+meta+`,"name":"m_ask"}}`), `"resultType":"input_required"`)
	has(say(`{"jsonrpc":"2.0","id":1.5,"method":"ping"}`), `-32600`)
	has(say(`{"jsonrpc":"2.0","ID":1,"method":"ping"}`), `-32600`)
	has(say(`{`), `-32700`)
}
