package backup

import (
	"context"
	"time"

	"gatehouse/internal/maintenance/backup"
	"gatehouse/tool"
)

const mountHelp = `Mounts a backup read-only in a folder below the data folder of the host, and returns the path. Other programs then read it as any folder; nothing is unpacked.

- Files are decrypted when they are read. A backup is one stream: reading in the order of the listing is fast, jumping back reads it again from its beginning, and files over 32 MiB are slow to read out of order.
- Only processes with the user id of the host can enter it. The file tools see it only if their folders and rules include the path.
- The secrets of the host and their key are left out; a person mounts them too with gatehouse backup mount.
- It ends with backup_unmount, with the host, or when no process used it for idle_minutes. An owner has 4 mounts at most, a host 8.
- ` + keyHelp

func (b *backupTools) mountDefinitions() []tool.Tool {
	return []tool.Tool{
		tool.New(tool.Def{
			Name: "backup_mount", Title: "Mount a backup", Effects: tool.Writes | tool.OpenWorld, Task: tool.TaskNever,
			Timeout:     2 * time.Minute,
			Aliases:     []string{"backup.target.mount"},
			Description: "Mounts a backup as a read-only folder, so that its files can be read without restoring anything.",
			Help:        mountHelp,
		}, b.mountBackup),
		tool.New(tool.Def{
			Name: "backup_unmount", Title: "Unmount a backup", Effects: tool.Writes | tool.Idempotent,
			Task:        tool.TaskNever,
			Aliases:     []string{"backup.target.umount"},
			Description: "Ends a mount of a backup. backup_list shows the mounts.",
			Help: "While a process has a file of it open, or its working folder in it, it is refused, " +
				"unless force is set: then that process gets errors.",
		}, b.unmountBackup),
	}
}

type mountIn struct {
	oneIn
	Idle int `json:"idle_minutes,omitempty" doc:"without use, after which it is unmounted" min:"1" max:"1440" default:"30"`
}

type mountOut struct {
	Mount   string `json:"mount" doc:"its id"`
	Path    string `json:"path" doc:"of the folder on the host"`
	Backup  string `json:"backup"`
	Target  string `json:"target,omitempty"`
	Created string `json:"created" doc:"when the backup was made"`
	Since   string `json:"since" doc:"when it was mounted"`
	Files   int    `json:"files"`
	Bytes   int64  `json:"bytes" doc:"of the files"`
	Idle    string `json:"idle" doc:"without use, after which it is unmounted"`
}

func describeMount(m backup.Mounted) mountOut {
	return mountOut{
		Mount: m.ID, Path: m.Path, Backup: m.Backup, Target: m.Target, Created: m.Created.Format(time.RFC3339),
		Since: m.Since.Format(time.RFC3339), Files: m.Files, Bytes: m.Bytes, Idle: m.Idle,
	}
}

func (b *backupTools) mountBackup(ctx context.Context, c *tool.Call, in mountIn) (mountOut, error) {
	if err := b.ready(c); err != nil {
		return mountOut{}, err
	}
	key, err := b.key(in.keyIn)
	if err != nil {
		return mountOut{}, err
	}
	m, err := b.cfg.Backups.Mount(ctx, backup.MountRequest{
		Target: in.Target, Backup: in.Backup, Key: key, Owner: c.Caller.Owner, Hide: secretFile,
		Idle: time.Duration(in.Idle) * time.Minute,
	})
	return describeMount(m), refusalOf(err)
}

type unmountIn struct {
	Mount string `json:"mount" doc:"id or path" min:"1" max:"4096"`
	Force bool   `json:"force,omitempty" doc:"also while it is used"`
}

type unmountOut struct {
	Unmounted string `json:"unmounted" doc:"path of the folder, which is gone"`
}

func (b *backupTools) unmountBackup(_ context.Context, c *tool.Call, in unmountIn) (unmountOut, error) {
	if err := b.ready(c); err != nil {
		return unmountOut{}, err
	}
	m, err := b.cfg.Backups.Unmount(in.Mount, in.Force)
	return unmountOut{m.Path}, refusalOf(err)
}
