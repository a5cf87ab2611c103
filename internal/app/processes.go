package app

import (
	"cmp"
	"context"
	"iter"
	"path/filepath"

	"gatehouse/internal/mcp/protocol"
	"gatehouse/internal/mcp/session"
	"gatehouse/internal/modules/process"
	"gatehouse/internal/server/websocket"
	"gatehouse/tool"
)

// endings is how many ends of sessions may wait until processes are notified.
const endings = 4096

// processDeps returns the settings of processes, the environment of their contexts, the hub that publishes their
// output, the sessions that some of them end with, and the folder of those that outlive this host.
func (a *App) processDeps() (c process.Config, err error) {
	c.Settings = a.cfg.Modules.Process
	c.Claim = claims("running processes", cmp.Or(c.Total, process.DefaultTotal))
	c.Turn = a.limits.Starts.Wait
	if !a.opts.Private {
		begun := make(chan struct{})
		c.Folder, c.Ready = filepath.Join(a.cfg.Folders.State, "processes"), begun
		a.addPart("detached processes", func(ctx context.Context) error { // after the tree follows the events
			close(begun)
			<-ctx.Done()
			return nil
		})
	}
	c.Lister = func(running func() []process.Running) { a.tree.listProcesses.Store(&running) }
	c.Hub, c.Env, c.Rules = a.openWebSockets(), a.environment, a.rules
	if a.table != nil {
		c.Sessions = sessions{a}
	}
	c.Stream = a.outputStream()
	return c, nil
}

// outputStream returns what offers output over a WebSocket; nil if the host has no HTTP listener.
func (a *App) outputStream() process.Stream {
	if !a.cfg.Listen.HTTP.Open {
		return nil
	}
	a.openStreams()
	return func(who tool.Caller, serve func(context.Context, func(bool, []byte) error) error) (string, error) {
		return a.openStreams().Offer(who, func(ctx context.Context, send websocket.Send) error {
			return serve(ctx, send)
		})
	}
}

// sessions implements process.Sessions with the sessions of a host.
type sessions struct{ app *App }

// Ended implements process.Sessions. If events were lost, it reports every session that no longer exists as ended.
func (s sessions) Ended(ctx context.Context) iter.Seq[func(string) bool] {
	events := protocol.SessionEnded.Follow(ctx, s.app.bus, endings)
	return func(yield func(func(string) bool) bool) {
		for f, of := range events {
			has := func(id string) bool { return id == of.Session || id != "" && id == of.Connection }
			if f.Lost > 0 {
				has = func(id string) bool { return !s.Lives(id) }
			}
			if !yield(has) {
				return
			}
		}
	}
}

// Lives implements process.Sessions.
func (s sessions) Lives(id string) (found bool) {
	if s.app.table == nil {
		return false
	}
	s.app.table.All(func(one *session.Session) { found = found || one.ID == id && !one.Ended() })
	return found
}

// processesNow returns the running processes.
func (l *liveTree) processesNow() map[string]processState {
	all := map[string]processState{}
	if list := l.listProcesses.Load(); list != nil {
		for _, p := range (*list)() {
			if len(all) == mostRunning {
				break
			}
			all[p.ID] = processState{p.Owner, p.Command, p.PID, p.Started.UTC(), l.app.nodeName()}
		}
	}
	return all
}
