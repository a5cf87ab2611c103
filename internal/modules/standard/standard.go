// Package standard lists the modules that are in the binary.
//
// A new module is one folder beside this one, one line in Modules and, if it
// depends on the host, one field of Deps. No module registers itself.
package standard

import (
	"context"

	"gatehouse/internal/modules/auth"
	"gatehouse/internal/modules/backup"
	"gatehouse/internal/modules/brain"
	"gatehouse/internal/modules/build"
	"gatehouse/internal/modules/code"
	"gatehouse/internal/modules/db"
	"gatehouse/internal/modules/dir"
	"gatehouse/internal/modules/disk"
	"gatehouse/internal/modules/file"
	"gatehouse/internal/modules/filesystem"
	"gatehouse/internal/modules/ide"
	"gatehouse/internal/modules/lang"
	"gatehouse/internal/modules/lsp"
	"gatehouse/internal/modules/metrics"
	"gatehouse/internal/modules/ml"
	"gatehouse/internal/modules/network"
	"gatehouse/internal/modules/notification"
	"gatehouse/internal/modules/packages"
	"gatehouse/internal/modules/process"
	"gatehouse/internal/modules/pubkey"
	"gatehouse/internal/modules/rag"
	"gatehouse/internal/modules/sandbox"
	"gatehouse/internal/modules/server"
	"gatehouse/internal/modules/shell"
	"gatehouse/internal/modules/smtp"
	"gatehouse/internal/modules/system"
	"gatehouse/internal/modules/update"
	"gatehouse/internal/modules/webview"
	"gatehouse/internal/modules/ws"
	"gatehouse/module"
)

// Module is a module that is in the binary.
type Module struct {
	Name    string // in the configuration, on the command line, and before _ in the names of its tools
	New     module.New
	Default bool // in the view that is served if no module is named; never set for a module that can run programs
	Preset  bool // it replaces another MCP server: it has a view of its own, and is in no other view unless it is named
	// Runs means that it can run programs: a host has it only if it, or its
	// view, is named.
	Runs bool
	// Without are tools that a preset's own view leaves out, because the server
	// that it replaces does not have them.
	Without []string
}

// Deps returns what each module depends on. A function is called once, when its
// module is built, because some of them open files or start goroutines. A module
// whose function is nil is built without a host: it offers the same tools, and
// refuses the calls that need one.
type Deps struct {
	File         func() (file.Config, error)
	Metrics      func() (metrics.Config, error)
	Process      func() (process.Config, error)
	WebSocket    func() (ws.Config, error)
	Server       func() (server.Config, error)
	Update       func() (update.Config, error)
	Backup       func() (backup.Config, error)
	Network      func() (network.Config, error)
	Notification func() (notification.Config, error)
	DB           func() (db.Config, error)
	Auth         func() (auth.Config, error)
	PublicKey    func() (pubkey.Config, error)
	SMTP         func() (smtp.Config, error)
	Packages     func() (packages.Config, error)
	Sandbox      func() (sandbox.Config, error)
	Code         func() (code.Config, error)
	Shell        func() (shell.Config, error)
	RAG          func() (rag.Config, error)
	Brain        func() (brain.Config, error)
	LSP          func() (lsp.Config, error)
	System       func() (system.Config, error)
	ML           func() (ml.Config, error)
	Build        func() (build.Config, error)
	WebView      func() (webview.Config, error)
	IDE          func() (ide.Config, error)
}

// with returns the constructor of a module, which calls deps when it runs.
func with[C any](deps func() (C, error), build func(C) module.New) module.New {
	return func(ctx context.Context, d module.Deps) (module.Module, error) {
		var c C
		if deps != nil {
			var err error
			if c, err = deps(); err != nil {
				return nil, err
			}
		}
		return build(c)(ctx, d)
	}
}

// A View is a context that replaces another server with tools of several modules.
// A host has it if it was named as a module or as the context of callers. Its
// modules are then in no other context, unless they were named too.
type View struct {
	Name    string
	Modules []string
	Tools   []string // all tools that it lists
}

// Views returns the contexts that replace other servers. Their tools have the names
// of the modules; their results are structured and complete. The caller owns the
// slice.
func Views() []View {
	return []View{{
		Name:    "core",
		Modules: []string{"file", "dir", "lang", "metrics", "rag", "ml", "process", "ws"},
		Tools: []string{
			"file_read", "file_write", "file_edit", "file_delete", "file_rename", "file_exists", "dir_list",
			"dir_create",
			"lang_detect", "lang_list", "metrics_record", "metrics_query",
			"rag_query", "rag_ingest", "rag_collections",
			"ml_generate", "ml_score", "ml_probe", "ml_status", "ml_backends",
			"process_start", "process_stop", "process_kill",
			"process_list", "process_output", "process_input", "ws_start", "ws_info",
		},
	}}
}

// Modules returns the modules, in the order in which they start and are listed.
// The slice belongs to the caller.
func Modules(d Deps) []Module {
	return []Module{
		{Name: "file", New: with(d.File, file.New), Default: true},
		{Name: "dir", New: dir.New, Default: true},
		{Name: "lang", New: lang.New, Default: true},
		{Name: "metrics", New: with(d.Metrics, metrics.New)},
		{Name: "rag", New: with(d.RAG, rag.New)},
		{Name: "brain", New: with(d.Brain, brain.New)},
		{Name: "build", New: with(d.Build, build.New), Runs: true},
		{Name: "ide", New: with(d.IDE, ide.New), Runs: true},
		{Name: "lsp", New: with(d.LSP, lsp.New), Runs: true},
		{Name: "ml", New: with(d.ML, ml.New)},
		{Name: "webview", New: with(d.WebView, webview.New)},
		{Name: "process", New: with(d.Process, process.New), Runs: true},
		{Name: "ws", New: with(d.WebSocket, ws.New)},
		{Name: "server", New: merge(with(d.Server, server.New), with(d.Update, update.New))},
		{Name: "backup", New: with(d.Backup, backup.New)},
		{Name: "net", New: with(d.Network, network.New)},
		{Name: "notification", New: with(d.Notification, notification.New)},
		{Name: "db", New: with(d.DB, db.New)},
		{Name: "auth", New: merge(with(d.Auth, auth.New), with(d.PublicKey, pubkey.New))},
		{Name: "disk", New: disk.New},
		{Name: "smtp", New: with(d.SMTP, smtp.New)},
		{Name: "system", New: with(d.System, system.New), Runs: true},
		{Name: "package", New: with(d.Packages, packages.New), Runs: true},
		{Name: "filesystem", New: filesystem.New, Preset: true},
		{Name: "sandbox", New: with(d.Sandbox, sandbox.New), Preset: true, Runs: true},
		{Name: "code", New: with(d.Code, code.New), Runs: true},
		{
			Name: "shell", New: with(d.Shell, shell.New), Preset: true, Runs: true,
			Without: []string{"shell_run", "shell_system"},
		},
	}
}
