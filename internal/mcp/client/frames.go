package client

import "bytes"

// frames splits what a server prints into lines of at most limit bytes. Of a
// longer line only the beginning and the end are kept. It belongs to one
// goroutine.
type frames struct {
	limit int
	line  func([]byte) // owns what it is given
	long  func(head, tail []byte, n int64)

	buf  []byte
	over int64 // bytes of a line that is too long; 0 while it is not
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
	if f.over == 0 && len(f.buf)+len(part) <= f.limit {
		f.buf = append(f.buf, part...)
		return
	}
	if f.over == 0 {
		f.over = int64(len(f.buf))
		f.tail = bytes.Clone(f.buf[max(0, len(f.buf)-edgeBytes):])
		f.buf = bytes.Clone(f.buf[:min(len(f.buf), edgeBytes)])
		f.buf = append(f.buf, part[:min(len(part), edgeBytes-len(f.buf))]...)
	}
	f.over += int64(len(part))
	f.tail = append(f.tail, part[max(0, len(part)-edgeBytes):]...)
	f.tail = f.tail[max(0, len(f.tail)-edgeBytes):]
}

func (f *frames) lastFrame() {
	buf, tail, over := f.buf, f.tail, f.over
	f.buf, f.tail, f.over = nil, nil, 0
	if over > 0 {
		f.long(buf, tail, over)
		return
	}
	f.line(buf)
}
