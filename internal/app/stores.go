package app

import (
	"context"
	"errors"
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
	"gatehouse/internal/mcp/seal"
)

// openStores opens what is kept on disk. A host whose folders cannot be
// written still serves; it says what it will forget.
func (a *App) openStores(context.Context) (err error) {
	if err := a.openSpool(); err != nil {
		return err
	}
	a.ring, a.jobs = seal.Ephemeral(), nil
	book := ""
	if !a.opts.Private {
		book = ApprovalsFile(a.cfg.Folders)
		a.ring = a.loadKeys()
		if a.jobs, err = a.openJobs(); err != nil {
			a.log.Warn(
				"jobs are kept in memory and end with this host: cannot keep them on disk",
				"folder",
				a.cfg.Folders.State,
				"err",
				err,
			)
		}
	}
	if a.jobs == nil {
		if a.jobs, err = jobs.Open("", jobs.Options{Log: a.log, DefaultTTL: a.cfg.Limits.JobKeep}); err != nil {
			return err
		}
	}
	o := approvals.Options{Log: a.log}
	if a.cfg.Approvals.Proof == "passphrase" && !a.opts.Private {
		o.Proof = ProofFile(a.cfg.Folders)
	}
	a.book = approvals.Open(book, o)
	if err := a.book.ProofErr(); err != nil {
		a.log.Warn("calls that need an approval cannot get one until this host is started again", "err", err)
	}
	a.addPart("approvals", func(ctx context.Context) error {
		return errors.Join(a.book.Run(ctx), a.book.Close())
	})
	return nil
}

// ApprovalsFile is where hosts keep what waits for an operator.
func ApprovalsFile(f config.Folders) string { return filepath.Join(f.State, "approvals.db") }

// ProofFile is where the proof is that every yes needs.
func ProofFile(f config.Folders) string { return filepath.Join(f.Config, "approvals.proof") }

func (a *App) loadKeys() *seal.Ring {
	dir := a.cfg.Folders.Data
	ring, err := seal.Load(filepath.Join(dir, "keys.json"))
	if errors.Is(err, os.ErrNotExist) && os.MkdirAll(dir, 0o700) == nil {
		ring, err = seal.Load(filepath.Join(dir, "keys.json"))
	}
	if err != nil {
		a.log.Warn("questions to people end with this host: cannot keep keys on disk", "folder", dir, "err", err)
		return seal.Ephemeral()
	}
	return ring
}

func (a *App) openJobs() (*jobs.Manager, error) {
	dir := a.cfg.Folders.State
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	return jobs.Open(filepath.Join(dir, "jobs.db"), jobs.Options{Log: a.log, DefaultTTL: a.cfg.Limits.JobKeep})
}

// openSpool takes a folder of this host's own, because a spool belongs to one
// host at a time, and removes it at the end.
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

// spoolFolder makes a fresh folder below the cache, or below the system's
// folder for temporary files when there is no cache. It removes those of
// hosts that ended without a word.
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
	// spoolPrefix begins with what hosts of the version before expect a number behind,
	// which is none, so that they leave the folders of this version.
	spoolPrefix = olderPrefix + "of-"
	olderPrefix = "spool-"
	// leftoverAge keeps the folders of hosts that live where their process
	// cannot be seen, in another container with the same home.
	leftoverAge = 24 * time.Hour
)

// removeLeftovers removes the spool folders whose host is gone and which
// nothing was put into for a day.
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

// olderSpool reads the process out of the name of a spool folder as hosts of the
// version before name it: without when it began. Remove it one version later.
func olderSpool(name string) (pid int, ok bool) {
	digits, _, ok := strings.Cut(strings.TrimPrefix(name, olderPrefix), "-")
	pid, err := strconv.Atoi(digits)
	return pid, ok && err == nil && strings.HasPrefix(name, olderPrefix)
}
