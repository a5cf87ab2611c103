package packages

import (
	"context"
	"errors"
	"fmt"
	"time"

	"gatehouse/internal/access/limit"
	"gatehouse/internal/mcp/client"
	"gatehouse/tool"
)

const (
	maxFailures  = 5                      // in a row, after which a server is no longer started automatically
	stopGrace    = 3 * time.Second        // after closing a server's input, and again after the termination signal
	startWait    = 5 * time.Second        // for the next start, by a call
	listDelay    = 250 * time.Millisecond // for more changes of the tools
	listInterval = time.Second            // at most
	publicText   = 300                    // bytes of an error that every user may read
)

// instance is one server of a package, which runs while it is needed. The package's lock
// guards its fields, except pkg.
type instance struct {
	pkg *managedPackage
	key instanceKey // zero for the shared instance

	held         limit.Held           // among the instances of all packages; of the shared one nothing
	calls        map[*openCall]string // that are open, with the connections of their callers; nil for the shared one
	usedBy       string               // the connection of all calls that have ended
	lastUsed     time.Time
	staged       *Staging // of its newest call, if the key has a task
	unattributed int      // questions of which the call is not known yet

	running    *upstream
	previous   *upstream     // the newest; the next start waits until it has exited
	starting   chan struct{} // closed when the running start ends; nil if none runs
	cancel     context.CancelFunc
	started    time.Time
	why        error // why it is not running
	failures   int
	next       time.Time
	retryTimer *time.Timer
}

// status returns the state of the server; i.pkg.mu is held.
func (i *instance) status() string {
	p := i.pkg
	switch {
	case i.starting != nil:
		return "starting"
	case i.running != nil:
		return "running"
	case p.rec.Stopped:
		return "stopped"
	case i.failures >= maxFailures:
		return "broken"
	case i.failures > 0 && time.Now().Before(i.next):
		return "waiting"
	}
	return "idle"
}

// ready returns the server, and starts it if it does not run. The caller must release
// it. If ready fails, no request was sent to it.
func (i *instance) ready(ctx context.Context) (*upstream, error) {
	p := i.pkg
	for {
		p.mu.Lock()
		u, wait, err := i.running, i.starting, error(nil)
		var after time.Duration
		switch {
		case u != nil:
			u.retain() // so that it is not stopped as idle
			p.mu.Unlock()
			return u, nil
		case wait != nil:
		case i.key.older && !p.bothEras:
			err = errNewest
		case p.activity != "":
			err = p.busy()
		case p.rec.State != Installed:
			err = tool.Refuse(tool.CodeUnavailable, "package %s is not completely installed", p.id)
		case p.rec.Stopped:
			err = &tool.Refusal{
				Code:    tool.CodeUnavailable,
				Message: "package " + p.id + " was stopped; nothing was run",
				Next:    p.nextStep("An administrator can start it with package_start."),
			}
		case i.failures >= maxFailures:
			err = &tool.Refusal{
				Code: tool.CodeUnavailable,
				Message: fmt.Sprintf(
					"package %s failed %d times in a row and is no longer started automatically; nothing was run: %s",
					p.id,
					i.failures,
					shorten(i.why.Error(), publicText),
				),
				Next: p.nextStep(
					"An administrator can see the reason with package_logs and try again with package_restart.",
				),
			}
		default:
			if after = time.Until(i.next); after > startWait {
				err = &tool.Refusal{
					Code: tool.CodeUnavailable,
					Message: fmt.Sprintf(
						"package %s failed and is started again in %d s; nothing was run: %s",
						p.id,
						int(after.Seconds())+1,
						shorten(i.why.Error(), publicText),
					),
					Next: "Try again then.",
				}
			} else if after <= 0 {
				wait = i.startInstance()
			}
		}
		p.mu.Unlock()
		if err != nil {
			return nil, err
		}
		if wait == nil {
			if err := sleep(ctx, after); err != nil {
				return nil, err
			}
			continue
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		if p.manager.ctx.Err() != nil {
			return nil, tool.Refuse(tool.CodeUnavailable, "%v; nothing was run", errClosing)
		}
		if err := i.needsLogin(); err != nil {
			return nil, err
		}
	}
}

// needsLogin returns why the last start failed if a user has to log in first.
func (i *instance) needsLogin() error {
	i.pkg.mu.Lock()
	defer i.pkg.mu.Unlock()
	if _, login := loginRequired(i.why); login && i.running == nil {
		return i.why
	}
	return nil
}

// nextStep returns what to do about a server that is not started. A server that is run alone has no tools for that.
func (p *managedPackage) nextStep(administrator string) string {
	if p.manager.opts.Alone == nil {
		return administrator
	}
	return "The log of gatehouse run says why; mend that and start gatehouse run again."
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// startIfWanted starts a server with start always, or any server if asked is set. It
// does nothing if the server runs, was stopped or failed too often.
func (i *instance) startIfWanted(asked bool) {
	p := i.pkg
	p.mu.Lock()
	defer p.mu.Unlock()
	if i.running == nil && i.starting == nil && p.activity == "" && !p.removed && p.rec.State == Installed &&
		!p.rec.Stopped &&
		i.failures < maxFailures && (asked || p.rec.Start == Always) && p.runsHere() {
		i.startInstance()
	}
}

// startInstance starts the server; i.pkg.mu is held. The channel is closed when the start has
// succeeded or failed.
func (i *instance) startInstance() chan struct{} {
	p := i.pkg
	done := make(chan struct{})
	leave, err := p.manager.addWork()
	if err != nil {
		i.setFailed(err)
		close(done)
		return done
	}
	ctx, cancel := context.WithCancel(p.manager.ctx)
	i.starting, i.cancel = done, cancel
	rec, last := p.rec, i.previous
	if i.staged != nil {
		rec.staged = &stagedStart{Staging: i.staged}
	}
	go func() {
		defer leave()
		defer cancel()
		p.publishState()
		if last != nil {
			<-last.gone
		}
		if i.key.older {
			rec.Server.Protocol = client.LatestLegacy
		}
		rec.announced = announcedIn(i.key.folders)
		var u *upstream
		var listed listing
		err := p.ensureProgram(ctx, &rec)
		if err == nil {
			u, listed, err = p.launchServer(withLogin(ctx, i.key.login), &rec, i.connOptions(), i == p.shared)
		}
		if err == nil && i.key.older && u.conn.IsModern() {
			u.stopProcess(stopGrace)
			err = errNewest
		}
		p.mu.Lock()
		i.starting, i.cancel = nil, nil
		if err != nil && i.key.older {
			p.bothEras = false // until it is connected to again
		}
		if err != nil {
			i.setFailed(err)
		} else {
			i.setRunning(u)
		}
		p.mu.Unlock()
		if err == nil {
			p.manager.useSecrets(&rec)
			if i == p.shared {
				p.updateListing(listed)
			}
			p.manager.work.Go(func() { i.watchUpstream(u) }) // this goroutine is counted, so Close still waits
			p.manager.work.Go(func() { u.follow(p.manager.ctx) })
			if u.remote != "" {
				p.manager.work.Go(func() { u.conn.Watch(p.manager.ctx, quiet) })
			}
		} else if need, login := loginRequired(err); login {
			p.noteLogin(rec.loginOf(i.key.login), need)
		} else if ctx.Err() == nil {
			p.manager.log.Warn("a package cannot be started", "package", p.id, "err", err)
		}
		i.reportBroken()
		p.publishState()
		close(done)
	}()
	return done
}

// setRunning records that the server runs; i.pkg.mu is held.
func (i *instance) setRunning(u *upstream) {
	p := i.pkg
	if i.previous != nil {
		p.health.countRestart()
	}
	i.running, i.previous, i.started, i.why = u, u, time.Now(), nil
	if i.key.older {
		return
	}
	p.rec.Server = u.server
	p.bothEras = u.hasBothEras()
}

// setFailed records that the server does not run, and when it is started again; p.mu is
// held.
func (i *instance) setFailed(err error) {
	p := i.pkg
	i.why = err
	if _, login := loginRequired(err); login {
		return // it is tried again by the next call
	}
	i.failures++
	pace := p.manager.opts.restart
	delay := pace.max
	if i.failures < 30 {
		delay = min(pace.first<<(i.failures-1), pace.max)
	}
	i.next = time.Now().Add(delay)
	if i == p.shared && p.rec.Start == Always && i.failures < maxFailures && p.manager.ctx.Err() == nil {
		i.retryTimer = time.AfterFunc(delay, func() { i.startIfWanted(false) })
	}
}

// watchUpstream updates the tools of a server until it exits.
func (i *instance) watchUpstream(u *upstream) {
	p := i.pkg
	for {
		select {
		case <-u.gone:
			i.serverExited(u)
			return
		case <-u.relist:
		}
		if sleepUntil(u.gone, listDelay) {
			continue
		}
		if i != p.shared {
			p.listAgain()
			sleepUntil(u.gone, listInterval)
			continue
		}
		ctx, cancel := context.WithTimeout(p.manager.ctx, p.manager.opts.Begin)
		listed, err := u.listUpstream(ctx)
		cancel()
		if err == nil {
			p.updateListing(listed)
			p.publishState()
		} else if u.conn.Err() == nil {
			p.journal.writeLine(fmt.Sprintf("[host] the tools have changed and cannot be listed: %v", err))
		}
		sleepUntil(u.gone, listInterval)
	}
}

// listAgain has the shared instance list what the server offers, and starts it for that if
// need be.
func (p *managedPackage) listAgain() {
	p.mu.Lock()
	u := p.shared.running
	p.mu.Unlock()
	if u == nil {
		p.startIfWanted(true)
		return
	}
	select {
	case u.relist <- struct{}{}:
	default:
	}
}

// sleepUntil sleeps for d. It reports whether end was closed before.
func sleepUntil(end <-chan struct{}, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-end:
		return true
	case <-t.C:
		return false
	}
}

// serverExited records that a server exited on its own.
func (i *instance) serverExited(u *upstream) {
	p := i.pkg
	p.mu.Lock()
	if i.running != u {
		p.mu.Unlock()
		return
	}
	i.running = nil
	served := u.served.Load()
	if served || time.Since(i.started) >= p.manager.opts.restart.stableAfter {
		i.failures = 0
	}
	err := u.conn.Err()
	if errors.Is(err, client.ErrSessionLost) {
		p.mu.Unlock()
		p.journal.writeLine("[host] " + err.Error() + "; the next request opens a new one")
		p.publishState()
		return
	}
	i.setFailed(err)
	if served {
		i.next = time.Now() // the next call need not wait, since it is not the start that fails
	}
	broken := i.failures >= maxFailures
	p.mu.Unlock()
	p.journal.writeLine("[host] the server has exited: " + err.Error())
	if p.manager.ctx.Err() == nil {
		p.manager.log.Warn("a package's server has exited", "package", p.id, "err", err, "again", !broken)
	}
	i.reportBroken()
	p.publishState()
}

// reportBroken reports the failure after which the server is no longer started.
func (i *instance) reportBroken() {
	p := i.pkg
	p.mu.Lock()
	why := i.why
	broken := i == p.shared && i.failures == maxFailures && why != nil && i.running == nil
	p.mu.Unlock()
	if broken && p.manager.ctx.Err() == nil {
		p.manager.opts.Broken(p.id, why)
	}
}

// stopInstance stops the server, or cancels its start, and waits for its exit.
func (i *instance) stopInstance() error {
	p := i.pkg
	p.mu.Lock()
	if i.retryTimer != nil {
		i.retryTimer.Stop()
		i.retryTimer = nil
	}
	if cancel, starting := i.cancel, i.starting; starting != nil {
		p.mu.Unlock()
		cancel()
		<-starting
		p.mu.Lock()
	}
	u := i.running
	i.running = nil
	p.mu.Unlock()
	if u == nil {
		return nil
	}
	return u.stopProcess(stopGrace)
}

// stopIfIdle stops an idle server that was started on demand.
func (i *instance) stopIfIdle() {
	p := i.pkg
	p.mu.Lock()
	u := i.running
	if u == nil || p.rec.Start != OnDemand || p.activity != "" || u.idle() < p.manager.opts.Idle {
		p.mu.Unlock()
		return
	}
	leave, err := p.manager.addWork()
	if err != nil {
		p.mu.Unlock()
		return
	}
	i.running, i.failures = nil, 0
	p.mu.Unlock()
	go func() {
		defer leave()
		u.stopProcess(stopGrace)
		p.publishState()
	}()
}

// resetFailures clears the failures, so that the server may start at once.
func (i *instance) resetFailures() {
	p := i.pkg
	p.mu.Lock()
	i.failures, i.why, i.next = 0, nil, time.Time{}
	p.mu.Unlock()
}

// withOutput adds to the refusal of a server that failed to start what it printed.
func (i *instance) withOutput(err error) error {
	p := i.pkg
	p.mu.Lock()
	said := Words(i.why)
	p.mu.Unlock()
	if said == "" {
		return err
	}
	return &outputError{err, said}
}

// waitExited waits until the exit of a server has been recorded.
func (i *instance) waitExited(ctx context.Context, u *upstream) {
	p := i.pkg
	select {
	case <-u.gone:
	case <-ctx.Done():
		return
	}
	for {
		p.mu.Lock()
		known := i.running != u
		p.mu.Unlock()
		if known || sleep(ctx, 5*time.Millisecond) != nil {
			return
		}
	}
}
