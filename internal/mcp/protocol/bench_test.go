package protocol_test

import (
	"context"
	"io"
	"log/slog"
	"testing"

	"gatehouse/internal/mcp/protocol"
	"gatehouse/internal/tests/hosttest"
	"gatehouse/module"
	"gatehouse/tool"
)

const meta = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{"elicitation":{}}}`

type one struct{ offer *module.Offer }

func (o one) Offer(context.Context, module.Audience) (*module.Offer, error) { return o.offer, nil }
func (one) Close(context.Context) error                                     { return nil }

func offering(ts ...tool.Tool) module.New {
	return func(context.Context, module.Deps) (module.Module, error) {
		return one{&module.Offer{Tools: ts}}, nil
	}
}

// quiet discards answers.
type quiet struct{ n int }

func (*quiet) Note([]byte) bool { return true }
func (q *quiet) Answer(_ int, msg []byte) {
	if q.n += len(msg); len(msg) == 0 {
		panic("empty answer")
	}
}
func (*quiet) Drop()   {}
func (*quiet) Detach() {}

func BenchmarkCall(b *testing.B) {
	slog.SetDefault(slog.New(slog.NewTextHandler(io.Discard, nil)))
	h := hosttest.New(b, hosttest.Options{Modules: map[string]module.New{"m": offering(echo)}})
	who := protocol.Caller{Caller: tool.Caller{Principal: "anonymous"}}
	parse := func(frame string) *protocol.Message {
		msgs, faults, _ := protocol.Parse([]byte(frame))
		if len(faults) > 0 {
			b.Fatal(faults[0])
		}
		return &msgs[0]
	}
	b.Run("legacy", func(b *testing.B) {
		s, _, f := h.Engine.Open(who, parse(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}`))
		if f != nil {
			b.Fatal(f)
		}
		b.ReportAllocs()
		var q quiet
		for b.Loop() {
			m := parse(
				`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t_echo","arguments":{"text":"plain text"}}}`,
			)
			h.Engine.Legacy(s, m, &q)
		}
	})
	b.Run("modern", func(b *testing.B) {
		b.ReportAllocs()
		var q quiet
		ctx, cancel := context.WithCancel(b.Context())
		defer cancel()
		for b.Loop() {
			m := parse(
				`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{` + meta +
					`,"name":"t_echo","arguments":{"text":"plain text"}}}`,
			)
			h.Engine.Modern(ctx, who, m, nil, &q)
		}
	})
	b.Run("list", func(b *testing.B) {
		b.ReportAllocs()
		var q quiet
		for b.Loop() {
			m := parse(`{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{` + meta + `}}`)
			h.Engine.Modern(b.Context(), who, m, nil, &q)
		}
	})
}
