package backup

import (
	"context"
	"time"

	"gatehouse/internal/maintenance/backup"
	"gatehouse/tool"
)

const (
	mostBackups = 1000 // in one answer
	mostFiles   = 500
)

type listIn struct {
	Target string `json:"target,omitempty" doc:"list the backups in it: a name, or an absolute folder" max:"4096"`
}

type listOut struct {
	Targets []targetOut `json:"targets"`
	Target  string      `json:"target,omitempty" doc:"whose backups are listed"`
	Backups []entryOut  `json:"backups,omitempty"`
	More    int         `json:"more,omitempty" doc:"backups that are not listed"`
	Mounts  []mountOut  `json:"mounts,omitempty" doc:"backups that are mounted"`
	Waiting string      `json:"waiting,omitempty" doc:"the backup that is restored when the host starts again"`
}

type targetOut struct {
	Name      string `json:"name"`
	Kind      string `json:"kind"`
	Path      string `json:"path,omitempty"`
	Endpoint  string `json:"endpoint,omitempty"`
	Bucket    string `json:"bucket,omitempty"`
	Region    string `json:"region,omitempty"`
	AccessKey string `json:"access_key,omitempty"`
	Host      string `json:"host,omitempty"`
	Share     string `json:"share,omitempty"`
	User      string `json:"user,omitempty"`
	Secret    string `json:"secret,omitempty" doc:"name of the secret it is opened with"`
	Keep      int    `json:"keep,omitempty"`
}

type entryOut struct {
	Backup  string `json:"backup"`
	Created string `json:"created"`
	Size    int64  `json:"size"`
	Own     bool   `json:"own" doc:"made by this host"`
}

func (b *backupTools) listBackups(ctx context.Context, c *tool.Call, in listIn) (listOut, error) {
	out := listOut{Targets: []targetOut{}}
	if err := b.ready(c); err != nil {
		return out, err
	}
	all, err := b.cfg.Backups.Targets()
	if err != nil {
		return out, err
	}
	for _, t := range all {
		out.Targets = append(
			out.Targets,
			targetOut{
				t.Name,
				t.Kind,
				t.Path,
				t.Endpoint,
				t.Bucket,
				t.Region,
				t.AccessKey,
				t.Host,
				t.Share,
				t.User,
				t.Secret,
				t.Keep,
			},
		)
	}
	if w, err := backup.Waiting(b.cfg.Folders); err == nil && w != nil {
		out.Waiting = w.Backup
	}
	for _, m := range backup.Mounts(b.cfg.Folders) {
		out.Mounts = append(out.Mounts, describeMount(m))
	}
	if in.Target == "" && len(all) != 1 {
		return out, nil
	}
	if out.Target = in.Target; in.Target == "" {
		out.Target = all[0].Name
	}
	entries, err := b.cfg.Backups.List(ctx, out.Target)
	if err != nil {
		return out, refusalOf(err)
	}
	if len(entries) > mostBackups {
		entries, out.More = entries[:mostBackups], len(entries)-mostBackups
	}
	for _, e := range entries {
		out.Backups = append(out.Backups, entryOut{e.Name, e.Created.Format(time.RFC3339), e.Size, e.Own})
	}
	return out, nil
}

type infoOut struct {
	Backup  string      `json:"backup"`
	Size    int64       `json:"size" doc:"of the backup"`
	Created string      `json:"created"`
	HostID  string      `json:"host_id"`
	Host    string      `json:"host"`
	Version string      `json:"version" doc:"of the program that made it"`
	Files   int         `json:"files"`
	Bytes   int64       `json:"bytes" doc:"of the files"`
	Folders []folderOut `json:"folders"`
	List    []fileOut   `json:"list"`
	More    int         `json:"more,omitempty" doc:"files that are not listed"`
}

type folderOut struct {
	Folder string `json:"folder" doc:"data, config, state or key"`
	Files  int    `json:"files"`
	Bytes  int64  `json:"bytes"`
}

type fileOut struct {
	Path     string `json:"path" doc:"with the folder in front"`
	Size     int64  `json:"size"`
	Modified string `json:"modified"`
}

func (b *backupTools) backupInfo(ctx context.Context, c *tool.Call, in oneIn) (infoOut, error) {
	if err := b.ready(c); err != nil {
		return infoOut{}, err
	}
	key, err := b.key(in.keyIn)
	if err != nil {
		return infoOut{}, err
	}
	e, m, err := b.cfg.Backups.Info(ctx, in.Target, in.Backup, key)
	if err != nil {
		return infoOut{}, refusalOf(err)
	}
	out := infoOut{
		Backup: e.Name, Size: e.Size, Created: m.Created.Format(time.RFC3339), HostID: m.Host.ID, Host: m.Host.Name,
		Version: m.Version, Files: len(m.Files), Bytes: m.Bytes(), Folders: []folderOut{}, List: []fileOut{},
	}
	at := map[string]int{}
	for _, f := range m.Files {
		i, known := at[f.Folder]
		if !known {
			i = len(out.Folders)
			at[f.Folder], out.Folders = i, append(out.Folders, folderOut{Folder: f.Folder})
		}
		out.Folders[i].Files++
		out.Folders[i].Bytes += f.Size
		if len(out.List) < mostFiles {
			out.List = append(out.List, fileOut{f.Folder + "/" + f.Path, f.Size, f.Modified.Format(time.RFC3339)})
		}
	}
	out.More = len(m.Files) - len(out.List)
	return out, nil
}

type targetIn struct {
	Name      string `json:"name" example:"disk" min:"1" max:"40"`
	Kind      string `json:"kind" enum:"directory,s3,smb"`
	Path      string `json:"path,omitempty" doc:"the folder; in a bucket or share, below it" example:"/mnt" max:"4096"`
	Endpoint  string `json:"endpoint,omitempty" doc:"of s3: https://host" max:"300"`
	Bucket    string `json:"bucket,omitempty" doc:"of s3" max:"63"`
	Region    string `json:"region,omitempty" doc:"of s3; left out, us-east-1" max:"40"`
	AccessKey string `json:"access_key,omitempty" doc:"of s3" max:"200"`
	Host      string `json:"host,omitempty" doc:"of smb" max:"300"`
	Share     string `json:"share,omitempty" doc:"of smb" max:"100"`
	User      string `json:"user,omitempty" doc:"of smb; left out, a guest" max:"200"`
	Secret    string `json:"secret,omitempty" doc:"name of the host's secret it is opened with" max:"64"`
	Keep      int    `json:"keep,omitempty" doc:"how many backups of this host stay; 0 keeps all" min:"0" max:"10000"`
}

type targetSet struct {
	Name string `json:"name"`
	Kind string `json:"kind"`
}

func (b *backupTools) setTarget(ctx context.Context, c *tool.Call, in targetIn) (targetSet, error) {
	if err := b.ready(c); err != nil {
		return targetSet{}, err
	}
	t := backup.Target{
		Name: in.Name, Kind: in.Kind, Path: in.Path, Endpoint: in.Endpoint, Bucket: in.Bucket, Region: in.Region,
		AccessKey: in.AccessKey,
		Host:      in.Host, Share: in.Share, User: in.User, Secret: in.Secret, Keep: in.Keep,
	}
	return targetSet{in.Name, in.Kind}, refusalOf(b.cfg.Backups.SetTarget(ctx, t))
}

type nameIn struct {
	Name string `json:"name" min:"1" max:"40"`
}

type targetRemoved struct {
	Removed string `json:"removed"`
}

func (b *backupTools) removeTarget(_ context.Context, c *tool.Call, in nameIn) (targetRemoved, error) {
	if err := b.ready(c); err != nil {
		return targetRemoved{}, err
	}
	return targetRemoved{in.Name}, refusalOf(b.cfg.Backups.RemoveTarget(in.Name))
}
