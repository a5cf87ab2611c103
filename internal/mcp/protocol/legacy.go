package protocol

import (
	"context"
	"encoding/json"
	"errors"
	"slices"

	"gatehouse/internal/dispatch/views"
	"gatehouse/internal/mcp/rawjson"
	"gatehouse/internal/mcp/session"
	"gatehouse/tool"
)

// Accept takes a legacy notification or response. Nothing is ever answered;
// a fault is only for the door's status code.
func (e *Engine) Accept(s *session.Session, m *Message) *Fault {
	if m.IsResponse() {
		id, ok := rawjson.String(m.ID)
		if !ok || !s.Respond(id, session.Reply{Result: m.Result, Error: m.Error}) {
			return &Fault{Status: 400, Code: CodeInvalidRequest, Message: "a response to no request of this session", ID: nil}
		}
		return nil
	}
	switch m.Method {
	case "notifications/cancelled":
		if id, ok := rawjson.Get(m.Params, "requestId"); ok {
			s.Cancel(flightKey(id), errCancelled)
		}
	case "notifications/roots/list_changed":
		e.publishSession(RootsChanged, s)
	}
	return nil
}

// watched finds the resource that a subscription is about.
func (r *request) watched() (uri string, entry *views.Entry, ok bool) {
	uri, f := r.required("uri")
	if f != nil {
		r.fail(f)
		return "", nil, false
	}
	if !r.see() {
		return "", nil, false
	}
	entry, _ = r.view.Resource(uri)
	return uri, entry, true
}

// subscribe serves resources/subscribe: an earlier subscription to the same
// resource is replaced.
func (r *request) subscribe() {
	uri, entry, ok := r.watched()
	if !ok {
		return
	}
	if entry == nil {
		r.missing(r.noResource(uri, "resource not found: "+uri), func(v *views.View) bool {
			e, _ := v.Resource(uri)
			return e != nil
		})
		return
	}
	s := r.sess
	active, suspended := s.Subscriptions()
	if len(active)+len(suspended) >= maxWatched && !slices.Contains(active, uri) && !slices.Contains(suspended, uri) {
		r.fail(&Fault{Code: CodeInvalidParams, Message: "at most 1000 subscriptions at once; unsubscribe from some"})
		return
	}
	stop, err := r.e.watch(r.ctx, r.facts, r.view, entry, uri, tells(s, uri))
	if err != nil {
		r.fail(r.unwatched(uri, err))
		return
	}
	if !s.Subscribe(uri, stop) {
		stop()
	}
	r.result(r.empty())
}

// tells makes what passes changes of a resource on to a session.
func tells(s *session.Session, uri string) func(json.RawMessage) {
	return func(meta json.RawMessage) {
		s.Tell(appendNote(nil, "notifications/resources/updated", updated(uri, meta)))
	}
}

// regained goes on with subscriptions of a session that were suspended while
// the client could not read their resources, and tells it to read again.
func (e *Engine) regained(ctx context.Context, s *session.Session, f *session.Facts, v *views.View, uris []string) {
	for _, uri := range uris {
		entry, _ := v.Resource(uri)
		if entry == nil {
			continue
		}
		told := tells(s, uri)
		stop, err := e.watch(ctx, f, v, entry, uri, told)
		if err != nil {
			continue // it may still not be watched
		}
		if !s.Resume(uri, stop) {
			stop()
			continue
		}
		told(nil)
	}
}

// unwatched is why a resource cannot be subscribed to. A refusal is about what
// the client asked for, so it is no error of ours.
func (r *request) unwatched(uri string, err error) *Fault {
	ref, ok := errors.AsType[*tool.Refusal](err)
	switch {
	case !ok:
		return &Fault{Code: CodeInternal, Message: "subscribe: " + err.Error()}
	case ref.Code == "not_found", ref.Code == "outside_root":
		return r.noResource(uri, ref.Text())
	}
	return &Fault{Code: CodeInvalidParams, Message: "subscribe: " + ref.Text()}
}

// unsubscribe serves resources/unsubscribe; one that is not there is no error.
func (r *request) unsubscribe() {
	uri, f := r.required("uri")
	if f != nil {
		r.fail(f)
		return
	}
	r.sess.Unsubscribe(uri)
	r.result(r.empty())
}

// updated makes the params of notifications/resources/updated.
func updated(uri string, meta json.RawMessage) []byte {
	b := rawjson.AppendString([]byte(`{"uri":`), uri)
	if meta != nil {
		b = append(b, `,"_meta":`...)
		b = rawjson.Compact(b, meta)
	}
	return append(b, '}')
}
