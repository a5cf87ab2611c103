package lsp

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"sync"
	"time"

	"gatehouse/internal/exec/overlay"
	"gatehouse/internal/files/filewatch"
	"gatehouse/internal/files/merged"
	"gatehouse/tool"
)

// attempts is how many servers one call may use: a server that crashes, hangs or uses too much memory is replaced, and
// the call is repeated.
const attempts = 3

// pool has the running servers. It is safe for concurrent use.
type pool struct {
	log      *slog.Logger
	most     int
	memory   int64
	idle     time.Duration
	writable []string
	watcher  *filewatch.Watcher

	tryConfine func(context.Context) error
	tried      sync.Once
	confined   bool // servers can write only in the writable folders

	ctx    context.Context // of the servers; ends with the module
	cancel context.CancelFunc
	wg     sync.WaitGroup // all goroutines

	mu      sync.Mutex
	servers map[key]*server
	closed  bool
}

// close ends all servers and waits for their goroutines.
func (p *pool) close() {
	p.mu.Lock()
	p.closed = true
	all := p.servers
	p.servers = map[key]*server{}
	p.mu.Unlock()
	for _, s := range all {
		<-s.ready
		if s.child != nil {
			s.stop()
		}
	}
	done := make(chan struct{})
	go func() { p.wg.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(2 * stopWait):
	}
	p.cancel()
	<-done
}

func (p *pool) remove(s *server) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.servers[s.key] == s {
		delete(p.servers, s.key)
	}
}

// view is the staged task of a call: its server runs in the task's view of the folder, and no other task uses it. If
// the view is a layer that no program sees, the server runs in the folder itself, and gets what the task has changed as
// open documents.
type view struct {
	task  string
	root  *os.Root // the folder of the server, while the call runs
	space func(loose bool) (*overlay.Space, error)
	layer *merged.Layer
}

// with runs f with the server of a root, in a view if there is one. If the server fails, f runs again with another one.
func (p *pool) with(
	ctx context.Context, root string, kind *serverKind, in *view, f func(*server) error,
) (err error) {
	of := key{root: root, kind: kind.name}
	if in != nil {
		of.task = in.task
	}
	for range attempts {
		var s *server
		if s, err = p.acquire(ctx, of, kind, in); err == nil {
			err = f(s)
			s.used.Store(time.Now().UnixMilli())
			s.pending.Add(-1)
		}
		if !errors.Is(err, errFailed) || ctx.Err() != nil {
			break
		}
	}
	if errors.Is(err, errFailed) {
		return &tool.Refusal{
			Code:    tool.CodeUnavailable,
			Message: err.Error(),
			Next:    "It failed several times in a row. Use file_search, or ask an administrator to read the host's log.",
		}
	}
	return err
}

// acquire returns a started server, on which a call is counted.
func (p *pool) acquire(ctx context.Context, k key, kind *serverKind, in *view) (*server, error) {
	argv, err := kind.command()
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil, tool.Refuse(tool.CodeUnavailable, "the host is closing")
	}
	s := p.servers[k]
	if s != nil {
		s.pending.Add(1)
		p.mu.Unlock()
	} else {
		var idle *server
		if len(p.servers) >= p.most {
			if idle = p.leastUsed(); idle == nil {
				p.mu.Unlock()
				return nil, &tool.Refusal{
					Code: tool.CodeBusy, Message: "as many language servers as may run are in use",
					Next: "Try again later.",
				}
			}
			delete(p.servers, idle.key)
		}
		s = &server{key: k, pool: p, kind: kind, argv: argv, ready: make(chan struct{}),
			edits: make(chan workspaceEdit, 16)}
		s.pending.Add(1)
		space, err := (*overlay.Space)(nil), error(nil)
		if in != nil && in.layer == nil {
			if space, err = in.space(true); err != nil {
				p.mu.Unlock()
				return nil, err
			}
		}
		p.servers[k] = s
		p.wg.Go(func() {
			defer space.Close()
			p.begin(s, space)
		})
		p.mu.Unlock()
		if idle != nil {
			idle.stop()
		}
	}
	select {
	case <-s.ready:
		err = s.err
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if err != nil {
		s.pending.Add(-1)
		return nil, err
	}
	return s, nil
}

// begin starts a server. It does not end with the call that needs it first.
func (p *pool) begin(s *server, space *overlay.Space) {
	p.tried.Do(func() {
		if err := p.tryConfine(p.ctx); err != nil {
			p.log.Warn("language servers can write wherever this host can", "reason", err)
			return
		}
		p.confined = true
	})
	s.err = s.start(p.ctx, space)
	if s.err != nil {
		p.remove(s)
		if s.child != nil {
			s.fail(s.err)
		}
	}
	close(s.ready)
}

// leastUsed returns the server without calls that was used least recently, or nil. p.mu is held.
func (p *pool) leastUsed() (least *server) {
	for _, s := range p.servers {
		if s.pending.Load() == 0 && (least == nil || s.used.Load() < least.used.Load()) {
			least = s
		}
	}
	return least
}
