package app

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"gatehouse/internal/access/approvals"
	"gatehouse/internal/config"
	"gatehouse/internal/dispatch/jobs"
	"gatehouse/internal/dispatch/spool"
	"gatehouse/internal/exec/procid"
	"gatehouse/internal/files/sqlfile"
	"gatehouse/internal/mcp/seal"
)

// openStores opens the stores on disk. A host whose folders cannot be written still serves; it logs what it will
// lose.
func (a *App) openStores(ctx context.Context) (err error) {
	if err := a.openSpool(); err != nil {
		return err
	}
	a.ring, a.jobs = seal.Ephemeral(), nil
	path := ""
	if !a.opts.Private {
		path = ApprovalsFile(a.cfg.Folders)
		a.ring = a.loadKeys()
		if a.jobs, err = a.openJobs(); err != nil {
			a.log.Warn(
				"jobs are kept in memory and end with this host: cannot write them to disk",
				"folder",
				a.cfg.Folders.State,
				"err",
				err,
			)
		}
	}
	if a.jobs == nil {
		if a.jobs, err = jobs.Open("", a.jobOptions()); err != nil {
			return err
		}
	}
	o := approvals.Options{Log: a.log, Asked: a.openAlerts()}
	if a.cfg.Approvals.Proof == "passphrase" && !a.opts.Private {
		o.Proof = ProofFile(a.cfg.Folders)
	}
	if a.cfg.Approvals.Proof == "passkey" && !a.opts.Private {
		o.Passkeys = deciders{a}
	}
	a.approvals = approvals.Open(path, o)
	if r := a.replicate(ctx, "approvals"); r != nil && path != "" {
		if err := a.approvals.Replicate(func(f *sqlfile.File) error { return r(f, nil) }); err != nil {
			return &SettingError{fmt.Errorf("approvals: %w", err)}
		}
	}
	if err := a.approvals.ProofErr(); err != nil {
		a.log.Warn("calls that need an approval cannot get one until this host is restarted", "err", err)
	}
	a.addPart("approvals", func(ctx context.Context) error {
		return errors.Join(a.approvals.Run(ctx), a.approvals.Close())
	})
	return nil
}

// ApprovalsFile returns the path of the file in which hosts store the calls that wait for an operator.
func ApprovalsFile(f config.Folders) string { return filepath.Join(f.State, "approvals.db") }

// ProofFile returns the path of the key file that every approval with a passphrase requires.
func ProofFile(f config.Folders) string { return filepath.Join(f.Config, "approvals.proof") }

func (a *App) loadKeys() *seal.Ring {
	dir := a.cfg.Folders.Data
	ring, err := seal.Load(filepath.Join(dir, "keys.json"))
	if errors.Is(err, os.ErrNotExist) && os.MkdirAll(dir, 0o700) == nil {
		ring, err = seal.Load(filepath.Join(dir, "keys.json"))
	}
	if err != nil {
		a.log.Warn("questions to users end with this host: cannot write keys to disk", "folder", dir, "err", err)
		return seal.Ephemeral()
	}
	return ring
}

func (a *App) openJobs() (*jobs.Manager, error) {
	dir := a.cfg.Folders.State
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	return jobs.Open(filepath.Join(dir, "jobs.db"), a.jobOptions())
}

func (a *App) jobOptions() jobs.Options {
	o := jobs.Options{Log: a.log, DefaultTTL: a.cfg.Limits.JobKeep, NewID: a.nodes.newID()}
	if a.nodes != nil && a.nodes.jobs != nil {
		o.Changed, o.Others = a.nodes.jobs.changed, a.nodes.jobs
	}
	return o
}

// openSpool creates a folder for this host alone, because a spool belongs to one host at a time, and removes it at
// the end.
func (a *App) openSpool() error {
	dir, err := spoolFolder(a.cfg.Folders.Cache, time.Now())
	if err != nil {
		return err
	}
	l := a.cfg.Limits
	a.spool, err = spool.Open(
		dir,
		spool.Options{
			MaxItem:  l.SpoolEntry,
			MaxOwner: l.SpoolTotal,
			MaxTotal: l.SpoolTotal,
			Keep:     l.SpoolKeep,
			NewID:    a.nodes.newID(),
			Log:      a.log,
		},
	)
	if err != nil {
		return errors.Join(err, os.RemoveAll(dir))
	}
	a.addPart("spool", func(ctx context.Context) error {
		return errors.Join(a.spool.Run(ctx), a.spool.Close(), os.RemoveAll(dir))
	})
	return nil
}

// spoolFolder creates a new folder below the cache, or below the system's folder for temporary files if there is
// no cache. It removes those of hosts that ended without removing them.
func spoolFolder(cache string, now time.Time) (string, error) {
	if cache != "" && os.MkdirAll(cache, 0o700) == nil {
		removeLeftovers(cache, now)
		if dir, err := os.MkdirTemp(cache, spoolPrefix+procid.Self()+"-*"); err == nil {
			return dir, nil
		}
	}
	return os.MkdirTemp("", "gatehouse-"+olderPrefix+"*")
}

const (
	// The previous version expects a number after olderPrefix. spoolPrefix has none there, so hosts of that
	// version leave the folders of this version alone.
	spoolPrefix = olderPrefix + "of-"
	olderPrefix = "spool-"
	// leftoverAge protects the folders of hosts whose process cannot be seen from here, such as in another
	// container with the same home folder.
	leftoverAge = 24 * time.Hour
)

// removeLeftovers removes the spool folders whose host has ended and to which nothing was added for a day.
func removeLeftovers(cache string, now time.Time) {
	entries, err := os.ReadDir(cache)
	if err != nil {
		return
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || now.Sub(info.ModTime()) <= leftoverAge {
			continue
		}
		pid, older := olderSpool(e.Name())
		if procid.Left(spoolPrefix, e.Name()) || older && procid.Watch(pid)() {
			os.RemoveAll(filepath.Join(cache, e.Name()))
		}
	}
}

// olderSpool returns the process id in the name of a spool folder of the previous version, which does not contain
// the start time of the process. Remove it one version later.
func olderSpool(name string) (pid int, ok bool) {
	digits, _, ok := strings.Cut(strings.TrimPrefix(name, olderPrefix), "-")
	pid, err := strconv.Atoi(digits)
	return pid, ok && err == nil && strings.HasPrefix(name, olderPrefix)
}
