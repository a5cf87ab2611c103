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

// Accept handles a legacy notification or response. It sends no answer; the fault, if
// any, is for the transport's status code.
func (e *Engine) Accept(s *session.Session, m *Message) *Fault {
	if m.IsResponse() {
		id, ok := rawjson.String(m.ID)
		if !ok || !s.Respond(id, session.Reply{Result: m.Result, Error: m.Error}) {
			return &Fault{
				Status:  400,
				Code:    CodeInvalidRequest,
				Message: "a response to no request of this session",
				ID:      nil,
			}
		}
		return nil
	}
	switch m.Method {
	case "notifications/cancelled":
		if id, ok := rawjson.Get(m.Params, "requestId"); ok {
			s.Cancel(flightKey(id), errCancelled)
		}
	case "notifications/roots/list_changed":
		e.publishSession(RootsChanged, s, false)
	}
	return nil
}

// subscribedResource finds the resource of a subscription request.
func (r *request) subscribedResource() (uri string, entry *views.Entry, ok bool) {
	uri, f := r.required("uri")
	if f != nil {
		r.sendFault(f)
		return "", nil, false
	}
	if !r.loadView() {
		return "", nil, false
	}
	entry, _ = r.view.Resource(uri)
	return uri, entry, true
}

// subscribe serves resources/subscribe. It replaces an earlier subscription to the same
// resource.
func (r *request) subscribe() {
	uri, entry, ok := r.subscribedResource()
	if !ok {
		return
	}
	if entry == nil {
		r.failNotFound(r.noResource(uri, "resource not found: "+uri), func(v *views.View) bool {
			e, _ := v.Resource(uri)
			return e != nil
		})
		return
	}
	s := r.sess
	active, suspended := s.Subscriptions()
	if len(active)+len(suspended) >= maxWatched && !slices.Contains(active, uri) && !slices.Contains(suspended, uri) {
		r.sendFault(&Fault{Code: CodeInvalidParams,
			Message: "at most 1000 subscriptions at once; unsubscribe from some"})
		return
	}
	stop, err := r.e.watchResource(r.ctx, r.facts, r.view, entry, uri, resourceNotifier(s, uri))
	if err != nil {
		r.sendFault(r.subscribeFault(uri, err))
		return
	}
	if !s.Subscribe(uri, stop) {
		stop()
	}
	r.sendResult(r.empty())
}

// resourceNotifier returns a function that notifies a session about changes of a
// resource.
func resourceNotifier(s *session.Session, uri string) func(json.RawMessage) {
	return func(meta json.RawMessage) {
		s.Notify(appendNote(nil, "notifications/resources/updated", updatedParams(uri, meta)))
	}
}

// restoreSubscriptions resumes the subscriptions of a session that were suspended while
// the client could not read their resources, and notifies the client to read them
// again.
func (e *Engine) restoreSubscriptions(
	ctx context.Context,
	s *session.Session,
	f *session.Facts,
	v *views.View,
	uris []string,
) {
	for _, uri := range uris {
		entry, _ := v.Resource(uri)
		if entry == nil {
			continue
		}
		told := resourceNotifier(s, uri)
		stop, err := e.watchResource(ctx, f, v, entry, uri, told)
		if err != nil {
			continue // the caller may still not watch it
		}
		if !s.Resume(uri, stop) {
			stop()
			continue
		}
		told(nil)
	}
}

// subscribeFault returns the error for a failed subscription. A refusal is the client's
// error, any other error is internal.
func (r *request) subscribeFault(uri string, err error) *Fault {
	if w, ok := errors.AsType[*tool.WireError](err); ok {
		return &Fault{Code: w.Code, Message: w.Message, Data: w.Data}
	}
	ref, ok := errors.AsType[*tool.Refusal](err)
	switch {
	case !ok:
		return &Fault{Code: CodeInternal, Message: "subscribe: " + err.Error()}
	case ref.Code == tool.CodeNotFound, ref.Code == tool.CodeOutsideRoot:
		return r.noResource(uri, ref.Text())
	}
	return &Fault{Code: CodeInvalidParams, Message: "subscribe: " + ref.Text()}
}

// unsubscribe serves resources/unsubscribe. An unknown subscription is no error.
func (r *request) unsubscribe() {
	uri, f := r.required("uri")
	if f != nil {
		r.sendFault(f)
		return
	}
	r.sess.Unsubscribe(uri)
	r.sendResult(r.empty())
}

// updatedParams returns the params of notifications/resources/updated.
func updatedParams(uri string, meta json.RawMessage) []byte {
	b := rawjson.AppendString([]byte(`{"uri":`), uri)
	if meta != nil {
		b = append(b, `,"_meta":`...)
		b = rawjson.Compact(b, meta)
	}
	return append(b, '}')
}
