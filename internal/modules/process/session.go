package process

import (
	"context"
	"iter"
	"time"

	"gatehouse/tool"
)

// leaveGrace is how long a process may take to end after its session.
const sessionGrace = 5 * time.Second

// leave stops what ends with a session when that has ended.
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

// stopLater stops a process that nobody waits for.
func (m *manager) stopAsync(r *record) {
	m.wg.Go(func() {
		ctx, cancel := context.WithTimeout(m.ctx, sessionGrace)
		defer cancel()
		if _, over := r.ended(); over {
			return
		}
		if err := r.child.Stop(ctx); err != nil {
			m.log.Error("a process did not end with its session", "process", r.id, "err", err)
		}
	})
}

// mayStay refuses what would end with a session that has ended already: nobody
// would end it any more.
func (m *manager) checkSession(r *record) error {
	if r.session == "" || m.cfg.Sessions != nil && m.cfg.Sessions.Lives(r.session) {
		return nil
	}
	return tool.Refuse("unsupported", "the session that the process is to end with has ended, or is not one that this host can watch")
}
