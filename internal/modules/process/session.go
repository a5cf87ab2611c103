package process

import (
	"context"
	"iter"
	"time"

	"gatehouse/tool"
)

// sessionGrace is the time a process has to end after its session has ended,
// before it is killed.
const sessionGrace = 5 * time.Second

// stopWithSessions stops the processes of each session that ends.
func (m *manager) stopWithSessions(ended iter.Seq[func(string) bool]) {
	for has := range ended {
		m.mu.Lock()
		var gone []*record
		for _, r := range m.records {
			if r.session != "" && has(r.session) {
				gone = append(gone, r)
			}
		}
		m.mu.Unlock()
		for _, r := range gone {
			m.stopAsync(r)
		}
	}
}

// stopAsync stops a process in a goroutine of its own.
func (m *manager) stopAsync(r *record) {
	m.wg.Go(func() {
		ctx, cancel := context.WithTimeout(m.ctx, sessionGrace)
		defer cancel()
		if _, over := r.ended(); over {
			return
		}
		if err := r.child.Stop(ctx); err != nil {
			m.log.Error("cannot end a process with its session", "process", r.id, "err", err)
		}
	})
}

// checkSession refuses a process that is to end with a session which has ended
// already, because nothing would stop it.
func (m *manager) checkSession(r *record) error {
	if r.session == "" || m.cfg.Sessions != nil && m.cfg.Sessions.Lives(r.session) {
		return nil
	}
	return tool.Refuse(tool.CodeUnsupported,
		"the session with which the process is to end has ended, or is not a session of this host")
}
