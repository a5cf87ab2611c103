package agentclient

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"

	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/agentprotocol"
)

const mostEntries = 1000 // of one listing

// fileWork is a request that concerns files, seen from here.
type fileWork struct {
	link  *Link
	id    uint32
	most  int  // entries that may come
	bytes bool // it brings some
	words bool // an error is told in the agent's words

	inbox   *agentprotocol.Inbox     // what is read
	granted *agentprotocol.Allowance // what may be written
	over    chan struct{}            // the last frame came, or the link broke
	left    chan struct{}            // the host waits for it no more, though it is not over
	entries []agentprotocol.Info     // of the reading goroutine until over
	code    uint8
	err     error
}

func (l *Link) work(w agentprotocol.FileWork) (*fileWork, error) {
	f := &fileWork{link: l, most: 1, inbox: agentprotocol.NewInbox(), granted: agentprotocol.NewAllowance(), over: make(chan struct{}), left: make(chan struct{})}
	switch w.Op {
	case agentprotocol.ListFolder:
		f.most = mostEntries
	case agentprotocol.UsedGroup:
		f.most = mostCounts
	case agentprotocol.ReadFile:
		f.bytes = true
	case agentprotocol.PackFolder:
		f.bytes, f.words = true, true
	case agentprotocol.UnpackFolder:
		f.words = true
	}
	id, err := l.add(f)
	if err != nil {
		return nil, err
	}
	f.id = id
	if err := l.request(agentprotocol.File, id, w.Body()); err != nil {
		if errors.Is(err, agentprotocol.ErrBroken) {
			return nil, syscall.ENAMETOOLONG
		}
		return nil, err
	}
	return f, nil
}

// take is called by the goroutine that reads the link.
func (f *fileWork) take(frame agentprotocol.Frame) (last bool, err error) {
	switch frame.Kind {
	case agentprotocol.Entry:
		i, err := agentprotocol.ParseInfo(frame.Body)
		if err == nil && len(f.entries) >= f.most {
			err = fmt.Errorf("%w: more entries than were asked for", agentprotocol.ErrBroken)
		}
		f.entries = append(f.entries, i)
		return false, err
	case agentprotocol.Stdout:
		if !f.bytes {
			return false, fmt.Errorf("%w: bytes of a file nobody reads", agentprotocol.ErrBroken)
		}
		if len(frame.Body) == 0 {
			f.inbox.End()
			return false, nil
		}
		return false, f.inbox.Put(frame.Body)
	case agentprotocol.Credit:
		g, err := agentprotocol.ParseGrant(frame.Body)
		if err == nil {
			err = f.granted.Add(int(g.Bytes))
		}
		return false, err
	case agentprotocol.Exit:
		e, err := agentprotocol.ParseEnded(frame.Body)
		if err != nil {
			return false, err
		}
		f.code = e.Code
	case agentprotocol.Failed:
		why, err := agentprotocol.ParseFailure(frame.Body)
		if err != nil {
			return false, err
		}
		f.err = why
		if why.Errno != 0 && !f.words {
			f.err = why.Errno
		}
	default:
		return false, fmt.Errorf("%w: a frame of kind %d for a file", agentprotocol.ErrBroken, frame.Kind)
	}
	f.end()
	return true, nil
}

func (f *fileWork) broken(err error) {
	f.err = err
	f.end()
}

func (f *fileWork) end() {
	f.inbox.End()
	f.granted.End()
	close(f.over)
}

// heed has the work called off when ctx ends. Where the agent is stopped and
// cannot do so, that is left for later, and the host goes on. stop ends that.
func (f *fileWork) heed(ctx context.Context) (stop func() bool) {
	return context.AfterFunc(ctx, func() {
		f.cancel()
		if f.link.pace.lost(ctx, f.over) {
			close(f.left)
			f.inbox.End()
			f.granted.End()
		}
	})
}

// wait waits for the end, to which heed sees when ctx ends before.
func (f *fileWork) wait(ctx context.Context) error {
	select {
	case <-f.over:
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return f.err
	case <-f.left:
		return calledOff(ctx)
	}
}

// cancel calls the work off. An agent that does not even do that is given up.
func (f *fileWork) cancel() {
	go func() {
		f.link.send(agentprotocol.Signal, f.id, []byte{sigkill})
		late := f.link.pace.after(killWait)
		defer late.stop()
		select {
		case <-f.over:
		case <-late.up:
			f.link.fail(errors.New("the agent did not end work on files that was called off"))
		}
	}()
}

// do is work of which only the end and perhaps an entry come.
func (l *Link) do(ctx context.Context, name, path string, w agentprotocol.FileWork) (*fileWork, error) {
	w.Path = path
	f, err := l.work(w)
	if err == nil {
		defer f.heed(ctx)()
		err = f.wait(ctx)
	}
	return f, inWords(name, path, err)
}

// inWords tells which file it was about, if it was about one.
func inWords(op, path string, err error) error {
	if err == nil || errors.Is(err, sandbox.ErrClosed) || errors.Is(err, sandbox.ErrPaused) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return &fs.PathError{Op: op, Path: path, Err: err}
}

// ReadFile is that of sandbox.Files.
func (l *Link) ReadFile(ctx context.Context, path string, offset, length int64, w io.Writer) (sandbox.Info, error) {
	if offset < 0 {
		return sandbox.Info{}, inWords("read", path, syscall.EINVAL)
	}
	f, err := l.work(agentprotocol.FileWork{Op: agentprotocol.ReadFile, Path: path, Offset: offset, Length: length})
	if err != nil {
		return sandbox.Info{}, inWords("read", path, err)
	}
	if err := f.copyTo(ctx, w, "read", path); err != nil {
		return sandbox.Info{}, err
	}
	return f.only(), nil
}

// copyTo writes what comes, and waits for the end.
func (f *fileWork) copyTo(ctx context.Context, w io.Writer, op, path string) error {
	defer f.heed(ctx)()
	var writing error
	var debt agentprotocol.Debt
	for {
		b, ok := f.inbox.Take()
		if !ok {
			break
		}
		if writing == nil {
			if _, writing = w.Write(b); writing != nil {
				f.cancel()
			}
		}
		if n := debt.Took(len(b)); n > 0 {
			f.link.sendUnless(f.left, agentprotocol.Credit, f.id, agentprotocol.Grant{Stream: agentprotocol.Stdout, Bytes: n}.Body())
		}
	}
	if err := f.wait(ctx); writing == nil && err != nil {
		return inWords(op, path, errors.Join(err, context.Cause(ctx)))
	}
	return writing
}

// WriteFile is that of sandbox.Files.
func (l *Link) WriteFile(ctx context.Context, path string, r io.Reader, how sandbox.Writing) (sandbox.Info, error) {
	mode := how.Mode.Perm()
	if mode == 0 {
		mode = 0o644
	}
	f, err := l.work(agentprotocol.FileWork{Op: agentprotocol.StoreFile, Path: path, Mode: int64(mode), Append: how.Append, Parents: how.Parents})
	if err != nil {
		return sandbox.Info{}, inWords("write", path, err)
	}
	if err := f.copyFrom(ctx, r, "write", path); err != nil {
		return sandbox.Info{}, err
	}
	return f.only(), nil
}

// copyFrom sends what is read, and waits for the end.
func (f *fileWork) copyFrom(ctx context.Context, r io.Reader, op, path string) error {
	defer f.heed(ctx)()
	reading := f.feed(r)
	if reading != nil {
		f.cancel()
	}
	err := f.wait(ctx)
	switch {
	case reading != nil:
		return reading
	case err != nil && ctx.Err() != nil:
		err = errors.Join(err, context.Cause(ctx))
	}
	return inWords(op, path, err)
}

// feed sends what is read, as it is granted. The error is that of the Reader.
func (f *fileWork) feed(r io.Reader) error {
	buf := make([]byte, 32<<10)
	for {
		most := f.granted.Take(len(buf))
		if most == 0 {
			return nil // it is over, and wait knows why
		}
		n, err := r.Read(buf[:most])
		f.granted.Add(most - n)
		if n > 0 && f.link.sendUnless(f.left, agentprotocol.Stdin, f.id, buf[:n]) != nil {
			return nil
		}
		if errors.Is(err, io.EOF) {
			f.link.sendUnless(f.left, agentprotocol.Stdin, f.id, nil)
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// only is the one entry that came.
func (f *fileWork) only() sandbox.Info {
	select {
	case <-f.over:
	default:
		return sandbox.Info{}
	}
	if len(f.entries) != 1 {
		return sandbox.Info{}
	}
	return describe(f.entries[0])
}

// List is that of sandbox.Files.
func (l *Link) List(ctx context.Context, path, after string, limit int) (entries []sandbox.Info, more bool, err error) {
	f, err := l.do(ctx, "list", path, agentprotocol.FileWork{Op: agentprotocol.ListFolder, Other: after, Length: int64(limit)})
	if err != nil {
		return nil, false, err
	}
	for _, i := range f.entries {
		entries = append(entries, describe(i))
	}
	return entries, f.code == 1, nil
}

// Stat is that of sandbox.Files.
func (l *Link) Stat(ctx context.Context, path string) (sandbox.Info, error) {
	f, err := l.do(ctx, "stat", path, agentprotocol.FileWork{Op: agentprotocol.StatPath})
	if err != nil {
		return sandbox.Info{}, err
	}
	return f.only(), nil
}

// Mkdir is that of sandbox.Files.
func (l *Link) Mkdir(ctx context.Context, path string) error {
	_, err := l.do(ctx, "mkdir", path, agentprotocol.FileWork{Op: agentprotocol.MakeFolder})
	return err
}

// Remove is that of sandbox.Files.
func (l *Link) Remove(ctx context.Context, path string, all bool) error {
	_, err := l.do(ctx, "remove", path, agentprotocol.FileWork{Op: agentprotocol.RemovePath, All: all})
	return err
}

// Rename is that of sandbox.Files.
func (l *Link) Rename(ctx context.Context, from, to string) error {
	_, err := l.do(ctx, "rename", from, agentprotocol.FileWork{Op: agentprotocol.RenamePath, Other: to})
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		return &os.LinkError{Op: "rename", Old: from, New: to, Err: e.Err}
	}
	return err
}

// The kernel's types of files, which are the same on every platform here.
const (
	typeBits  = 0o170000
	socket    = 0o140000
	symlink   = 0o120000
	block     = 0o060000
	folder    = 0o040000
	character = 0o020000
	fifo      = 0o010000
	setuid    = 0o4000
	setgid    = 0o2000
	stickyBit = 0o1000
)

// describe puts what the agent told into Go's words.
func describe(i agentprotocol.Info) sandbox.Info {
	mode := fs.FileMode(i.Mode & 0o777)
	switch i.Mode & typeBits {
	case socket:
		mode |= fs.ModeSocket
	case symlink:
		mode |= fs.ModeSymlink
	case block:
		mode |= fs.ModeDevice
	case folder:
		mode |= fs.ModeDir
	case character:
		mode |= fs.ModeDevice | fs.ModeCharDevice
	case fifo:
		mode |= fs.ModeNamedPipe
	}
	for bit, m := range map[uint32]fs.FileMode{setuid: fs.ModeSetuid, setgid: fs.ModeSetgid, stickyBit: fs.ModeSticky} {
		if i.Mode&bit != 0 {
			mode |= m
		}
	}
	return sandbox.Info{Name: i.Name, Size: i.Size, Mode: mode, Modified: i.Modified, Link: i.Link}
}
