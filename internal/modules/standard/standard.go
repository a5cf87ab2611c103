// Package standard is the guest list: it says which modules are in the binary.
//
// Adding a module is one folder beside this one and one line here. Nothing
// registers itself.
package standard

import (
	"gatehouse/internal/modules/auth"
	"gatehouse/internal/modules/backup"
	"gatehouse/internal/modules/db"
	"gatehouse/internal/modules/dir"
	"gatehouse/internal/modules/disk"
	"gatehouse/internal/modules/file"
	"gatehouse/internal/modules/filesystem"
	"gatehouse/internal/modules/lang"
	"gatehouse/internal/modules/metrics"
	"gatehouse/internal/modules/network"
	"gatehouse/internal/modules/notification"
	"gatehouse/internal/modules/packages"
	"gatehouse/internal/modules/process"
	"gatehouse/internal/modules/pubkey"
	"gatehouse/internal/modules/sandbox"
	"gatehouse/internal/modules/server"
	"gatehouse/internal/modules/shell"
	"gatehouse/internal/modules/smtp"
	"gatehouse/internal/modules/update"
	"gatehouse/internal/modules/ws"
	"gatehouse/module"
)

// Guest is a module that is in the binary.
type Guest struct {
	Name    string // as in the configuration, on the command line and before _ in its tools' names
	New     module.New
	Default bool // in the view that is served when no module is named; never one with the power to run programs
	Preset  bool // it stands for somebody else's server: a view of its own, and in no other unless it is named
	// Runs means that it can run programs: it is nowhere unless it is named, or
	// its view is.
	Runs bool
	// Without are tools that a preset's own view leaves out: the server it
	// stands for does not have them.
	Without []string
}

// A View is a context that stands in for somebody else's server with tools of
// several modules. It is on a host where it was named, as a module or as the
// context of callers, and its modules are in no other context then, unless they
// were named as well.
type View struct {
	Name    string
	Modules []string
	Tools   []string // all it lists
}

// Views are the contexts that stand in for other servers. Their tools go by the
// names of the modules, their results are structured and whole. The slice is
// the caller's.
func Views() []View {
	return []View{{
		Name:    "core",
		Modules: []string{"file", "dir", "lang", "metrics", "process", "ws"},
		Tools: []string{
			"file_read", "file_write", "file_edit", "file_delete", "file_rename", "file_exists", "dir_list", "dir_create",
			"lang_detect", "lang_list", "metrics_record", "metrics_query", "process_start", "process_stop", "process_kill",
			"process_list", "process_output", "process_input", "ws_start", "ws_info",
		},
	}}
}

// Guests are the modules, in the order in which they start and are listed. The
// slice is the caller's.
func Guests() []Guest {
	return []Guest{
		{Name: "file", New: file.New, Default: true},
		{Name: "dir", New: dir.New, Default: true},
		{Name: "lang", New: lang.New, Default: true},
		{Name: "metrics", New: metrics.New},
		{Name: "process", New: process.New, Runs: true},
		{Name: "ws", New: ws.New},
		{Name: "server", New: together(server.New, update.New)},
		{Name: "backup", New: backup.New},
		{Name: "net", New: network.New},
		{Name: "notification", New: notification.New},
		{Name: "db", New: db.New},
		{Name: "auth", New: together(auth.New, pubkey.New)},
		{Name: "disk", New: disk.New},
		{Name: "smtp", New: smtp.New},
		{Name: "package", New: packages.New, Runs: true},
		{Name: "filesystem", New: filesystem.New, Preset: true},
		{Name: "sandbox", New: sandbox.New, Preset: true, Runs: true},
		{Name: "shell", New: shell.New, Preset: true, Runs: true, Without: []string{"shell_run", "shell_system"}},
	}
}
