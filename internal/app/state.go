package app

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"gatehouse/internal/access/identity"
	"gatehouse/internal/cluster/statelog"
	"gatehouse/internal/config"
	"gatehouse/internal/dispatch/modulehost"
	"gatehouse/internal/dispatch/views"
	"gatehouse/internal/modules/build"
	"gatehouse/internal/modules/db"
	"gatehouse/internal/modules/ide"
	"gatehouse/internal/modules/notification"
	"gatehouse/internal/modules/process"
	"gatehouse/internal/modules/publicstate"
	"gatehouse/internal/modules/server"
	"gatehouse/internal/modules/smtp"
	"gatehouse/internal/packages"
	"gatehouse/internal/sandbox/manager"
	"gatehouse/internal/state"
	"gatehouse/module"
	"gatehouse/tool"
)

// publicModule is the host's own module that serves the state tree.
const publicModule = "public"

// liveTree is the state tree of this host and everything that writes to it.
type liveTree struct {
	app     *App
	state   *state.Tree
	watches publicstate.Watches
	sight   publicstate.Options // determines what callers see of it

	self      *state.Mount[hostRecord]
	info      *state.Mount[serverInfo]
	contexts  *state.Mount[map[string]contextState]
	sessions  *state.Mount[map[string]sessionState]
	connected connectionCounter
	looked    *state.Demand[sessionState] // of the sessions

	processes     *state.Demand[processState]
	builds        *state.Demand[buildState]
	unsaved       atomic.Pointer[ide.Unsaved]              // nil without the module ide
	listBuilds    atomic.Pointer[func() []build.Build]     // nil without the module build
	listProcesses atomic.Pointer[func() []process.Running] // nil without the module process
	sandboxes     *state.Demand[sandboxState]
	listSandboxes atomic.Pointer[func() []*manager.Box] // nil without the module sandbox

	jobs    *state.Demand[jobState]
	ownJobs shownJobs
	notices *notification.Store // at /private/notifications
	mail    *state.Mount[smtp.Kept]

	modules *state.Mount[map[string]moduleState]
	failed  atomic.Pointer[[]modulehost.Offered] // the last known offers of modules that fail

	waiting *state.Mount[map[string]waitingState] // at /public/approvals, for administrators
	ledger  *state.Mount[map[string]int64]        // at /public/ledger, likewise

	packages       *state.Mount[map[string]packages.Public]
	packageRecords *state.Mount[map[string]packages.Record] // at /private/packages
}

// hostRecord is the stored record of a host, at /private/host.
type hostRecord struct {
	ID       string `json:"id"`
	Name     string `json:"name,omitempty"`     // set by a user
	Language string `json:"language,omitempty"` // of the users, as POSIX names it
	// EchoIP are services outside that tell how this host is seen.
	EchoIP []string `json:"echoIp,omitempty"`
}

// serverInfo is the value at /public/serverInfo.
type serverInfo struct {
	ID         string       `json:"id"` // the same for all hosts of one data folder
	Name       string       `json:"name"`
	Title      string       `json:"title,omitempty"`
	Version    string       `json:"version"`
	Platform   string       `json:"platform"` // as Go names it: linux/amd64
	Started    time.Time    `json:"started"`
	Transports []string     `json:"transports"` // kinds of listeners, without their addresses
	Status     serverStatus `json:"status"`

	Unread   int            `json:"unreadNotificationCount"`
	Language string         `json:"language,omitempty"` // the language in which users want answers
	Metrics  *server.Sample `json:"metrics,omitempty"`  // of the machine, if the host has the server module
}

type serverStatus struct {
	State string `json:"state"` // starting, running, stopping or restarting
}

// contextState is a member of /public/contexts.
type contextState struct {
	Description string `json:"description,omitempty"`
	Default     bool   `json:"default,omitempty"`
}

// sessionState is a member of /public/sessions. Its name there is derived from the session's id, which cannot be
// computed from it.
type sessionState struct {
	Principal   string    `json:"principal"`
	Context     string    `json:"context"`
	Client      string    `json:"client,omitempty"`
	Revision    string    `json:"revision"` // of the protocol
	Since       time.Time `json:"since"`
	Connections int       `json:"connections,omitempty"` // number of equal connections, if each connection is a session
	Node        string    `json:"node,omitempty"`        // of the cluster
}

// processState is a member of /public/processes: a running process.
type processState struct {
	Owner   string    `json:"owner"`
	Command string    `json:"command"` // the program, without its arguments
	PID     int       `json:"pid"`
	Started time.Time `json:"started"`
	Node    string    `json:"node,omitempty"` // of the cluster
}

// stateFile returns the path of the file in which the hosts of one user store the durable part of the state tree;
// "" keeps it in memory.
func (a *App) stateFile() string {
	if a.opts.Private || a.cfg.Folders.Data == "" {
		return ""
	}
	return stateFileOf(a.cfg.Folders)
}

func stateFileOf(f config.Folders) string { return filepath.Join(f.Data, "state.db") }

// openState opens the tree and attaches its mounts.
func (a *App) openState(ctx context.Context) error {
	o := state.Options{Logger: a.log}
	closeLog := func() error { return nil }
	var ownState state.Log // in a cluster
	if path := a.stateFile(); path != "" {
		log, err := state.OpenFile(path, state.FileOptions{})
		if err != nil {
			a.log.Warn("the state of this host is lost when it ends: cannot write it to disk", "file", path, "err", err)
		} else {
			o.Log, closeLog = log, log.Close
		}
	}
	if a.nodes != nil {
		o.Shared = a.nodes.Name()
		shared, err := statelog.Open(ctx, a.nodes.Node, stateBucket,
			filepath.Join(ClusterFolder(a.cfg.Folders.Data), "mounts.json"), a.log)
		if err != nil {
			return fmt.Errorf("state of the cluster: %w", err)
		}
		own, closeOwn := o.Log, closeLog
		if own == nil {
			own = new(state.MemoryLog)
		}
		o.Log = &statelog.Split{Shared: shared, Own: own, Names: sharedMounts}
		ownState = own
		closeLog = func() error { return errors.Join(shared.Close(), closeOwn()) }
	}
	t := &liveTree{app: a, state: state.New(o)}
	t.ownJobs.changed = make(chan struct{}, 1)
	t.watches.Elsewhere = a.nodes != nil
	a.tree = t
	a.addPart("state", func(ctx context.Context) error {
		return errors.Join(t.state.Run(ctx), t.state.Close(), closeLog())
	})
	if err := t.mount(ctx); err != nil {
		return fmt.Errorf("state: %w", err)
	}
	if ownState != nil {
		return a.nodes.sharePackages(ctx, ownState)
	}
	return nil
}

// sharedMounts are the durable mounts that all nodes of a cluster have in common. The others say what one host is, or
// what is in its folders.
var sharedMounts = []string{"/private/smtp", "/private/notifications", db.UI, packageRecordsAt}

func (l *liveTree) mount(ctx context.Context) (err error) {
	if l.self, err = state.Attach[hostRecord](ctx, l.state, "/private/host", state.Durable); err != nil {
		return err
	}
	if l.info, err = state.Attach[serverInfo](ctx, l.state, "/public/serverInfo", state.Live); err != nil {
		return err
	}
	if l.contexts, err = attachMany[contextState](ctx, l, "contexts"); err != nil {
		return err
	}
	shown, err := attachMany[jobState](ctx, l, "jobs")
	if err != nil {
		return err
	}
	l.jobs = state.OnDemand(shown, membersIdle, onAllNodes(l.app, jobMembers, l.jobsNow))
	if l.sessions, err = attachMany[sessionState](ctx, l, "sessions"); err != nil {
		return err
	}
	l.looked = state.OnDemand(l.sessions, membersIdle, onAllNodes(l.app, sessionMembers, l.sessionsNow))
	sandboxes, err := attachMany[sandboxState](ctx, l, "sandboxes")
	if err != nil {
		return err
	}
	l.sandboxes = state.OnDemand(sandboxes, membersIdle, onAllNodes(l.app, sandboxMembers, l.sandboxesNow))
	processes, err := attachMany[processState](ctx, l, "processes")
	if err != nil {
		return err
	}
	l.processes = state.OnDemand(processes, membersIdle, onAllNodes(l.app, processMembers, l.processesNow))
	running, err := attachMany[buildState](ctx, l, "builds")
	if err != nil {
		return err
	}
	l.builds = state.OnDemand(running, membersIdle, onAllNodes(l.app, buildMembers, l.buildsNow))
	if l.modules, err = attachMany[moduleState](ctx, l, "modules"); err != nil {
		return err
	}
	if l.waiting, err = attachMany[waitingState](ctx, l, "approvals"); err != nil {
		return err
	}
	if l.ledger, err = attachMany[int64](ctx, l, "ledger"); err != nil {
		return err
	}
	if l.packages, err = attachMany[packages.Public](ctx, l, "packageData"); err != nil {
		return err
	}
	if l.packageRecords, err = state.Attach[map[string]packages.Record](ctx, l.state, packageRecordsAt,
		state.Durable); err != nil {
		return err
	}
	if err := l.attachUI(ctx); err != nil {
		return err
	}
	if l.mail, err = state.Attach[smtp.Kept](ctx, l.state, "/private/smtp", state.Durable); err != nil {
		return err
	}
	notes, err := state.Attach[notification.Stored](ctx, l.state, "/private/notifications", state.Durable)
	if err != nil {
		return err
	}
	l.notices = notification.NewStore(notes, func(int) {
		if err := l.recall(context.Background()); err != nil {
			l.app.log.Warn("the number of unread notifications is not shown", "err", err)
		}
	})
	return nil
}

// attachMany attaches a live public mount of a map, which is empty at first.
func attachMany[E any](ctx context.Context, t *liveTree, name string) (*state.Mount[map[string]E], error) {
	m, err := state.Attach[map[string]E](ctx, t.state, "/public/"+name, state.Live)
	if err != nil {
		return nil, err
	}
	_, err = m.Set(ctx, map[string]E{})
	return m, err
}

// attachUI attaches the mount that user interfaces write to, and no other part of the host does.
func (l *liveTree) attachUI(ctx context.Context) error {
	ui, err := state.Attach[map[string]any](ctx, l.state, db.UI, state.Durable)
	if err != nil {
		return err
	}
	if _, revision, err := ui.Get(); err != nil || revision > 0 {
		return err
	}
	if _, err := ui.Update(ctx, 0, func(v *map[string]any) error {
		*v = map[string]any{}
		return nil
	}); err != nil {
		l.app.log.Debug("the data of user interfaces exists already, or cannot be stored", "err", err)
	}
	return nil
}

// module returns the constructor of the module that serves the tree.
func (l *liveTree) module() module.New {
	l.sight = publicstate.Options{
		Tree: l.state, Watches: &l.watches, SeesAll: seesEverything, Prompt: l.prompt,
		Listed: []publicstate.Listed{
			{
				Name:        "serverInfo",
				Title:       "About this host",
				Description: "What this host is, its version and platform, and how the machine is doing, as JSON.",
			},
			{
				Name:        "packageData",
				Title:       "Packages",
				Description: "The packages of which you may call tools and the state of each, as JSON.",
			},
		},
		PromptOf: []state.Pointer{
			{"public", "serverInfo", "name"},
			{"public", "serverInfo", "language"},
			{"public", "contexts"},
		},
		Restricted: []publicstate.RestrictedMount{
			{At: state.Pointer{"public", "contexts"}, Sees: l.seesContext},
			{At: state.Pointer{"public", "sessions"}, Sees: seesSession},
			{At: state.Pointer{"public", "processes"}, Sees: seesProcess},
			{At: state.Pointer{"public", "builds"}, Sees: seesProcess},
			{At: state.Pointer{"public", "sandboxes"}, Sees: seesSandbox},
			{At: state.Pointer{"public", "jobs"}, Sees: seesJob},
			{At: state.Pointer{"public", "packageData"}, Sees: l.seesPackage},
			{At: state.Pointer{"public", "approvals"}, Sees: seesNothing},
			{At: state.Pointer{"public", "ledger"}, Sees: seesNothing},
			{At: state.Pointer{"public", "modules"}, Part: l.partOfModule},
		},
	}
	return publicstate.New(l.sight)
}

// prompt returns the system prompt for a caller.
func (l *liveTree) prompt(ctx context.Context, who tool.Caller) string {
	info, _, err := l.info.Get()
	if err != nil || info.Name == "" {
		i := introduce(l.app.opts.Info)
		info.Name, info.Title, info.Version, info.Platform = i.Name, i.Title, i.Version, runtime.GOOS+"/"+runtime.GOARCH
	}
	return l.app.views.SystemPrompt(ctx, who, views.Host{
		Name: info.Name, Title: info.Title, Version: info.Version,
		Platform: info.Platform, Started: info.Started, Language: info.Language,
	})
}

// seesEverything reports whether a caller may see everything below /public: an administrator whose credential has
// no restricted scopes. Both are part of the key by which views are shared, so such callers share no view with
// others.
func seesEverything(who tool.Caller) bool {
	return slices.Contains(who.Roles, identity.Admin) && len(who.Scopes) == 0
}

func (l *liveTree) seesContext(who tool.Caller) func(string, any) bool {
	open := l.app.views.Open(who)
	return func(name string, _ any) bool {
		return slices.ContainsFunc(open, func(s views.Spec) bool { return s.Name == name })
	}
}

// seesSession lets every principal see its own sessions. A caller without credentials sees only the session that
// asks.
func seesSession(who tool.Caller) func(string, any) bool {
	mine := ""
	if who.Session != "" {
		mine = sessionKey(who.Session)
	}
	return func(key string, s any) bool {
		m, _ := s.(map[string]any)
		return key == mine || who.Principal != identity.AnonymousName && m["principal"] == who.Principal
	}
}

func seesProcess(who tool.Caller) func(string, any) bool {
	return func(_ string, p any) bool {
		m, _ := p.(map[string]any)
		return m["owner"] == who.Owner
	}
}

// showState fills the tree and keeps it current.
func (a *App) showState(ctx context.Context) error { return a.tree.beginTree(ctx) }

// beginTree fills the tree with what is known when all listeners are open, and follows events from then on.
func (l *liveTree) beginTree(ctx context.Context) error {
	if _, err := l.self.Update(ctx, state.Any, nameHost); err != nil {
		l.app.log.Warn("this host will have another id after a restart: cannot store its id", "err", err)
	}
	self, _, err := l.self.Get()
	if err != nil {
		return fmt.Errorf("state: %w", err)
	}
	about := introduce(l.app.opts.Info)
	info := serverInfo{
		ID: self.ID, Name: about.Name, Title: about.Title, Version: about.Version,
		Platform: runtime.GOOS + "/" + runtime.GOARCH, Started: time.Now().UTC(), Transports: []string{},
		Status: serverStatus{"starting"},
	}
	for _, d := range l.app.listeners {
		info.Transports = append(info.Transports, strings.ToLower(d.Kind))
	}
	if _, err := l.info.Set(ctx, info); err != nil {
		return err
	}
	l.lookAtContexts()
	if err := l.recall(ctx); err != nil {
		return err
	}
	l.app.addPart("record of the host", l.recalling)
	l.follow()
	l.syncs()
	return nil
}

// nameHost gives a host its permanent id.
func nameHost(s *hostRecord) error {
	if s.ID == "" {
		s.ID = "host_" + strings.ToLower(rand.Text())
	}
	return nil
}

// follow follows the host's events in a part of its own.
func (l *liveTree) follow() {
	ctx, stop := context.WithCancel(context.Background())
	f := newFollower(ctx, l)
	l.app.addPart("public state", func(end context.Context) error {
		l.status("running")
		defer context.AfterFunc(end, func() {
			l.status("stopping")
			stop()
		})()
		f.followEvents(ctx)
		return nil
	})
}

// farewellTime is how long clients have to receive the last notifications before the listeners close.
const farewellTime = time.Second

// farewell notifies clients that the host stops, and answers subscriptions, while the listeners are still open. It
// stops before all other parts.
func (a *App) farewell(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, farewellTime)
	defer cancel()
	a.tree.status("stopping")
	a.tree.watches.Flush(ctx)
	a.engine.NotifyShutdown(ctx)
	return nil
}

func (l *liveTree) status(now string) {
	if _, err := l.info.Update(context.Background(), state.Any, func(i *serverInfo) error {
		if i.Status.State != "restarting" || now != "stopping" {
			i.Status.State = now
		}
		return nil
	}); err != nil {
		l.app.log.Warn("the status of this host is not shown", "err", err)
	}
}

func (l *liveTree) lookAtContexts() {
	all := map[string]contextState{}
	rules := l.app.views.Rules()
	for _, s := range rules.Specs {
		all[s.Name] = contextState{s.Description, s.Name == rules.Default}
	}
	if _, err := l.contexts.Set(context.Background(), all); err != nil {
		l.app.log.Warn("contexts are not shown", "err", err)
	}
}

// sessionKey returns a name for a session that does not reveal its id.
func sessionKey(id string) string {
	sum := sha256.Sum256([]byte("session " + id))
	return hex.EncodeToString(sum[:8])
}
