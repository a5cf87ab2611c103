// Package update is the module with which administrators replace the host's program
// by a newer release, and set the CPU governor of its machine. Its tools are
// offered together with those of the module server.
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
	Updater *update.Updater `json:"-"` // of this program; nil means that it cannot be updated
	Current string          `json:"-"` // the running version
	Rules   operator.Func   `json:"-"` // decides who may use the tools; nil means no caller
	Show    progress.Show   `json:"-"` // shows the progress of jobs
	// Processors is the directory in which Linux has a folder for each processor;
	// "" means the default.
	Processors string `json:"-"`
}

type updates struct {
	cfg   Config
	deps  module.Deps
	offer module.Offer
}

// New returns what makes the module with a configuration.
func New(cfg Config) module.New {
	return func(_ context.Context, d module.Deps) (module.Module, error) {
		m := &updates{deps: d}
		m.cfg = cfg
		if m.cfg.Processors == "" {
			m.cfg.Processors = "/sys/devices/system/cpu"
		}
		m.offer.Tools = m.definitions()
		return m, nil
	}
}

// Offer implements module.Module.
func (m *updates) Offer(context.Context, module.Audience) (*module.Offer, error) {
	return &m.offer, nil
}

// Close implements module.Module.
func (m *updates) Close(context.Context) error { return nil }

const (
	updateHelp = `Fetches the newest release from the source in the settings (update.source), verifies it with the key
in the settings (update.key), tests it, and replaces the program.

- It returns a job at once; wait for it with job_wait, cancel it with job_cancel. gatehouse:///public/jobs shows its
  phases.
- The new program runs after the host is restarted: server_restart. server_update_rollback restores the previous
  program.
- After an error everything is as before. An older release, or one signed with another key, is never installed.
- ` + confirmHelp
	confirmHelp  = "The client asks the user. If it cannot ask, ask the user yourself and give the version as confirm."
	governorHelp = "The governor decides how the kernel controls the speed of the processors: powersave, schedutil, " +
		"performance. Only administrators can use set, and only if the host runs as root. It is available on Linux; " +
		"virtual machines often have no governor."
)

func (m *updates) definitions() []tool.Tool {
	return []tool.Tool{
		tool.New(tool.Def{
			Name: "server_update_check", Title: "Check for an update", Effects: tool.Reads | tool.OpenWorld,
			Task: tool.TaskNever, Timeout: 3 * time.Minute,
			Description: "Checks whether there is a newer release of this host's program.",
			Help: "It reads the manifest at the source in the settings and verifies its signature. previous " +
				"is the version that server_update_rollback would restore.",
		}, m.checkRelease),
		tool.New(tool.Def{
			Name: "server_update", Title: "Update this host", Effects: tool.Writes | tool.Destroys | tool.OpenWorld,
			Task: tool.TaskNever, Sync: true, Timeout: 3 * time.Minute, Aliases: []string{"server.update"},
			Description: "Replaces this host's program by the newest release, after the user has agreed. It returns " +
				"a job.",
			Help: updateHelp,
		}, m.installUpdate),
		tool.New(tool.Def{
			Name: "server_update_rollback", Title: "Undo an update", Effects: tool.Writes | tool.Destroys,
			Task: tool.TaskNever, Sync: true, Timeout: 3 * time.Minute,
			Description: "Restores the program from before the last update, after the user has agreed. It runs " +
				"after the host is restarted.",
			Help: "The replaced program is kept, so that a second rollback undoes the first. " + confirmHelp,
		}, m.rollback),
		tool.New(tool.Def{
			Name: "server_governor", Title: "Set the CPU governor", Effects: tool.Writes | tool.Idempotent,
			Task: tool.TaskNever, Aliases: []string{"server.experimental.governor"},
			Description: "Returns or sets how the kernel controls the speed of the processors.",
			Help:        governorHelp,
		}, m.governor),
	}
}

func (m *updates) checkAllowed(c *tool.Call) error {
	if err := m.cfg.Rules.Check(c, "update its program"); err != nil {
		return err
	}
	if m.cfg.Updater == nil {
		return refusalOf(update.ErrNoSource)
	}
	return nil
}

type checkOut struct {
	Current  string `json:"current" doc:"the running version"`
	Newest   string `json:"newest"`
	Newer    bool   `json:"newer"`
	Released string `json:"released,omitempty"`
	Notes    string `json:"notes,omitempty"`
	Previous string `json:"previous,omitempty"`
}

const maxNotes = 16 << 10 // bytes of release notes in a result

func (m *updates) checkRelease(ctx context.Context, c *tool.Call, _ struct{}) (checkOut, error) {
	if err := m.checkAllowed(c); err != nil {
		return checkOut{}, err
	}
	r, newer, err := m.cfg.Updater.Check(ctx)
	if err != nil {
		return checkOut{}, refusalOf(err)
	}
	out := checkOut{
		Current:  m.cfg.Current,
		Newest:   r.Version,
		Newer:    newer,
		Notes:    r.Notes[:min(len(r.Notes), maxNotes)],
		Previous: m.cfg.Updater.Prior(ctx),
	}
	if !r.Released.IsZero() {
		out.Released = r.Released.UTC().Format(time.RFC3339)
	}
	return out, nil
}

func refusalOf(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, update.ErrNoSource):
		return &tool.Refusal{
			Code:    tool.CodeUnsupported,
			Message: err.Error(),
			Next:    "Ask an administrator to set update.source and update.key in gatehouse.yaml.",
		}
	case errors.Is(err, update.ErrSignature):
		return &tool.Refusal{
			Code:    tool.CodeDenied,
			Message: err.Error(),
			Next:    "Nothing was changed. Tell the user, because the release may be forged.",
		}
	case errors.Is(err, update.ErrWaiting):
		return &tool.Refusal{Code: tool.CodeExists, Message: err.Error(), Next: "Restart the host with server_restart."}
	case errors.Is(err, update.ErrNone), errors.Is(err, update.ErrNoPrior), errors.Is(err, update.ErrNoBuild):
		return &tool.Refusal{Code: tool.CodeNotFound, Message: err.Error()}
	case errors.Is(err, update.ErrBusy):
		return &tool.Refusal{Code: tool.CodeBusy, Message: err.Error(),
			Next: "Wait for the running update with job_wait."}
	}
	return err
}

type confirmIn struct {
	Confirm string `json:"confirm,omitempty" doc:"the version, once the user has agreed; needs the setting approvals.callers_word" max:"100"`
}

type jobOut struct {
	progress.Started
	Target string `json:"target" doc:"the version"`
}

// updateResult is the result of a job that replaced the program.
type updateResult struct {
	Version string `json:"version"`
	Was     string `json:"was"`
	Next    string `json:"next"`
}

const restartHint = "It runs after the host is restarted: server_restart."

func (m *updates) installUpdate(ctx context.Context, c *tool.Call, in confirmIn) (jobOut, error) {
	if err := m.checkAllowed(c); err != nil {
		return jobOut{}, err
	}
	version, err := tool.Once(c, "version", func() (string, error) {
		r, newer, err := m.cfg.Updater.Check(ctx)
		if err == nil && !newer {
			err = update.ErrNone
		}
		return r.Version, refusalOf(err)
	})
	if err != nil {
		return jobOut{}, err
	}
	question := fmt.Sprintf("Replace the program of this host, version %s, by version %s?", m.cfg.Current, version)
	if err := confirm.Ask(c, version, question, in.Confirm); err != nil {
		return jobOut{}, err
	}
	started, err := m.startUpdate(c, version)
	return jobOut{started, version}, err
}

// startUpdate runs the update as a job and shows its phases.
func (m *updates) startUpdate(c *tool.Call, version string) (progress.Started, error) {
	title := "update to " + version
	work := func(ctx context.Context, _ *tool.Call, tell func(progress.Progress)) (any, error) {
		track := progress.New(tell, update.PhaseCheck, update.PhaseDownload, update.PhaseTry, update.PhaseReplace)
		show := func(phase string, done, total int64) { track.At(phase, done, total, "bytes") }
		r, err := m.cfg.Updater.Apply(ctx, show)
		switch {
		case err == nil:
			track.Finish()
			notify.Publish(m.deps, notify.Notification{
				Code:    "update.applied",
				Level:   notify.Success,
				Title:   "Version " + r.Version + " is installed",
				Message: restartHint,
			})
		case ctx.Err() == nil:
			notify.Publish(m.deps, notify.Notification{
				Code:    "update.failed",
				Level:   notify.Error,
				Title:   "The " + title + " failed",
				Message: err.Error(),
			})
		}
		return updateResult{r.Version, m.cfg.Current, restartHint}, refusalOf(err)
	}
	return m.cfg.Show.Start(m.deps, c, title, work)
}

type rollbackOut struct {
	Version string `json:"version" doc:"runs after the host is restarted"`
	Next    string `json:"next"`
}

func (m *updates) rollback(ctx context.Context, c *tool.Call, in confirmIn) (rollbackOut, error) {
	if err := m.checkAllowed(c); err != nil {
		return rollbackOut{}, err
	}
	version, err := tool.Once(c, "prior", func() (string, error) { return m.cfg.Updater.Prior(ctx), nil })
	if err != nil {
		return rollbackOut{}, err
	}
	if version == "" {
		return rollbackOut{}, refusalOf(update.ErrNoPrior)
	}
	if err := confirm.Ask(c, version, "Restore version "+version+" of this host's program?", in.Confirm); err != nil {
		return rollbackOut{}, err
	}
	version, err = m.cfg.Updater.Rollback(ctx)
	return rollbackOut{version, restartHint}, refusalOf(err)
}
