package lsp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"gatehouse/internal/exec/overlay"
	"gatehouse/internal/exec/proc"
	"gatehouse/internal/exec/rpc"
	"gatehouse/internal/exec/supervisor"
	"gatehouse/tool"
)

const (
	maxMessage  = 64 << 20               // bytes of one message of a server
	startWait   = 30 * time.Second       // for the answer to initialize
	stopWait    = 2 * time.Second        // for a server that is asked to end
	tick        = 200 * time.Millisecond // between two looks at a server that has calls
	silence     = time.Second            // without a message, an answer to a ping, or CPU time: the server hangs
	leastCPU    = 20 * time.Millisecond  // CPU time that counts as work
	idleTicks   = 10                     // of a server without calls, looks are this much rarer
	stderrBytes = 4 << 10                // of the end of the server's standard error
)

// errFailed is part of the error of a call whose server was ended because it failed. The call may be repeated with
// another server.
var errFailed = errors.New("the language server failed")

// key names a server: there is one for each root and kind, and one more for each staged task.
type key struct{ root, kind, task string }

// server is a running language server. Its process ends with the module, when it is idle, and when it fails.
type server struct {
	key
	pool  *pool
	kind  *serverKind
	argv  []string
	ready chan struct{} // closed when it has started, or err is set
	err   error

	child    *proc.Process
	line     *supervisor.Line // nil if the system cannot confine it
	conn     *rpc.Conn
	caps     capabilities
	encoding string
	stderr   tail
	stopped  atomic.Pointer[error]

	pending  atomic.Int64 // calls that use it
	used     atomic.Int64 // Unix milliseconds of the latest call
	pinging  atomic.Bool
	answered atomic.Bool // it has answered a request besides initialize

	documents documents
	published published

	editing    sync.Mutex  // held by a call that runs a command
	collecting atomic.Bool // that call wants the changes
	edits      chan workspaceEdit
}

// start starts the process and initializes the server.
func (s *server) start(ctx context.Context, space *overlay.Space) error {
	temp, err := os.MkdirTemp("", "gatehouse-lsp-*") // servers leave files there
	if err != nil {
		return err
	}
	env := slices.DeleteFunc(proc.BaseEnv(), func(one string) bool { return strings.HasPrefix(one, "TMPDIR=") })
	inside := temp
	if space != nil {
		inside = "/tmp" // of the task
	}
	spec := proc.Spec{
		Path: s.argv[0], Args: s.argv[1:], Dir: s.root, Env: append(env, "TMPDIR="+inside), Input: true, Whole: true,
		Grace: stopWait, Stderr: &s.stderr, Space: space,
	}
	if space != nil {
		// The view confines it: it writes to the task alone.
	} else if err := s.confine(&spec); err != nil {
		os.RemoveAll(temp)
		return err
	}
	from, to := io.Pipe()
	spec.Stdout = to
	s.child, err = proc.Start(s.pool.ctx, spec)
	if s.line != nil {
		s.line.Started()
	}
	if err != nil {
		to.Close()
		s.closeLine()
		os.RemoveAll(temp)
		return &tool.Refusal{
			Code:    tool.CodeNotStarted,
			Message: fmt.Sprintf("%s could not be started: %v", s.argv[0], err),
		}
	}
	s.conn = rpc.New(rpc.Headers(from, func(ctx context.Context, b []byte) error {
		_, err := s.child.Type(ctx, b)
		return err
	}, maxMessage, from.Close), rpc.Handler{Request: s.handleServerRequest, Notify: s.notified})
	s.pool.wg.Go(func() {
		_, err := s.child.Wait()
		s.closeLine()
		os.RemoveAll(temp)
		s.fail(errors.Join(errFailed, errors.New("its process ended"), err))
		to.CloseWithError(io.EOF)
	})
	s.pool.wg.Go(s.watchProcess)
	ctx, cancel := context.WithTimeout(ctx, startWait)
	defer cancel()
	return s.initialize(ctx)
}

// confine makes the process one that may write only to folders for temporary files and caches, where the kernel
// supports that.
func (s *server) confine(spec *proc.Spec) (err error) {
	if !s.pool.confined {
		return nil
	}
	s.line, err = supervisor.New(supervisor.Spec{
		Argv: s.argv, Env: spec.Env, Dir: spec.Dir, Writable: s.pool.writable,
	})
	if err != nil {
		return fmt.Errorf("confine the language server: %w", err)
	}
	spec.Path, spec.Args, spec.Env, spec.Files = s.line.Path, s.line.Args, s.line.Env, s.line.Files
	return nil
}

func (s *server) closeLine() {
	if s.line != nil {
		s.line.Close()
	}
}

// writableFolders are the folders in which language servers may write.
func writableFolders(more []string) []string {
	all := []string{os.TempDir(), "/tmp", "/var/tmp", "/dev/shm"}
	if cache, err := os.UserCacheDir(); err == nil {
		all = append(all, cache)
	}
	if home, err := os.UserHomeDir(); err == nil {
		all = append(all, filepath.Join(home, "go", "pkg"), filepath.Join(home, ".cargo"), filepath.Join(home, ".npm"))
	}
	return append(all, more...)
}

func (s *server) initialize(ctx context.Context) error {
	folder := map[string]any{"uri": uriOf(s.root), "name": filepath.Base(s.root)}
	params := map[string]any{
		// null: servers end when they cannot send this process a signal, and a confined server cannot. It ends with its
		// input.
		"processId": nil, "rootUri": folder["uri"], "rootPath": s.root, "workspaceFolders": []any{folder},
		"clientInfo": map[string]any{"name": "gatehouse"}, "capabilities": clientCapabilities,
		"initializationOptions": s.kind.options,
	}
	var answer struct {
		Capabilities capabilities `json:"capabilities"`
	}
	if err := s.conn.Call(ctx, "initialize", params, &answer); err != nil {
		return s.failed(err)
	}
	s.caps, s.encoding = answer.Capabilities, "utf-16"
	if s.caps.PositionEncoding == encodingUTF8 {
		s.encoding = encodingUTF8
	}
	return s.failed(s.conn.Notify(ctx, "initialized", struct{}{}))
}

// callServer sends a request that a caller waits for.
func (s *server) callServer(ctx context.Context, method string, params, result any) error {
	var id int64
	err := s.conn.CallID(ctx, method, params, result, func(n int64) { id = n })
	if err == nil {
		s.answered.Store(true)
	}
	if ctx.Err() != nil && err != nil && s.stopped.Load() == nil {
		_ = s.conn.Notify(s.pool.ctx, "$/cancelRequest", map[string]int64{"id": id}) // it is asked, not obliged
	}
	return s.failed(err)
}

// failed returns err, with the reason for which the server was ended if it was.
func (s *server) failed(err error) error {
	if err == nil {
		return nil
	}
	if why := s.stopped.Load(); why != nil {
		return *why
	}
	if errors.Is(err, rpc.ErrClosed) {
		return errors.Join(errFailed, err)
	}
	return err
}

// fail ends the server. The calls that use it return why.
func (s *server) fail(why error) {
	if !errors.Is(why, errFailed) {
		why = errors.Join(errFailed, why)
	}
	if !s.stopped.CompareAndSwap(nil, &why) {
		return
	}
	s.pool.remove(s)
	if s.pool.ctx.Err() == nil && s.used.Load() != 0 {
		s.pool.log.Warn("a language server was ended", "server", s.kind.name, "root", s.root, "reason", why,
			"stderr", s.stderr.String())
	}
	s.pool.wg.Go(func() {
		_ = s.child.Kill()
		_ = s.conn.Close()
	})
}

// stop asks the server to end, because it is not needed.
func (s *server) stop() {
	idle := errors.Join(errFailed, errors.New("it was idle"))
	if !s.stopped.CompareAndSwap(nil, &idle) {
		return
	}
	s.pool.remove(s)
	s.pool.wg.Go(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(s.pool.ctx), stopWait)
		defer cancel()
		if s.conn.Call(ctx, "shutdown", nil, nil) == nil {
			_ = s.conn.Notify(ctx, "exit", nil)
		}
		_ = s.child.Stop(ctx)
		_ = s.conn.Close()
	})
}

// watchProcess ends the server if it hangs, uses too much memory or is idle. A server hangs if, during a call, it sends
// nothing, answers no ping and uses no CPU time.
func (s *server) watchProcess() {
	t := time.NewTicker(tick)
	defer t.Stop()
	var seen int64
	var cpu time.Duration
	quiet := time.Now()
	for n := 0; ; n++ {
		select {
		case <-s.child.Done():
			return
		case <-t.C:
		}
		busy := s.pending.Load() > 0
		if !busy && n%idleTicks != 0 {
			quiet = time.Now()
			continue
		}
		u, err := s.child.Usage()
		if err == nil && u.Memory > s.pool.memory {
			s.fail(fmt.Errorf("it used %d MiB of memory; %d MiB are allowed", u.Memory>>20, s.pool.memory>>20))
			return
		}
		switch now := s.conn.Received(); {
		case !busy:
			if s.idle() {
				s.stop()
				return
			}
			fallthrough
		case now != seen, err == nil && u.CPU > cpu+leastCPU:
			seen, cpu, quiet = now, u.CPU, time.Now()
		case time.Since(quiet) > s.patience():
			s.fail(errors.New("it did not answer, and did nothing"))
			return
		case time.Since(quiet) > tick:
			s.ping()
		}
	}
}

// patience is how long the server may do nothing. At the beginning it may wait for the disk.
func (s *server) patience() time.Duration {
	if s.answered.Load() {
		return silence
	}
	return 5 * silence
}

func (s *server) idle() bool {
	used := s.used.Load()
	return used != 0 && time.Since(time.UnixMilli(used)) > s.pool.idle
}

// ping sends a request that every server answers at once, if only with an error.
func (s *server) ping() {
	if !s.pinging.CompareAndSwap(false, true) {
		return
	}
	s.pool.wg.Go(func() {
		defer s.pinging.Store(false)
		ctx, cancel := context.WithTimeout(s.pool.ctx, startWait)
		defer cancel()
		_ = s.conn.Call(ctx, "$/ping", nil, nil)
	})
}

// handleServerRequest answers requests of the server.
func (s *server) handleServerRequest(_ context.Context, method string, params json.RawMessage) (any, error) {
	switch method {
	case "workspace/configuration":
		var p struct {
			Items []json.RawMessage `json:"items"`
		}
		if err := json.Unmarshal(params, &p); err != nil {
			return nil, &rpc.Error{Code: rpc.CodeInvalidParams, Message: err.Error()}
		}
		all := make([]any, len(p.Items))
		for i := range all {
			all[i] = s.kind.options
		}
		return all, nil
	case "workspace/workspaceFolders":
		return []any{map[string]any{"uri": uriOf(s.root), "name": filepath.Base(s.root)}}, nil
	case "client/registerCapability", "client/unregisterCapability", "window/workDoneProgress/create",
		"workspace/diagnostic/refresh", "workspace/semanticTokens/refresh", "workspace/inlayHint/refresh",
		"workspace/codeLens/refresh", "window/showMessageRequest":
		return nil, nil
	case "window/showDocument":
		return map[string]bool{"success": false}, nil
	case "workspace/applyEdit":
		var p struct {
			Edit workspaceEdit `json:"edit"`
		}
		if err := json.Unmarshal(params, &p); err != nil {
			return nil, &rpc.Error{Code: rpc.CodeInvalidParams, Message: err.Error()}
		}
		if !s.collecting.Load() {
			return map[string]any{"applied": false, "failureReason": "no caller asked for a change"}, nil
		}
		select {
		case s.edits <- p.Edit:
			return map[string]bool{"applied": true}, nil
		default:
			return map[string]any{"applied": false, "failureReason": "there are too many changes"}, nil
		}
	}
	return nil, rpc.NotFound(method)
}

func (s *server) notified(method string, params json.RawMessage) {
	if method == "textDocument/publishDiagnostics" {
		s.published.recordDiagnostics(params)
	}
}

// tail keeps the end of a stream.
type tail struct {
	mu sync.Mutex
	b  []byte
}

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, b...)
	if len(t.b) > 2*stderrBytes {
		t.b = append([]byte(nil), t.b[len(t.b)-stderrBytes:]...)
	}
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.ToValidUTF8(string(t.b[max(0, len(t.b)-stderrBytes):]), "?")
}
