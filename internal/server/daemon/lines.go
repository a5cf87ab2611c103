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

// longestAnswer limits one message of a daemon, in bytes. It is far beyond what a daemon sends, but
// keeps a broken one from filling the memory.
const longestAnswer = 256 << 20

// wholeLine reads a line without its end. It drops an incomplete last line.
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

// linkLine parses a line of the daemon that is not a message; word is "" for a message.
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
	return linkStopping, 0 // an unknown line is not a message either
}

// input reads a client's lines so that reading can be interrupted without losing bytes, because another
// process may continue to read.
type input struct {
	src   feed
	limit int
	long  bool // the rest of a line that is too long is being discarded

	mu   sync.Mutex // held while reading
	buf  []byte
	from int // start of the next line in buf
	seen int // up to where buf has no line end
}

// feed is a source of bytes.
type feed interface {
	// read waits for bytes; it returns errInterrupted after interrupt.
	read(p []byte) (int, error)
	// interrupt makes read return, now and in the future, without consuming bytes.
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

// rest returns the bytes that were read after the last whole line. It waits until no goroutine reads.
func (in *input) rest() []byte {
	in.mu.Lock()
	defer in.mu.Unlock()
	return bytes.Clone(in.buf[in.from:])
}

// nextLine returns the next line that is not blank, without its end. A last line without an end counts
// as a line.
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

// cut removes a line from the buffer, if there is a whole one.
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

// more reads bytes into the buffer.
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

// final returns the last line, which has no end.
func (in *input) final(err error) ([]byte, error) {
	line := bytes.Trim(in.buf[in.from:], " \t\r")
	if err == io.EOF && !in.long && len(line) > 0 {
		line = bytes.Clone(line)
		in.from, in.seen = len(in.buf), len(in.buf)
		return line, nil
	}
	return nil, err
}
