// Package server is the module that describes this host and its machine, measures
// the machine and returns logs. Administrators use it to name, stop and restart
// the host.
//
// It does not change the machine: it does not turn it off or change its locale, which
// is up to the operating system.
package server

import (
	"context"
	"slices"
	"time"

	"gatehouse/internal/access/operator"
	"gatehouse/internal/dispatch/progress"
	"gatehouse/internal/packages"
	"gatehouse/module"
	"gatehouse/tool"
)

// A Host is the host that the tools describe and control. It is safe for concurrent
// use.
type Host interface {
	About() About
	// Rules reports whether a caller may change this host for all its users.
	Rules(who tool.Caller) bool
	// SetName and SetLanguage change the name and the language. The change survives
	// the end of the host; "" restores the default.
	SetName(ctx context.Context, name string) error
	SetLanguage(ctx context.Context, language string) error
	// Bindings returns what this host listens on.
	Bindings() []Binding
	// SetEchoIP sets the services outside that are asked how this host is seen from there; none is asked without them.
	SetEchoIP(ctx context.Context, urls []string) error
	// Stop ends the host soon after Stop has returned. again means that it is to be
	// started again; how describes what happens then. If the host cannot be stopped
	// or started again, the error is a *tool.Refusal.
	Stop(again bool) (how string, err error)
}

// About describes a host.
type About struct {
	ID         string
	Name       string
	Version    string
	Language   string // in POSIX form; "" means that it is not set
	Started    time.Time
	Transports []string
	EchoIP     []string // services that tell from outside how this host is seen
}

// Config is what the module is given.
type Config struct {
	Host    Host     `json:"-"` // nil means that the tools can only describe the machine
	Journal *Journal `json:"-"` // nil means that log messages are not kept
	Meter   *Meter   `json:"-"` // nil means a Meter of the module

	Packages *packages.Manager `json:"-"` // nil means that the host has no packages
	Show     progress.Show     `json:"-"` // shows the progress of jobs
}

type server struct {
	cfg   Config
	rules operator.Func // who may change the host for all its users
	deps  module.Deps
	offer module.Offer
}

// New returns what makes the module with a configuration.
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
		s.offer.Tools = s.definitions()
		return s, nil
	}
}

// Offer implements module.Module.
func (s *server) Offer(context.Context, module.Audience) (*module.Offer, error) {
	return &s.offer, nil
}

// Close implements module.Module.
func (s *server) Close(context.Context) error { return nil }

func (s *server) definitions() []tool.Tool { return slices.Concat(s.readTools(), s.changeTools()) }

// readTools are the tools that describe this host and read its logs.
func (s *server) readTools() []tool.Tool {
	return []tool.Tool{
		tool.New(tool.Def{
			Name: "server_time", Title: "Show the time", Effects: tool.Reads, Task: tool.TaskNever,
			Aliases:     []string{"server.time"},
			Description: "Returns the time, and how long this host and its machine have been running.",
		}, s.time),
		tool.New(tool.Def{
			Name: "server_info", Title: "Describe this host", Effects: tool.Reads, Task: tool.TaskNever,
			Aliases:     []string{"server.device-info"},
			Description: "Describes this host and its machine: name, version, operating system, processor and memory.",
			Help:        "ram is in bytes. Values that the system does not report are missing.",
		}, s.serverInfo),
		tool.New(tool.Def{
			Name: "server_metrics", Title: "Measure this host", Effects: tool.Reads, Task: tool.TaskNever,
			Aliases: []string{"server.metrics"},
			Description: "Measures the machine: processor, memory, disk, network and, if there is a sensor, " +
				"temperature.",
			Help: metricsHelp,
		}, s.metrics),
		tool.New(tool.Def{
			Name: "server_logs", Title: "Read this host's log", Effects: tool.Reads, Aliases: []string{"server.logs"},
			Description: "Returns log messages of this host since its start, or of an earlier start, and can wait " +
				"for new ones.",
			Help: "For administrators only. The newest 4,000 messages of level info and above, at most 4 " +
				"MiB, are kept for each of the last 20 starts of hosts on its folders; boots lists these starts.\n\n" +
				pageHelp,
		}, s.logs),
		tool.New(tool.Def{
			Name: "server_kernel_logs", Title: "Read the kernel log", Effects: tool.Reads,
			Aliases:     []string{"server.kernel-logs"},
			Description: "Returns messages of the machine's kernel since its boot, and can wait for new ones.",
			Help: "For administrators only. It reads /dev/kmsg, which exists on Linux; the system may deny " +
				"access to it.\n\n" + pageHelp,
		}, s.kernelLogs),
	}
}

// changeTools are the tools that change or stop this host, and those of its addresses.
func (s *server) changeTools() []tool.Tool {
	return []tool.Tool{
		tool.New(tool.Def{
			Name: "server_set_name", Title: "Name this host", Effects: tool.Writes | tool.Idempotent,
			Task: tool.TaskNever, Sync: true, Aliases: []string{"server.set-hostname"},
			Description: "Sets the display name of this host, which is kept when the host is restarted.",
			Help: "For administrators only. clear restores the default name. hostname also sets the network name of the " +
				"machine, by system_set_hostname, which asks the user; the module system must be in the view.",
		}, s.setName),
		tool.New(tool.Def{
			Name: "server_language", Title: "Set the language", Effects: tool.Writes | tool.Idempotent,
			Task: tool.TaskNever, Sync: true, Aliases: []string{"server.set-language"},
			Description: "Returns or sets the language in which users of this host want answers.",
			Help: "Only administrators can set it. Models read it in gatehouse:///mcp/system-prompt. It is " +
				"independent of the system's locale, which the tools do not use.",
		}, s.language),
		tool.New(tool.Def{
			Name: "server_host_binding_list", Title: "List this host's listeners", Effects: tool.Reads,
			Task:        tool.TaskNever,
			Aliases:     []string{"server.host.binding.list"},
			Description: "Lists what this host listens on. net_listeners lists those of the whole machine.",
		}, s.listBindings),
		tool.New(tool.Def{
			Name: "server_host_address_list", Title: "List this host's addresses", Effects: tool.Reads,
			Task:        tool.TaskNever,
			Aliases:     []string{"server.host.address.list"},
			Description: "Lists the addresses at which clients reach this host, with interface and certificate.",
		}, s.listAddresses),
		tool.New(tool.Def{
			Name: "server_set_echo_ip", Title: "Choose services that show this host from outside",
			Effects: tool.Writes | tool.Idempotent,
			Task:    tool.TaskNever, Aliases: []string{"server.set-echoip-urls"},
			Description: "Sets the services that net_port_check and net_interfaces ask how this machine is seen " +
				"from outside.",
			Help: "For administrators only. None is asked without them. Expected are servers with the interface of echoip " +
				"(github.com/mpolden/echoip): /ip answers with the address of the client, /port/N with whether N " +
				"can be reached there.",
		}, s.setEchoIP),
		tool.New(tool.Def{
			Name: "server_rebuild", Title: "Rebuild packages", Effects: tool.Writes | tool.Destroys | tool.OpenWorld,
			Task: tool.TaskNever, Aliases: []string{"server.rebuild"},
			Description: "Installs all packages of this host again from their sources, after the user has agreed. " +
				"It returns a job.",
			Help: rebuildHelp,
		}, s.rebuild),
		tool.New(tool.Def{
			Name: "server_restart", Title: "Restart this host", Effects: tool.Writes | tool.Destroys,
			Task: tool.TaskNever, Aliases: []string{"server.restart"},
			Description: "Stops this host and starts it again, after the user has agreed. The machine keeps running.",
			Help: stopHelp + " If a client started this host over standard input and output, the client must " +
				"start it again.",
		}, s.restart),
		tool.New(tool.Def{
			Name: "server_shutdown", Title: "Stop this host", Effects: tool.Writes | tool.Destroys,
			Task: tool.TaskNever, Aliases: []string{"server.shutdown"},
			Description: "Stops this host, after the user has agreed. It serves no client until it is started " +
				"again; the machine keeps running.",
			Help: stopHelp,
		}, s.shutdown),
	}
}

// noHost is the Host of a module that was configured without one.
type noHost struct{ started time.Time }

func (h noHost) About() About {
	return About{Name: "gatehouse", Started: h.started, Transports: []string{}}
}
func (noHost) Rules(tool.Caller) bool                    { return true }
func (noHost) SetName(context.Context, string) error     { return errNoHost() }
func (noHost) SetLanguage(context.Context, string) error { return errNoHost() }
func (noHost) Bindings() []Binding                       { return nil }
func (noHost) SetEchoIP(context.Context, []string) error { return errNoHost() }
func (noHost) Stop(bool) (string, error)                 { return "", errNoHost() }

func errNoHost() error {
	return tool.Refuse(tool.CodeUnsupported, "this program does not let its tools change the host")
}
