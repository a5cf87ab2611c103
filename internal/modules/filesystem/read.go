package filesystem

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"unicode/utf8"

	"gatehouse/tool"
)

type readIn struct {
	Path string  `json:"path" names:"path"`
	Head float64 `json:"head"`
	Tail float64 `json:"tail"`
	lineIn
}

// lineIn selects lines. A value that is not positive has no effect.
type lineIn struct {
	Offset float64 `json:"offset"`
	Limit  float64 `json:"limit"`
}

func (l lineIn) any() bool { return l.Offset > 0 || l.Limit > 0 }

func readText(ctx context.Context, c *tool.Call, in readIn) (tool.Result, error) {
	s, err := readOne(ctx, c, in)
	if err != nil {
		return tool.Result{}, err
	}
	return textResult(s)
}

func readOne(ctx context.Context, c *tool.Call, in readIn) (string, error) {
	p, err := findPlace(c, in.Path)
	if err != nil {
		return "", err
	}
	switch {
	case in.Head > 0 && in.Tail > 0:
		return "", refusef("Cannot specify both head and tail parameters simultaneously")
	case (in.Head > 0 || in.Tail > 0) && in.any():
		return "", refusef("Cannot specify offset or limit together with head or tail")
	}
	f, info, err := p.Regular()
	if code(err) == tool.CodeIsADirectory {
		return "", nodeError(err, "read", in.Path)
	}
	if err != nil {
		return "", nodeError(err, "open", in.Path)
	}
	defer f.Close()
	var b []byte
	switch {
	case in.Tail > 0:
		b, err = tail(f, info.Size(), in.Tail)
	case in.Head > 0:
		b, err = readLines(ctx, f, 1, in.Head)
	case in.any():
		b, err = readLines(ctx, f, max(in.Offset, 1), in.Limit)
	case info.Size() > maxBytes:
		err = errTooLarge
	default:
		b, err = readAll(f)
	}
	if errors.Is(err, errTooLarge) {
		return "", refusef("File too large: more than %d bytes would be read from %s; select lines with head, tail, "+
			"offset and limit", maxBytes, in.Path)
	}
	if err != nil {
		return "", nodeError(p.Refuse(err), "read", in.Path)
	}
	return toValidUTF8(b), nil
}

var errTooLarge = errors.New("too large")

func readAll(f io.Reader) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(f, maxBytes+1))
	if err == nil && len(b) > maxBytes {
		err = errTooLarge
	}
	return b, err
}

// readLines reads up to limit lines from line from on, which counts from 1; limit 0
// means all. It returns the last line without its newline.
func readLines(ctx context.Context, f io.Reader, from, limit float64) ([]byte, error) {
	r := bufio.NewReaderSize(f, 64<<10)
	var out []byte
	for n := 1.0; limit <= 0 || n < from+limit; {
		if err := context.Cause(ctx); err != nil {
			return nil, err
		}
		part, err := r.ReadSlice('\n')
		if n >= from {
			out = append(out, part...)
		}
		if len(out) > maxBytes {
			return nil, errTooLarge
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue // the line continues
		case errors.Is(err, io.EOF):
			return bytes.TrimSuffix(out, newline), nil
		case err != nil:
			return nil, err
		}
		n++
	}
	return bytes.TrimSuffix(out, newline), nil
}

var newline = []byte("\n")

// tail reads the last lines, with the newline at the end of the file. Like the
// original, it counts the empty text after that newline as a line.
func tail(f io.ReaderAt, size int64, count float64) ([]byte, error) {
	var out []byte
	for at := size; at > 0; {
		n := min(at, 64<<10)
		at -= n
		part := make([]byte, n, n+int64(len(out)))
		if _, err := f.ReadAt(part, at); err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		if out = append(part, out...); len(out) > maxBytes+1 {
			return nil, errTooLarge
		}
		if float64(bytes.Count(bytes.TrimSuffix(out, newline), newline)) >= count {
			break
		}
	}
	for from := len(bytes.TrimSuffix(out, newline)); ; count-- {
		i := bytes.LastIndexByte(out[:from], '\n')
		if i < 0 {
			return crlfToLF(out), nil
		}
		if count <= 1 {
			return crlfToLF(out[i+1:]), nil
		}
		from = i
	}
}

func crlfToLF(b []byte) []byte { return bytes.ReplaceAll(b, []byte("\r\n"), newline) }

type readManyIn struct {
	Paths []string `json:"paths" names:"path"`
	lineIn
}

// readMany reads files in order. The limit of one file applies to all of them
// together.
func readMany(ctx context.Context, c *tool.Call, in readManyIn) (tool.Result, error) {
	var parts []string
	size := 0
	for _, path := range in.Paths {
		s, err := readOne(ctx, c, readIn{Path: path, lineIn: in.lineIn})
		if err == nil && size+len(s) > maxBytes {
			err = refusef("File too large: the files before it have filled this result")
		}
		if err != nil {
			if cause := context.Cause(ctx); cause != nil {
				return tool.Result{}, cause
			}
			parts = append(parts, path+": Error - "+errorText(err))
			continue
		}
		size += len(s)
		parts = append(parts, path+":\n"+s+"\n")
	}
	return textResult(strings.Join(parts, "\n---\n"))
}

// errorText returns the text of an error as a model reads it.
func errorText(err error) string {
	if r, ok := errors.AsType[*tool.Refusal](err); ok {
		return r.Text()
	}
	return err.Error()
}

// toValidUTF8 decodes bytes as browsers do: each maximal invalid sequence becomes
// one U+FFFD.
func toValidUTF8(b []byte) string {
	if utf8.Valid(b) {
		return string(b)
	}
	var s strings.Builder
	s.Grow(len(b))
	for len(b) > 0 {
		r, n := utf8.DecodeRune(b)
		if r == utf8.RuneError && n == 1 {
			n = incompleteRune(b)
			s.WriteRune(utf8.RuneError)
		} else {
			s.Write(b[:n])
		}
		b = b[n:]
	}
	return s.String()
}

// incompleteRune returns how many bytes at the beginning of b belong to one
// incomplete character, at least 1.
func incompleteRune(b []byte) int {
	for n := min(3, len(b)); n > 1; n-- {
		if !utf8.FullRune(b[:n]) {
			return n
		}
	}
	return 1
}
