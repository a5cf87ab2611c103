package app

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"gatehouse/internal/access/alert"
	"gatehouse/internal/access/approvals"
	"gatehouse/internal/access/audit"
	"gatehouse/internal/access/identity"
	"gatehouse/internal/access/limit"
	"gatehouse/internal/access/permit"
	"gatehouse/internal/app/core"
	"gatehouse/internal/config"
	"gatehouse/internal/dispatch"
	"gatehouse/internal/dispatch/bus"
	"gatehouse/internal/dispatch/contextmanager"
	"gatehouse/internal/dispatch/contextstore"
	"gatehouse/internal/dispatch/jobs"
	"gatehouse/internal/dispatch/modulehost"
	"gatehouse/internal/dispatch/spool"
	"gatehouse/internal/dispatch/views"
	"gatehouse/internal/files/clientroots"
	"gatehouse/internal/files/embed"
	"gatehouse/internal/files/roots"
	"gatehouse/internal/files/stage"
	"gatehouse/internal/maintenance/backup"
	"gatehouse/internal/mcp/protocol"
	"gatehouse/internal/mcp/seal"
	"gatehouse/internal/mcp/session"
	"gatehouse/internal/modules/administration"
	"gatehouse/internal/modules/contextadmin"
	"gatehouse/internal/modules/resources"
	"gatehouse/internal/modules/server"
	"gatehouse/internal/modules/smtp"
	"gatehouse/internal/modules/sshkeys"
	"gatehouse/internal/modules/standard"
	"gatehouse/internal/sandbox/manager"
	"gatehouse/internal/server/websocket"
	"gatehouse/internal/telemetry/metrics"
	"gatehouse/module"
)

// Version is the version of this program. Only the linker sets another one, for tests of upgrades.
var Version = "0.1.0"

// Options are the parts of a host that are not settings. The zero value is a host without standard input and
// output.
type Options struct {
	Log   *slog.Logger  // nil discards the log
	Info  protocol.Info // sent to clients at initialize; an empty name means Gatehouse
	Extra []Module      // modules that are not in the standard list
	// Configs maps names of modules in Extra to their configurations; see module.DecodeConfig.
	Configs map[string]json.RawMessage
	Bare    bool     // leave out the standard modules that are not named
	Hosts   []string // names of this machine that requests over HTTP may use, besides those of loopback
	// Embedded serves callers without a token, except over TCP. The program that embeds this host decides who
	// reaches the other listeners.
	Embedded bool
	// Private stores nothing on disk that outlives the host.
	Private bool
	// AnyFolder opens any folder that a client of a daemon's own socket names. Otherwise such a client gets those
	// of its folders that are inside the folders of the settings.
	AnyFolder bool
	// OneCall means that the host ends with the first call.
	OneCall bool
	// Alone is the one server that this host serves; nil serves the modules of the settings.
	Alone *Alone
	// Again describes how this host is restarted after it has ended with Again reporting true; "" means that it
	// cannot be restarted.
	Again string

	In   io.Reader // of the stdio listener
	Out  io.Writer
	Conn net.Conn // a further client, newline-framed; the host ends with it if no other listener is open

	// Editor shows and changes the settings, and Doctor checks the machine, for administrators; nil means that the
	// host can do neither.
	Editor administration.Settings
	Doctor func(context.Context) ([]administration.Finding, error)

	// Settings is the path of the file that the settings came from; "" if there is none.
	Settings string

	// Socket is the path of a further Unix socket; "" opens none.
	Socket string
	// Listeners are listeners that another program has opened, by kind. The host serves the listener of the
	// settings there, and closes them.
	Listeners map[string]net.Listener
}

// Module is a module with its name.
type Module struct {
	Name string
	New  module.New
}

// SettingError is the error of an invalid setting, as opposed to a failure.
type SettingError struct{ Err error }

func (e *SettingError) Error() string { return e.Err.Error() }
func (e *SettingError) Unwrap() error { return e.Err }

// Part is a part of a running host.
type Part = core.Part

// App is a host with all its parts. New creates one. One struct, because each field is a subsystem that New
// builds once and that the parts close in reverse order.
type App struct {
	cfg       config.Config
	opts      Options
	log       *slog.Logger
	parts     []Part // in the order in which they start
	listeners []Listener
	enabled   []enabledModule

	roots     *roots.Set
	spool     *spool.Spool
	jobs      *jobs.Manager
	approvals *approvals.Store
	alerts    *alert.Sender // nil on a private host
	// alertPaths are paths of pages to which links are to be sent; nil on a private host.
	alertPaths chan string
	ledger     *audit.Ledger  // nil on a private host
	usage      *metrics.Usage // nil on a private host
	who        *identity.Service
	ring       *seal.Ring
	bus        bus.Bus
	core       *core.Core // serves calls; the next fields are parts of it
	host       *modulehost.Host
	views      *views.Registry
	embedder   func() (embed.Embedder, error) // returns the model of texts, or nil if there is none
	limits     *limit.Limits
	calls      *dispatch.Dispatcher
	table      *session.Table
	engine     *protocol.Engine

	pacing      atomic.Bool   // a rate was set, so it applies to all callers
	connections atomic.Uint64 // number of connections that newline-framed listeners have accepted

	contexts     *contextmanager.Manager
	contextStore *contextstore.Store
	settings     settingsInForce
	observed     telemetrySources

	restored *backup.Restored // the backup that was restored when this host started; nil for none
	readOnly bool             // the data folder could not be written when this host started

	stage *stage.Manager // nil on a host that stores nothing
	// cannotStage tells why no call can be staged, with programs no call that starts some; "" if they can.
	cannotStage func(programs bool) string

	boxes    atomic.Pointer[manager.Manager] // of sandboxes; nil before there is one
	narrower *clientroots.Narrower
	tree     *liveTree
	nodes    *clusterNodes     // nil without a cluster
	sockets  *websocket.Server // nil without the module ws
	streams  *websocket.Streams
	journal  *server.Journal // nil without the module that serves it
	noticing bool            // notifications are created from events
	mailer   *smtp.Mailer    // mails notifications; nil without its module

	measurements atomic.Pointer[metrics.Store] // nil without the module metrics
	leaving      shutdownRequest
	alone        aloneServer
	packageEvents
}

// New builds a host: when it returns, every folder, file and listener is open, and nothing runs. After an error
// nothing is left open. A mistake in the settings is a *SettingError.
func New(ctx context.Context, cfg config.Config, o Options) (a *App, err error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	a = &App{cfg: cfg, opts: o, log: o.Log, settings: settingsInForce{now: cfg}}
	a.embedder = sync.OnceValues(a.openEmbedder)
	defer func() {
		if err != nil {
			a.abandon()
			a = nil
		}
	}()
	if o.Alone != nil {
		a.enabled = []enabledModule{{Module: Module{Name: packageModule}}}
	} else if a.enabled, err = chooseModules(cfg, o, standard.Modules(a.moduleDeps())); err != nil {
		return a, &SettingError{err}
	}
	a.keepJournal()
	if err := checkView(cfg.View); err != nil {
		return a, &SettingError{err}
	}
	for _, step := range []func(context.Context) error{a.lockFolders, a.closeFiles, a.openRoots, a.openStage, a.checkShell,
		a.openCluster, a.openStores,
		a.openLedger, a.openIdentity, a.openContexts, a.awaitCluster, a.serveLedger, a.openState, a.openAlone, a.openUsage, a.buildHost, a.addModules,
		a.startAlone, a.shareLoad, a.followRemovals, a.openListeners, a.showState, a.notifyRestored} {
		if err := step(ctx); err != nil {
			return a, err
		}
	}
	return a, nil
}

// abandon closes what has been built so far.
func (a *App) abandon() {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for _, d := range a.listeners {
		d.close()
	}
	core.Run(ctx, a.log, a.cfg.Limits.StopPatience, a.parts...)
}

// Run serves until ctx is done, the last listener has closed, or a part fails. It returns when everything has
// stopped.
func (a *App) Run(ctx context.Context) error {
	parts := slices.Clone(a.parts)
	if len(a.listeners) > 0 {
		parts = append(parts, a.listenersPart())
	}
	parts = append(parts, core.Closing("farewell", a.cfg.Limits.StopPatience, a.farewell))
	return core.Run(ctx, a.log, a.cfg.Limits.StopPatience, parts...)
}

func (a *App) addPart(name string, run func(context.Context) error) {
	a.parts = append(a.parts, Part{Name: name, Run: run})
}

func (a *App) closing(name string, close func(context.Context) error) {
	a.parts = append(a.parts, core.Closing(name, a.cfg.Limits.StopPatience, close))
}

func (a *App) openRoots(context.Context) (err error) {
	if a.cfg.Roots.Unrestricted {
		a.roots, err = roots.Unrestricted(a.rootOptions())
	} else {
		folders := a.cfg.Roots.Folders
		if len(folders) == 0 {
			folders = []string{"."}
		}
		var dirs []roots.Dir
		for _, f := range folders {
			dirs = append(dirs, roots.Dir{Path: f})
		}
		a.roots, err = roots.Open(dirs, a.rootOptions())
	}
	if err != nil {
		return &SettingError{err}
	}
	a.narrower = a.clientRoots()
	a.closing("roots", func(context.Context) error { return a.roots.Close() })
	return nil
}

// buildHost creates the parts that serve a call.
func (a *App) buildHost(context.Context) error {
	a.bus = a.watched(bus.New())
	guards, err := a.guardrails()
	if err != nil {
		return err
	}
	counted := limits(a.cfg)
	counted.Administrator = a.rules
	a.limits = limit.New(counted)
	a.pacing.Store(a.cfg.Limits.Rate != nil)
	if err := a.shareLimits(); err != nil {
		return err
	}
	o := core.Options{
		Bus:   a.bus,
		Jobs:  a.jobs,
		Spool: a.spool,
		Modules: modulehost.Options{
			Roots:   a.roots,
			RootsOf: a.contexts.RootsOf,
			Narrow:  a.narrower.Narrow,
			Configs: a.opts.Configs,
			Log:     a.log,
			OneCall: a.opts.OneCall,
		},
		Views: views.Options{
			Rules:  views.Rules{Policy: permit.Open(a.cfg.View.ReadOnly)}, // until the contexts are applied
			Always: a.always(),
			Look:   a.contexts.Refresh,
			Log:    a.log,
			Model:  a.toolModel(),
		},
		Calls: dispatch.Options{
			Log:           a.log,
			Timeout:       a.cfg.Limits.Deadline,
			Budget:        a.cfg.Limits.Result,
			WordCounts:    a.cfg.Approvals.CallersWord,
			NoOperators:   a.opts.Private,
			Approvals:     a.approvals,
			Secrets:       a.fillSecrets(),
			Queue:         a.limits.Queue,
			Administrator: a.rules,
			Ledger:        a.callLedger(),
			Measure:       a.measure(),
			Guards:        guards,
		},
		Engine: protocol.Options{
			Seal:  a.ring,
			Bytes: a.limits.Bytes,
			Working: limit.NewShares(limit.Resource{
				Name: "running jobs", Total: maxRunningJobs, Administrator: a.rules,
			}),
			Log:          a.log,
			Info:         introduce(a.opts.Info),
			Instructions: a.instructions,
			StepUp:       a.who.StepUp,
			Present:      a.who.Present,
		},
	}
	if a.stage != nil {
		o.Calls.Stage, o.Modules.Stage = stager{a.stage}, a.enterTask
	}
	if s := a.cfg.Sessions; !s.Off {
		o.Sessions = &session.Options{IdleTTL: s.Idle, Sweep: s.Sweep, Max: s.Max, Administrator: a.rules}
		if a.nodes != nil {
			o.Sessions.Node, o.Sessions.Ended = a.nodes.ID(), a.nodes.sessionEnded
		}
	}
	a.joinBus(&o)
	a.core = core.New(o)
	a.host, a.views, a.calls = a.core.Modules, a.core.Views, a.core.Calls
	a.table, a.engine = a.core.Sessions, a.core.Engine
	a.watchHost() // metrics and the ledger stop after everything that publishes events
	a.watchLedger()
	a.parts = append(a.parts, a.core.Parts(a.cfg.Limits.StopPatience)...)
	return a.serveCalls()
}

// These are the host's own modules, which are part of every view.
const (
	resourcesModule = core.ResourcesModule
	jobModule       = core.JobModule
)

// greetingModule is the host's own module that only the default context contains.
const greetingModule = "greeting"

// always returns the modules that are part of every view.
func (a *App) always() []string {
	if a.opts.Alone != nil {
		return nil
	}
	return []string{resourcesModule, jobModule, publicModule, views.SearchModule}
}

func (a *App) addModules(ctx context.Context) error {
	if a.opts.Alone != nil {
		for _, g := range a.aloneModules() {
			if err := a.host.Add(ctx, g.Name, g.New); err != nil {
				return err
			}
		}
		return a.startContexts()
	}
	if err := a.core.AddResources(ctx); err != nil {
		return err
	}
	if err := a.core.AddJobs(ctx, a.rules); err != nil {
		return err
	}
	if err := a.core.AddToolFinder(ctx); err != nil {
		return err
	}
	if err := a.host.Add(ctx, publicModule, a.tree.module()); err != nil {
		return err
	}
	if err := a.host.Add(ctx, greetingModule, resources.Greeting); err != nil {
		return err
	}
	for _, g := range a.enabled {
		if err := a.host.Add(ctx, g.Name, g.New); err != nil {
			return err
		}
	}
	if err := a.host.AddFor(ctx, contextstore.Admin, contextModule, contextadmin.New(contextadmin.Options{
		Store: a.contextStore, Judge: a.judge, Fixed: a.contexts.Definitions,
	})); err != nil {
		return err
	}
	if err := a.host.AddFor(ctx, contextstore.Admin, sshModule, sshkeys.New(sshkeys.Config{})); err != nil {
		return err
	}
	if err := a.addAdministration(ctx); err != nil {
		return err
	}
	return a.startContexts()
}

// Modules returns the names of the modules that are served to callers who name no context.
func (a *App) Modules() []string {
	if a.opts.Alone != nil {
		return []string{a.opts.Alone.Package.Title}
	}
	first := standsIn(a.cfg.View)
	if (preset(first) != nil || slices.Contains(viewNames(), first)) && len(a.cfg.Contexts) == 0 {
		return []string{first}
	}
	return defaultModules(a.enabled)
}

// moduleNames returns the names of all modules that a context can contain.
func (a *App) moduleNames() (names []string) {
	for _, g := range a.enabled {
		names = append(names, g.Name)
	}
	return names
}

// examples are calls that succeed in every folder, of the modules file and dir and of presets. list_directory of the
// preset sandbox needs a sandbox, so that list_sandboxes goes first.
var examples = []string{"dir_list path=.", "list_sandboxes", "list_directory path=.", "lang_list"}

// Example returns a call that the owner of this host can make, as arguments of gatehouse call, or "" if none of
// examples is offered.
func (a *App) Example() string {
	who := a.owner().Caller
	who.Context = a.views.Default()
	names := a.views.ToolNames(context.Background(), who)
	for _, e := range examples {
		name, _, _ := strings.Cut(e, " ")
		if slices.Contains(names, name) {
			return e
		}
	}
	return ""
}

// Folders returns the paths of the folders the tools may access.
func (a *App) Folders() (paths []string) {
	for _, r := range a.roots.List() {
		paths = append(paths, r.Path)
	}
	return paths
}
