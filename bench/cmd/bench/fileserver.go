package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"gatehouse/bench/load"
)

// fileServer is a server of files on standard input and output, ours or
// another. Unlike a subject it is a product as it is installed and does not
// account for itself; the system does.
type fileServer struct {
	name string
	tool string // that reads a file given as path
	dir  string // the folder it serves
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
	id   int
}

// answerTime is how long any answer may take until the run is given up.
const answerTime = time.Minute

// startFileServer starts a command in a group of its own and shakes hands.
func startFileServer(name, tool, dir string, cmd *exec.Cmd) (*fileServer, error) {
	s := &fileServer{name: name, tool: tool, dir: dir, cmd: cmd}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var err error
	if s.in, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	s.out = bufio.NewReaderSize(out, 1<<20) // the longest line that is expected, with room
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	if err := s.greet(); err != nil {
		s.stop()
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return s, nil
}

func (s *fileServer) greet() error {
	_, err := s.ask(
		"initialize",
		`{"protocolVersion":"`+string(load.Legacy)+`","capabilities":{},"clientInfo":{"name":"bench","version":"1"}}`,
	)
	if err == nil {
		_, err = io.WriteString(s.in, `{"jsonrpc":"2.0","method":"notifications/initialized"}`+"\n")
	}
	return err
}

// ask sends one request and waits for its answer. The slice is good until the
// next one.
func (s *fileServer) ask(method, params string) ([]byte, error) {
	late := s.deadline()
	defer late.Stop()
	s.id++
	if _, err := fmt.Fprintf(s.in, `{"jsonrpc":"2.0","id":%d,"method":%q,"params":%s}`+"\n", s.id,
		method, params); err != nil {
		return nil, err
	}
	for {
		line, err := s.out.ReadSlice('\n')
		if err != nil {
			return nil, fmt.Errorf("%s: %w: %.400s", method, err, line)
		}
		if id, ok := idOf(line); ok && id == s.id {
			return line, failure(line)
		}
	}
}

// deadline ends the process when it does not answer.
func (s *fileServer) deadline() *time.Timer {
	return time.AfterFunc(answerTime, func() { syscall.Kill(-s.cmd.Process.Pid, syscall.SIGKILL) })
}

// idOf finds the id of an answer. What is read holds no such word.
func idOf(line []byte) (int, bool) {
	_, rest, ok := bytes.Cut(line, []byte(`"id":`))
	if !ok {
		return 0, false
	}
	end := 0
	for end < len(rest) && rest[end] >= '0' && rest[end] <= '9' {
		end++
	}
	id, err := strconv.Atoi(string(rest[:end]))
	return id, err == nil
}

func failure(line []byte) error {
	if bytes.Contains(line, []byte(`"isError":true`)) || bytes.Contains(line, []byte(`"error":{`)) {
		return fmt.Errorf("it failed: %.400s", line)
	}
	return nil
}

// read reads files, the given number of requests in flight, and checks that
// each answer holds the text of its file. It returns the bytes of the answers.
func (s *fileServer) read(from, n, flight int) (size int, err error) {
	late := s.deadline()
	defer late.Stop()
	first := s.id + 1
	s.id += n
	free := make(chan struct{}, flight)
	written := make(chan error, 1)
	stop := make(chan struct{})
	go func() { written <- s.send(first, from, n, free, stop) }()
	seen := make([]bool, n)
	for range n {
		line, rerr := s.out.ReadSlice('\n')
		if rerr == nil {
			rerr = s.checkRead(line, first, from, seen)
		}
		if rerr != nil {
			err = rerr
			break
		}
		size += len(line)
		<-free
	}
	close(stop)
	return size, errors.Join(err, <-written)
}

func (s *fileServer) send(first, from, n int, free chan<- struct{}, stop <-chan struct{}) error {
	var b []byte
	for i := range n {
		select {
		case free <- struct{}{}:
		case <-stop:
			return nil
		}
		b = append(b[:0], `{"jsonrpc":"2.0","id":`...)
		b = strconv.AppendInt(b, int64(first+i), 10)
		b = append(b, `,"method":"tools/call","params":{"name":"`...)
		b = append(append(b, s.tool...), `","arguments":{"path":"`...)
		b = append(append(b, s.dir...), '/')
		b = append(append(b, readName(from+i)...), `"}}}`+"\n"...)
		if _, err := s.in.Write(b); err != nil {
			return err
		}
	}
	return nil
}

func (s *fileServer) checkRead(line []byte, first, from int, seen []bool) error {
	id, ok := idOf(line)
	if i := id - first; !ok || i < 0 || i >= len(seen) || seen[i] {
		return fmt.Errorf("nothing was asked that this answers: %.400s", line)
	} else if seen[i] = true; !bytes.Contains(line, []byte(readMark(from+i))) {
		return fmt.Errorf("the answer lacks the text of %s: %.400s", readName(from+i), line)
	}
	return failure(line)
}

// searched is what a search by file_search has found.
type searched struct {
	files, hits int
	bytes       int // of the answer
}

func (s *fileServer) search(args string) (searched, error) {
	line, err := s.ask("tools/call", `{"name":"file_search","arguments":`+args+`}`)
	if err != nil {
		return searched{}, err
	}
	var a struct {
		Result struct {
			StructuredContent struct{ Files, Hits int }
		}
	}
	err = json.Unmarshal(line, &a)
	found := a.Result.StructuredContent
	return searched{found.Files, found.Hits, len(line)}, err
}

// cpu is what the process has used, user and system, in steps of 10 ms.
func (s *fileServer) cpu() (time.Duration, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return 0, fmt.Errorf("%s: the system does not tell what it has used", s.name)
	}
	var ticks int
	for _, f := range fields[11:13] { // utime and stime
		n, err := strconv.Atoi(f)
		if err != nil {
			return 0, err
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond, nil
}

// stop ends the process and its group, and waits for it.
func (s *fileServer) stop() {
	s.in.Close()
	kill := time.AfterFunc(5*time.Second, func() { syscall.Kill(-s.cmd.Process.Pid, syscall.SIGKILL) })
	defer kill.Stop()
	s.cmd.Wait()
}

// fileServers starts ours, by its own tool and by the one of the official
// server's name, and the official one.
func (b *bench) fileServers(ctx context.Context, peer *peerTools, dir string) (all []*fileServer, err error) {
	home := b.lab.dir
	ourCommand := func(args ...string) *exec.Cmd {
		cmd := exec.CommandContext(ctx, b.lab.product(), append([]string{"serve", "-d", dir}, args...)...)
		cmd.Env = append(os.Environ(), "HOME="+home, "XDG_CONFIG_HOME="+home, "XDG_STATE_HOME="+home)
		return cmd
	}
	start := func(name, tool string, cmd *exec.Cmd) {
		if err != nil {
			return
		}
		var s *fileServer
		if s, err = startFileServer(name, tool, dir, cmd); err == nil {
			all = append(all, s)
		}
	}
	start(ours, "file_read", ourCommand())
	start(oursAlike, "read_text_file", ourCommand("filesystem"))
	if peer != nil {
		start(official, "read_text_file", peer.Command(ctx, home, peer.script, dir))
	}
	if err != nil {
		stopFileServers(all)
	}
	return all, err
}

func stopFileServers(all []*fileServer) {
	for _, s := range all {
		s.stop()
	}
}
