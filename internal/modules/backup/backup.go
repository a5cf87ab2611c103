// Package backup is the module with which administrators put all a host
// keeps into an encrypted file elsewhere, look at such files, and bring one
// back.
package backup

import (
	"context"
	"errors"
	"time"

	"gatehouse/internal/access/operator"
	"gatehouse/internal/access/secret"
	"gatehouse/internal/dispatch/notify"
	"gatehouse/internal/dispatch/progress"
	"gatehouse/internal/maintenance/backup"
	"gatehouse/module"
	"gatehouse/tool"
)

// Config is what the module is given.
type Config struct {
	Backups *backup.Manager `json:"-"` // nil: this host keeps nothing that could be backed up
	Secrets *secret.Store   `json:"-"` // nil: there are none
	Folders backup.Folders  `json:"-"`
	// PutPackages puts a restore of packages alone that waits in place; now is
	// false if it goes on waiting, because another host has the packages or one
	// of them is busy. nil means that restores wait for the next start.
	PutPackages func() (now bool, err error) `json:"-"`
	// Mountable returns nil if backups can be mounted; if it returns an error, the
	// tools for that are not offered. nil means that they are.
	Mountable func() error  `json:"-"`
	Rules     operator.Func `json:"-"` // reports who is an administrator; nil means no caller
	Show      progress.Show `json:"-"` // shows how far a job is
}

type backupTools struct {
	cfg   Config
	deps  module.Deps
	offer module.Offer
}

// New makes the module.
func New(cfg Config) module.New {
	return func(_ context.Context, d module.Deps) (module.Module, error) {
		k := &backupTools{deps: d}
		k.cfg = cfg
		k.offer.Tools = k.definitions()
		if k.cfg.Mountable == nil || k.cfg.Mountable() == nil {
			k.offer.Tools = append(k.offer.Tools, k.mountDefinitions()...)
		}
		return k, nil
	}
}

// Offer implements module.Module.
func (b *backupTools) Offer(context.Context, module.Audience) (*module.Offer, error) {
	return &b.offer, nil
}

// Close implements module.Module. It unmounts what is mounted.
func (b *backupTools) Close(ctx context.Context) error {
	if b.cfg.Backups == nil {
		return nil
	}
	return b.cfg.Backups.Close(ctx)
}

const keyHelp = "A backup is encrypted with `password`, of 12 characters or more, or with the secret of the host " +
	"that `secret` names; without both it is the secret BACKUP_PASSWORD. Secrets are kept with `gatehouse secret " +
	"set NAME`, where no model sees them. Who loses the password has no backup."

const createHelp = `Writes everything that this host stores to one encrypted file in a target: its state, contexts, users and tokens, secrets with their key, the ledger, jobs, settings and the data of packages.

- It answers with a job at once; job_wait follows it, job_cancel ends it, gatehouse:///public/jobs shows its phases. One that is interrupted leaves nothing.
- Databases are taken as they are at one moment, while everything goes on.
- packages makes a backup of those packages alone: their programs, data and records.
- Where the target keeps a number of backups, the oldest of this host are removed then. Those of packages alone do not count and stay.
- While one is made another is refused.
- ` + keyHelp

const restoreHelp = `Unpacks a backup beside what is there. A restore of everything takes effect when a host starts while no other one runs on the same folders: use server_restart, or start it again.

- Everything becomes what it was then, users and tokens included. What was there is kept in .before-restore in each folder, until the next restore.
- packages brings those packages back alone, and everything else stays as it is. A backup of packages alone brings back those it holds. The host that runs the packages ends them, replaces them and starts them again, within seconds and without a restart of its own; a package that is being changed is waited for.
- It answers with a job at once; job_wait follows it. A damaged backup changes nothing.
- ` + keyHelp

const readHelp = `A backup is one encrypted stream: it is read from its beginning up to the file. To read many files, use backup_mount where it is listed.

- path begins with data, config, state or key, as backup_info lists it. Without a path, or with that of a folder, it lists what is in it.
- Text of up to 8 MiB is shown. For other files, and larger ones, a person uses gatehouse backup read PATH, which writes any file to its standard output.
- The secrets of the host and their key are shown to no model.
- `

const targetHelp = `Makes a target, or replaces the one of its name, after trying it.

- directory: path is a folder that is there, such as that of a mounted disk.
- s3: endpoint, bucket, region and access_key; secret names the secret that holds the secret key. path is what names in the bucket begin with.
- smb: host, share, and user unless guests may write; secret names the secret that holds the password. path is a folder in the share, made if it is missing. Nothing is mounted.
- keep is how many backups of this host stay; 0 keeps all.`

func (b *backupTools) definitions() []tool.Tool {
	return []tool.Tool{
		tool.New(tool.Def{
			Name: "backup_create", Title: "Make a backup", Effects: tool.Writes | tool.OpenWorld, Task: tool.TaskNever,
			Aliases:     []string{"backup.create"},
			Description: "Starts a backup of all this host keeps, encrypted, to a target. It answers with a job.",
			Help:        createHelp,
		}, b.create),
		tool.New(tool.Def{
			Name: "backup_list", Title: "List backup targets", Effects: tool.Reads | tool.OpenWorld,
			Task: tool.TaskNever, Timeout: 2 * time.Minute, Aliases: []string{"backup.target.list"},
			Description: "Lists the targets of backups and, of one of them, the backups in it.",
			Help: "Without `target` only the targets are listed, and the backups of the only one there is. " +
				"Of a target at most 1,000 backups are listed, the newest first.",
		}, b.listBackups),
		tool.New(tool.Def{
			Name: "backup_info", Title: "Describe a backup", Effects: tool.Reads | tool.OpenWorld, Task: tool.TaskNever,
			Timeout: 2 * time.Minute, Aliases: []string{"backup.target.info"},
			Description: "Says what is in a backup without restoring it: when and by which host it was made, " +
				"and its files.",
			Help: "Only the beginning of the backup is read. " + keyHelp,
		}, b.backupInfo),
		tool.New(tool.Def{
			Name: "backup_read", Title: "Read inside a backup", Effects: tool.Reads | tool.OpenWorld,
			Task: tool.TaskNever, Timeout: 10 * time.Minute,
			Description: "Reads one file out of a backup, or lists a folder in it, without restoring anything.",
			Help:        readHelp + keyHelp,
		}, b.readBackup),
		tool.New(tool.Def{
			Name: "backup_restore", Title: "Restore a backup", Effects: tool.Writes | tool.Destroys | tool.OpenWorld,
			Task: tool.TaskNever, Aliases: []string{"package.backup.restore"},
			Description: "Unpacks a backup, after the person has agreed: packages alone at once, " +
				"everything when the host is started again. It answers with a job.",
			Help: restoreHelp,
		}, b.restore),
		tool.New(tool.Def{
			Name: "backup_restore_cancel", Title: "Cancel a restore", Effects: tool.Writes | tool.Idempotent,
			Task:        tool.TaskNever,
			Description: "Takes back a restore that has not taken effect yet.",
		}, b.cancel),
		tool.New(tool.Def{
			Name: "backup_target_set", Title: "Set a backup target",
			Effects: tool.Writes | tool.Destroys | tool.OpenWorld | tool.Idempotent, Task: tool.TaskNever,
			Timeout:     2 * time.Minute,
			Aliases:     []string{"backup.target.cifs.add", "backup.target.cifs.update"},
			Description: "Makes or replaces a target of backups: a folder, an S3-compatible service or a share.",
			Help:        targetHelp,
		}, b.setTarget),
		tool.New(tool.Def{
			Name: "backup_target_remove", Title: "Remove a backup target", Effects: tool.Writes | tool.Idempotent,
			Task: tool.TaskNever, Aliases: []string{"backup.target.cifs.remove"},
			Description: "Forgets a target of backups. The backups in it stay.",
		}, b.removeTarget),
	}
}

// ready refuses callers who are not administrators, and all callers if there is
// nothing to back up.
func (b *backupTools) ready(c *tool.Call) error {
	if err := b.cfg.Rules.Check(c, "deal with its backups"); err != nil {
		return err
	}
	if b.cfg.Backups == nil {
		return &tool.Refusal{
			Code:    tool.CodeUnsupported,
			Message: "this host keeps nothing on disk",
			Next: "Call a host that does: gatehouse daemon start backup, and then gatehouse call with --daemon; " +
				"or use gatehouse backup on the command line.",
		}
	}
	return nil
}

// keyIn is what a backup is encrypted with, as arguments have it.
type keyIn struct {
	Password string `json:"password,omitempty" doc:"of the backup; better: secret" max:"1024"`
	Secret   string `json:"secret,omitempty" doc:"the host's secret that holds the password" max:"64"`
}

func (b *backupTools) key(in keyIn) (backup.Key, error) {
	switch {
	case in.Password != "" && in.Secret != "":
		return backup.Key{}, &tool.Refusal{Code: tool.CodeInvalidArguments,
			Message: "password and secret exclude each other"}
	case in.Password != "":
		return backup.Key{Password: secret.New(in.Password)}, nil
	case in.Secret == "":
		in.Secret = backup.DefaultSecret
	}
	missing := &tool.Refusal{
		Code:    tool.CodeNotFound,
		Message: "there is no password: this host has no secret " + in.Secret,
		Next:    "Have a person keep one with: gatehouse secret set " + in.Secret,
	}
	if b.cfg.Secrets == nil {
		return backup.Key{}, missing
	}
	if err := secret.CheckName(in.Secret); err != nil {
		return backup.Key{}, tool.Refuse(tool.CodeInvalidArguments, "secret: %v", err)
	}
	value, err := b.cfg.Secrets.Get(in.Secret)
	if errors.Is(err, secret.ErrNotFound) {
		return backup.Key{}, missing
	}
	return backup.Key{Password: value}, err
}

// refusalOf turns the room's errors into what a model can act on.
func refusalOf(err error) error {
	wrong, isWrong := errors.AsType[*backup.Invalid](err)
	switch {
	case err == nil:
		return nil
	case isWrong:
		return &tool.Refusal{Code: tool.CodeInvalidArguments, Message: wrong.Error()}
	case errors.Is(err, backup.ErrBusy):
		return &tool.Refusal{Code: tool.CodeBusy, Message: err.Error(), Next: "Wait for it with job_wait."}
	case errors.Is(err, backup.ErrNoTarget):
		return &tool.Refusal{
			Code:    tool.CodeNotFound,
			Message: err.Error(),
			Next:    "backup_list shows those there are; backup_target_set makes one.",
		}
	case errors.Is(err, backup.ErrNoBackup):
		return &tool.Refusal{Code: tool.CodeNotFound, Message: err.Error(), Next: "backup_list shows those there are."}
	case errors.Is(err, backup.ErrNoFile):
		return &tool.Refusal{
			Code:    tool.CodeNotFound,
			Message: err.Error(),
			Next:    "backup_read with the path of a folder, or none, lists what is in it.",
		}
	case errors.Is(err, backup.ErrNoMount):
		return &tool.Refusal{Code: tool.CodeNotFound, Message: err.Error(), Next: "backup_list shows those there are."}
	case errors.Is(err, backup.ErrMountLimit):
		return &tool.Refusal{Code: tool.CodeTooMany, Message: err.Error(), Next: "End one with backup_unmount."}
	case errors.Is(err, backup.ErrMountUsed):
		return &tool.Refusal{
			Code:    tool.CodeBusy,
			Message: err.Error(),
			Next:    "Close the files and leave the folder, or set force.",
		}
	case errors.Is(err, backup.ErrPassword):
		return &tool.Refusal{Code: tool.CodeDenied, Message: err.Error()}
	case errors.Is(err, backup.ErrDamaged):
		return &tool.Refusal{Code: tool.CodeDamaged, Message: err.Error(),
			Next: "Nothing was changed. Try another backup."}
	}
	return err
}

// startJob runs something as a job, whose phases are shown. While one backup is made
// or restored the next caller is refused at once, and no job is made.
func (b *backupTools) startJob(
	c *tool.Call, title string, names []string, run func(context.Context, *backup.Hold, backup.Progress) (any, error),
) (progress.Started, error) {
	hold, err := b.cfg.Backups.Reserve()
	if err != nil {
		return progress.Started{}, refusalOf(err)
	}
	started, err := b.cfg.Show.Start(
		b.deps,
		c,
		title,
		func(ctx context.Context, _ *tool.Call, tell func(progress.Progress)) (any, error) {
			defer hold.Release()
			track := progress.New(tell, names...)
			out, err := run(ctx, hold, func(phase string, done, total int64) {
				units := "bytes"
				if phase == backup.PhaseSnapshot {
					units = "files"
				}
				track.At(phase, done, total, units)
			})
			switch {
			case err == nil:
				track.Finish()
			case ctx.Err() == nil:
				notify.Publish(
					b.deps,
					notify.Notification{
						Code:    "backup.failed",
						Level:   notify.Error,
						Title:   "The " + title + " failed",
						Message: err.Error(),
					},
				)
			}
			return out, refusalOf(err)
		},
	)
	if err != nil {
		hold.Release()
	}
	return started, err
}
