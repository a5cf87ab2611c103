package conformance

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Build compiles fixtureserver into dir and returns the program's path.
func Build(ctx context.Context, dir string) (string, error) {
	top, err := Top()
	if err != nil {
		return "", err
	}
	bin := filepath.Join(dir, "fixtureserver")
	cmd := exec.CommandContext(ctx, "go", "build", "-o", bin, "./internal/tests/conformance/fixtureserver")
	cmd.Dir = top
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build fixtureserver: %w: %s", err, out)
	}
	return bin, nil
}

// Endpoints are the addresses of a running fixture.
type Endpoints struct {
	URL  string `json:"url"`
	TCP  string `json:"tcp"`
	Unix string `json:"unix"`
}

// Server is a running fixture.
type Server struct {
	Endpoints
	cmd    *exec.Cmd
	stderr *log
	once   sync.Once
	err    error
}

// Ready begins the line on stderr with which fixtureserver reports that its listeners are open; the rest of the
// line is Endpoints as JSON.
const Ready = "fixture ready "

// Start runs the fixture with an HTTP, a TCP and a Unix listener, and waits until they are open. Stop must be
// called.
func Start(ctx context.Context, bin, dir string) (*Server, error) {
	return start(
		ctx,
		bin,
		"--http",
		"127.0.0.1:0",
		"--tcp",
		"127.0.0.1:0",
		"--unix",
		filepath.Join(dir, "run", "fixture.sock"),
	)
}

func start(ctx context.Context, bin string, args ...string) (*Server, error) {
	cmd := exec.Command(bin, args...)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	s := &Server{cmd: cmd, stderr: &log{}}
	ready := make(chan string, 1)
	go s.read(stderr, ready)
	select {
	case line, ok := <-ready:
		if !ok {
			s.Stop()
			return nil, fmt.Errorf("fixtureserver ended before it was ready: %s", s.Log())
		}
		return s, json.Unmarshal([]byte(line), &s.Endpoints)
	case <-time.After(time.Minute):
		s.Stop()
		return nil, fmt.Errorf("fixtureserver was not ready within a minute: %s", s.Log())
	case <-ctx.Done():
		s.Stop()
		return nil, ctx.Err()
	}
}

// read ends when the process closes its stderr.
func (s *Server) read(r io.Reader, ready chan<- string) {
	defer close(ready)
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if rest, ok := strings.CutPrefix(lines.Text(), Ready); ok {
			ready <- rest
			continue
		}
		s.stderr.appendLine(lines.Bytes())
	}
	_, _ = io.Copy(io.Discard, r) // after a line too long to scan
}

// Log returns the end of the server's stderr.
func (s *Server) Log() string { return s.stderr.String() }

// Stop ends the process, by force after a minute, and returns how it ended.
func (s *Server) Stop() error {
	s.once.Do(func() {
		force := time.AfterFunc(time.Minute, func() { _ = s.cmd.Process.Kill() })
		defer force.Stop()
		_ = s.cmd.Process.Signal(syscall.SIGTERM)
		if err := s.cmd.Wait(); err != nil {
			s.err = fmt.Errorf("fixtureserver: %w: %s", err, s.Log())
		}
	})
	return s.err
}

// log keeps the last 64 KiB of what is added.
type log struct {
	mu sync.Mutex // guards b
	b  []byte
}

func (l *log) appendLine(line []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.b = append(append(l.b, line...), '\n')
	if over := len(l.b) - 64<<10; over > 0 {
		l.b = bytes.Clone(l.b[over:])
	}
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.b)
}

// stdioFixture runs the fixture for one conversation on its standard streams.
// Close ends it.
type stdioFixture struct {
	io.Reader
	io.WriteCloser
	cmd *exec.Cmd
}

func startStdio(bin string) (*stdioFixture, error) {
	cmd := exec.Command(bin, "--stdio")
	cmd.Stderr = io.Discard
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return &stdioFixture{out, in, cmd}, nil
}

func (s *stdioFixture) Close() error {
	_ = s.WriteCloser.Close()
	force := time.AfterFunc(time.Minute, func() { _ = s.cmd.Process.Signal(os.Kill) })
	defer force.Stop()
	return s.cmd.Wait()
}
