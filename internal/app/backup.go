package app

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"gatehouse/internal/access/secret"
	"gatehouse/internal/config"
	"gatehouse/internal/dispatch/jobs"
	"gatehouse/internal/dispatch/progress"
	"gatehouse/internal/files/stage"
	"gatehouse/internal/maintenance/backup"
	keeping "gatehouse/internal/modules/backup"
	"gatehouse/internal/packages"
	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/namespaces"
	"gatehouse/internal/state"
	"gatehouse/tool"
)

// BackedUp returns the folders that backups contain. The records of running processes and the log of the daemon
// are left out, because they belong to this machine. Staged tasks are packed, because a backup has regular files alone
// and would lose what they deleted.
func BackedUp(cfg config.Config) backup.Folders {
	f := cfg.Folders
	not := []string{f.Cache, f.Runtime, cfg.Audit.Archive, packages.StoreFolder(filepath.Join(f.Data, packagesFolder)),
		StageFolder(f)}
	if f.State != "" {
		not = append(
			not,
			filepath.Join(f.State, "processes"),
			filepath.Join(f.State, "daemon"),
			filepath.Join(f.State, "journal"),
		)
	}
	all := backup.Folders{Data: f.Data, Config: f.Config, State: f.State, KeyFile: cfg.Secrets.KeyFile, Not: not}
	if f.Data == "" {
		return all
	}
	held := filepath.Join(f.Data, packagesFolder)
	all.NotNow = func() []string { return packages.OwnedData(held) }
	all.Remove = func(path string) error {
		return withOwners(func(d sandbox.Driver) error { return packages.RemoveOwned(context.Background(), d, path) })
	}
	all.Pack = func(ctx context.Context, to string, log *slog.Logger) (map[string]string, error) {
		files := map[string]string{}
		if dir := StageFolder(f); dir != "" {
			packed, err := stage.Pack(ctx, dir, to, log)
			for name, file := range packed {
				files[filepath.Base(dir)+"/"+name] = file
			}
			if err != nil {
				return files, err
			}
		}
		if len(packages.OwnedData(held)) == 0 {
			return files, nil
		}
		return files, withOwners(func(d sandbox.Driver) error {
			packed, err := packages.PackOwned(ctx, d, held, to, log)
			for name, file := range packed {
				files[packagesFolder+"/"+name] = file
			}
			return err
		})
	}
	return all
}

const packagesFolder = "packages" // in the data folder

// withOwners calls f with a driver that can work on files of packages that belong to users of their images.
func withOwners(f func(sandbox.Driver) error) error {
	d, err := namespaces.New(namespaces.Options{})
	if err != nil {
		return err
	}
	return errors.Join(f(d), d.Close())
}

// lockFolders locks the folders, and puts a waiting restore in place. A private host, which stores nothing, does
// neither.
func (a *App) lockFolders(context.Context) error {
	if a.opts.Private || a.cfg.Folders.Data == "" {
		return nil
	}
	backup.CleanMounts(BackedUp(a.cfg), a.log)
	done, leave, err := backup.Enter(BackedUp(a.cfg), a.log)
	if done != nil {
		a.restored = done
		a.log.Warn(
			"a backup was restored; the previous content is in .before-restore",
			"backup",
			done.Backup,
			"created",
			done.Created,
			"host",
			done.Host.Name,
			"files",
			done.Files,
		)
	}
	if err != nil {
		if waits, _ := backup.Waiting(BackedUp(a.cfg)); done == nil && waits != nil {
			return err // the restore is incomplete: to continue would mix two states
		}
		a.readOnly = !cannotExist(a.cfg.Folders.Data) // without a folder there is nothing to store or change
		a.log.Warn(
			"a restore would not wait for this host: cannot lock the folder",
			"folder",
			a.cfg.Folders.Data,
			"err",
			err,
		)
		return nil
	}
	a.closing("folders", func(context.Context) error {
		leave()
		return nil
	})
	return nil
}

// notifyRestored records in the ledger the restore that happened before the ledger was opened.
func (a *App) notifyRestored(context.Context) error {
	if a.restored != nil {
		a.publish("config.restored", a.restored)
	}
	return nil
}

// NewKeeper returns the manager that backs up this user's hosts. host is the host whose backups it makes.
func NewKeeper(cfg config.Config, o backup.Options) *backup.Manager {
	o.Folders, o.Version = BackedUp(cfg), Version
	if cfg.Folders.Config != "" {
		o.Secrets = secret.In(cfg.Folders.Config, cfg.Secrets.KeyFile)
	}
	return backup.New(o)
}

// HostOf reads the identity of the host that the folders belong to, for commands that run without a host.
func HostOf(ctx context.Context, f config.Folders) (host backup.Host, err error) {
	err = withState(f, func(t *state.Tree) error {
		m, err := state.Attach[hostRecord](ctx, t, "/private/host", state.Durable)
		if err != nil {
			return err
		}
		if _, err := m.Update(ctx, state.Any, nameHost); err != nil {
			return err
		}
		self, _, err := m.Get()
		host = backup.Host{ID: self.ID, Name: self.Name}
		return err
	})
	return host, err
}

// PackagesOf reads the records of the packages in the folders, for commands that run without a host.
func PackagesOf(ctx context.Context, f config.Folders) (records map[string]json.RawMessage, err error) {
	err = withState(f, func(t *state.Tree) error {
		m, err := state.Attach[map[string]packages.Record](ctx, t, packageRecordsAt, state.Durable)
		if err != nil {
			return err
		}
		records, err = recordsOf(m)
		return err
	})
	return records, err
}

// withState opens the state of a user's hosts, runs use with it, and closes it.
func withState(f config.Folders, use func(*state.Tree) error) error {
	log, err := state.OpenFile(stateFileOf(f), state.FileOptions{})
	if err != nil {
		return err
	}
	t := state.New(state.Options{Log: log})
	return errors.Join(use(t), t.Close(), log.Close())
}

// recordsOf returns the records of packages in the form that backups contain.
func recordsOf(m *state.Mount[map[string]packages.Record]) (map[string]json.RawMessage, error) {
	all, _, err := m.Get()
	if err != nil {
		return nil, err
	}
	records := map[string]json.RawMessage{}
	for id, r := range all {
		if records[id], err = json.Marshal(r); err != nil {
			return nil, err
		}
	}
	return records, nil
}

func (a *App) backupDeps() (c keeping.Config, err error) {
	c.Rules, c.Show, c.Mountable = a.rules, a.tree.showJob, backup.CanMount
	if a.opts.Private || a.cfg.Folders.Data == "" {
		return c, nil
	}
	c.Folders = BackedUp(a.cfg)
	if a.cfg.Folders.Config != "" {
		c.Secrets = a.secretStore()
	}
	c.PutPackages = a.putPackages
	c.Backups = NewKeeper(a.cfg, backup.Options{
		Log: a.log,
		Host: func(context.Context) (backup.Host, error) {
			self, _, err := a.tree.self.Get()
			info, _, e := a.tree.info.Get()
			return backup.Host{ID: self.ID, Name: info.Name}, errors.Join(err, e)
		},
		Packages: func(context.Context) (map[string]json.RawMessage, error) { return recordsOf(a.tree.packageRecords) },
	})
	return c, nil
}

// jobState is a member of /public/jobs: a long operation with its phases. It stays for a while after it has ended.
type jobState struct {
	Owner    string            `json:"owner"`
	Title    string            `json:"title"`
	Status   string            `json:"status"` // working, completed, failed or cancelled
	Started  time.Time         `json:"started"`
	Ended    *time.Time        `json:"ended,omitempty"`
	Progress progress.Progress `json:"progress"`
	Node     string            `json:"node,omitempty"` // of the cluster
}

// shownJobs are the jobs of this node that the tree shows.
type shownJobs struct {
	changed chan struct{} // holds a token when they have changed, in a cluster

	mu  sync.Mutex
	all map[string]jobState
}

const endedShown = 50 // ended jobs that stay, of all owners

// showJob adds a job of an owner to the tree.
func (l *liveTree) showJob(who tool.Caller, job, title string) (show func(progress.Progress), ended func(error)) {
	var mu sync.Mutex
	now := jobState{
		Owner:    who.Owner,
		Title:    title,
		Status:   "working",
		Started:  time.Now().UTC(),
		Progress: progress.Progress{Phases: []progress.Phase{}},
		Node:     l.app.nodeName(),
	}
	write := func(change func()) {
		mu.Lock()
		defer mu.Unlock()
		change()
		l.changeJobs(func(all map[string]jobState) {
			all[job] = now
			forgetEnded(all)
		})
	}
	return func(p progress.Progress) { write(func() { now.Progress = p }) }, func(err error) {
		write(func() {
			now.Status, now.Ended = "completed", new(time.Now().UTC())
			switch {
			case errors.Is(err, jobs.ErrCancelled):
				now.Status = "cancelled"
			case err != nil:
				now.Status = "failed"
			}
		})
	}
}

// changeJobs changes the jobs of this node that the tree shows. In a cluster they are shown a moment later, because
// other nodes are asked for theirs then.
func (l *liveTree) changeJobs(change func(all map[string]jobState)) {
	own := &l.ownJobs
	own.mu.Lock()
	if own.all == nil {
		own.all = map[string]jobState{}
	}
	change(own.all)
	own.mu.Unlock()
	if l.app.nodes != nil {
		select {
		case own.changed <- struct{}{}:
		default:
		}
		return
	}
	if err := l.jobs.Refresh(); err != nil {
		l.app.log.Warn("jobs are not shown", "err", err)
	}
}

// jobsNow returns the jobs of this node.
func (l *liveTree) jobsNow() map[string]jobState {
	l.ownJobs.mu.Lock()
	defer l.ownJobs.mu.Unlock()
	all := make(map[string]jobState, len(l.ownJobs.all))
	maps.Copy(all, l.ownJobs.all)
	return all
}

// forgetEnded removes all ended jobs except the newest.
func forgetEnded(all map[string]jobState) {
	ended := slices.DeleteFunc(slices.Collect(maps.Keys(all)), func(id string) bool { return all[id].Ended == nil })
	slices.SortFunc(ended, func(a, b string) int { return all[b].Ended.Compare(*all[a].Ended) })
	for _, id := range ended[min(endedShown, len(ended)):] {
		delete(all, id)
	}
}

func seesJob(who tool.Caller) func(string, any) bool {
	return func(_ string, j any) bool {
		m, _ := j.(map[string]any)
		return m["owner"] == who.Owner
	}
}
