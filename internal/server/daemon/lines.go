package daemon

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"sync"
)

var (
	errTooLong     = errors.New("a line is longer than the limit")
	errInterrupted = errors.New("reading was interrupted")
)

// longestAnswer bounds one message of a daemon, in bytes. It is far beyond
// what one sends; without it a broken one could fill the memory.
const longestAnswer = 256 << 20

// wholeLine reads a line without its end. What is behind the last end is none.
func wholeLine(in *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := in.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case err == nil:
			return line[:len(line)-1], nil
		case err != bufio.ErrBufferFull:
			return nil, err
		case len(line) > longestAnswer:
			return nil, errTooLong
		}
	}
}

// linkLine reads what a daemon says beside messages; word is "" for a message.
func linkLine(line []byte) (word string, lines uint64) {
	if len(line) == 0 || line[0] != linkWord[0] {
		return "", 0
	}
	if text, ok := bytes.CutPrefix(line, []byte(linkBye)); ok {
		var last closingMessage
		if json.Unmarshal(text, &last) == nil {
			return linkBye, last.Lines
		}
	}
	return linkStopping, 0 // whatever it is, it is no message
}

// input reads a client's lines so that reading can be stopped without losing
// what has arrived: another process may go on with it.
type input struct {
	src   feed
	limit int
	long  bool // the rest of a line that is too long is being thrown away

	mu   sync.Mutex // held by the one who reads
	buf  []byte
	from int // where in buf the next line begins
	seen int // up to where buf holds no line end
}

// feed is where bytes come from.
type feed interface {
	// read waits for bytes; errInterrupted when there will be none for us.
	read(p []byte) (int, error)
	// interrupt has read return, now and from now on; it takes no bytes then.
	interrupt()
	interruptible() bool
}

// plain is a source that cannot be interrupted.
type plain struct{ io.Reader }

func (p plain) read(b []byte) (int, error) { return p.Read(b) }
func (plain) interrupt()                   {}
func (plain) interruptible() bool          { return false }

func newInput(r io.Reader, limit int) *input { return &input{src: sourceOf(r), limit: limit} }

func (in *input) interrupt()          { in.src.interrupt() }
func (in *input) interruptible() bool { return in.src.interruptible() }

// rest is what was read and is no whole line. It waits until no goroutine reads.
func (in *input) rest() []byte {
	in.mu.Lock()
	defer in.mu.Unlock()
	return bytes.Clone(in.buf[in.from:])
}

// nextLine returns the next line that is not blank, without its end. A last line
// without an end is one too.
func (in *input) nextLine() ([]byte, error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	for {
		if line, ok, err := in.cut(); ok || err != nil {
			if err == nil && len(line) == 0 {
				continue
			}
			return line, err
		}
		if err := in.more(); err != nil {
			return in.final(err)
		}
	}
}

// cut takes a line out of the buffer, if there is a whole one.
func (in *input) cut() (line []byte, ok bool, err error) {
	i := bytes.IndexByte(in.buf[in.seen:], '\n')
	if i < 0 {
		in.seen = len(in.buf)
		if len(in.buf)-in.from > in.limit+1 {
			in.long, in.buf, in.from, in.seen = true, in.buf[:0], 0, 0
		}
		return nil, false, nil
	}
	end := in.seen + i
	line = bytes.Trim(in.buf[in.from:end], " \t\r")
	in.from, in.seen = end+1, end+1
	if in.long {
		in.long = false
		return nil, false, errTooLong
	}
	if len(line) > in.limit {
		return nil, false, errTooLong
	}
	return bytes.Clone(line), true, nil
}

// more reads what comes into the buffer.
func (in *input) more() error {
	if in.from > 0 {
		n := copy(in.buf, in.buf[in.from:])
		in.buf, in.seen, in.from = in.buf[:n], in.seen-in.from, 0
	}
	if cap(in.buf)-len(in.buf) < readAtOnce/2 {
		in.buf = append(make([]byte, 0, 2*len(in.buf)+readAtOnce), in.buf...)
	}
	n, err := in.src.read(in.buf[len(in.buf):cap(in.buf)])
	in.buf = in.buf[:len(in.buf)+n]
	if n > 0 {
		return nil
	}
	return err
}

// final is the last line, which has no end.
func (in *input) final(err error) ([]byte, error) {
	line := bytes.Trim(in.buf[in.from:], " \t\r")
	if err == io.EOF && !in.long && len(line) > 0 {
		line = bytes.Clone(line)
		in.from, in.seen = len(in.buf), len(in.buf)
		return line, nil
	}
	return nil, err
}
