package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// thin is a client that has started "gatehouse stdio".
type thin struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines chan string // what it said, until its end
	said  record      // all of it
	err   record
	ended chan struct{}
}

// connect starts "gatehouse stdio" as client NAME, with the program and
// arguments that follow, in the current folder of the script.
func connect(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: connect NAME PROGRAM arguments...")
	}
	program := args[1]
	if program == "gatehouse" {
		program = find(ts, program)
	}
	c := &thin{
		cmd:   exec.Command(program, append([]string{"stdio"}, args[2:]...)...),
		lines: make(chan string, 1000),
		ended: make(chan struct{}),
	}
	c.cmd.Dir = ts.MkAbs(".")
	for _, name := range []string{"PATH", "HOME", "XDG_RUNTIME_DIR", "GORACE", "GATEHOUSE_ROOTS_FOLDERS"} {
		c.cmd.Env = append(c.cmd.Env, name+"="+ts.Getenv(name))
	}
	var err error
	c.in, err = c.cmd.StdinPipe()
	ts.Check(err)
	out, err := c.cmd.StdoutPipe()
	ts.Check(err)
	stderr, err := c.cmd.StderrPipe()
	ts.Check(err)
	ts.Check(c.cmd.Start())
	ts.Defer(func() { c.cmd.Process.Kill() })
	var reading sync.WaitGroup
	reading.Go(func() {
		lines := bufio.NewScanner(out)
		lines.Buffer(nil, 32<<20)
		for lines.Scan() {
			c.said.add(lines.Text())
			c.lines <- lines.Text()
		}
		close(c.lines)
	})
	reading.Go(func() {
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			c.err.add(lines.Text())
		}
	})
	go func() {
		reading.Wait()
		c.cmd.Wait()
		close(c.ended)
	}()
	on(ts).thin[args[0]] = c
}

func client(ts *testscript.TestScript, name string) *thin {
	c := on(ts).thin[name]
	if c == nil {
		ts.Fatalf("there is no client %s; connect it first", name)
	}
	return c
}

// talk has client NAME send each line of a file, in which $WORK is replaced, waits for an answer to each
// request, in whatever order, and leaves them in NAME.answers. With a dash it
// sends without waiting; "await NAME N" then waits for N answers.
func talk(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: talk NAME FILE [-]")
	}
	c := client(ts, args[0])
	all, err := messages(ts.MkAbs(args[1]))
	ts.Check(err)
	// In one piece: a program may refuse the first message and be gone before
	// the second.
	if _, err := io.WriteString(c.in,
		strings.ReplaceAll(strings.Join(all, "\n"), "$WORK", ts.Getenv("WORK"))+"\n"); err != nil {
		ts.Fatalf("%v:\n%s", err, c.err.String())
	}
	requests := 0
	for _, m := range all {
		var r struct{ ID, Method json.RawMessage }
		if json.Unmarshal([]byte(m), &r) == nil && r.ID != nil && r.Method != nil {
			requests++
		}
	}
	if len(args) == 2 {
		c.await(ts, args[0], requests)
	}
}

func await(ts *testscript.TestScript, neg bool, args []string) {
	n := 0
	if len(args) == 2 {
		fmt.Sscan(args[1], &n)
	}
	if neg || n == 0 {
		ts.Fatalf("usage: await NAME N")
	}
	client(ts, args[0]).await(ts, args[0], n)
}

func (c *thin) await(ts *testscript.TestScript, name string, n int) {
	var answers strings.Builder
	late := time.After(patience)
	for n > 0 {
		select {
		case line, open := <-c.lines:
			if !open {
				ts.Fatalf("client %s lost its host:\n%s", name, c.err.String())
			}
			var r struct{ ID, Method json.RawMessage }
			if json.Unmarshal([]byte(line), &r) == nil && r.ID != nil && r.Method == nil {
				answers.WriteString(line + "\n")
				n--
			}
		case <-late:
			ts.Fatalf("client %s waits for %d answers:\n%s\n%s", name, n, c.said.String(), c.err.String())
		}
	}
	ts.Check(os.WriteFile(ts.MkAbs(name+".answers"), []byte(answers.String()), 0o600))
}

// leave has client NAME end its input, and leaves NAME.out, NAME.err and
// NAME.code.
func leave(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: leave NAME")
	}
	c := client(ts, args[0])
	c.in.Close()
	select {
	case <-c.ended:
	case <-time.After(patience):
		ts.Fatalf("client %s does not end:\n%s", args[0], c.err.String())
	}
	for name, text := range map[string]string{"out": c.said.String(), "err": c.err.String(),
		"code": fmt.Sprintln(c.cmd.ProcessState.ExitCode())} {
		ts.Check(os.WriteFile(ts.MkAbs(args[0]+"."+name), []byte(text), 0o600))
	}
}

// program puts a copy of gatehouse at a path, as another build each time it is
// called with another text. A process of its own writes it: while one of ours
// is being started it holds what is open here, and what is open for writing
// cannot be run.
func program(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: program PATH TEXT")
	}
	path := ts.MkAbs(args[0])
	ts.Check(os.MkdirAll(filepath.Dir(path), 0o755))
	const write = `cp "$0" "$1.new" && printf %s "$2" >> "$1.new" && mv "$1.new" "$1"`
	if out, err := exec.Command("sh", "-c", write, find(ts, "gatehouse"), path, args[1]).CombinedOutput(); err != nil {
		ts.Fatalf("%v %s", err, out)
	}
}
