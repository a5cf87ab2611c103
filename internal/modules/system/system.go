// Package system is the module with which administrators administer the machine of the
// host, through the daemons of its operating system.
//
// It never edits a file of theirs and never changes anything that no person has agreed
// to. A change that could cut off the caller is taken back after a minute unless it is
// confirmed. A tool is listed only while its daemon runs or can be started by D-Bus.
package system

import (
	"context"
	"crypto/x509"
	"log/slog"
	"slices"
	"sync"
	"time"

	"golang.org/x/crypto/acme/autocert"

	"github.com/godbus/dbus/v5"

	"gatehouse/internal/access/confirm"
	"gatehouse/internal/access/operator"
	"gatehouse/module"
	"gatehouse/tool"
)

// Config is what the module is given.
type Config struct {
	// Rules decides who may use the tools; nil means no caller, as without a host, and
	// then all tools are listed, whether or not their daemons are there.
	Rules operator.Func `json:"-"`
	// Bus is the address of the D-Bus on which the daemons are; "" means the system's.
	Bus string `json:"-"`
	// Secrets stores the configurations of tunnels; nil means that they are forgotten when the host ends.
	Secrets Secrets `json:"-"`
	// Folder keeps the names that this host serves, and certificates; "" means that they are forgotten when it ends.
	Folder string `json:"-"`
	// Roots are the authorities of ACME servers' own certificates; nil means the system's.
	Roots *x509.CertPool `json:"-"`
}

type system struct {
	cfg  Config
	deps module.Deps
	bus  *bus
	all  []daemonTool

	powerDelay, takeBack time.Duration
	guard                guard
	zram                 zram
	vhosts               vhosts
	tunnels              tunnels
	acme                 authorities

	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu    sync.Mutex
	names []string // of the daemons that are there, sorted
	offer *module.Offer
}

// daemonTool is a tool with the name of the daemon on D-Bus that does its work; "" if
// the host or the kernel does it.
type daemonTool struct {
	daemon string
	tool.Tool
	or    string      // another daemon that does it where the first is not; "" for none
	there func() bool // nil for a tool that needs nothing else
}

// New returns what makes the module with a configuration.
func New(cfg Config) module.New {
	return func(ctx context.Context, d module.Deps) (module.Module, error) {
		s := &system{cfg: cfg, deps: d, bus: &bus{address: cfg.Bus}, powerDelay: powerDelay, takeBack: takeBack,
			zram: kernelZRAM}
		if d.Log == nil {
			s.deps.Log = slog.New(slog.DiscardHandler)
		}
		run, cancel := context.WithCancel(context.WithoutCancel(ctx))
		s.cancel = cancel
		s.vhosts.ctx, s.vhosts.ports = run, map[uint16]*vhostPort{}
		s.guard.made = map[string]string{}
		s.tunnels.secrets, s.tunnels.up = cfg.Secrets, map[string]*runningTunnel{}
		s.tunnels.devices = map[string]dbus.ObjectPath{}
		s.acme.by, s.vhosts.terminate = map[string]*autocert.Manager{}, s.terminate
		s.all = s.daemonTools()
		s.look(ctx)
		if cfg.Rules != nil {
			s.wg.Go(func() { s.startTunnels(run); s.watch(run) })
			s.startNames(run)
		}
		return s, nil
	}
}

func (s *system) daemonTools() []daemonTool {
	return slices.Concat(s.unitTools(), s.clockTools(), s.nameTools(), s.powerTools(), s.guardTools(), s.gatewayTools(),
		s.wifiTools(), s.diskTools(), s.vhostTools(), s.updateTools(), s.firmwareTools(), s.zramTools(),
		s.tunnelTools(), s.acmeTools())
}

// Offer implements module.Module.
func (s *system) Offer(context.Context, module.Audience) (*module.Offer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.offer, nil
}

// Close implements module.Module.
func (s *system) Close(context.Context) error {
	s.cancel()
	s.vhosts.close()
	s.tunnels.close()
	err := s.bus.close()
	s.wg.Wait()
	return err
}

// lookEvery is how often the module looks which daemons are there.
const lookEvery = 10 * time.Second

// watch keeps the offer up to date until ctx is done.
func (s *system) watch(ctx context.Context) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if s.look(ctx) && s.deps.Changed != nil {
				s.deps.Changed(module.Audience{})
			}
		}
	}
}

// look makes the offer of the daemons that are there, and reports whether it changed.
func (s *system) look(ctx context.Context) (changed bool) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	var names []string
	if s.cfg.Rules != nil {
		names, _ = s.bus.names(ctx) // without D-Bus there is no daemon
	}
	var there []string
	offer := &module.Offer{}
	for _, t := range s.all {
		has := (t.daemon == "" || slices.Contains(names, t.daemon) || t.or != "" && slices.Contains(names, t.or)) &&
			(t.there == nil || t.there())
		if s.cfg.Rules == nil || has {
			offer.Tools = append(offer.Tools, t.Tool)
			there = append(there, t.Name)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.offer != nil && slices.Equal(s.names, there) {
		return false
	}
	s.names, s.offer = there, offer
	return true
}

// agreed is embedded in the arguments of a tool that changes something.
type agreed struct {
	Confirm string `json:"confirm,omitempty" doc:"what is changed, once the user has agreed; needs the setting approvals.callers_word" max:"300"`
}

func (a agreed) word() string { return a.Confirm }

const (
	onlyHelp   = "For administrators only."
	changeHelp = onlyHelp + " The client asks the user. If it cannot ask, ask the user yourself and name what is " +
		"changed as confirm."
	finalHelp   = changeHelp + " It cannot be undone."
	rightOfHost = "administer its machine"
)

// reading makes a tool that changes nothing.
func reading[In, Out any](s *system, daemon string, d tool.Def,
	f func(context.Context, *tool.Call, In) (Out, error)) daemonTool {
	d.Effects, d.Task = d.Effects|tool.Reads, tool.TaskNever
	if d.Help == "" {
		d.Help = onlyHelp
	}
	return daemonTool{
		daemon: daemon,
		Tool: tool.New(d, func(ctx context.Context, c *tool.Call, in In) (out Out, err error) {
			if err := s.cfg.Rules.Check(c, rightOfHost); err != nil {
				return out, err
			}
			return f(ctx, c, in)
		}),
	}
}

// change is what a call would change.
type change struct {
	thing    string // what a caller gives as confirm
	question string
}

// changing makes a tool that changes something, which the caller's user is asked for
// first. ask checks the arguments and must change nothing.
func changing[In interface{ word() string }, Out any](s *system, daemon string, d tool.Def,
	ask func(context.Context, In) (change, error),
	do func(context.Context, *tool.Call, In) (Out, error)) daemonTool {
	d.Task = tool.TaskNever
	if d.Effects == 0 {
		d.Effects = tool.Writes | tool.Idempotent
	}
	if d.Help == "" {
		d.Help = changeHelp
	}
	return daemonTool{
		daemon: daemon,
		Tool: tool.New(d, func(ctx context.Context, c *tool.Call, in In) (out Out, err error) {
			if err := s.cfg.Rules.Check(c, rightOfHost); err != nil {
				return out, err
			}
			what, err := ask(ctx, in)
			if err != nil {
				return out, err
			}
			if err := confirm.Ask(c, what.thing, what.question, in.word()); err != nil {
				return out, err
			}
			s.deps.Log.InfoContext(ctx, "change of the machine", "tool", d.Name, "what", what.thing, "by",
				c.Caller.Principal)
			return do(ctx, c, in)
		}),
	}
}

// invalid refuses an argument.
func invalid(name, value, expected string) error {
	return tool.Refuse(tool.CodeInvalidArguments, "%s is %q; expected %s", name, value, expected)
}
