// Package ide is the module with which callers talk to coding agents, follow their plans and builds, and see what this
// host does.
//
// Agents speak the Agent Client Protocol over their standard input. A caller waits for what an agent really answers, for
// at most waitTurn; a longer turn goes on, and its answer is read by its session. Chats are stored before they are
// answered.
package ide

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"gatehouse/internal/access/operator"
	"gatehouse/internal/access/secret"
	"gatehouse/internal/dispatch/hub"
	"gatehouse/internal/exec/acp"
	"gatehouse/internal/files/index"
	"gatehouse/internal/files/sqlfile"
	"gatehouse/module"
	"gatehouse/tool"
)

// Settings are the settings of the module, which the configuration of a host embeds. The zero value is usable.
type Settings struct {
	Agents []string `doc:"Agents of the Agent Client Protocol, each as name=command line: claude=claude-agent-acp; or name=ws://localhost:9876/ws for one behind a WebSocket that speaks the protocol of Core. Sessions use the first unless they name one."`

	BackendToken string `doc:"Bearer token for agents behind a WebSocket; ${secret:NAME} stands for a secret."`

	Server []string      `doc:"Command line of the MCP server that agents are given, to which the folder of the session is added; none means this program with -d. - gives them none."`
	Locks  string        `doc:"Folder with the lock files of editors and agents; none means that of Claude Code, ~/.claude/ide."`
	Idle   time.Duration `doc:"Time without calls after which an agent is stopped; a session goes on with a new one, if the agent can load it. 0 means 30m."`
}

const (
	waitTurn    = 10 * time.Second
	defaultIdle = 30 * time.Minute
	maxAgents   = 8    // agents of one owner that run at once
	maxSessions = 1000 // sessions of one owner that are kept
)

// Config is what the module depends on. The zero value is usable.
type Config struct {
	Settings
	// Path is the file with sessions and chats; "" keeps it in memory.
	Path string
	// Hub gets the updates of agents on the channels chat:<session>; nil means none.
	Hub *hub.Hub
	// Fill puts secrets into the values of a map; nil means that there are none.
	Fill func(map[string]string) (map[string]secret.Text, error)
	// Rules decides who may use the editors of the host's user; nil means no caller.
	Rules operator.Func
	// Editing gets what tells of unsaved texts; nil means that no other module is told.
	Editing func(Unsaved)
	// Texts has the chats as a collection of each owner, which rag_query searches; nil means that they are not searched.
	Texts *index.Store
	// Claim counts an agent of a caller, and returns what releases it; nil means no limit besides that of each owner.
	Claim func(c tool.Caller) (release func(), err error)
}

// Unsaved returns the text of a file, by its absolute path, that an editor has not saved, and which editor that is.
// known is false if there is none; text is nil if the editor says only that there is one.
type Unsaved = func(ctx context.Context, c *tool.Call, path string) (text *string, from string, known bool)

// bridge is the module.
type bridge struct {
	cfg    Config
	deps   module.Deps
	log    *slog.Logger
	agents []agentKind
	store  *store
	editor *editors
	offer  module.Offer

	ctx    context.Context // of the agents, which outlive the calls that start them
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu     sync.Mutex
	live   map[string]*conversation // by session
	closed bool

	toIndex  map[string]session // whose chats have new messages
	indexing bool               // a goroutine takes them from toIndex
}

// agentKind is an agent of the settings.
type agentKind struct {
	name string
	argv []string
}

// ParseAgents returns what is wrong with the setting agents.
func ParseAgents(lines []string) error {
	_, err := parseAgents(lines)
	return err
}

func parseAgents(lines []string) (all []agentKind, err error) {
	for _, line := range lines {
		name, command, ok := strings.Cut(line, "=")
		argv := strings.Fields(command)
		if name = strings.TrimSpace(name); !ok || name == "" || len(argv) == 0 {
			return nil, fmt.Errorf("agents: %q does not have the form name=command line", line)
		}
		if isBackend(argv[0]) {
			if err := checkBackend(argv[0]); err != nil {
				return nil, fmt.Errorf("agents: %w", err)
			}
		}
		all = append(all, agentKind{name, argv})
	}
	return all, nil
}

// New returns what makes the module with a configuration.
func New(cfg Config) module.New {
	return func(ctx context.Context, d module.Deps) (module.Module, error) {
		m := &bridge{cfg: cfg, deps: d, log: d.Log, live: map[string]*conversation{}, toIndex: map[string]session{}}
		if m.log == nil {
			m.log = slog.New(slog.DiscardHandler)
		}
		var err error
		if m.agents, err = parseAgents(cfg.Agents); err != nil {
			return nil, err
		}
		m.store = &store{file: &sqlfile.File{Path: cfg.Path, Schema: schema, Version: 1, Secret: true}}
		m.ctx, m.cancel = context.WithCancel(context.WithoutCancel(ctx))
		m.editor = &editors{m: m, dir: cfg.Locks, links: map[string]*link{}, served: map[string]*served{}, desks: map[string]*desk{}}
		if cfg.Editing != nil {
			cfg.Editing(m.editor.Unsaved)
		}
		m.offer.Tools = slices.Concat(m.chatTools(), m.buildTools(), m.dashboardTools(), m.editor.tools())
		return m, nil
	}
}

// Offer implements module.Module.
func (m *bridge) Offer(context.Context, module.Audience) (*module.Offer, error) { return &m.offer, nil }

// Close implements module.Module.
func (m *bridge) Close(context.Context) error {
	m.mu.Lock()
	m.closed = true
	all := slices.Collect(maps.Values(m.live))
	m.mu.Unlock()
	for _, c := range all {
		c.stop()
	}
	m.cancel()
	m.editor.close()
	m.wg.Wait()
	return m.store.file.Close()
}

// EndOwned implements module.Owned: it stops the agents and keeps the chats.
func (m *bridge) EndOwned(_ context.Context, match func(owner string, made time.Time) bool) (ended []string) {
	m.mu.Lock()
	all := slices.Collect(maps.Values(m.live))
	m.mu.Unlock()
	for _, c := range all {
		if match(c.session.Owner, c.session.Created) {
			c.stop()
			ended = append(ended, "agent of session "+c.session.ID)
		}
	}
	return ended
}

func (m *bridge) newID(kind string) string {
	if m.deps.NewID != nil {
		return m.deps.NewID(kind)
	}
	return kind + "_" + time.Now().UTC().Format("20060102T150405.000000000")
}

// sendEvent sends a message to the clients of an owner that listen to a chat.
func (m *bridge) sendEvent(s *session, data any) {
	if m.cfg.Hub == nil {
		return
	}
	b, err := json.Marshal(data)
	if err == nil {
		_, err = m.cfg.Hub.Send(s.Owner, hub.Chat+":"+s.ID, hub.Message{Type: "event", Data: b})
	}
	if err != nil {
		m.log.Error("an update of an agent could not be sent", "session", s.ID, "error", err)
	}
}

// server returns the MCP servers that an agent is given.
func (m *bridge) server(dir string) []any {
	if s := m.cfg.ServerFor(dir); s != nil {
		return []any{s}
	}
	return []any{}
}

// ServerFor returns the MCP server that an agent in a folder is given, or nil.
func (s Settings) ServerFor(dir string) *acp.Server {
	argv := s.Server
	if len(argv) == 0 {
		exe, err := os.Executable()
		if err != nil {
			return nil
		}
		argv = []string{exe, "-d"}
	}
	if argv[0] == "-" {
		return nil
	}
	args := append(argv[1:len(argv):len(argv)], dir)
	return &acp.Server{Name: "gatehouse", Command: argv[0], Args: args, Env: []string{}}
}

// AgentCommand returns the command line of an agent of the settings; name "" means the first.
func (s Settings) AgentCommand(name string) ([]string, error) {
	all, err := parseAgents(s.Agents)
	if err != nil {
		return nil, err
	}
	k, err := agentOf(all, name)
	if err == nil && isBackend(k.argv[0]) {
		return nil, fmt.Errorf("the agent %s is behind a WebSocket; expected one with a command line", k.name)
	}
	return k.argv, err
}
