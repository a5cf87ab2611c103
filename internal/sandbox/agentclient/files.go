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

// fileRequest is the client's view of a file operation.
type fileRequest struct {
	client *Client
	id     uint32
	most   int  // most entries that may arrive
	bytes  bool // the agent sends data
	words  bool // an error is reported with the agent's text

	inbox   *agentprotocol.Inbox     // data from the agent
	granted *agentprotocol.Allowance // what may be sent
	over    chan struct{}            // closed when the last frame arrived or the client broke
	left    chan struct{}            // closed when the host stops waiting though it is not over
	entries []agentprotocol.Info     // used by the goroutine that reads the channel until over is closed
	code    uint8
	err     error
}

func (l *Client) startFileRequest(w agentprotocol.FileRequest) (*fileRequest, error) {
	f := &fileRequest{
		client:  l,
		most:    1,
		inbox:   agentprotocol.NewInbox(),
		granted: agentprotocol.NewAllowance(),
		over:    make(chan struct{}),
		left:    make(chan struct{}),
	}
	switch w.Op {
	case agentprotocol.ListFolder:
		f.most = mostEntries
	case agentprotocol.GroupUsage:
		f.most = mostCounts
	case agentprotocol.ReadFile:
		f.bytes = true
	case agentprotocol.PackFolder:
		f.bytes, f.words = true, true
	case agentprotocol.UnpackFolder:
		f.words = true
	}
	id, err := l.addReceiver(f)
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

// handle is called by the goroutine that reads the channel.
func (f *fileRequest) handle(frame agentprotocol.Frame) (last bool, err error) {
	switch frame.Kind {
	case agentprotocol.Entry:
		i, err := agentprotocol.ParseInfo(frame.Body)
		if err == nil && len(f.entries) >= f.most {
			err = fmt.Errorf("%w: more entries than were requested", agentprotocol.ErrBroken)
		}
		f.entries = append(f.entries, i)
		return false, err
	case agentprotocol.Stdout:
		if !f.bytes {
			return false, fmt.Errorf("%w: data for a request that reads none", agentprotocol.ErrBroken)
		}
		if len(frame.Body) == 0 {
			f.inbox.Close()
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
		e, err := agentprotocol.ParseExitStatus(frame.Body)
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
		return false, fmt.Errorf("%w: unexpected frame of kind %d for a file", agentprotocol.ErrBroken, frame.Kind)
	}
	f.endRequest()
	return true, nil
}

func (f *fileRequest) broken(err error) {
	f.err = err
	f.endRequest()
}

func (f *fileRequest) endRequest() {
	f.inbox.Close()
	f.granted.Close()
	close(f.over)
}

// cancelAfter cancels the operation when ctx ends. If the agent is stopped, the operation is abandoned and the
// host goes on. stop undoes it.
func (f *fileRequest) cancelAfter(ctx context.Context) (stop func() bool) {
	return context.AfterFunc(ctx, func() {
		f.cancel()
		if f.client.clock.mustAbandon(ctx, f.over) {
			close(f.left)
			f.inbox.Close()
			f.granted.Close()
		}
	})
}

// wait waits for the end, also after ctx has ended, because cancelAfter then brings it about.
func (f *fileRequest) wait(ctx context.Context) error {
	select {
	case <-f.over:
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return f.err
	case <-f.left:
		return errAbandoned(ctx)
	}
}

// cancel cancels the operation. If the agent does not even end it then, the sandbox is given up.
func (f *fileRequest) cancel() {
	go func() {
		f.client.sendFrame(agentprotocol.Signal, f.id, []byte{sigkill})
		late := f.client.clock.after(killWait)
		defer late.stopTimers()
		select {
		case <-f.over:
		case <-late.up:
			f.client.failWith(errors.New("the agent did not end a file operation that was cancelled"))
		}
	}()
}

// do performs an operation that only answers with its end and perhaps entries.
func (l *Client) do(ctx context.Context, name, path string, w agentprotocol.FileRequest) (*fileRequest, error) {
	w.Path = path
	f, err := l.startFileRequest(w)
	if err == nil {
		defer f.cancelAfter(ctx)()
		err = f.wait(ctx)
	}
	return f, pathError(name, path, err)
}

// pathError adds the operation and the path to an error, unless it concerns the sandbox or the context.
func pathError(op, path string, err error) error {
	if err == nil || errors.Is(err, sandbox.ErrClosed) || errors.Is(err, sandbox.ErrPaused) ||
		errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return &fs.PathError{Op: op, Path: path, Err: err}
}

// ReadFile implements sandbox.Files.
func (l *Client) ReadFile(ctx context.Context, path string, offset, length int64, w io.Writer) (sandbox.Info, error) {
	if offset < 0 {
		return sandbox.Info{}, pathError("read", path, syscall.EINVAL)
	}
	f, err := l.startFileRequest(agentprotocol.FileRequest{
		Op:     agentprotocol.ReadFile,
		Path:   path,
		Offset: offset,
		Length: length,
	})
	if err != nil {
		return sandbox.Info{}, pathError("read", path, err)
	}
	if err := f.copyTo(ctx, w, "read", path); err != nil {
		return sandbox.Info{}, err
	}
	return f.only(), nil
}

// copyTo writes the data that arrives to w and waits for the end.
func (f *fileRequest) copyTo(ctx context.Context, w io.Writer, op, path string) error {
	defer f.cancelAfter(ctx)()
	var writing error
	var debt agentprotocol.Consumed
	for {
		b, ok := f.inbox.Receive()
		if !ok {
			break
		}
		if writing == nil {
			if _, writing = w.Write(b); writing != nil {
				f.cancel()
			}
		}
		if n := debt.Add(len(b)); n > 0 {
			f.client.sendUnless(f.left, agentprotocol.Credit, f.id,
				agentprotocol.Grant{Stream: agentprotocol.Stdout, Bytes: n}.Body())
		}
	}
	if err := f.wait(ctx); writing == nil && err != nil {
		return pathError(op, path, errors.Join(err, context.Cause(ctx)))
	}
	return writing
}

// WriteFile implements sandbox.Files.
func (l *Client) WriteFile(ctx context.Context, path string, r io.Reader,
	how sandbox.WriteOptions) (sandbox.Info, error) {
	mode := how.Mode.Perm()
	if mode == 0 {
		mode = 0o644
	}
	f, err := l.startFileRequest(agentprotocol.FileRequest{
		Op:      agentprotocol.StoreFile,
		Path:    path,
		Mode:    int64(mode),
		Append:  how.Append,
		Parents: how.Parents,
	})
	if err != nil {
		return sandbox.Info{}, pathError("write", path, err)
	}
	if err := f.copyFrom(ctx, r, "write", path); err != nil {
		return sandbox.Info{}, err
	}
	return f.only(), nil
}

// copyFrom sends the data of r and waits for the end.
func (f *fileRequest) copyFrom(ctx context.Context, r io.Reader, op, path string) error {
	defer f.cancelAfter(ctx)()
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
	return pathError(op, path, err)
}

// feed sends the data of r as it is granted. The error is that of r.
func (f *fileRequest) feed(r io.Reader) error {
	buf := make([]byte, 32<<10)
	for {
		most := f.granted.Acquire(len(buf))
		if most == 0 {
			return nil // it is over, and wait returns why
		}
		n, err := r.Read(buf[:most])
		f.granted.Add(most - n)
		if n > 0 && f.client.sendUnless(f.left, agentprotocol.Stdin, f.id, buf[:n]) != nil {
			return nil
		}
		if errors.Is(err, io.EOF) {
			f.client.sendUnless(f.left, agentprotocol.Stdin, f.id, nil)
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// only returns the single entry that arrived, or the zero value.
func (f *fileRequest) only() sandbox.Info {
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

// List implements sandbox.Files.
func (l *Client) List(ctx context.Context, path, after string,
	limit int) (entries []sandbox.Info, more bool, err error) {
	f, err := l.do(ctx, "list", path, agentprotocol.FileRequest{Op: agentprotocol.ListFolder, Other: after,
		Length: int64(limit)})
	if err != nil {
		return nil, false, err
	}
	for _, i := range f.entries {
		entries = append(entries, describe(i))
	}
	return entries, f.code == 1, nil
}

// Stat implements sandbox.Files.
func (l *Client) Stat(ctx context.Context, path string) (sandbox.Info, error) {
	f, err := l.do(ctx, "stat", path, agentprotocol.FileRequest{Op: agentprotocol.StatPath})
	if err != nil {
		return sandbox.Info{}, err
	}
	return f.only(), nil
}

// Mkdir implements sandbox.Files.
func (l *Client) Mkdir(ctx context.Context, path string) error {
	_, err := l.do(ctx, "mkdir", path, agentprotocol.FileRequest{Op: agentprotocol.MakeFolder})
	return err
}

// Remove implements sandbox.Files.
func (l *Client) Remove(ctx context.Context, path string, all bool) error {
	_, err := l.do(ctx, "remove", path, agentprotocol.FileRequest{Op: agentprotocol.RemovePath, All: all})
	return err
}

// Rename implements sandbox.Files.
func (l *Client) Rename(ctx context.Context, from, to string) error {
	_, err := l.do(ctx, "rename", from, agentprotocol.FileRequest{Op: agentprotocol.RenamePath, Other: to})
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		return &os.LinkError{Op: "rename", Old: from, New: to, Err: e.Err}
	}
	return err
}

// File types and bits of the kernel's st_mode, which are the same on every architecture supported.
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

// describe converts an agent's Info to the host's.
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
