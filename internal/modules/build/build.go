// Package build is the module that builds and tests projects with their own tools, and says where the errors are.
package build

import (
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"gatehouse/internal/dispatch/hub"
	"gatehouse/internal/exec/builds"
	"gatehouse/internal/exec/proc"
	"gatehouse/internal/files/roots"
	"gatehouse/internal/files/sqlfile"
	"gatehouse/module"
	"gatehouse/tool"
)

const (
	maxLog    = 8 << 20 // bytes of the output of one build that are kept: its beginning and its end
	maxTime   = 2 * time.Hour
	maxBuilds = 200 // finished builds of one owner that are kept
	maxActive = 4   // builds of one owner at once
	maxLines  = 200 // characters of an excerpt
	stopGrace = 5 * time.Second
)

// Config is what the module depends on. The zero value is usable.
type Config struct {
	// Path is the file with the history; "" keeps it in memory.
	Path string
	// Hub gets a message for each build that starts and ends; nil means none.
	Hub *hub.Hub
	// Claim counts a build of a caller, and returns what releases it; nil means no limit besides that of each owner.
	Claim func(c tool.Caller) (release func(), err error)
	// Lister gets the function that returns the running builds; nil if nothing shows them.
	Lister func(running func() []Build)
}

// Build is a run of a build tool.
type Build struct {
	ID       string           `json:"id"`
	Owner    string           `json:"owner"`
	Repo     string           `json:"repo"` // the name of the folder
	Branch   string           `json:"branch,omitempty"`
	Dir      string           `json:"dir"`
	Tool     string           `json:"tool"`
	Command  []string         `json:"command"`
	Status   string           `json:"status"` // running, success, failed or cancelled
	Code     int              `json:"code"`
	Started  time.Time        `json:"startedAt"`
	Ended    time.Time        `json:"endedAt,omitzero"`
	Problems []builds.Problem `json:"problems,omitempty"`
	Tests    []*builds.Test   `json:"tests,omitempty"`
}

// duration returns the seconds that the build took, or has taken until now.
func (b *Build) duration() float64 {
	end := b.Ended
	if end.IsZero() {
		end = time.Now()
	}
	return float64(end.Sub(b.Started).Milliseconds()) / 1000
}

// runner is the module.
type runner struct {
	cfg   Config
	deps  module.Deps
	log   *slog.Logger
	file  *sqlfile.File
	offer module.Offer

	ctx    context.Context // of the builds, which outlive the calls that start them
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu     sync.Mutex
	active map[string]*running
	closed bool
}

// running is a build whose process has not ended.
type running struct {
	Build
	child *proc.Process
	out   *output
	done  chan struct{} // closed when the build is stored
}

const schema = `CREATE TABLE builds (id TEXT PRIMARY KEY, owner TEXT NOT NULL, started INTEGER NOT NULL, body TEXT NOT NULL,
	log BLOB NOT NULL);
CREATE INDEX builds_by_owner ON builds (owner, started);`

// New returns what makes the module with a configuration.
func New(cfg Config) module.New {
	return func(ctx context.Context, d module.Deps) (module.Module, error) {
		m := &runner{
			cfg: cfg, deps: d, log: d.Log, active: map[string]*running{},
			file: &sqlfile.File{Path: cfg.Path, Schema: schema, Version: 1, Secret: true},
		}
		if m.log == nil {
			m.log = slog.New(slog.DiscardHandler)
		}
		m.ctx, m.cancel = context.WithCancel(context.WithoutCancel(ctx))
		m.offer.Tools = []tool.Tool{
			m.runTool(), m.statusTool(), m.listTool(), m.logsTool(), m.testsTool(), m.stopTool(),
		}
		tool.StagePrograms(m.offer.Tools)
		if cfg.Lister != nil {
			cfg.Lister(m.running)
		}
		return m, nil
	}
}

// Offer implements module.Module.
func (m *runner) Offer(context.Context, module.Audience) (*module.Offer, error) { return &m.offer, nil }

// Close implements module.Module. It stops the builds that run, and stores them.
func (m *runner) Close(context.Context) error {
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	m.cancel()
	m.wg.Wait()
	return m.file.Close()
}

// EndOwned implements module.Owned.
func (m *runner) EndOwned(ctx context.Context, match func(owner string, made time.Time) bool) (ended []string) {
	m.mu.Lock()
	var stop []*running
	for _, r := range m.active {
		if match(r.Owner, r.Started) {
			stop = append(stop, r)
		}
	}
	m.mu.Unlock()
	for _, r := range stop {
		_ = r.child.Stop(ctx) // its own goroutine reports what became of it
		ended = append(ended, "build "+r.ID+": "+r.Repo)
	}
	return ended
}

func (m *runner) running() []Build {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []Build
	for _, r := range m.active {
		all = append(all, r.Build)
	}
	return all
}

// start starts a build of the caller.
func (m *runner) start(c *tool.Call, where roots.Workplace, b Build, argv []string) (*running, error) {
	b.ID, b.Owner, b.Status, b.Started, b.Command = m.newID(), c.Caller.Owner, "running", time.Now(), argv
	r := &running{Build: b, out: &output{}, done: make(chan struct{})}
	release := func() {}
	if m.cfg.Claim != nil {
		var err error
		if release, err = m.cfg.Claim(c.Caller); err != nil {
			return nil, err
		}
	}
	m.mu.Lock()
	n := 0
	for _, x := range m.active {
		if x.Owner == b.Owner {
			n++
		}
	}
	if m.closed || n >= maxActive {
		m.mu.Unlock()
		release()
		return nil, &tool.Refusal{
			Code: tool.CodeTooMany, Message: "you have as many running builds as you may have",
			Next: "Wait for one, or stop it with build_stop.",
		}
	}
	m.active[b.ID] = r
	m.mu.Unlock()
	ctx, cancel := context.WithTimeout(m.ctx, maxTime)
	space, err := where.Space(true)
	if err == nil {
		defer space.Close()
		r.child, err = proc.Start(ctx, proc.Spec{
			Path: argv[0], Args: argv[1:], Dir: where.Dir,
			Env:    append(proc.BaseEnv(), "CI=1", "NO_COLOR=1", "TERM=dumb"),
			Stdout: r.out, Stderr: r.out, Whole: true, Grace: stopGrace, Space: space,
			Owner: c.Caller.Principal,
		})
	}
	if err != nil {
		cancel()
		m.dropBuild(r)
		release()
		return nil, &tool.Refusal{
			Code: tool.CodeNotStarted, Message: where.Says(err), Next: argv[0] + " must be installed on the host.",
		}
	}
	m.tell("start", r.Build)
	m.wg.Go(func() {
		defer cancel()
		defer release()
		m.waitForBuild(ctx, r)
	})
	return r, nil
}

func (m *runner) newID() string {
	if m.deps.NewID != nil {
		return m.deps.NewID("build")
	}
	return "build_" + time.Now().UTC().Format("20060102T150405.000000000")
}

func (m *runner) dropBuild(r *running) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.active, r.ID)
}

// waitForBuild waits for the end of a build, and stores it.
func (m *runner) waitForBuild(ctx context.Context, r *running) {
	state, err := r.child.Wait()
	b := r.Build
	b.Ended, b.Code = time.Now(), state.Code
	switch {
	case state.Stopped != nil || ctx.Err() != nil:
		b.Status = "cancelled"
	case err == nil && state.Code == 0:
		b.Status = "success"
	default:
		b.Status = "failed"
	}
	text := r.out.text()
	b.Problems, b.Tests = builds.Parse(text, b.Dir), builds.ParseTests(text)
	m.resolve(&b)
	if err := m.store(context.WithoutCancel(ctx), b, text); err != nil {
		m.log.Error("a build could not be stored", "build", b.ID, "error", err)
	}
	m.mu.Lock()
	r.Build = b
	delete(m.active, b.ID)
	m.mu.Unlock()
	close(r.done)
	if b.Status == "success" {
		m.tell("complete", b)
	} else {
		m.tell("failed", b)
	}
}

// resolve finds the files of problems below the folder, which some tools name by a package, and adds their lines.
func (m *runner) resolve(b *Build) {
	dir, err := os.OpenRoot(b.Dir)
	if err != nil {
		return // the folder is gone
	}
	defer dir.Close()
	contents := map[string][]string{}
	for i := range b.Problems {
		p := &b.Problems[i]
		p.File = existing(dir, p.File)
		lines, ok := contents[p.File]
		if !ok {
			lines = linesOf(dir, p.File)
			contents[p.File] = lines
		}
		if p.Line <= len(lines) {
			p.Excerpt = clip(lines[p.Line-1])
		}
	}
}

// event is what subscribers get of a build.
type event struct {
	Owner   string
	ID      string  `json:"id"`
	Repo    string  `json:"repo"`
	Branch  string  `json:"branch,omitempty"`
	Tool    string  `json:"tool"`
	Status  string  `json:"status"`
	Seconds float64 `json:"duration"`
	Errors  int     `json:"errors"`
}

// tell publishes that a build has started or ended.
func (m *runner) tell(what string, b Build) {
	e := event{b.Owner, b.ID, b.Repo, b.Branch, b.Tool, b.Status, b.duration(), errorsIn(b.Problems)}
	if m.deps.Publish != nil {
		m.deps.Publish(what, e)
	}
	if m.cfg.Hub == nil {
		return
	}
	data, err := json.Marshal(e)
	if err == nil {
		_, err = m.cfg.Hub.Send(b.Owner, hub.IDE+":build."+what, hub.Message{Type: "event", Data: data})
	}
	if err != nil {
		m.log.Error("a message about a build could not be sent", "build", b.ID, "error", err)
	}
}

func errorsIn(all []builds.Problem) (n int) {
	for _, p := range all {
		if p.Severity == "error" {
			n++
		}
	}
	return n
}

// store keeps a build that has ended, and removes the oldest of its owner.
func (m *runner) store(ctx context.Context, b Build, log string) error {
	db, err := m.file.DB()
	if err != nil {
		return err
	}
	body, err := json.Marshal(b)
	if err != nil {
		return err
	}
	if _, err := db.ExecContext(ctx, `INSERT INTO builds VALUES (?, ?, ?, ?, ?)`, b.ID, b.Owner, b.Started.UnixNano(),
		string(body), []byte(log)); err != nil {
		return err
	}
	_, err = db.ExecContext(ctx, `DELETE FROM builds WHERE owner = ? AND id NOT IN
		(SELECT id FROM builds WHERE owner = ? ORDER BY started DESC LIMIT ?)`, b.Owner, b.Owner, maxBuilds)
	return err
}

// findBuild returns a build of an owner, and its output so far.
func (m *runner) findBuild(ctx context.Context, owner, id string, withLog bool) (b Build, log string, err error) {
	m.mu.Lock()
	r := m.active[id]
	if r != nil && r.Owner == owner {
		b = r.Build
		m.mu.Unlock()
		if withLog {
			log = r.out.text()
		}
		return b, log, nil
	}
	m.mu.Unlock()
	missing := &tool.Refusal{
		Code: tool.CodeNotFound, Message: "you have no build " + id, Next: "build_list lists your builds.",
	}
	if !m.file.Exists() {
		return b, "", missing
	}
	db, err := m.file.DB()
	if err != nil {
		return b, "", err
	}
	rows, err := db.QueryContext(ctx, `SELECT body, log FROM builds WHERE id = ? AND owner = ?`, id, owner)
	if err != nil {
		return b, "", err
	}
	defer rows.Close()
	if !rows.Next() {
		return b, "", cmp.Or[error](rows.Err(), missing)
	}
	var body, text []byte
	if err := rows.Scan(&body, &text); err != nil {
		return b, "", err
	}
	return b, string(text), json.Unmarshal(body, &b)
}

// listBuilds returns the builds of an owner, the newest first, that began before a time.
func (m *runner) listBuilds(ctx context.Context, owner, repo string, before int64, most int) (all []Build, err error) {
	m.mu.Lock()
	for _, r := range m.active {
		if r.Owner == owner && r.Started.UnixNano() < before && (repo == "" || r.Repo == repo) {
			all = append(all, r.Build)
		}
	}
	m.mu.Unlock()
	if m.file.Exists() {
		db, err := m.file.DB()
		if err != nil {
			return nil, err
		}
		rows, err := db.QueryContext(ctx, `SELECT body FROM builds WHERE owner = ? AND started < ?
			AND (? = '' OR json_extract(body, '$.repo') = ?) ORDER BY started DESC LIMIT ?`, owner, before, repo, repo, most)
		if err != nil {
			return nil, err
		}
		defer rows.Close()
		for rows.Next() {
			var body []byte
			var b Build
			if err := rows.Scan(&body); err != nil {
				return nil, err
			}
			if err := json.Unmarshal(body, &b); err != nil {
				return nil, err
			}
			all = append(all, b)
		}
		if err := rows.Err(); err != nil {
			return nil, err
		}
	}
	slices.SortFunc(all, func(a, b Build) int { return b.Started.Compare(a.Started) })
	return all[:min(most, len(all))], nil
}
