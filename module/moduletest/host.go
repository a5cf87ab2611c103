package moduletest

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"gatehouse/module"
	"gatehouse/tool"
)

// Host stands in for a module's host: it gives working dependencies and
// remembers what it was told. Set its fields before the module is made.
type Host struct {
	Config json.RawMessage // what Deps.Config decodes, strictly; nil leaves the defaults
	Tools  []tool.Tool     // what Deps.Call finds

	t    testing.TB
	work sync.WaitGroup
	// ctx ends with the test, which outlives each call.
	ctx context.Context

	mu      sync.Mutex
	changed []module.Audience
	facts   []Fact
	next    int
	jobs    map[string]*job
}

// Fact is what a module published; its data is JSON.
type Fact struct{ Subject, Data string }

// job is one run that outlives its call.
type job struct {
	done chan struct{}
	outcome
}

// NewHost makes a host for one module. Its jobs are cancelled, and waited for,
// when the test ends.
func NewHost(t testing.TB) *Host {
	ctx, cancel := context.WithCancel(context.Background())
	h := &Host{t: t, ctx: ctx, jobs: map[string]*job{}}
	t.Cleanup(func() {
		cancel()
		h.work.Wait()
	})
	return h
}

// Deps are the dependencies.
func (h *Host) Deps() module.Deps {
	return module.Deps{
		Log:     slog.New(slog.NewTextHandler(h.t.Output(), nil)),
		Config:  h.config,
		Changed: h.change,
		NewID:   h.newID,
		Call:    h.call,
		Job:     h.job,
		Publish: h.publish,
	}
}

func (h *Host) config(into any) error {
	return module.DecodeConfig(h.Config, into)
}

func (h *Host) change(a module.Audience) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.changed = append(h.changed, a)
}

// Changed are the audiences whose offer the module said is stale.
func (h *Host) Changed() []module.Audience {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.changed)
}

func (h *Host) newID(kind string) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.next++
	return fmt.Sprintf("%s_test%d", kind, h.next)
}

func (h *Host) publish(subject string, fact any) {
	b, err := json.Marshal(fact)
	if err != nil {
		h.t.Errorf("the fact %s has no JSON form: %v", subject, err)
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.facts = append(h.facts, Fact{subject, string(b)})
}

// Facts are what the module published.
func (h *Host) Facts() []Fact {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.facts)
}

// call runs another tool; as in a real host it cannot ask.
func (h *Host) call(ctx context.Context, parent *tool.Call, name string, args json.RawMessage) (tool.Result, error) {
	i := slices.IndexFunc(h.Tools, func(t tool.Tool) bool { return t.Name == name })
	if i < 0 {
		return tool.Result{}, tool.Refuse(tool.CodeNotFound, "unknown tool: %s", name)
	}
	c := NewCall(h.t, args)
	c.Caller, c.Roots = parent.Caller, parent.Roots
	c.Caller.Can = 0
	return c.Tool(ctx, h.Tools[i])
}

// job runs a handler beside the call that starts it.
func (h *Host) job(parent *tool.Call, _ string, run tool.Handler) (string, error) {
	id := h.newID("job")
	j := &job{done: make(chan struct{})}
	h.mu.Lock()
	h.jobs[id] = j
	h.mu.Unlock()
	c := NewCall(h.t, slices.Clone(parent.Args))
	c.Caller, c.Roots = parent.Caller, parent.Roots
	h.work.Go(func() {
		defer close(j.done)
		j.res, j.err = c.Run(h.ctx, run)
	})
	return id, nil
}

// Wait waits for a job to end and gives its outcome.
func (h *Host) Wait(id string) (tool.Result, error) {
	h.t.Helper()
	h.mu.Lock()
	j := h.jobs[id]
	h.mu.Unlock()
	if j == nil {
		h.t.Fatalf("there is no job %s", id)
	}
	select {
	case <-j.done:
	case <-time.After(patience):
		h.t.Fatalf("job %s does not end", id)
	}
	return j.res, j.err
}
