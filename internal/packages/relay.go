package packages

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"gatehouse/internal/dispatch/modulehost"
	"gatehouse/internal/files/clientroots"
	"gatehouse/internal/mcp/client"
	"gatehouse/internal/mcp/mcpversion"
	"gatehouse/internal/mcp/rawjson"
	"gatehouse/tool"
)

const (
	maxQuestions    = 16       // of one result of a modern server
	maxRequestState = 24 << 10 // bytes of what a modern server keeps with its caller
	maxQuietRounds  = 10       // of a modern server whose questions need no client
)

// wantsLogs reports whether a caller gets log messages.
func (from *Peer) wantsLogs() bool { return from != nil && from.Logs != "" && from.Log != nil }

// withLogs adds to a request that its caller wants log messages.
func (from *Peer) withLogs(u *upstream, r client.Request) client.Request {
	if !from.wantsLogs() || !u.offers("logging") {
		return r
	}
	if u.conn.IsModern() {
		r.Params = withLogLevel(r.Params, from.Logs)
	}
	r.Notified = func(method string, params json.RawMessage) bool {
		return method == "notifications/message" && from.passLog(u, params)
	}
	return r
}

// passLog passes a log message of a server on to a caller. It reports whether the message is one that can be.
func (from *Peer) passLog(u *upstream, params json.RawMessage) bool {
	name, _ := stringMember(params, "level")
	level, ok := mcpversion.ParseLevel(name)
	if !ok {
		return false
	}
	if params = bytes.Clone(u.secrets.Hide(params)); rawjson.Check(params, 0) == nil {
		from.Log(level, tool.LogMessage(params))
	}
	return true
}

// withLogLevel sets the log level in the _meta of a modern request.
func withLogLevel(params json.RawMessage, level string) json.RawMessage {
	meta, ok := rawjson.Get(params, "_meta")
	if !ok {
		meta = []byte(`{}`)
	}
	meta = rawjson.Splice(meta, rawjson.Edit{Key: "io.modelcontextprotocol/logLevel", Value: quote(level)})
	return rawjson.Splice(params, rawjson.Edit{Key: "_meta", Value: meta})
}

// lowerLogLevel has the session of a legacy server send log messages of a caller's level, if
// it has not been told a lower one.
func (u *upstream) lowerLogLevel(ctx context.Context, from *Peer) {
	if !from.wantsLogs() || u.conn.IsModern() || !u.offers("logging") {
		return
	}
	level, ok := mcpversion.ParseLevel(from.Logs)
	u.mu.Lock()
	lower := ok && (!u.levelSet || level < u.level)
	if lower {
		u.level, u.levelSet = level, true
	}
	u.mu.Unlock()
	if lower { // a server that refuses it sends what it likes
		u.conn.Do(ctx, client.Request{Method: "logging/setLevel", Params: fmt.Appendf(nil, `{"level":%q}`, from.Logs)})
	}
}

// Call relays a call to a server, and starts it if it does not run. args and meta are
// the caller's. The result is the server's, unchanged; TaskOf says whether it is a task. A
// *tool.WireError is the server's own error, and *InputRequired means that the server asks.
func (h *Manager) Call(
	ctx context.Context,
	id, own string,
	args, meta json.RawMessage,
	from *Peer,
) (json.RawMessage, error) {
	p, err := h.findPackage(id)
	if err != nil {
		return nil, err
	}
	params := callParams(own, args, meta)
	if from != nil && from.Task && p.isLegacy() {
		params = rawjson.Splice(params, rawjson.Edit{Key: "task", Value: []byte(`{}`)})
	}
	r := client.Request{
		Method: "tools/call", Params: params, Name: own, Headers: p.paramHeaders(own, args), Extensions: tasksExtension,
	}
	if h.opts.Alone != nil && (from == nil || from.Caller.Can&tool.CanTasks == 0) {
		r.Extensions = nil // a server alone decides what a client without tasks gets
	}
	raw, err := p.relay(ctx, r, from, p.mayRepeat(own))
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

// tries is how often a request is sent again at most. A server may be killed while it
// starts again.
const tries = 3

// relay sends a request to the server of a package, and starts it if it does not run. A
// request that may have run is sent again only if repeat is set, because it changes
// nothing. If a user has to log in first, a caller that can be sent to an address is.
func (p *managedPackage) relay(
	ctx context.Context,
	r client.Request,
	from *Peer,
	repeat bool,
) (json.RawMessage, error) {
	from, err := p.resumeLogin(ctx, from)
	if err != nil {
		return nil, err
	}
	raw, err := p.relayRequest(ctx, r, from, repeat)
	if need, login := loginRequired(err); login {
		return nil, p.askLogin(ctx, from, need)
	}
	return raw, err
}

func (p *managedPackage) relayRequest(
	ctx context.Context, r client.Request, from *Peer, repeat bool,
) (json.RawMessage, error) {
	r.Forward = p.passed(ctx)
	var state relayState
	if from != nil && len(from.State) > 0 {
		if err := json.Unmarshal(from.State, &state); err != nil {
			return nil, fmt.Errorf("decode the state of the call: %w", err)
		}
	}
	what := fmt.Sprintf("%s of package %s", shorten(r.Name, 100), p.id)
	if state.Call != "" {
		c, err := p.manager.calls.findCall(state, ownerOf(from.Caller), what)
		if err != nil {
			return nil, err
		}
		return c.attach(ctx, state.Asked, from)
	}
	raw, err := p.relayOnce(ctx, r, from, repeat, state, what, state.Modern)
	if errors.Is(err, errNewest) {
		raw, err = p.relayOnce(ctx, r, from, repeat, state, what, true)
	}
	return raw, err
}

// relayOnce relays a request that is not open yet. It returns errNewest, and has sent nothing, if only the newest
// revision will do.
func (p *managedPackage) relayOnce(ctx context.Context, r client.Request, from *Peer, repeat bool, state relayState,
	what string, newest bool,
) (json.RawMessage, error) {
	p.mu.Lock()
	key, modern, asks := p.keyOf(from, newest), p.rec.Server.Protocol == modernRevision, p.asksRoots
	shared := p.rec.Instances == SharedInstances
	announced := p.rec.grantsAnnounced() && !shared && from.can()&tool.CanListRoots != 0
	nobody := p.rec.Login == PrincipalLogin && key.login == ""
	staged, err := p.stage(from)
	p.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if staged != nil {
		key.owner, key.task = ownerOf(from.Caller), staged.Task
	}
	if nobody {
		return nil, tool.Refuse(tool.CodeUnavailable, "package %s uses the login of its caller, and this call has none",
			p.id)
	}
	if announced {
		roots, known := p.manager.rootsOf(from)
		if !known {
			return nil, askForRoots()
		}
		key.owner, key.folders = ownerOf(from.Caller), roots
	}
	if modern && !shared && !key.older {
		return p.relayModern(ctx, key, r, from, repeat, state)
	}
	if from != nil && from.Progress != nil && key.can == 0 {
		r.Progress = progressOf(from.Progress)
	}
	if key.can == 0 {
		raw, _, err := p.exchange(ctx, key, from, new(openCall), r, repeat)
		return raw, err
	}
	roots, known := p.manager.rootsOf(from)
	if asks && key.can&tool.CanListRoots != 0 {
		if !known {
			return nil, askForRoots()
		}
		key.roots = roots
	}
	c, err := p.startCall(from, what, roots, func(ctx context.Context, c *openCall) (json.RawMessage, error) {
		r.Answer, r.Progress = c.askCaller, nil
		if from.Progress != nil {
			r.Progress = c.reportProgress
		}
		told := *from
		told.Log = c.logMessage
		raw, _, err := p.exchange(ctx, key, &told, c, r, repeat)
		return raw, err
	})
	if err != nil {
		return nil, err
	}
	return c.awaitStep(ctx, 0, from)
}

// rootsQuestion asks for a caller's roots. A client that does not answer has none.
func rootsQuestion() tool.Question {
	q := tool.ListRoots(clientroots.AnnouncedKey)
	q.Optional = true
	return q
}

// exchange sends a request to a server and returns its result, and whether the server is a
// modern one. A request of which nothing was sent is sent once more, and so is one that
// may have run if repeat is set.
func (p *managedPackage) exchange(
	ctx context.Context, key instanceKey, from *Peer, c *openCall, r client.Request, repeat bool,
) (raw json.RawMessage, modern bool, err error) {
	end, err := p.admit(ctx)
	if err != nil {
		return nil, false, err
	}
	defer func() { end(err, c.hasAsked()) }()
	for try := 0; ; try++ {
		i, u, release, err := p.acquireInstance(ctx, key, from, c)
		if err != nil {
			return nil, false, err
		}
		if err := p.checkApproved(&r); err != nil { // once it runs, it has listed what it offers
			release()
			return nil, false, err
		}
		u.lowerLogLevel(ctx, from)
		left := u.registerCall(c, from)
		raw, err := u.conn.Do(ctx, from.withLogs(u, r))
		left()
		if err == nil {
			u.served.Store(true)
		}
		release()
		gone, ok := errors.AsType[*client.NoAnswerError](err)
		_, login := loginRequired(err)
		switch {
		case login:
			return nil, false, err
		case !ok:
			err := wireError(err)
			if refused, ok := errors.AsType[*tool.WireError](err); ok {
				p.manager.visits.refused(p.id, from, refused)
			}
			return raw, u.conn.IsModern(), err
		case ctx.Err() != nil:
			return nil, false, context.Cause(ctx)
		case gone.MayHaveRun && (!repeat || c.hasAsked()):
			return nil, false, &lostError{&tool.Refusal{
				Code: tool.CodeUnavailable,
				Message: fmt.Sprintf("package %s did not answer; %s may have run: %v", p.id, shorten(r.Name, 100),
					gone.Why),
				Next: "Check the outcome before you try again.",
			}}
		case try >= tries:
			return nil, false, &lostError{&tool.Refusal{
				Code:    tool.CodeUnavailable,
				Message: fmt.Sprintf("package %s did not answer, so nothing was changed: %v", p.id, gone.Why),
				Next:    "Try again in a moment.",
			}}
		}
		if u.conn.Err() != nil {
			i.waitExited(ctx, u)
		} else if err := sleep(ctx, listDelay); err != nil {
			return nil, false, err
		}
	}
}

// relayModern relays a request to a modern server, which is told what this caller can
// answer, and asks by its result.
func (p *managedPackage) relayModern(
	ctx context.Context, key instanceKey, r client.Request, from *Peer, repeat bool, state relayState,
) (json.RawMessage, error) {
	can := from.can()
	r.Capabilities = capabilities(can, true)
	if from != nil {
		r.Progress = progressOf(from.Progress)
	}
	params, forget := r.Params, []string(nil)
	for range maxQuietRounds {
		if state.Modern {
			r.Params = withAnswers(params, p.manager.answersTo(state, from), state.State)
		}
		raw, modern, err := p.exchange(ctx, key, from, new(openCall), r, repeat)
		kind, _ := rawjson.Get(raw, "resultType")
		if err != nil || !modern || !rawjson.Equal(kind, "input_required") {
			return raw, err
		}
		for _, here := range state.Keys {
			if here != clientroots.AnnouncedKey {
				forget = append(forget, here)
			}
		}
		var questions []tool.Question
		if state, questions, err = p.readQuestions(raw, can); err != nil {
			return nil, err
		}
		if _, known := p.manager.rootsOf(from); known {
			questions = slices.DeleteFunc(questions,
				func(q tool.Question) bool { return q.Key == clientroots.AnnouncedKey })
		}
		if len(questions) > 0 || len(state.Keys) == 0 {
			return nil, &InputRequired{tool.Input{Questions: questions, State: state.encode(), Forget: forget}}
		}
	}
	return nil, tool.Refuse(tool.CodeTooManyRounds, "package %s asks more than %d times", p.id, maxQuietRounds)
}

// answersTo returns what a caller has answered to a modern server, by the server's keys.
func (h *Manager) answersTo(state relayState, from *Peer) map[string]json.RawMessage {
	all := map[string]json.RawMessage{}
	for own, here := range state.Keys {
		if here == clientroots.AnnouncedKey {
			if roots, known := h.rootsOf(from); known {
				all[own] = json.RawMessage(roots)
			}
		} else if a, ok := from.Answers[here]; ok {
			all[own] = a
		}
	}
	return all
}

// withAnswers adds the answers to a modern server's questions to the params of its request.
func withAnswers(params json.RawMessage, answers map[string]json.RawMessage, state json.RawMessage) json.RawMessage {
	all := []byte(`{}`)
	for own, a := range answers {
		all = rawjson.Splice(all, rawjson.Edit{Key: own, Value: a})
	}
	edits := []rawjson.Edit{{Key: "inputResponses", Value: all}}
	if state != nil {
		edits = append(edits, rawjson.Edit{Key: "requestState", Value: state})
	}
	return rawjson.Splice(params, edits...)
}

// readQuestions reads what a modern server asks. The questions keep the server's keys, which a client may
// answer before they are asked, except those that would be taken for keys of this host.
func (p *managedPackage) readQuestions(
	raw json.RawMessage,
	can tool.Abilities,
) (s relayState, qs []tool.Question, err error) {
	s = relayState{Modern: true, Keys: map[string]string{}}
	if v, ok := rawjson.Get(raw, "requestState"); ok {
		if rawjson.Kind(v) != '"' || len(v) > maxRequestState {
			return s, nil, tool.Refuse(tool.CodeTooLarge,
				"package %s asks with a state of %d bytes; at most %d are kept, as a string", p.id, len(v),
				maxRequestState)
		}
		s.State = json.RawMessage(append([]byte(nil), v...))
	}
	asked, _ := rawjson.Get(raw, "inputRequests")
	if len(asked) > maxQuestion {
		return s, nil, tool.Refuse(tool.CodeTooLarge,
			"package %s asks questions of %d bytes; at most %d are passed on", p.id, len(asked), maxQuestion)
	}
	for k, v := range rawjson.Object(asked) {
		method, _ := stringMember(v, "method")
		params, _ := rawjson.Get(v, "params")
		own := string(k)
		q := tool.Question{Key: own, Method: method, Params: params}
		switch {
		case method == "roots/list":
			q.Key = clientroots.AnnouncedKey // whose answer other parts of the host use too
		case isHostKey(own):
			q.Key = "relay-" + own
		}
		need, _ := q.Needs()
		switch {
		case len(qs) >= maxQuestions || len(own) > 200:
			return s, nil, tool.Refuse(tool.CodeTooMany, "package %s asks more than %d questions at once", p.id,
				maxQuestions)
		case need == 0 || can&need != need:
			return s, nil, tool.Refuse(tool.CodeUnsupported,
				"package %s asks by %s, which this client has not declared that it can answer", p.id,
				shorten(method, 100))
		}
		if mode, _ := stringMember(params, "mode"); mode == "url" {
			q.Params = withElicitationID(params, q.Key)
		}
		s.Keys[own] = q.Key
		qs = append(qs, q)
	}
	return s, qs, nil
}

// isHostKey reports whether the key of a server's question could be one that this host uses for the same call.
func isHostKey(key string) bool {
	return strings.HasPrefix(key, "gatehouse") || !modulehost.IsAnswerKey(key)
}

// withElicitationID adds the id that legacy revisions require, and modern ones leave out.
func withElicitationID(params json.RawMessage, id string) json.RawMessage {
	if _, ok := rawjson.Get(params, "elicitationId"); ok {
		return params
	}
	return rawjson.Splice(params, rawjson.Edit{Key: "elicitationId", Value: quote(id)})
}

// hasAsked reports whether the call's server has asked its caller.
func (c *openCall) hasAsked() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.steps) > 1
}

func askForRoots() error {
	return &InputRequired{tool.Input{Questions: []tool.Question{rootsQuestion()}, State: relayState{}.encode()}}
}
