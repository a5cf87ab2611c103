// Package server is the module that tells what this host and its machine are
// and do, and with which those who rule the host name, stop and restart it.
//
// The machine's own settings are its operating system's business: nothing here
// turns it off, renames it or changes its locale.
package server

import (
	"context"
	"time"

	"gatehouse/internal/access/operator"
	"gatehouse/internal/dispatch/progress"
	"gatehouse/internal/packages"
	"gatehouse/module"
	"gatehouse/tool"
)

// A Host is what the tools speak of. Safe for concurrent use.
type Host interface {
	About() About
	// Rules reports whether a caller may do what is everybody's matter here.
	Rules(who tool.Caller) bool
	// SetName and SetLanguage are kept beyond the end of the host; "" goes
	// back to what it is by itself.
	SetName(ctx context.Context, name string) error
	SetLanguage(ctx context.Context, language string) error
	// Stop ends the host soon after it has returned; again means that it is
	// to be started again, and how says in which way that happens. The error
	// is a *tool.Refusal where it cannot be.
	Stop(again bool) (how string, err error)
}

// About is what there is to say of a host.
type About struct {
	ID         string
	Name       string
	Version    string
	Language   string // as POSIX names it; "" means that nobody has said
	Started    time.Time
	Transports []string
}

// Config is what the module is given.
type Config struct {
	Host    Host     `json:"-"` // nil means that there is none: only the machine can be looked at
	Journal *Journal `json:"-"` // nil means that nothing is kept of what the host says
	Meter   *Meter   `json:"-"` // nil means one of the module's own

	Packages *packages.House `json:"-"` // nil: there are none
	Show     progress.Show   `json:"-"` // shows how far a job is
}

type server struct {
	cfg   Config
	rules operator.Func // who may do what is everybody's matter
	deps  module.Deps
	offer module.Offer
}

// New makes the module.
func New(cfg Config) module.New {
	return func(_ context.Context, d module.Deps) (module.Module, error) {
		s := &server{deps: d}
		s.cfg = cfg
		if s.cfg.Host == nil {
			s.cfg.Host = noHost{time.Now()}
		}
		if s.cfg.Meter == nil {
			s.cfg.Meter = &Meter{}
		}
		s.rules = s.cfg.Host.Rules
		s.offer.Tools = s.tools()
		return s, nil
	}
}

// Offer implements module.Module.
func (s *server) Offer(context.Context, module.Audience) (*module.Offer, error) {
	return &s.offer, nil
}

// Close implements module.Module.
func (s *server) Close(context.Context) error { return nil }

func (s *server) tools() []tool.Tool {
	return []tool.Tool{
		tool.New(tool.Def{
			Name: "server_time", Title: "Show the time", Effects: tool.Reads, Task: tool.TaskNever, Aliases: []string{"server.time"},
			Description: "Tells the time, and how long this host and its machine have been running.",
		}, s.time),
		tool.New(tool.Def{
			Name: "server_info", Title: "Describe this host", Effects: tool.Reads, Task: tool.TaskNever, Aliases: []string{"server.device-info"},
			Description: "Tells what this host is and what it runs on: name, version, operating system, processor and memory.",
			Help:        "ram is in bytes. What the system does not tell is left out.",
		}, s.info),
		tool.New(tool.Def{
			Name: "server_metrics", Title: "Measure this host", Effects: tool.Reads, Task: tool.TaskNever, Aliases: []string{"server.metrics"},
			Description: "Measures the machine: processor, memory, disk, network and, where there is a sensor, temperature.",
			Help:        metricsHelp,
		}, s.metrics),
		tool.New(tool.Def{
			Name: "server_logs", Title: "Read this host's log", Effects: tool.Reads, Aliases: []string{"server.logs"},
			Description: "Shows what this host has logged since it was started, or in an earlier start, and waits for more.",
			Help:        "For those who rule this host. It keeps the newest 4,000 messages of level info and above, at most 4 MiB, of each of the last 20 starts of hosts on its folders; boots names them.\n\n" + pageHelp,
		}, s.logs),
		tool.New(tool.Def{
			Name: "server_kernel_logs", Title: "Read the kernel log", Effects: tool.Reads, Aliases: []string{"server.kernel-logs"},
			Description: "Shows the messages of the machine's kernel since it was booted, and waits for more.",
			Help:        "For those who rule this host. It reads /dev/kmsg, which exists on Linux and which the system may keep from this host.\n\n" + pageHelp,
		}, s.kernelLogs),
		tool.New(tool.Def{
			Name: "server_set_name", Title: "Name this host", Effects: tool.Writes | tool.Idempotent, Task: tool.TaskNever, Sync: true, Aliases: []string{"server.set-hostname"},
			Description: "Gives this host a name for people, which stays when it is started again.",
			Help:        "For those who rule this host. clear goes back to its own. The name its machine has in the network is the operating system's business.",
		}, s.setName),
		tool.New(tool.Def{
			Name: "server_language", Title: "Set the language", Effects: tool.Writes | tool.Idempotent, Task: tool.TaskNever, Sync: true, Aliases: []string{"server.set-language"},
			Description: "Tells which language the people of this host want to be answered in, or sets it.",
			Help:        "Setting it is for those who rule this host. Models read it in gatehouse:///mcp/system-prompt. It is none of the system's locale, which the tools do not depend on.",
		}, s.language),
		tool.New(tool.Def{
			Name: "server_rebuild", Title: "Rebuild packages", Effects: tool.Writes | tool.Destroys | tool.OpenWorld, Task: tool.TaskNever, Aliases: []string{"server.rebuild"},
			Description: "Installs all packages of this host again from where they came, after the person has agreed. It answers with a job.",
			Help:        rebuildHelp,
		}, s.rebuild),
		tool.New(tool.Def{
			Name: "server_restart", Title: "Restart this host", Effects: tool.Writes | tool.Destroys, Task: tool.TaskNever, Aliases: []string{"server.restart"},
			Description: "Ends this host and starts it again, after the person has agreed. The machine goes on.",
			Help:        stopHelp + " A host that a client started over standard input and output is started again by its client, not by itself.",
		}, s.restart),
		tool.New(tool.Def{
			Name: "server_shutdown", Title: "Stop this host", Effects: tool.Writes | tool.Destroys, Task: tool.TaskNever, Aliases: []string{"server.shutdown"},
			Description: "Ends this host, after the person has agreed. Nobody is served until somebody starts it again; the machine goes on.",
			Help:        stopHelp,
		}, s.shutdown),
	}
}

// noHost is that of a module nobody has given one.
type noHost struct{ started time.Time }

func (h noHost) About() About {
	return About{Name: "gatehouse", Started: h.started, Transports: []string{}}
}
func (noHost) Rules(tool.Caller) bool                    { return true }
func (noHost) SetName(context.Context, string) error     { return errNoHost() }
func (noHost) SetLanguage(context.Context, string) error { return errNoHost() }
func (noHost) Stop(bool) (string, error)                 { return "", errNoHost() }

func errNoHost() error {
	return tool.Refuse("unsupported", "this module has no host that it could change")
}
