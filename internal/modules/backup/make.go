package backup

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"gatehouse/internal/access/confirm"
	"gatehouse/internal/dispatch/notify"
	"gatehouse/internal/dispatch/progress"
	"gatehouse/internal/maintenance/backup"
	"gatehouse/tool"
)

type createIn struct {
	Target string `json:"target,omitempty" doc:"where to: a name, or an absolute folder; may be left out where there is one alone" max:"4096"`
	packagesIn
	keyIn
}

// packagesIn chooses packages.
type packagesIn struct {
	Packages []string `json:"packages,omitempty" doc:"ids; these packages alone, instead of everything" min:"1" max:"100"`
}

// made is the result of a job that made a backup.
type made struct {
	Backup  string   `json:"backup"`
	Target  string   `json:"target"`
	Size    int64    `json:"size"`
	Files   int      `json:"files"`
	Removed []string `json:"removed,omitempty"` // older ones
	Warning string   `json:"warning,omitempty"`
}

func (b *backupTools) create(ctx context.Context, c *tool.Call, in createIn) (progress.Started, error) {
	if err := b.ready(c); err != nil {
		return progress.Started{}, err
	}
	key, err := b.key(in.keyIn)
	if err != nil {
		return progress.Started{}, err
	}
	if err := key.CheckCreate(); err != nil {
		return progress.Started{}, refusalOf(err)
	}
	t, err := b.cfg.Backups.Target(in.Target)
	if err != nil {
		return progress.Started{}, refusalOf(err)
	}
	if err := b.cfg.Backups.CheckPackages(ctx, in.Packages); err != nil {
		return progress.Started{}, refusalOf(err)
	}
	names := []string{backup.PhaseSnapshot, backup.PhaseWrite, backup.PhaseTidy}
	return b.startJob(
		c,
		"backup to "+t.Name,
		names,
		func(ctx context.Context, h *backup.Hold, report backup.Progress) (any, error) {
			m, err := h.Create(ctx, t.Name, in.Packages, key, report)
			if err != nil {
				return nil, err
			}
			out := made{Backup: m.Name, Target: t.Name, Size: m.Size, Files: len(m.Manifest.Files), Removed: m.Removed}
			level := notify.Success
			if m.Left != nil {
				level, out.Warning = notify.Warning, "older backups could not be removed: "+m.Left.Error()
			}
			notify.Publish(b.deps, notify.Notification{
				Code: "backup.created", Level: level, Title: "A backup was made in " + t.Name,
				Message: strings.TrimSpace(
					fmt.Sprintf("%s, %d files, %d bytes. %s", m.Name, out.Files, m.Size, out.Warning),
				),
			})
			b.publish("created", t.Name, m.Name, c)
			return out, nil
		},
	)
}

// publish tells what was done, without what it was done with.
func (b *backupTools) publish(what, target, name string, c *tool.Call) {
	if b.deps.Publish != nil {
		b.deps.Publish(what, struct {
			Owner  string `json:"owner"`
			Target string `json:"target"`
			Backup string `json:"backup"`
		}{c.Caller.Owner, target, name})
	}
}

type oneIn struct {
	Target string `json:"target,omitempty" doc:"a name, or an absolute folder; may be left out where there is one alone" max:"4096"`
	Backup string `json:"backup,omitempty" doc:"its name; left out, the newest" max:"100"`
	keyIn
}

type restoreIn struct {
	oneIn
	packagesIn
	Confirm string `json:"confirm,omitempty" doc:"the backup's name, once the person has agreed; counts where the settings let a caller's word stand (approvals.callers_word)" max:"100"`
}

// staged is the result of a job that unpacked a backup.
type staged struct {
	Backup  string `json:"backup"`
	Created string `json:"created"`
	Host    string `json:"host"`
	Files   int    `json:"files"`
	Next    string `json:"next"`
}

func (b *backupTools) restore(ctx context.Context, c *tool.Call, in restoreIn) (progress.Started, error) {
	if err := b.ready(c); err != nil {
		return progress.Started{}, err
	}
	key, err := b.key(in.keyIn)
	if err != nil {
		return progress.Started{}, err
	}
	// The agreement is to one backup, also when a newer one comes meanwhile.
	chosen, err := tool.Once(c, "backup", func() (map[string]string, error) {
		e, m, err := b.cfg.Backups.FindBackup(ctx, in.Target, in.Backup, in.Packages, key)
		if err != nil {
			return nil, refusalOf(err)
		}
		if m.OfPackages() && len(in.Packages) == 0 {
			in.Packages = slices.Sorted(maps.Keys(m.Packages))
		}
		return map[string]string{
			"packages": strings.Join(in.Packages, ", "),
			"name":     e.Name,
			"of":       m.Host.Name + " of " + m.Created.Format(time.RFC3339),
		}, nil
	})
	if err != nil {
		return progress.Started{}, err
	}
	name := chosen["name"]
	what, when := "all this host keeps", ", when the host is started again?"
	if chosen["packages"] != "" {
		what, when = "the packages "+chosen["packages"], " now?"
	}
	question := "Replace " + what + " by the backup " + name + ", made by " + chosen["of"] + when
	if err := confirm.Ask(c, name, question, in.Confirm); err != nil {
		return progress.Started{}, err
	}
	return b.startJob(
		c,
		"restore of "+name,
		[]string{backup.PhaseRead},
		func(ctx context.Context, h *backup.Hold, report backup.Progress) (any, error) {
			e, m, err := h.Restore(ctx, in.Target, name, in.Packages, key, report)
			if err != nil {
				return nil, err
			}
			b.publish("staged", in.Target, e.Name, c)
			out := staged{
				Backup:  e.Name,
				Created: m.Created.Format(time.RFC3339),
				Host:    m.Host.Name,
				Files:   len(m.Files),
			}
			if chosen["packages"] != "" {
				return b.putPackages(out, chosen["packages"])
			}
			notify.Publish(
				b.deps,
				notify.Notification{
					Code:    "backup.staged",
					Title:   "A backup waits to be restored",
					Message: e.Name + " takes effect when the host is started again.",
				},
			)
			out.Next = "It takes effect when the host is started again: server_restart. Until then, " +
				"backup_restore_cancel takes it back."
			return out, nil
		},
	)
}

// putPackages has packages that were unpacked brought back while the host runs.
func (b *backupTools) putPackages(out staged, packages string) (any, error) {
	now := false
	if b.cfg.PutPackages != nil {
		var err error
		if now, err = b.cfg.PutPackages(); err != nil {
			return nil, err
		}
	}
	if now {
		notify.Publish(
			b.deps,
			notify.Notification{
				Code:    "backup.restored",
				Title:   "Packages were restored",
				Message: packages + " of " + out.Backup,
			},
		)
		out.Next = "The packages " + packages + " are back and run as their records say: package_list shows them."
		return out, nil
	}
	notify.Publish(
		b.deps,
		notify.Notification{
			Code:    "backup.staged",
			Title:   "Packages wait to be restored",
			Message: out.Backup + " takes effect when the packages are free.",
		},
	)
	out.Next = "It takes effect as soon as the host that runs the packages is done with what it does to them, " +
		"or when a host is started. Until then, backup_restore_cancel takes it back."
	return out, nil
}

type cancelOut struct {
	Cancelled string `json:"cancelled" doc:"the backup that would have been restored; empty when none waited"`
}

func (b *backupTools) cancel(_ context.Context, c *tool.Call, _ struct{}) (cancelOut, error) {
	if err := b.ready(c); err != nil {
		return cancelOut{}, err
	}
	waiting, err := backup.Waiting(b.cfg.Folders)
	if err != nil || waiting == nil {
		return cancelOut{}, err
	}
	return cancelOut{waiting.Backup}, refusalOf(backup.Cancel(b.cfg.Folders))
}
