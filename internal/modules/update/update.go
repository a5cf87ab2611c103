// Package update is the module with which those who rule a host replace its
// program by a newer release, and say how fast its machine runs. Its tools
// stand beside those of the server module.
package update

import (
	"context"
	"errors"
	"fmt"
	"time"

	"gatehouse/internal/access/confirm"
	"gatehouse/internal/access/operator"
	"gatehouse/internal/dispatch/notify"
	"gatehouse/internal/dispatch/progress"
	"gatehouse/internal/maintenance/update"
	"gatehouse/module"
	"gatehouse/tool"
)

// Config is what the module is given.
type Config struct {
	Updater *update.Updater `json:"-"` // of this program; nil: nothing replaces it
	Current string          `json:"-"` // version that runs
	Rules   operator.Func   `json:"-"` // who may do what is everybody's matter; nil: nobody
	Show    progress.Show   `json:"-"` // shows how far a job is
	// Processors is where Linux has a folder for each; "" means where it is.
	Processors string `json:"-"`
}

type maker struct {
	cfg   Config
	deps  module.Deps
	offer module.Offer
}

// New makes the module.
func New(cfg Config) module.New {
	return func(_ context.Context, d module.Deps) (module.Module, error) {
		m := &maker{deps: d}
		m.cfg = cfg
		if m.cfg.Processors == "" {
			m.cfg.Processors = "/sys/devices/system/cpu"
		}
		m.offer.Tools = m.tools()
		return m, nil
	}
}

// Offer implements module.Module.
func (m *maker) Offer(context.Context, module.Audience) (*module.Offer, error) { return &m.offer, nil }

// Close implements module.Module.
func (m *maker) Close(context.Context) error { return nil }

const (
	updateHelp = `Fetches the newest release from the source in the settings (update.source), verifies it with the key there (update.key), tries it, and puts it in the program's place.

- It answers with a job at once; job_wait follows it, job_cancel ends it, gatehouse:///public/jobs shows its phases.
- The new program runs when the host is started again: server_restart. server_update_rollback puts the one before back.
- After an error everything is as it was. An older release, or one that somebody else signed, is never taken.
- ` + confirmHelp
	confirmHelp  = "The person is asked by the client; where it cannot ask, ask them yourself and give the version as confirm."
	governorHelp = "The governor says how the kernel chooses the speed of the processors: powersave, schedutil, performance. set is for those who rule this host, and needs a host that runs as root. Linux only, and only where the kernel has a choice: virtual machines often have none."
)

func (m *maker) tools() []tool.Tool {
	return []tool.Tool{
		tool.New(tool.Def{
			Name: "server_update_check", Title: "Check for an update", Effects: tool.Reads | tool.OpenWorld, Task: tool.TaskNever, Timeout: 3 * time.Minute,
			Description: "Says whether there is a newer release of this host's program.",
			Help:        "It reads the manifest at the source in the settings and verifies its signature. previous is the version that server_update_rollback would put back.",
		}, m.check),
		tool.New(tool.Def{
			Name: "server_update", Title: "Update this host", Effects: tool.Writes | tool.Destroys | tool.OpenWorld, Task: tool.TaskNever, Sync: true, Timeout: 3 * time.Minute, Aliases: []string{"server.update"},
			Description: "Replaces this host's program by the newest release, after the person has agreed. It answers with a job.",
			Help:        updateHelp,
		}, m.apply),
		tool.New(tool.Def{
			Name: "server_update_rollback", Title: "Undo an update", Effects: tool.Writes | tool.Destroys, Task: tool.TaskNever, Sync: true, Timeout: 3 * time.Minute,
			Description: "Puts the program that ran before the last update back, after the person has agreed. It runs when the host is started again.",
			Help:        "The other one is kept, so that a second rollback undoes the first. " + confirmHelp,
		}, m.rollback),
		tool.New(tool.Def{
			Name: "server_governor", Title: "Set the CPU governor", Effects: tool.Writes | tool.Idempotent, Task: tool.TaskNever, Aliases: []string{"server.experimental.governor"},
			Description: "Tells how the kernel chooses the speed of the processors, or sets it.",
			Help:        governorHelp,
		}, m.governor),
	}
}

func (m *maker) ready(c *tool.Call) error {
	if err := m.cfg.Rules.Check(c, "update its program"); err != nil {
		return err
	}
	if m.cfg.Updater == nil {
		return refuse(update.ErrNoSource)
	}
	return nil
}

type checkOut struct {
	Current  string `json:"current" doc:"version that runs"`
	Newest   string `json:"newest"`
	Newer    bool   `json:"newer"`
	Released string `json:"released,omitempty"`
	Notes    string `json:"notes,omitempty"`
	Previous string `json:"previous,omitempty"`
}

const maxNotes = 16 << 10 // bytes that are shown

func (m *maker) check(ctx context.Context, c *tool.Call, _ struct{}) (checkOut, error) {
	if err := m.ready(c); err != nil {
		return checkOut{}, err
	}
	r, newer, err := m.cfg.Updater.Check(ctx)
	if err != nil {
		return checkOut{}, refuse(err)
	}
	out := checkOut{Current: m.cfg.Current, Newest: r.Version, Newer: newer, Notes: r.Notes[:min(len(r.Notes), maxNotes)], Previous: m.cfg.Updater.Prior(ctx)}
	if !r.Released.IsZero() {
		out.Released = r.Released.UTC().Format(time.RFC3339)
	}
	return out, nil
}

func refuse(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, update.ErrNoSource):
		return &tool.Refusal{Code: "unsupported", Message: err.Error(), Next: "A person sets update.source and update.key, in gatehouse.yaml."}
	case errors.Is(err, update.ErrSignature):
		return &tool.Refusal{Code: "denied", Message: err.Error(), Next: "Nothing was changed. Tell a person: somebody may be offering a false release."}
	case errors.Is(err, update.ErrWaiting):
		return &tool.Refusal{Code: "exists", Message: err.Error(), Next: "server_restart starts it again."}
	case errors.Is(err, update.ErrNone), errors.Is(err, update.ErrNoPrior), errors.Is(err, update.ErrNoBuild):
		return &tool.Refusal{Code: "not_found", Message: err.Error()}
	case errors.Is(err, update.ErrBusy):
		return &tool.Refusal{Code: "busy", Message: err.Error(), Next: "Wait for it with job_wait."}
	}
	return err
}

type confirmIn struct {
	Confirm string `json:"confirm,omitempty" doc:"the version, once the person has agreed; counts where the settings let a caller's word stand (approvals.callers_word)" max:"100"`
}

type jobOut struct {
	progress.Started
	Target string `json:"target" doc:"the version"`
}

// applied is the result of a job that replaced the program.
type applied struct {
	Version string `json:"version"`
	Was     string `json:"was"`
	Next    string `json:"next"`
}

const startAgain = "It runs when the host is started again: server_restart."

func (m *maker) apply(ctx context.Context, c *tool.Call, in confirmIn) (jobOut, error) {
	if err := m.ready(c); err != nil {
		return jobOut{}, err
	}
	version, err := tool.Once(c, "version", func() (string, error) {
		r, newer, err := m.cfg.Updater.Check(ctx)
		if err == nil && !newer {
			err = update.ErrNone
		}
		return r.Version, refuse(err)
	})
	if err != nil {
		return jobOut{}, err
	}
	question := fmt.Sprintf("Replace the program of this host, version %s, by version %s?", m.cfg.Current, version)
	if err := confirm.Ask(c, version, question, in.Confirm); err != nil {
		return jobOut{}, err
	}
	started, err := m.start(c, version)
	return jobOut{started, version}, err
}

// start runs the update as a job, whose phases are shown.
func (m *maker) start(c *tool.Call, version string) (progress.Started, error) {
	title := "update to " + version
	return m.cfg.Show.Start(m.deps, c, title, func(ctx context.Context, _ *tool.Call, tell func(progress.Progress)) (any, error) {
		track := progress.New(tell, update.PhaseCheck, update.PhaseDownload, update.PhaseTry, update.PhaseReplace)
		r, err := m.cfg.Updater.Apply(ctx, func(phase string, done, total int64) { track.At(phase, done, total, "bytes") })
		switch {
		case err == nil:
			track.Finish()
			notify.Publish(m.deps, notify.News{Code: "update.applied", Level: notify.Success, Title: "Version " + r.Version + " is in place", Message: startAgain})
		case ctx.Err() == nil:
			notify.Publish(m.deps, notify.News{Code: "update.failed", Level: notify.Error, Title: "The " + title + " failed", Message: err.Error()})
		}
		return applied{r.Version, m.cfg.Current, startAgain}, refuse(err)
	})
}

type rollbackOut struct {
	Version string `json:"version" doc:"that runs when the host is started again"`
	Next    string `json:"next"`
}

func (m *maker) rollback(ctx context.Context, c *tool.Call, in confirmIn) (rollbackOut, error) {
	if err := m.ready(c); err != nil {
		return rollbackOut{}, err
	}
	version, err := tool.Once(c, "prior", func() (string, error) { return m.cfg.Updater.Prior(ctx), nil })
	if err != nil {
		return rollbackOut{}, err
	}
	if version == "" {
		return rollbackOut{}, refuse(update.ErrNoPrior)
	}
	if err := confirm.Ask(c, version, "Put version "+version+" of this host's program back in its place?", in.Confirm); err != nil {
		return rollbackOut{}, err
	}
	version, err = m.cfg.Updater.Rollback(ctx)
	return rollbackOut{version, startAgain}, refuse(err)
}
