// Package jobs stores calls that outlive their request: one durable record each, which belongs to an owner.
//
// The code that runs a call creates a job with Create, and reports through the Running it receives. If the call
// asks questions, its run ends and the record waits; when the last answer has arrived, the Manager runs the next
// round through Options.Resume. A record that has ended never changes again.
//
// Records are in one SQLite file, which several hosts on one machine may share. A job whose end cannot be stored,
// as on a full disk, fails: in memory, until the file can be written again. If a host ends unexpectedly, its
// working jobs fail, or their rounds run again on another host if that is harmless (Running.Keep); jobs that wait for
// answers stay and can be answered on any host. Only the owner learns that a
// record exists.
package jobs

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"math"
	"sync"
	"time"

	"gatehouse/internal/access/displaytext"
	"gatehouse/tool"
)

// Status is the state of a job.
type Status string

const (
	Working       Status = "working"
	InputRequired Status = "input_required" // it waits for answers; nothing runs
	Completed     Status = "completed"
	Failed        Status = "failed"
	Cancelled     Status = "cancelled"
)

// Terminal reports whether the job has ended.
func (s Status) Terminal() bool { return s == Completed || s == Failed || s == Cancelled }

// Record is everything about a job. Its maps and slices are shared: do not change them.
type Record struct {
	ID        string
	Owner     string
	Title     string // at most 1 KiB
	Status    Status
	Note      string        // what it currently does, or why it ended; at most 1 KiB
	Created   time.Time     // UTC, in whole milliseconds, as Updated
	Updated   time.Time     // of the last visible change
	TTL       time.Duration // how long after Created the record is kept, if the job has ended by then
	Poll      time.Duration // how often a client should poll
	Request   json.RawMessage
	Result    json.RawMessage // of a completed job
	Error     *tool.WireError // of a failed one
	Questions []tool.Question // the open questions
	Recorded  map[string]json.RawMessage
	// Repeatable means that the next host runs the round again if this one ends during it; see Running.Keep.
	Repeatable bool
	State      []byte
	Round      int64 // the number of the current run, from 1
	Done       float64
	Total      float64 // 0 means unknown
}

var (
	// ErrNotFound means that the owner has no such job; a job of another owner gives the same error.
	ErrNotFound = errors.New("no such job; it may have expired")
	// ErrTerminal is returned with the record of a job that has ended.
	ErrTerminal = errors.New("the job has ended")
	// ErrSettled means that a round ended too late: its job was cancelled, or the round had ended before.
	ErrSettled = errors.New("the round has ended already")
	// ErrTooMany means that the owner has too many jobs that have not ended.
	ErrTooMany = errors.New("too many unfinished jobs: wait for one, or cancel one")
	// ErrTooLarge means that a record would pass 32 MiB.
	ErrTooLarge = errors.New("more than a job can hold (32 MiB)")
	// ErrCursor means that a cursor did not come from List.
	ErrCursor = errors.New("not a cursor of this list: start without one")
	// ErrCancelled is the cause a job's context carries after Cancel.
	ErrCancelled = errors.New("the job was cancelled")
	// ErrMoved means that another host goes on with the job; see Others.
	ErrMoved = errors.New("another node goes on with the job")
	// ErrStopping is the cause a job's context carries when the host stops,
	// and the answer to a caller that starts a job then.
	ErrStopping = errors.New("the host is stopping")
)

// Resume runs a further round of a job whose questions are all answered: r holds the call (Request), the answers
// and other recorded values (Recorded), and State. It ends run before it returns, and may end early when ctx is
// done. A round is also run that an ended host left, if Running.Keep was called in it.
type Resume = func(ctx context.Context, r Record, run *Running)

// Options configures Open. The zero value is usable.
type Options struct {
	Log         *slog.Logger  // nil means none
	NewID       func() string // returns an unguessable id; nil means 128 random bits in base32
	DefaultTTL  time.Duration // for records that name none; 0 means 1 h
	MaxTTL      time.Duration // 0 means 24 h
	Poll        time.Duration // for records that name none; 0 means 1 s
	MaxPerOwner int           // unfinished jobs; 0 means 100. Ten times as many ended ones are kept, the newest
	// Resume is what SetResume sets. Tests set it, because their jobs exist before they open the store.
	Resume Resume
	// Changed is called with each stored state of a job, in order, and with the progress of one that is Repeatable; nil
	// means never. It must not block.
	Changed func(Record)
	Others  Others // nil means that no host with another file goes on with jobs of this one
}

// Others are hosts with files of their own that go on with jobs of this one, if they may run again, when it has ended.
type Others interface {
	// Share stores a job of this host as another one has to go on with it, or how it has ended. The error is ErrMoved
	// if another host has it; otherwise another one may not go on with this state.
	Share(r Record) error
	// Keeps reports whether a job of this host, which has been away, still belongs to it; then no other host has it.
	Keeps(id string) (bool, error)
}

// Manager manages the jobs of one host. It is safe for concurrent use.
type Manager struct {
	o       Options
	store   *store
	workers workers

	// ctx ends when the host stops. Rounds of jobs use it, because a job outlives the call that created it.
	ctx  context.Context
	stop context.CancelCauseFunc

	// mu is never held while waiting for the disk or a callback.
	mu     sync.Mutex
	resume Resume
	live   map[string]*live
}

// Open opens the jobs in the file at path, which need not exist: it is created for the first job. If path is ""
// the jobs are kept in memory. Open fails the jobs that an ended host left working, and Run continues those whose
// round may run again.
func Open(path string, o Options) (*Manager, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.NewID == nil {
		o.NewID = newID
	}
	o.DefaultTTL = cmp.Or(o.DefaultTTL, time.Hour)
	o.MaxTTL = cmp.Or(o.MaxTTL, 24*time.Hour)
	o.Poll = cmp.Or(o.Poll, time.Second)
	o.MaxPerOwner = cmp.Or(o.MaxPerOwner, 100)
	ctx, stop := context.WithCancelCause(context.Background())
	j := &Manager{o: o, store: newStore(path), ctx: ctx, stop: stop, resume: o.Resume, live: map[string]*live{}}
	if there, err := j.store.openExisting(false); err != nil {
		return nil, err
	} else if there {
		if err := j.failOrphans(); err != nil {
			j.store.closeFile()
			return nil, err
		}
	}
	return j, nil
}

// SetResume sets the function that runs further rounds, for a runner that can only be built after Open. Without it
// the last open question cannot be answered.
func (m *Manager) SetResume(f Resume) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.resume = f
}

// Create creates a job from r, which is on disk when Create returns. ID, TTL and Poll of r may be zero; Status and
// the times are set. The caller runs the first round and ends it with Finish, Fail or Ask.
func (m *Manager) Create(ctx context.Context, r Record) (*Running, error) {
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	if m.ctx.Err() != nil {
		return nil, ErrStopping
	}
	if r.ID == "" {
		r.ID = m.o.NewID()
	}
	r.Status, r.Created, r.Result, r.Error, r.Questions = Working, now(), nil, nil, nil
	r.Updated, r.Round = r.Created, 1
	r = m.withDefaults(r)
	r.Title, r.Note = displaytext.Cut(r.Title, maxText, ""), displaytext.Cut(r.Note, maxText, "")
	var run *Running
	err := m.store.insert(row{Record: r}, m.o.MaxPerOwner, func(r row) {
		run = m.startRunning(r)
		m.changed(r)
	})
	if err == nil && r.Repeatable && m.o.Others != nil {
		if err := m.o.Others.Share(r); err != nil {
			m.o.Log.Warn("no other node goes on with a job if this one dies", "job", r.ID, "err", err)
		}
	}
	return run, err
}

func (m *Manager) changed(r row) {
	if m.o.Changed != nil {
		m.o.Changed(r.Record)
	}
}

// AddLost adds a job of another host, which has died, as one that has failed for the reason why. It does nothing if
// this host has the job. ID, Owner and Created of r must be set.
func (m *Manager) AddLost(r Record, why string) error {
	if _, err := m.store.readRow(r.ID); !errors.Is(err, ErrNotFound) {
		return err
	}
	r.Updated, r.Round = now(), 1
	lost := row{Record: m.withDefaults(r)}
	lost.markEnded(Failed)
	lost.Error, lost.Note = internalError(why), displaytext.Cut(why, maxText, "")
	return m.store.insert(lost, math.MaxInt/keepEnded, func(row) {})
}

// Adopt adds a job with which this host goes on instead of another one, and runs its round again unless it waits for
// answers. What this host has of the job is replaced.
func (m *Manager) Adopt(r Record) error {
	if m.ctx.Err() != nil {
		return ErrStopping
	}
	if err := m.Drop(r.ID); err != nil {
		return err
	}
	r.Updated, r.Repeatable = now(), true
	return m.store.insert(row{Record: m.withDefaults(r)}, math.MaxInt/keepEnded, func(r row) {
		r.next = r.Status == Working
		m.publish(r)
	})
}

// Drop forgets a job with which another host goes on, and ends its round.
func (m *Manager) Drop(id string) error {
	if err := m.store.remove(id); err != nil {
		return err
	}
	m.forget(id)
	return nil
}

func (m *Manager) withDefaults(r Record) Record {
	r.TTL = min(cmp.Or(max(r.TTL, 0), m.o.DefaultTTL), m.o.MaxTTL)
	r.Poll = cmp.Or(max(r.Poll, 0), m.o.Poll)
	return r
}

// share tells the other hosts of a change that is about to be stored, if they could go on with the job. It returns
// ErrSettled if one of them does, and forgets the job.
func (m *Manager) share(id string, change func(*row) error) error {
	if m.o.Others == nil {
		return nil
	}
	r, err := m.store.readRow(id)
	if err != nil || !r.Repeatable {
		return nil // storing the change says what is wrong
	}
	m.overlay(&r)
	if change(&r) != nil {
		return nil
	}
	switch err = m.o.Others.Share(r.Record); {
	case errors.Is(err, ErrMoved):
		if err := m.Drop(id); err != nil {
			m.o.Log.Warn("a job with which another node goes on was not removed here", "job", id, "err", err)
		}
		return ErrSettled
	case err != nil:
		m.o.Log.Warn("other nodes do not know how a job is", "job", id, "err", err)
	}
	return nil
}

// Get returns one job of an owner.
func (m *Manager) Get(owner, id string) (Record, error) {
	if r, ok := m.running(id); ok && r.Owner == owner {
		return r, nil
	}
	r, err := m.store.readRow(id)
	if err == nil && (r.Owner != owner || r.expired(time.Now())) {
		err = ErrNotFound
	}
	if err != nil {
		return Record{}, err
	}
	return r.Record, nil
}

// List returns an owner's jobs, the newest first, at most limit (0 means 50, at most 1000), and the cursor for the
// next page, "" at the end. Request, Result, Recorded and State are left out; Get returns them.
func (m *Manager) List(owner, cursor string, limit int) (list []Record, next string, err error) {
	limit = min(cmp.Or(max(limit, 0), 50), 1000)
	from, err := parseCursor(cursor)
	if err != nil {
		return nil, "", err
	}
	rows, err := m.store.listRows(owner, from, limit+1)
	if err != nil {
		return nil, "", err
	}
	if len(rows) > limit {
		rows = rows[:limit]
		next = cursorAfter(rows[limit-1])
	}
	for _, r := range rows {
		m.overlay(&r)
		list = append(list, r.Record)
	}
	return list, next, nil
}

// Cancel ends a job and the context of its round, and does not wait for the round. It returns a job that has ended
// before with ErrTerminal.
func (m *Manager) Cancel(owner, id string) (Record, error) {
	cancel := func(r *row) error {
		if r.Owner != owner || r.expired(time.Now()) {
			return ErrNotFound
		}
		if r.Status.Terminal() {
			return ErrTerminal
		}
		r.markEnded(Cancelled)
		return nil
	}
	if m.share(id, cancel) != nil {
		return Record{}, ErrNotFound // another host has it
	}
	return m.changeJob(id, cancel)
}

// EndOwned cancels the unfinished jobs that match accepts, including those that other hosts run, and returns a
// line for each. Records of ended jobs stay until they expire; only their owner can read them.
func (m *Manager) EndOwned(match func(owner string, made time.Time) bool) (ended []string, err error) {
	all, err := m.store.unfinished()
	for _, r := range all {
		if err != nil {
			break
		}
		if !match(r.Owner, r.Created) {
			continue
		}
		switch _, e := m.Cancel(r.Owner, r.ID); {
		case e == nil:
			ended = append(ended, "job "+r.ID+": "+r.Title)
		case !errors.Is(e, ErrTerminal) && !errors.Is(e, ErrNotFound):
			err = e
		}
	}
	return ended, err
}

// HandOver gives ended jobs to the owner that heir names for them, and returns a line for each. Unfinished jobs
// stay, because their next round acts with the permissions of the caller that started them.
func (m *Manager) HandOver(heir func(owner string, made time.Time) string) (handed []string, err error) {
	all, err := m.store.ended()
	for _, r := range all {
		if err != nil {
			break
		}
		to := heir(r.Owner, r.Created)
		if to == "" {
			continue
		}
		var moved bool
		if moved, err = m.store.changeOwner(r.Owner, r.ID, to); moved {
			handed = append(handed, "job "+r.ID+": "+r.Title)
		}
	}
	return handed, err
}

// Unfinished returns the jobs of all owners that have not ended, the oldest first, at most 1000. Request, Result,
// Recorded and State are left out.
func (m *Manager) Unfinished() (all []Record, err error) {
	rows, err := m.store.unfinished()
	for _, r := range rows[:min(len(rows), 1000)] {
		if m.overlay(&r); !r.Status.Terminal() {
			all = append(all, r.Record)
		}
	}
	return all, err
}

// Owner returns the owner of a job; the error is ErrNotFound.
func (m *Manager) Owner(id string) (string, error) {
	r, err := m.store.readRow(id)
	return r.Owner, err
}

// Answer stores answers to open questions. It ignores unknown keys and values that are not JSON; unanswered
// questions stay open. With the last answer the Manager runs the job's next round. A job that waits for nothing is
// returned unchanged, and one that has ended with ErrTerminal.
func (m *Manager) Answer(owner, id string, answers map[string]json.RawMessage) (Record, error) {
	m.mu.Lock()
	resume := m.resume
	m.mu.Unlock()
	var unchanged = errors.New("nothing to store")
	answer := func(r *row) error {
		switch {
		case r.Owner != owner || r.expired(time.Now()):
			return ErrNotFound
		case r.Status.Terminal():
			return ErrTerminal
		case r.Status == Working || !r.answer(answers):
			return unchanged
		case len(r.Questions) > 0:
			return nil
		case resume == nil:
			return errors.New("jobs: the last answer arrived, but SetResume was not called")
		case m.ctx.Err() != nil:
			return ErrStopping
		}
		r.Status, r.host, r.next = Working, m.store.host, true
		r.Round++
		return nil
	}
	if m.share(id, answer) != nil {
		return Record{}, ErrNotFound // another host has it
	}
	r, err := m.changeJob(id, answer)
	if err == unchanged {
		err = nil
	}
	return r, err
}

// answer moves the answered questions to the recorded values and reports whether there were any.
func (r *row) answer(answers map[string]json.RawMessage) bool {
	recorded := maps.Clone(r.Recorded)
	if recorded == nil {
		recorded = map[string]json.RawMessage{}
	}
	var open []tool.Question
	for _, q := range r.Questions {
		if a, ok := answers[q.Key]; ok && json.Valid(a) {
			recorded[q.Key] = a
		} else {
			open = append(open, q)
		}
	}
	if len(open) == len(r.Questions) {
		return false
	}
	r.Questions, r.Recorded = open, recorded
	return true
}

// changeJob is the only way to change a stored record: f works on the newest state, and every watcher sees the
// changes in the order in which they were stored. If f fails nothing changes, and the record is returned with f's
// error, except for ErrNotFound.
func (m *Manager) changeJob(id string, f func(*row) error) (Record, error) {
	var out Record
	err := m.store.changeRow(id, func(r *row) error {
		m.overlay(r)
		out = r.Record
		return f(r)
	}, func(r row) {
		out = r.Record
		m.changed(r)
		m.publish(r)
	})
	if errors.Is(err, ErrNotFound) {
		return Record{}, ErrNotFound
	}
	if r, ok := m.unstored(id); err != nil && ok {
		out = r.Record
		if refused := f(&r); refused != nil {
			err = refused // it has ended, although the file cannot be asked
		}
	}
	return out, err
}
