package ide

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"math"
	"strings"
	"time"

	"gatehouse/internal/files/roots"
	"gatehouse/tool"
)

// Where an answer is from.
const (
	fromAgent = "live"   // the agent that runs
	fromStore = "cached" // what was stored when it ran last; since says when
	fromHost  = "local"  // this host
)

func (m *bridge) chatTools() []tool.Tool {
	return []tool.Tool{m.sendTool(), m.historyTool(), m.sessionsTool(), m.createTool(), m.planTool()}
}

type createIn struct {
	Name  string `json:"name" min:"1" max:"200"`
	Agent string `json:"agent,omitempty" max:"200" doc:"one of the settings; default: the first"`
	Dir   string `json:"dir,omitempty" names:"path" doc:"the folder that the agent works in"`
	Runs  string `json:"-" names:"code"`
}

type sessionOut struct {
	ID        string    `json:"id"`
	Name      string    `json:"name"`
	Status    string    `json:"status" doc:"active: its agent runs; busy: it answers; stored: it starts with the next message"`
	CreatedAt time.Time `json:"createdAt"`
	Agent     string    `json:"agent"`
}

type createOut struct {
	Session sessionOut `json:"session"`
	Source  string     `json:"source"`
}

const createHelp = `Starts an agent of the Agent Client Protocol in a folder. It runs with the rights of this host; what it
does is up to the agent and to the permissions that it asks for. This program is given to it as an MCP server for the
folder. The chat is stored, and goes on after the agent or the host has ended.`

func (m *bridge) createTool() tool.Tool {
	return tool.New(tool.Def{
		Name: "ide_session_create", Title: "Start an agent", Effects: tool.Writes | tool.Destroys | tool.OpenWorld,
		Description: "Starts a coding agent in a folder, as a session to which messages are sent with ide_chat_send.",
		Help:        createHelp,
		Timeout:     2 * startWait,
	}, func(ctx context.Context, c *tool.Call, in createIn) (out createOut, err error) {
		where, err := roots.OpenWorkplace(c.Roots, in.Dir, "dir")
		if err != nil {
			return out, err
		}
		defer where.Close()
		kind, err := m.kind(in.Agent)
		if err != nil {
			return out, err
		}
		s := session{
			ID: m.newID("session"), Owner: c.Caller.Owner, Name: in.Name, Agent: kind.name, Dir: where.Path,
			Created: time.Now().UTC(),
		}
		v, err := m.start(ctx, c, s)
		if err != nil {
			return out, err
		}
		return createOut{v.out(), fromAgent}, nil
	})
}

// start begins a conversation within the limits, and stores its session.
func (m *bridge) start(ctx context.Context, c *tool.Call, s session) (*conversation, error) {
	if n := m.running(c.Caller.Owner); n >= maxAgents {
		return nil, &tool.Refusal{
			Code: tool.CodeTooMany, Message: "you have as many running agents as you may have",
			Next: "One ends when it is idle.",
		}
	}
	v, err := m.beginConversation(ctx, c, s)
	if err != nil {
		return nil, err
	}
	v.mu.Lock()
	s = v.session
	v.mu.Unlock()
	if err := m.store.put(ctx, s); err != nil {
		v.stop()
		return nil, err
	}
	return v, nil
}

// running returns how many agents of an owner run.
func (m *bridge) running(owner string) (n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, v := range m.live {
		if v.session.Owner == owner {
			n++
		}
	}
	return n
}

// conversation returns the conversation of a session; nil if its agent does not run.
func (m *bridge) conversation(id string) *conversation {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.live[id]
}

func (v *conversation) out() sessionOut {
	v.mu.Lock()
	defer v.mu.Unlock()
	o := v.session.out("active")
	if v.turn != nil {
		select {
		case <-v.turn.done:
		default:
			o.Status = "busy"
		}
	}
	return o
}

func (s session) out(status string) sessionOut {
	return sessionOut{ID: s.ID, Name: s.Name, Status: status, CreatedAt: s.Created, Agent: s.Agent}
}

type sessionsOut struct {
	Sessions []sessionOut `json:"sessions"`
	Source   string       `json:"source"`
}

func (m *bridge) sessionsTool() tool.Tool {
	return tool.New(tool.Def{
		Name: "ide_session_list", Title: "List sessions with agents", Effects: tool.Reads,
		Description: "Lists your sessions with agents, the newest first.",
	}, func(ctx context.Context, c *tool.Call, _ struct{}) (out sessionsOut, err error) {
		all, err := m.store.sessions(ctx, c.Caller.Owner)
		for _, s := range all {
			if v := m.conversation(s.ID); v != nil {
				out.Sessions = append(out.Sessions, v.out())
			} else {
				out.Sessions = append(out.Sessions, s.out("stored"))
			}
		}
		out.Source = fromHost
		return out, err
	})
}

type sendIn struct {
	SessionID string `json:"sessionId" min:"1" max:"200"`
	Message   string `json:"message" min:"1" max:"200000"`
	Runs      string `json:"-" names:"code"`
}

type sendOut struct {
	Sent       bool      `json:"sent"`
	SessionID  string    `json:"sessionId"`
	Timestamp  time.Time `json:"timestamp"`
	Status     string    `json:"status" doc:"done, or pending: the agent still answers"`
	ID         string    `json:"id" doc:"of the turn"`
	Reply      string    `json:"reply" doc:"of the agent, as far as it is there"`
	StopReason string    `json:"stopReason,omitempty"`
	Source     string    `json:"source"`
}

const sendHelp = `Sends a message to the agent of a session and waits up to 10 seconds for its answer. If the agent needs longer,
status is pending, and ide_chat_history has the rest when it is there. Questions of the agent for permission are asked of
the person behind the client; a client that cannot ask, refuses them. Updates are also messages on the channel chat:<sessionId>
of the hub.`

func (m *bridge) sendTool() tool.Tool {
	return tool.New(tool.Def{
		Name: "ide_chat_send", Title: "Send a message to an agent",
		Effects:     tool.Writes | tool.Destroys | tool.OpenWorld,
		Description: "Sends a message to the agent of a session, and returns its answer.",
		Help:        sendHelp, Timeout: 2 * startWait,
	}, func(ctx context.Context, c *tool.Call, in sendIn) (out sendOut, err error) {
		s, err := m.store.session(ctx, c.Caller.Owner, in.SessionID)
		if err != nil {
			return out, err
		}
		id, err := tool.Once(c, "turn", func() (string, error) {
			v := m.conversation(s.ID)
			if v == nil {
				if v, err = m.start(ctx, c, s); err != nil {
					return "", err
				}
			}
			t, err := v.prompt(in.Message)
			if err != nil {
				return "", err
			}
			return t.id, m.store.say(ctx, s.ID, "user", in.Message)
		})
		if err != nil {
			return out, err
		}
		v := m.conversation(s.ID)
		t := v.turnOf(id)
		if t == nil {
			return out, &tool.Refusal{
				Code: tool.CodeUnavailable, Message: "the agent has ended during its answer",
				Next: "Send the message again.",
			}
		}
		if err := v.awaitTurn(ctx, c, t); err != nil {
			return out, err
		}
		v.mu.Lock()
		defer v.mu.Unlock()
		out = sendOut{
			Sent: true, SessionID: s.ID, Timestamp: time.Now().UTC(), Status: "pending", ID: id,
			Reply:  t.reply.String(),
			Source: fromAgent,
		}
		select {
		case <-t.done:
			out.Status, out.StopReason = "done", t.stop
			err = t.err
		default:
		}
		return out, err
	})
}

// turnOf returns the latest turn if it has an id; v may be nil.
func (v *conversation) turnOf(id string) *turn {
	if v == nil {
		return nil
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.turn == nil || v.turn.id != id {
		return nil
	}
	return v.turn
}

// awaitTurn waits for the end of a turn, at most waitTurn, and puts the questions of the agent to the caller's person.
func (v *conversation) awaitTurn(ctx context.Context, c *tool.Call, t *turn) error {
	late := time.NewTimer(waitTurn)
	defer late.Stop()
	for {
		if err := v.askPermission(c); err != nil {
			return err
		}
		select {
		case <-t.done:
			return nil
		case <-t.wake:
		case <-late.C:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// askPermission puts the open questions of the agent to the user. If the client cannot ask, they are refused.
func (v *conversation) askPermission(c *tool.Call) error {
	v.mu.Lock()
	open := make(map[string]*permission, len(v.asked))
	maps.Copy(open, v.asked)
	v.mu.Unlock()
	for key, q := range open {
		var names []string
		for _, o := range q.options {
			names = append(names, o.Name)
		}
		form, err := json.Marshal(map[string]any{
			"type": "object", "required": []string{"choice"},
			"properties": map[string]any{"choice": map[string]any{"type": "string", "title": "Answer", "enum": names}},
		})
		if err != nil {
			return err
		}
		answers, err := c.Peer.Ask(
			tool.Elicit(key, "The agent "+v.session.Agent+" asks for permission: "+q.title, form),
		)
		if errors.Is(err, tool.ErrAsked) {
			return err
		}
		choice := ""
		if err == nil {
			var said struct{ Choice string }
			if action, err := tool.Elicited(answers[key], &said); err == nil && action == "accept" {
				choice = said.Choice
			}
		}
		q.choose(choice)
	}
	return nil
}

// choose answers a question with the option of a name, or else with one that refuses.
func (q *permission) choose(name string) {
	id := ""
	for _, o := range q.options {
		if name != "" && o.Name == name || name == "" && id == "" && strings.HasPrefix(o.Kind, "reject") {
			id = o.ID
		}
	}
	select {
	case q.answer <- id:
	default:
	}
}

type historyIn struct {
	SessionID string `json:"sessionId" min:"1" max:"200"`
	Limit     int    `json:"limit,omitempty" default:"50" min:"1" max:"500"`
	Before    int64  `json:"before,omitempty" min:"0" doc:"only messages with a smaller seq"`
	Search    string `json:"search,omitempty" max:"500" doc:"only messages that contain this"`
}

type historyOut struct {
	SessionID string        `json:"sessionId"`
	Messages  []chatMessage `json:"messages"`
	Status    string        `json:"status" doc:"of the session"`
	Partial   string        `json:"partial,omitempty" doc:"the answer of the agent as far as it is there"`
	Source    string        `json:"source"`
}

func (m *bridge) historyTool() tool.Tool {
	return tool.New(tool.Def{
		Name: "ide_chat_history", Title: "Read a chat", Effects: tool.Reads,
		Description: "Returns the latest messages of a session with an agent, and what the agent is answering now.",
	}, func(ctx context.Context, c *tool.Call, in historyIn) (out historyOut, err error) {
		s, err := m.store.session(ctx, c.Caller.Owner, in.SessionID)
		if err != nil {
			return out, err
		}
		out = historyOut{SessionID: s.ID, Status: "stored", Source: fromStore}
		if v := m.conversation(s.ID); v != nil {
			if err := v.askPermission(c); err != nil {
				return out, err
			}
			out.Status, out.Source = v.out().Status, fromAgent
			if out.Status == "busy" {
				v.mu.Lock()
				out.Partial = v.turn.reply.String()
				v.mu.Unlock()
			}
		}
		before := in.Before
		if before == 0 {
			before = math.MaxInt64
		}
		out.Messages, err = m.store.history(ctx, s.ID, in.Search, before, in.Limit)
		return out, err
	})
}

type planIn struct {
	SessionID string `json:"sessionId" min:"1" max:"200"`
}

type planOut struct {
	SessionID string     `json:"sessionId"`
	Status    string     `json:"status" doc:"none, pending, in_progress or completed"`
	Steps     []step     `json:"steps"`
	Source    string     `json:"source"`
	Since     *time.Time `json:"since,omitempty" doc:"when the agent reported the plan"`
}

func (m *bridge) planTool() tool.Tool {
	return tool.New(tool.Def{
		Name: "ide_plan_status", Title: "Show the plan of an agent", Effects: tool.Reads,
		Description: "Returns the plan that the agent of a session has reported, with the status of each step.",
	}, func(ctx context.Context, c *tool.Call, in planIn) (out planOut, err error) {
		s, err := m.store.session(ctx, c.Caller.Owner, in.SessionID)
		if err != nil {
			return out, err
		}
		out = planOut{SessionID: s.ID, Status: "none", Source: fromStore}
		if v := m.conversation(s.ID); v != nil {
			v.mu.Lock()
			s, out.Source = v.session, fromAgent
			v.mu.Unlock()
		}
		if out.Steps = s.Plan; len(s.Plan) == 0 {
			return out, nil
		}
		at := s.PlanAt
		out.Since, out.Status = &at, planStatus(s.Plan)
		return out, nil
	})
}

func planStatus(plan []step) string {
	n := map[string]int{}
	for _, p := range plan {
		n[p.Status]++
	}
	switch {
	case n["completed"] == len(plan):
		return "completed"
	case n["pending"] == len(plan):
		return "pending"
	}
	return "in_progress"
}
