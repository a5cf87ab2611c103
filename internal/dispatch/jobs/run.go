package jobs

import (
	"context"
	"sync"
	"time"
)

const (
	lookEvery  = time.Second // for what other hosts did
	sweepEvery = time.Minute
	stopText   = "the host stopped while this job ran; it may have done part of its work"
)

// Run removes what has expired and looks for what other hosts on the same file
// have done, until ctx ends. Then nothing new is started, the contexts of all
// rounds end with ErrStopping, and Run returns when the goroutines that Jobs
// started have.
func (j *Jobs) Run(ctx context.Context) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	var swept time.Time
	var seen int64
	for ctx.Err() == nil {
		if time.Since(swept) >= sweepEvery {
			swept = time.Now()
			j.sweep()
		}
		seen = j.catchUp(seen)
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
	j.stop(ErrStopping)
	return j.crew.Wait(context.Background())
}

// Close ends what runs, waits for it until ctx ends, fails what is still
// working then, and closes the file. It is safe to call twice.
func (j *Jobs) Close(ctx context.Context) error {
	j.stop(ErrStopping)
	err := j.crew.Wait(ctx)
	for _, id := range j.liveIDs(true) {
		j.failAs(id, stopText, func(r *row) bool { return r.Status == Working && r.host == j.store.host })
	}
	if e := j.crew.Wait(ctx); err == nil {
		err = e // the last changes have reached those who watch
	}
	j.crew.close()
	if e := j.store.close(); err == nil {
		err = e
	}
	return err
}

// Live is how many jobs this process runs or follows.
func (j *Jobs) Live() int { return len(j.liveIDs(false)) }

func (j *Jobs) liveIDs(onlyRunning bool) (ids []string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for id, e := range j.live {
		if e.run != nil || !onlyRunning {
			ids = append(ids, id)
		}
	}
	return ids
}

// sweep removes the records whose time is over, fails those whose questions
// no client answered, and those whose host is gone.
func (j *Jobs) sweep() {
	if there, err := j.store.ready(false); err != nil || !there {
		return
	}
	at := time.Now()
	gone, err := j.store.removeExpired(at)
	if err != nil {
		j.o.Log.Warn("expired jobs stay", "error", err)
	}
	for _, id := range gone {
		j.forget(id)
	}
	late, err := j.store.unanswered(at)
	if err != nil {
		j.o.Log.Warn("unanswered jobs stay", "error", err)
	}
	for _, id := range late {
		j.failAs(id, "no answer came in time", func(r *row) bool {
			return r.Status == InputRequired && !at.Before(r.Updated.Add(r.TTL))
		})
	}
	if err := j.failOrphans(); err != nil {
		j.o.Log.Warn("jobs of a host that is gone stay", "error", err)
	}
	j.store.removeHosts()
}

// failOrphans fails what is working for a host that is gone.
func (j *Jobs) failOrphans() error {
	ids, err := j.store.orphans()
	for _, o := range ids {
		j.failAs(o.id, stopText, func(r *row) bool { return r.Status == Working && r.host == o.host })
	}
	return err
}

// failAs fails a job that still is what it was taken for.
func (j *Jobs) failAs(id, text string, still func(*row) bool) {
	_, err := j.change(id, func(r *row) error {
		if !still(r) {
			return ErrSettled
		}
		r.end(Failed)
		r.Error, r.Note = internalError(text), text
		return nil
	})
	if err != nil && err != ErrSettled && err != ErrNotFound {
		j.o.Log.Warn("a job could not be failed", "error", err)
	}
}

// catchUp looks at the jobs that run or are watched here when another host has
// written to the file since.
func (j *Jobs) catchUp(seen int64) int64 {
	ids := j.liveIDs(false)
	if len(ids) == 0 {
		return seen
	}
	version, err := j.store.version()
	if err != nil || version == seen {
		return seen
	}
	for _, id := range ids {
		j.refresh(id)
	}
	return version
}

// crew counts goroutines, as a WaitGroup that can be waited for with a
// deadline and while it still grows.
type crew struct {
	mu     sync.Mutex
	n      int
	idle   chan struct{} // closed when n falls to 0; nil while it is 0
	closed bool
}

// Go runs f, unless the crew is closed.
func (c *crew) Go(f func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	if c.n == 0 {
		c.idle = make(chan struct{})
	}
	c.n++
	go func() {
		defer c.done()
		f()
	}()
	return true
}

func (c *crew) done() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n--; c.n == 0 {
		close(c.idle)
		c.idle = nil
	}
}

// Wait waits until nothing runs.
func (c *crew) Wait(ctx context.Context) error {
	c.mu.Lock()
	idle := c.idle
	c.mu.Unlock()
	if idle == nil {
		return nil
	}
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (c *crew) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
}
