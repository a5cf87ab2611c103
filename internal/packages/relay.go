package packages

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"gatehouse/internal/mcp/client"
	"gatehouse/internal/mcp/rawjson"
	"gatehouse/tool"
)

// Call relays a call to a server, and starts it if it does not run. args and meta are
// the caller's. The result is the server's, unchanged. A *tool.WireError is the
// server's own error.
func (h *Manager) Call(
	ctx context.Context,
	id, own string,
	args, meta json.RawMessage,
	progress func(done, total float64, note string),
) (json.RawMessage, error) {
	p, err := h.findPackage(id)
	if err != nil {
		return nil, err
	}
	raw, err := p.relay(ctx, client.Request{
		Method: "tools/call", Params: callParams(own, args, meta), Name: own, Progress: progressOf(progress),
		Headers: p.paramHeaders(own, args),
	}, false)
	if err != nil {
		return nil, err
	}
	return h.naming(id).rewriteURIs(raw, "content", naming.blockHere), nil
}

// paramHeaders returns the headers that repeat arguments of a tool for a remote server, made from the
// server's own schema.
func (p *managedPackage) paramHeaders(own string, args json.RawMessage) map[string]string {
	p.mu.Lock()
	i := -1
	if p.rec.Source.Kind == URL {
		i = slices.IndexFunc(p.tools, func(t Offered) bool { return t.Own == own })
	}
	var input []byte
	if i >= 0 {
		input, _ = rawjson.Get(p.tools[i].Raw, "inputSchema")
	}
	p.mu.Unlock()
	return client.ParamHeaders(input, args)
}

// relay sends a request to the server of a package, and starts it if it does not run. A
// request of which nothing was sent is sent once more. One that may have run is
// sent again only if repeat is set, because it changes nothing.
func (p *managedPackage) relay(ctx context.Context, r client.Request, repeat bool) (json.RawMessage, error) {
	r.Forward = p.passed(ctx)
	for try := 0; ; try++ {
		u, err := p.shared.ready(ctx)
		if err != nil {
			return nil, err
		}
		raw, err := u.conn.Do(ctx, r)
		u.releaseUpstream()
		gone, ok := errors.AsType[*client.NoAnswerError](err)
		switch {
		case !ok:
			return raw, wireError(err)
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case gone.MayHaveRun && !repeat:
			return nil, &tool.Refusal{
				Code:    tool.CodeUnavailable,
				Message: fmt.Sprintf("package %s did not answer; %s may have run: %v", p.id, shorten(r.Name, 100), gone.Why),
				Next:    "Check the outcome before you try again.",
			}
		case try > 0:
			return nil, &tool.Refusal{
				Code:    tool.CodeUnavailable,
				Message: fmt.Sprintf("package %s did not answer, so nothing was changed: %v", p.id, gone.Why),
				Next:    "Try again in a moment.",
			}
		}
		if u.conn.Err() != nil {
			p.shared.waitExited(ctx, u)
		} else if err := sleep(ctx, listDelay); err != nil {
			return nil, err
		}
	}
}
