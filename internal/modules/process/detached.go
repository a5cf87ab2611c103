package process

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"gatehouse/internal/access/secret"
	"gatehouse/internal/exec/proc"
	"gatehouse/internal/files/roots"
	"gatehouse/tool"
)

// child is the process of a record: one that ends with the host, a detached one,
// or one that has ended.
type child interface {
	Pid() int
	Done() <-chan struct{}
	Wait() (proc.State, error)
	Stop(context.Context) error
	Kill() error
	Usage() (proc.Usage, error)
	Type(context.Context, []byte) (int, error)
	CloseInput(context.Context) error
	Resize(proc.Size) error
}

const (
	tailBytes = 64 << 10              // bytes in one read of an output file
	tailBurst = 64                    // reads of one output file before the other is read
	tailPause = 10 * time.Millisecond // between two reads, while there is output
	tailSlow  = 250 * time.Millisecond
	freeBytes = 4 << 20 // bytes that are read before their disk space is freed
)

// detached is a process that does not end with the host. Its output goes to
// files, which are read as they grow; the disk space of what was read is freed.
type detached struct {
	*proc.Detached
	files  *files
	log    *outputLog
	write  sync.Mutex // guards card.End and card.Owner; held while the card is written
	card   card
	keep   int64 // bytes of each output file that stay on the disk
	tails  [2]reader
	sinks  [2]*secret.HidingWriter // writers of the log, which hide secrets
	logger *slog.Logger

	done        chan struct{} // closed when it has ended and its output is read
	unfollowing chan struct{} // closed to stop the goroutine that reads the output
	unfollowed  chan struct{} // closed when that goroutine has returned
	state       proc.State
}

// reader counts the bytes of an output file that were read, and those whose disk
// space was freed.
type reader struct{ read, freed int64 }

// detach starts a detached process and writes its card.
func (m *manager) detach(
	c *tool.Call, r *record, s *spec, where roots.Workplace, env []string,
) (_ *detached, err error) {
	if m.cfg.Folder == "" {
		return nil, &tool.Refusal{
			Code:    tool.CodeUnsupported,
			Message: "this host has no data folder, so no process can outlive it",
			Next:    "Leave out detach.",
		}
	}
	f, err := newFiles(m.cfg.Folder, r.id)
	if err != nil {
		return nil, err
	}
	space, err := where.Space(true)
	if err != nil {
		f.removeFiles()
		return nil, err
	}
	defer space.Close()
	p, err := proc.Detach(proc.Spec{
		Path: s.command, Args: s.args, Dir: where.Dir, Env: env, Stdout: f.out[stdout], Stderr: f.out[stderr],
		Processes: m.cfg.Processes, Grace: s.grace, Owner: c.Caller.Principal, Space: space,
	})
	if errors.Is(err, proc.ErrNotDetached) {
		f.removeFiles()
		return nil, &tool.Refusal{Code: tool.CodeUnsupported, Message: err.Error(), Next: "Leave out detach."}
	}
	if err != nil {
		f.removeFiles()
		return nil, err
	}
	d := m.newDetached(
		p, f, r.log, s.contextEnv.Hider(),
		card{
			ID:        r.id,
			Owner:     r.owner,
			Context:   r.context,
			Command:   r.command,
			Args:      r.args,
			Dir:       r.dir,
			StartedAt: r.startedAt,
			Mark:      p.Mark(),
		},
	)
	if err := f.writeCard(&d.card); err != nil {
		now, cancel := context.WithCancel(context.Background())
		cancel()
		d.Stop(now)
		f.removeFiles()
		return nil, err
	}
	return d, nil
}

// newDetached starts to read the output of a running process.
func (m *manager) newDetached(p *proc.Detached, f *files, l *outputLog, hide secret.Hider, c card) *detached {
	d := &detached{
		Detached: p, files: f, card: c, log: l, keep: int64(m.cfg.Buffer), logger: m.log,
		done: make(chan struct{}), unfollowing: make(chan struct{}), unfollowed: make(chan struct{}),
	}
	d.setOutput(hide)
	d.skipUnkept()
	d.catchUp()
	go d.follow()
	return d
}

// setOutput sets the writers of the output, which hide the secrets of hide.
func (d *detached) setOutput(hide secret.Hider) {
	for i := range d.sinks {
		d.sinks[i] = hide.Writer(stream{d.log, i})
	}
}

// flush writes the buffered end of the output to the log.
func (d *detached) flush() {
	for _, w := range d.sinks {
		w.Flush() // a log never fails
	}
}

// skipUnkept skips the part of the output that the log would not keep.
func (d *detached) skipUnkept() {
	for i, f := range d.files.out {
		if info, err := f.Stat(); err == nil && info.Size() > d.keep {
			d.tails[i] = reader{info.Size() - d.keep, info.Size() - d.keep}
			d.log.skip(i, info.Size()-d.keep)
		}
	}
}

// updateCard changes the card in memory and on the disk.
func (d *detached) updateCard(change func(*card)) error {
	d.write.Lock()
	defer d.write.Unlock()
	change(&d.card)
	return d.files.writeCard(&d.card)
}

func (d *detached) follow() {
	defer close(d.unfollowed)
	pause := time.NewTimer(0)
	for wait := tailPause; ; {
		select {
		case <-d.Detached.Done():
			d.catchUp()
			d.flush()
			d.state, _ = d.Detached.Wait() // has no error
			if d.state.Took == 0 {
				d.state.Took = time.Since(d.card.StartedAt)
			}
			close(d.done)
			return
		case <-d.unfollowing:
			return
		case <-pause.C:
		}
		if wait = min(2*wait, tailSlow); d.readOutput() {
			wait = tailPause
		}
		pause.Reset(wait)
	}
}

// catchUp reads the output up to its present end.
func (d *detached) catchUp() {
	var size int64
	for _, f := range d.files.out {
		if info, err := f.Stat(); err == nil {
			size += info.Size()
		}
	}
	for d.tails[stdout].read+d.tails[stderr].read < size && d.readOutput() {
	}
}

// readOutput reads new output, and reports whether there was any.
func (d *detached) readOutput() (some bool) {
	buf := make([]byte, tailBytes)
	for i, f := range d.files.out {
		t := &d.tails[i]
		for range tailBurst {
			n, err := f.ReadAt(buf, t.read)
			if n > 0 {
				d.sinks[i].Write(buf[:n])
				t.read, some = t.read+int64(n), true
			}
			if err != nil && err != io.EOF {
				d.logger.Warn("cannot read the output of a process", "process", d.card.ID, "err", err)
			}
			if err != nil || n == 0 {
				break
			}
		}
		if until := t.read - d.keep; until-t.freed >= freeBytes {
			t.freed = until
			if err := proc.Free(f, until); err != nil {
				d.logger.Warn("cannot free the disk space of the output of a process", "process", d.card.ID, "err", err)
			}
		}
	}
	return some
}

// Done returns a channel that is closed when the process has ended and its
// output is read.
func (d *detached) Done() <-chan struct{} { return d.done }

// Wait waits for Done and returns how the process ended.
func (d *detached) Wait() (proc.State, error) { <-d.done; return d.state, nil }

// Stop asks the process to end, and kills it when ctx is done.
func (d *detached) Stop(ctx context.Context) error {
	if err := d.Detached.Stop(ctx); err != nil {
		return err
	}
	<-d.unfollowed
	return nil
}

// Kill kills the process.
func (d *detached) Kill() error {
	if err := d.Detached.Kill(); err != nil {
		return err
	}
	<-d.unfollowed
	return nil
}

// unfollow stops reading the output and releases the files, so that another host
// can adopt the process.
func (d *detached) unfollow() {
	close(d.unfollowing)
	<-d.unfollowed
	d.Detached.Leave()
}

// endedChild is a process that has ended, perhaps while no host was running.
type endedChild struct {
	pid   int
	state proc.State
	done  chan struct{} // always closed
}

func (p endedChild) Pid() int                                  { return p.pid }
func (p endedChild) Done() <-chan struct{}                     { return p.done }
func (p endedChild) Wait() (proc.State, error)                 { return p.state, nil }
func (p endedChild) Stop(context.Context) error                { return nil }
func (p endedChild) Kill() error                               { return nil }
func (p endedChild) Usage() (proc.Usage, error)                { return proc.Usage{}, proc.ErrGone }
func (p endedChild) Type(context.Context, []byte) (int, error) { return 0, proc.ErrNoInput }
func (p endedChild) CloseInput(context.Context) error          { return proc.ErrNoInput }
func (p endedChild) Resize(proc.Size) error                    { return proc.ErrGone }

// adopt makes records of the detached processes that no host follows: those of
// an earlier host, which still run, have ended, or ended while no host was
// running.
func (m *manager) adopt() {
	if m.cfg.Folder == "" {
		return
	}
	m.adopting.Lock()
	defer m.adopting.Unlock()
	cards, _ := filepath.Glob(filepath.Join(m.cfg.Folder, "*"+cardFile)) // the pattern is valid
	for _, path := range cards {
		if m.badCards[path] || m.known(filepath.Base(path[:len(path)-len(cardFile)])) {
			continue
		}
		f, c, err := claimFiles(path)
		switch {
		case errors.Is(err, os.ErrExist), errors.Is(err, os.ErrNotExist):
		case err != nil:
			m.badCards[path] = true
			m.log.Warn("cannot adopt a detached process", "err", err)
		default:
			m.adoptCard(f, c)
		}
	}
}

func (m *manager) known(id string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.closed || m.records[id] != nil
}

// adoptCard makes the record of a card.
func (m *manager) adoptCard(f *files, c card) {
	if c.End != nil && time.Since(c.End.At) >= m.retention {
		f.removeFiles()
		return
	}
	r := &record{
		id:        c.ID,
		owner:     c.Owner,
		context:   c.Context,
		command:   c.Command,
		args:      c.Args,
		dir:       c.Dir,
		startedAt: c.StartedAt,
		files:     f,
		log:       newLog(m.cfg.Buffer, nil),
	}
	own, err := m.contextEnv(tool.Caller{Context: c.Context})
	if err != nil {
		m.log.Warn("cannot hide the secrets of a context in the output of its processes", "process", c.ID, "err", err)
	}
	hide := own.Hider()
	p, err := (*proc.Detached)(nil), error(nil)
	if c.End == nil {
		p, err = proc.FindDetached(c.Mark, maxGrace)
	}
	switch {
	case p != nil:
		r.child = m.newDetached(p, f, r.log, hide, c)
	case err != nil && !errors.Is(err, proc.ErrGone):
		m.log.Warn("cannot adopt a detached process", "process", c.ID, "err", err)
		f.closeFiles()
		return
	default:
		m.loadEnded(r, f, hide, &c)
	}
	m.reserveUnchecked(r.owner, r.context)
	if err := m.registerProcess(r, nil); err != nil {
		m.releaseInput(r.owner, r.context)
		r.unfollow()
		f.closeFiles()
		return
	}
	if p != nil {
		m.tell("process.started", Event{ID: r.id, Owner: c.Owner, Command: r.command, PID: r.child.Pid()})
	}
}

// loadEnded loads the end and the output of a process that has ended.
func (m *manager) loadEnded(r *record, f *files, hide secret.Hider, c *card) {
	if c.End == nil {
		c.End = endingOf(proc.State{Code: -1, Unseen: true}, true)
		if err := f.writeCard(c); err != nil {
			m.log.Warn("what became of a process cannot be written down", "process", c.ID, "err", err)
		}
	}
	r.ending, r.child = c.End, endedChild{c.Mark.Pid, c.End.state(), make(chan struct{})}
	defer close(r.child.(endedChild).done)
	d := detached{files: f, card: *c, log: r.log, keep: int64(m.cfg.Buffer), logger: m.log}
	d.setOutput(hide)
	d.skipUnkept()
	d.catchUp()
	d.flush()
}
