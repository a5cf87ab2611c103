//go:build amd64 || arm64

package gvisor

import (
	"errors"
	"os"
	"time"
)

// pipes are the channel to an agent: its standard input and output, which are the only files that gVisor
// replaces when it restores a snapshot.
type pipes struct{ from, to *os.File }

// openPipes creates the pipes and returns the standard streams of the first process as theirs. The caller
// closes those.
func openPipes() (ours pipes, theirs []*os.File, err error) {
	var files []*os.File
	defer func() {
		if err != nil {
			closeAll(files)
		}
	}()
	stdin, to, err := os.Pipe()
	if err != nil {
		return pipes{}, nil, err
	}
	files = append(files, stdin, to)
	from, stdout, err := os.Pipe()
	if err != nil {
		return pipes{}, nil, err
	}
	files = append(files, from, stdout)
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return pipes{}, nil, err
	}
	return pipes{from, to}, []*os.File{stdin, stdout, null}, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

func (p pipes) Read(b []byte) (int, error)         { return p.from.Read(b) }
func (p pipes) Write(b []byte) (int, error)        { return p.to.Write(b) }
func (p pipes) Close() error                       { return errors.Join(p.from.Close(), p.to.Close()) }
func (p pipes) SetWriteDeadline(t time.Time) error { return p.to.SetWriteDeadline(t) }
