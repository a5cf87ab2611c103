package ide

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"gatehouse/internal/dispatch/hub"
	"gatehouse/internal/exec/proc"
	"gatehouse/internal/exec/rpc"
	"gatehouse/tool"
)

const (
	maxMessage     = 16 << 20
	startWait      = 60 * time.Second
	permissionWait = 10 * time.Minute // for a person to answer
	maxTurn        = time.Hour
	maxReply       = 1 << 20 // bytes of the answer of one turn that are kept
	stopGrace      = 3 * time.Second
)

// conversation is a session whose agent runs. It ends with its agent.
type conversation struct {
	bridge  *bridge
	conn    *rpc.Conn
	end     func() // ends the agent, or the connection to it
	release func()
	used    *time.Timer // stops the agent when it is idle

	mu       sync.Mutex // guards what follows
	session  session
	turn     *turn
	asked    map[string]*permission // open questions, by key
	askCount int
	loading  bool // the agent repeats a stored chat
}

// turn is a prompt with its answer.
type turn struct {
	id    string
	reply strings.Builder
	done  chan struct{} // closed at the end
	stop  string        // why the agent ended it
	err   error
	wake  chan struct{} // holds a token when there is a question
}

// permission is a question of the agent for its person.
type permission struct {
	title   string
	options []permissionOption
	answer  chan string // the id of an option; "" means that it was cancelled
}

type permissionOption struct {
	ID   string `json:"optionId"`
	Name string `json:"name"`
	Kind string `json:"kind"`
}

// beginConversation starts the agent of a session, and makes or loads the agent's own session.
func (m *bridge) beginConversation(ctx context.Context, c *tool.Call, s session) (*conversation, error) {
	kind, err := m.kind(s.Agent)
	if err != nil {
		return nil, err
	}
	release := func() {}
	if m.cfg.Claim != nil {
		if release, err = m.cfg.Claim(c.Caller); err != nil {
			return nil, err
		}
	}
	v := &conversation{bridge: m, session: s, release: sync.OnceFunc(release), asked: map[string]*permission{}}
	reach := v.startAgent
	if isBackend(kind.argv[0]) {
		reach = v.reachBackend
	}
	ended, err := reach(ctx, kind)
	if err != nil {
		v.release()
		return nil, &tool.Refusal{
			Code: tool.CodeNotStarted, Message: fmt.Sprintf("the agent %s could not be started: %v", kind.name, err),
			Next: "Ask an administrator to install it, or to correct modules.ide.agents.",
		}
	}
	m.wg.Go(func() {
		ended() // the turn that runs reports that the connection ended
		_ = v.conn.Close()
		v.release()
		m.dropConversation(v)
	})
	ctx, cancel := context.WithTimeout(ctx, startWait)
	defer cancel()
	if err := v.openConversation(ctx); err != nil {
		v.stop()
		return nil, agentError(kind.name, err)
	}
	return v, m.remember(v)
}

// startAgent starts the program of an agent. ended waits for its end.
func (v *conversation) startAgent(_ context.Context, kind agentKind) (ended func(), err error) {
	from, to := io.Pipe()
	child, err := proc.Start(v.bridge.ctx, proc.Spec{
		Path: kind.argv[0], Args: kind.argv[1:], Dir: v.session.Dir, Env: proc.BaseEnv(), Input: true, Whole: true,
		Grace: stopGrace, Stdout: to,
	})
	if err != nil {
		return nil, err
	}
	v.conn = rpc.New(rpc.Lines(from, func(ctx context.Context, b []byte) error {
		_, err := child.Type(ctx, b)
		return err
	}, maxMessage, from.Close), rpc.Handler{Request: v.handleAgentRequest, Notify: v.notified})
	v.end = func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(v.bridge.ctx), stopGrace)
		defer cancel()
		_ = child.Stop(ctx) // it is killed then
	}
	return func() {
		_, _ = child.Wait()
		to.Close()
	}, nil
}

// reachBackend connects to an agent at an address. ended waits for the end of the conversation.
func (v *conversation) reachBackend(ctx context.Context, kind agentKind) (ended func(), err error) {
	m := v.bridge
	b := &backend{url: kind.argv[0], name: v.session.Name}
	if m.cfg.BackendToken != "" && m.cfg.Fill != nil {
		filled, err := m.cfg.Fill(map[string]string{"token": m.cfg.BackendToken})
		if err != nil {
			return nil, err
		}
		b.token = filled["token"]
	}
	owner := v.session.Owner
	b.event = func(channel, kind string, data json.RawMessage) {
		if m.cfg.Hub == nil {
			return
		}
		if _, err := m.cfg.Hub.Send(owner, channel, hub.Message{Type: "event", Data: data}); err != nil {
			m.log.Warn("a message of a back end could not be passed on", "channel", channel, "type", kind, "err", err)
		}
	}
	if b, err = dialBackend(ctx, b); err != nil {
		return nil, err
	}
	v.conn = rpc.New(b, rpc.Handler{Request: v.handleAgentRequest, Notify: v.notified})
	v.end = b.cancel
	return func() { <-v.conn.Done() }, nil
}

func agentError(name string, err error) error {
	if e, ok := errors.AsType[*rpc.Error](err); ok {
		return &tool.Refusal{Code: tool.CodeFailed, Message: "the agent " + name + " answered: " + e.Message}
	}
	if errors.Is(err, rpc.ErrClosed) {
		return &tool.Refusal{Code: tool.CodeUnavailable, Message: "the agent " + name + " has ended: " + err.Error()}
	}
	return err
}

func (m *bridge) kind(name string) (agentKind, error) { return agentOf(m.agents, name) }

func agentOf(all []agentKind, name string) (agentKind, error) {
	for _, k := range all {
		if name == "" || k.name == name {
			return k, nil
		}
	}
	var names []string
	for _, k := range all {
		names = append(names, k.name)
	}
	if len(names) == 0 {
		return agentKind{}, &tool.Refusal{
			Code: tool.CodeUnavailable, Message: "no agent is configured on this host",
			Next: "Ask an administrator to set modules.ide.agents.",
		}
	}
	return agentKind{}, tool.Refuse(tool.CodeNotFound, "agent is %q; expected one of %s", name, strings.Join(names, ", "))
}

func (m *bridge) remember(v *conversation) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		go v.stop()
		return tool.Refuse(tool.CodeUnavailable, "the host is closing")
	}
	m.live[v.session.ID] = v
	idle := m.cfg.Idle
	if idle == 0 {
		idle = defaultIdle
	}
	v.used = time.AfterFunc(idle, v.stop)
	return nil
}

func (m *bridge) dropConversation(v *conversation) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if v.used != nil {
		v.used.Stop()
	}
	if m.live[v.session.ID] == v {
		delete(m.live, v.session.ID)
	}
}

// stop ends the agent.
func (v *conversation) stop() { v.end() }

// openConversation initializes the agent, and makes or loads its session.
func (v *conversation) openConversation(ctx context.Context) error {
	var hello struct {
		Version      int `json:"protocolVersion"`
		Capabilities struct {
			Load bool `json:"loadSession"`
		} `json:"agentCapabilities"`
	}
	if err := v.conn.Call(ctx, "initialize", map[string]any{
		"protocolVersion": 1,
		"clientInfo":      map[string]any{"name": "gatehouse", "version": "1"},
		"clientCapabilities": map[string]any{
			"fs": map[string]bool{"readTextFile": false, "writeTextFile": false}, "terminal": false,
		},
	}, &hello); err != nil {
		return err
	}
	if hello.Version != 1 {
		return tool.Refuse(tool.CodeUnsupported, "the agent speaks version %d of its protocol; expected 1", hello.Version)
	}
	params := map[string]any{"cwd": v.session.Dir, "mcpServers": v.bridge.server(v.session.Dir)}
	if v.session.Remote != "" && hello.Capabilities.Load {
		params["sessionId"] = v.session.Remote
		v.mu.Lock()
		v.loading = true
		v.mu.Unlock()
		err := v.conn.Call(ctx, "session/load", params, nil)
		v.mu.Lock()
		v.loading = false
		v.mu.Unlock()
		return err
	}
	var made struct {
		ID string `json:"sessionId"`
	}
	if err := v.conn.Call(ctx, "session/new", params, &made); err != nil {
		return err
	}
	v.mu.Lock()
	v.session.Remote = made.ID
	v.mu.Unlock()
	return nil
}

// prompt begins a turn.
func (v *conversation) prompt(text string) (*turn, error) {
	t := &turn{id: v.bridge.newID("turn"), done: make(chan struct{}), wake: make(chan struct{}, 1)}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.turn != nil {
		select {
		case <-v.turn.done:
		default:
			return nil, &tool.Refusal{
				Code: tool.CodeBusy, Message: "the agent still answers the message before",
				Next: "Read its answer with ide_chat_history, then send the next message.",
			}
		}
	}
	v.turn = t
	v.used.Reset(maxTurn + defaultIdle)
	remote := v.session.Remote
	v.bridge.wg.Go(func() { v.runTurn(t, remote, text) })
	return t, nil
}

// runTurn waits for the end of a turn, and stores its answer.
func (v *conversation) runTurn(t *turn, remote, text string) {
	ctx, cancel := context.WithTimeout(v.bridge.ctx, maxTurn)
	defer cancel()
	var answer struct {
		Stop string `json:"stopReason"`
	}
	err := v.conn.Call(ctx, "session/prompt", map[string]any{
		"sessionId": remote, "prompt": []any{map[string]string{"type": "text", "text": text}},
	}, &answer)
	v.mu.Lock()
	t.stop, t.err = answer.Stop, agentError(v.session.Agent, err)
	reply, s := t.reply.String(), v.session
	v.mu.Unlock()
	if reply != "" {
		if err := v.bridge.store.say(context.WithoutCancel(ctx), s.ID, "assistant", reply); err != nil {
			v.bridge.log.Error("an answer of an agent could not be stored", "session", s.ID, "error", err)
		}
	}
	if v.bridge.ctx.Err() == nil {
		v.used.Reset(max(v.bridge.cfg.Idle, time.Minute))
	}
	v.bridge.indexLater(s)
	close(t.done)
}

// update is a notification session/update.
type update struct {
	Update struct {
		Kind    string          `json:"sessionUpdate"`
		Content json.RawMessage `json:"content"`
		Title   string          `json:"title"`
		Status  string          `json:"status"`
		Entries []struct {
			Content  string `json:"content"`
			Priority string `json:"priority"`
			Status   string `json:"status"`
		} `json:"entries"`
	} `json:"update"`
}

// notified takes the updates of a turn, in their order.
func (v *conversation) notified(method string, params json.RawMessage) {
	var u update
	if method != "session/update" || json.Unmarshal(params, &u) != nil {
		return
	}
	v.mu.Lock()
	s := v.session
	if v.loading {
		v.mu.Unlock()
		return
	}
	tell := ""
	switch u.Update.Kind {
	case "agent_message_chunk":
		var block struct{ Text string }
		if json.Unmarshal(u.Update.Content, &block) == nil && v.turn != nil && v.turn.reply.Len() < maxReply {
			v.turn.reply.WriteString(block.Text)
		}
	case "tool_call":
		tell = u.Update.Title
	case "plan":
		v.session.Plan, v.session.PlanAt = nil, time.Now().UTC()
		for _, e := range u.Update.Entries {
			v.session.Plan = append(v.session.Plan, step{e.Content, e.Status, e.Priority})
		}
		s = v.session
	}
	v.mu.Unlock()
	ctx := context.WithoutCancel(v.bridge.ctx)
	var err error
	if u.Update.Kind == "plan" {
		err = v.bridge.store.put(ctx, s)
	} else if tell != "" {
		err = v.bridge.store.say(ctx, s.ID, "tool", tell)
	}
	if err != nil {
		v.bridge.log.Error("an update of an agent could not be stored", "session", s.ID, "error", err)
	}
	v.bridge.sendEvent(&s, json.RawMessage(params))
}

// handleAgentRequest answers the agent, which asks for permissions alone.
func (v *conversation) handleAgentRequest(ctx context.Context, method string, params json.RawMessage) (any, error) {
	if method != "session/request_permission" {
		return nil, rpc.NotFound(method)
	}
	var p struct {
		Tool    struct{ Title string } `json:"toolCall"`
		Options []permissionOption     `json:"options"`
	}
	if err := json.Unmarshal(params, &p); err != nil {
		return nil, &rpc.Error{Code: rpc.CodeInvalidParams, Message: err.Error()}
	}
	q := &permission{p.Tool.Title, p.Options, make(chan string, 1)}
	v.mu.Lock()
	v.askCount++
	key := fmt.Sprintf("permission-%s-%d", v.session.Remote, v.askCount)
	v.asked[key] = q
	if v.turn != nil {
		select {
		case v.turn.wake <- struct{}{}:
		default:
		}
	}
	v.mu.Unlock()
	defer func() {
		v.mu.Lock()
		defer v.mu.Unlock()
		delete(v.asked, key)
	}()
	cancelled := map[string]any{"outcome": map[string]string{"outcome": "cancelled"}}
	select {
	case id := <-q.answer:
		if id == "" {
			return cancelled, nil
		}
		return map[string]any{"outcome": map[string]string{"outcome": "selected", "optionId": id}}, nil
	case <-time.After(permissionWait):
		return cancelled, nil
	case <-ctx.Done():
		return cancelled, nil
	}
}
