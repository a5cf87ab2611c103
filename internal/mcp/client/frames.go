package client

import "bytes"

// A line is gathered in parts of at most this many bytes. One slice that grows would be copied again and again, and the
// runtime cannot interrupt a copy of megabytes: a collection of garbage would stop all calls until it ends.
const largestPart = 256 << 10

// frames splits what a server prints into lines of at most limit bytes. Of a
// longer line only the beginning and the end are kept. It belongs to one
// goroutine.
type frames struct {
	limit int
	line  func([]byte) // owns what it is given
	long  func(head, tail []byte, n int64)
	drop  func(n int) // waits before n bytes of a line that is too long are dropped; may be nil

	full [][]byte // parts of the line that are full
	buf  []byte   // what comes after them
	size int      // bytes of full and buf
	over int64    // bytes of a line that is too long; 0 while it is not
	tail []byte
}

// Write implements io.Writer.
func (f *frames) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 {
		part, rest, ended := bytes.Cut(p, []byte{'\n'})
		f.addPart(part)
		if ended {
			f.lastFrame()
		}
		p = rest
	}
	return n, nil
}

func (f *frames) addPart(part []byte) {
	if f.over == 0 && f.size+len(part) <= f.limit {
		f.keepPart(part)
		return
	}
	if f.over == 0 {
		f.over = int64(f.size)
		f.tail = f.lastBytes()
		head := f.buf
		if len(f.full) > 0 {
			head = f.full[0]
		}
		f.buf, f.full = bytes.Clone(head[:min(len(head), edgeBytes)]), nil
		f.buf = append(f.buf, part[:min(len(part), edgeBytes-len(f.buf))]...)
	}
	if f.drop != nil {
		f.drop(len(part))
	}
	f.over += int64(len(part))
	f.tail = append(f.tail, part[max(0, len(part)-edgeBytes):]...)
	f.tail = f.tail[max(0, len(f.tail)-edgeBytes):]
}

// keepPart adds to a line that is not too long.
func (f *frames) keepPart(part []byte) {
	f.size += len(part)
	for len(part) > 0 {
		if len(f.buf) == cap(f.buf) {
			if len(f.buf) > 0 {
				f.full = append(f.full, f.buf)
			}
			f.buf = make([]byte, 0, min(max(2*cap(f.buf), len(part)), largestPart))
		}
		n := min(len(part), cap(f.buf)-len(f.buf))
		f.buf = append(f.buf, part[:n]...)
		part = part[n:]
	}
}

// lastBytes returns a copy of the end of the line, at least edgeBytes of a longer one.
func (f *frames) lastBytes() []byte {
	var before []byte
	if n := len(f.full); n > 0 {
		before = f.full[n-1]
	}
	all := append(bytes.Clone(before[max(0, len(before)-edgeBytes):]), f.buf...)
	return bytes.Clone(all[max(0, len(all)-edgeBytes):])
}

func (f *frames) lastFrame() {
	full, buf, size, tail, over := f.full, f.buf, f.size, f.tail, f.over
	f.full, f.buf, f.size, f.tail, f.over = nil, nil, 0, nil, 0
	if over > 0 {
		f.long(buf, tail, over)
		return
	}
	if len(full) > 0 {
		line := make([]byte, 0, size)
		for _, part := range append(full, buf) {
			line = append(line, part...)
		}
		buf = line
	}
	f.line(buf)
}
