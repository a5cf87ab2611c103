package telemetry

import (
	"context"
	"io"
	"log/slog"
)

// Logger returns a logger that writes text or, with the format "json", lines of JSON. Entries about a call have
// the call's id as request, and the id of the trace it is part of as trace.
func Logger(w io.Writer, format string, level slog.Leveler) *slog.Logger {
	o := &slog.HandlerOptions{Level: level}
	if format == "json" {
		return slog.New(handler{slog.NewJSONHandler(w, o)})
	}
	return slog.New(handler{slog.NewTextHandler(w, o)})
}

// handler adds the call and the trace of the context.
type handler struct{ slog.Handler }

func (h handler) Handle(ctx context.Context, r slog.Record) error {
	if c, ok := ctx.Value(callKey{}).(*marked); ok {
		r = r.Clone() // the record's array of attributes may be shared
		r.AddAttrs(slog.String("request", c.id))
		if c.trace != "" {
			r.AddAttrs(slog.String("trace", c.trace))
		}
	}
	return h.Handler.Handle(ctx, r)
}

func (h handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return handler{h.Handler.WithAttrs(attrs)}
}
func (h handler) WithGroup(name string) slog.Handler { return handler{h.Handler.WithGroup(name)} }

// marked is the context of a call: it contains the call's id and the id of the trace it is part of.
type marked struct {
	// A marked is itself the context of a call.
	context.Context
	id, trace string
}

// callKey is the key for which a marked context returns itself.
type callKey struct{}

func (m *marked) Value(key any) any {
	if key == (callKey{}) {
		return m
	}
	return m.Context.Value(key)
}
