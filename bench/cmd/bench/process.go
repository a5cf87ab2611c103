package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"gatehouse/bench/load"
	"gatehouse/bench/subject"
)

// Subjects by the names the table gives them.
const (
	ours  = "gatehouse"
	plain = "plain"
	mcpgo = "mcp-go"
	gosdk = "go-sdk"
)

var (
	everyone = []string{ours, plain, mcpgo, gosdk}
	folders  = map[string]string{ours: "gatehouse", plain: "plain", mcpgo: "mcpgo", gosdk: "gosdk"}
)

// lab builds and starts subjects.
type lab struct {
	dir   string // for binaries and sockets; removed at the end
	gogc  string
	count int
}

// build makes a binary of every subject, stripped.
func (l *lab) build(ctx context.Context) error {
	for _, name := range everyone {
		if err := l.compile(ctx, l.binary(name), "./subjects/"+folders[name]); err != nil {
			return err
		}
	}
	return l.compile(ctx, l.product(), "gatehouse/cmd/gatehouse")
}

func (l *lab) compile(ctx context.Context, to, what string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-mod=mod", "-trimpath", "-ldflags=-s -w", "-o", to, what)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", what, err, out)
	}
	return nil
}

func (l *lab) binary(name string) string { return filepath.Join(l.dir, folders[name]) }

// process is one running subject.
type process struct {
	name    string
	addr    string // of its HTTP door or socket
	cmd     *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Reader
	control net.Conn
	lines   *bufio.Reader
	begun   time.Time
}

// startTime is how long a subject may take until it is ready.
const startTime = 30 * time.Second

// start starts a subject that serves HTTP.
func (l *lab) start(name string, args ...string) (*process, error) {
	p, err := l.launch(name, append([]string{"-http", "127.0.0.1:0"}, args...)...)
	if err != nil {
		return nil, err
	}
	if err := p.awaitReady(); err != nil {
		p.stop()
		return nil, err
	}
	return p, p.connect()
}

// launch starts a subject in a group of its own, without waiting for it. It
// ends when its standard input does, at the latest with this process.
func (l *lab) launch(name string, args ...string) (*process, error) {
	l.count++
	sock := filepath.Join(l.dir, strconv.Itoa(l.count)+".control")
	p := &process{name: name, cmd: exec.Command(l.binary(name), append(args, "-control", sock)...)}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p.cmd.Env = append(os.Environ(), "GOGC="+l.gogc, "TMPDIR="+l.dir)
	logs, err := os.Create(filepath.Join(l.dir, strconv.Itoa(l.count)+".log"))
	if err != nil {
		return nil, err
	}
	defer logs.Close()
	p.cmd.Stderr = logs
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.out = bufio.NewReaderSize(out, 64<<10)
	p.begun = time.Now()
	return p, p.cmd.Start()
}

// awaitReady reads the line that says where the subject is.
func (p *process) awaitReady() error {
	late := time.AfterFunc(startTime, func() { p.kill() })
	defer late.Stop()
	line, err := p.out.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("start %s: %w; see %s", p.name, err, p.cmd.Stderr.(*os.File).Name())
	}
	var r struct{ Ready string }
	if err := json.Unmarshal(line, &r); err != nil || r.Ready == "" {
		return fmt.Errorf("start %s: it said %q", p.name, line)
	}
	p.addr = r.Ready
	return nil
}

// connect opens the control socket.
func (p *process) connect() (err error) {
	sock := p.cmd.Args[slices.Index(p.cmd.Args, "-control")+1]
	for end := time.Now().Add(startTime); ; time.Sleep(2 * time.Millisecond) {
		if p.control, err = net.Dial("unix", sock); err == nil {
			p.lines = bufio.NewReader(p.control)
			return nil
		}
		if time.Now().After(end) {
			p.stop()
			return fmt.Errorf("reach %s: %w", p.name, err)
		}
	}
}

// order has the subject do something and account for itself.
func (p *process) order(do, arg string) (subject.Usage, error) {
	b, err := json.Marshal(subject.Order{Do: do, Arg: arg})
	if err != nil {
		return subject.Usage{}, err
	}
	p.control.SetDeadline(time.Now().Add(time.Minute))
	_, err = p.control.Write(append(b, '\n'))
	var line []byte
	if err == nil {
		line, err = p.lines.ReadBytes('\n')
	}
	if err != nil {
		return subject.Usage{}, fmt.Errorf("%s does not answer for itself: %w\n%s", p.name, err, p.lastWords())
	}
	var r subject.Report
	if err := json.Unmarshal(line, &r); err != nil {
		return subject.Usage{}, err
	}
	if r.Error != "" {
		return r.Usage, fmt.Errorf("%s: %s", p.name, r.Error)
	}
	return r.Usage, nil
}

// lastWords has a subject that hangs say where, and reads the end of its log.
func (p *process) lastWords() []byte {
	p.cmd.Process.Signal(syscall.SIGQUIT)
	time.Sleep(time.Second)
	b, err := os.ReadFile(p.cmd.Stderr.(*os.File).Name())
	if err != nil {
		return []byte(err.Error())
	}
	return b[max(0, len(b)-16<<10):]
}

func (p *process) usage() (subject.Usage, error)   { return p.order("usage", "") }
func (p *process) collect() (subject.Usage, error) { return p.order("collect", "") }

// stop ends the subject and its group, and waits for it.
func (p *process) stop() {
	if p.control != nil {
		p.control.Close()
	}
	p.in.Close()
	over := make(chan struct{})
	late := time.AfterFunc(5*time.Second, func() { p.kill() })
	go func() { p.cmd.Wait(); close(over) }()
	<-over
	late.Stop()
}

func (p *process) kill() { syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL) }

// dial opens n connections.
func (p *process) dial(n int) (all []*load.Client, err error) {
	for range n {
		c, err := load.Dial(p.addr)
		if err != nil {
			hangUp(all)
			return nil, err
		}
		all = append(all, c)
	}
	return all, nil
}

func hangUp(all []*load.Client) {
	for _, c := range all {
		c.Close()
	}
}

// metered runs f and says what the subject used meanwhile.
func (p *process) metered(f func() (load.Figures, error)) (load.Figures, subject.Usage, error) {
	before, err := p.usage()
	if err != nil {
		return load.Figures{}, before, err
	}
	found, err := f()
	if err != nil {
		return found, before, fmt.Errorf("%s: %w", p.name, err)
	}
	after, err := p.usage()
	used := subject.Usage{
		CPU:        after.CPU - before.CPU,
		Bytes:      after.Bytes - before.Bytes,
		Objects:    after.Objects - before.Objects,
		Cycles:     after.Cycles - before.Cycles,
		Heap:       after.Heap,
		Stack:      after.Stack,
		Resident:   after.Resident,
		Goroutines: after.Goroutines,
		Files:      after.Files,
	}
	return found, used, err
}
