package relaytest

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"gatehouse/internal/mcp/protocol"
	"gatehouse/internal/tests/hosttest"
	"gatehouse/module"
	"gatehouse/tool"
)

// manyTools is a module that relays the tools of many packages.
type manyTools struct{ offer module.Offer }

func newManyTools(packages, each int) *manyTools {
	m := &manyTools{}
	for p := range packages {
		for i := range each {
			name := fmt.Sprintf("package%d_tool%d", p, i)
			m.offer.Tools = append(m.offer.Tools, tool.Tool{
				Def: tool.Def{Name: name, Raw: json.RawMessage(`{"name":"` + name + `","description":"` +
					strings.Repeat("What it does. ", 20) +
					`","inputSchema":{"type":"object","properties":{"text":{"type":"string"},"count":{"type":"integer"}},"required":["text"]}}`)},
				Run: func(context.Context, *tool.Call) (tool.Result, error) { return tool.Result{}, nil },
			})
		}
	}
	return m
}

func (m *manyTools) Offer(context.Context, module.Audience) (*module.Offer, error) {
	return &m.offer, nil
}
func (*manyTools) Close(context.Context) error { return nil }

// discard counts the bytes of answers.
type discard struct{ n int }

func (*discard) Note([]byte) bool           { return true }
func (d *discard) Answer(_ int, msg []byte) { d.n += len(msg) }
func (*discard) Drop()                      {}
func (*discard) Detach()                    {}

const listMeta = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}`

// listOf returns what lists the tools of a host once, the first page.
func listOf(t testing.TB, h *hosttest.Host) (list func(), d *discard) {
	d = &discard{}
	who := protocol.Caller{Caller: tool.Caller{Principal: "anonymous"}}
	text := []byte(`{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{` + listMeta + `}}`)
	return func() {
		all, faults, _ := protocol.Parse(text)
		if len(faults) > 0 {
			t.Fatal(faults[0])
		}
		h.Engine.Modern(t.Context(), who, &all[0], nil, d)
	}, d
}

// BenchmarkListOfManyPackages is one tools/list of a host with 500 packages of 20 tools. The bar is 1 ms.
func BenchmarkListOfManyPackages(b *testing.B) {
	slog.SetDefault(slog.New(slog.DiscardHandler))
	m := newManyTools(500, 20)
	h := hosttest.New(b, hosttest.Options{Modules: map[string]module.New{
		"many": func(context.Context, module.Deps) (module.Module, error) { return m, nil },
	}})
	list, d := listOf(b, h)
	list() // fills the cache
	d.n = 0
	b.ReportAllocs()
	for b.Loop() {
		list()
	}
	b.ReportMetric(float64(d.n)/float64(b.N), "bytes/list")
}

// A list comes from the cache: what a request allocates does not grow with the tools.
func TestAListIsNotBuiltForEachRequest(t *testing.T) {
	m := newManyTools(100, 20)
	h := hosttest.New(t, hosttest.Options{Modules: map[string]module.New{
		"many": func(context.Context, module.Deps) (module.Module, error) { return m, nil },
	}})
	list, d := listOf(t, h)
	list()
	if d.n < 200_000 {
		t.Fatalf("a list of %d bytes", d.n)
	}
	if n := testing.AllocsPerRun(100, list); n > 100 { // one for each tool would be 1,000
		t.Errorf("%v allocations for a list that has not changed", n)
	}
}
