package main

import (
	"bufio"
	"bytes"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"gatehouse/internal/maintenance/backup"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"gatehouse": func() { os.Exit(run()) },
		"mcp":       func() { os.Exit(mcp(os.Args[1:], os.Stdout, os.Stderr)) },
	})
}

// TestScripts tells what the binary does, one story per file.
func TestScripts(t *testing.T) {
	testscript.Run(t, params(t, "testdata/script"))
}

// params are those of the stories in a folder, or of the files that are named.
func params(t *testing.T, dir string, files ...string) testscript.Params {
	return testscript.Params{
		Dir:                 dir,
		Files:               files,
		RequireExplicitExec: true,
		Setup:               home,
		Condition: func(cond string) (bool, error) {
			switch cond {
			case "mounts":
				return mounts(t.TempDir()), nil
			case "fuse":
				return backup.CanMount() == nil, nil
			case "root":
				return os.Getuid() == 0, nil
			}
			return false, fmt.Errorf("unknown condition %s", cond)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"serve":      serve,
			"interrupt":  interrupt,
			"hangup":     hangup,
			"eof":        eof,
			"exits":      exits,
			"pure":       pure,
			"gone":       gone,
			"until":      until,
			"keep":       keep,
			"ordinary":   ordinary,
			"tokenfrom":  tokenFrom,
			"daemonpid":  daemonPID,
			"killdaemon": killDaemon,
			"connect":    connect,
			"talk":       talk,
			"await":      await,
			"leave":      leave,
			"program":    program,
			"rundaemon":  runDaemon,
			"terminate":  terminate,
			"appears":    appears,
			"disk":       disk,
			"fill":       fill,
			"activate":   activate,
			"endednow":   endedNow,
		},
	}
}

// endedNow makes the jobs of a file have ended just now, because a host forgets those that ended a day ago.
func endedNow(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: endednow FILE")
	}
	db, err := sql.Open("sqlite", ts.MkAbs(args[0]))
	ts.Check(err)
	defer db.Close()
	now := time.Now().UnixMilli()
	_, err = db.Exec("UPDATE job SET created = ?, updated = ?", now, now)
	ts.Check(err)
}

// home gives each story folders of its own.
func home(e *testscript.Env) error {
	for name, dir := range map[string]string{"HOME": "home", "XDG_RUNTIME_DIR": "run"} {
		path := filepath.Join(e.WorkDir, dir)
		if err := os.Mkdir(path, 0o700); err != nil {
			return err
		}
		e.Setenv(name, path)
	}
	for _, name := range []string{"XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME"} {
		e.Setenv(name, "")
	}
	testdata, err := filepath.Abs("testdata")
	if err != nil {
		return err
	}
	e.Setenv("TESTDATA", testdata)
	e.Setenv("GORACE", "atexit_sleep_ms=0") // a race fails at once, there is nothing to wait for
	e.Values[connectionsKey{}] = &connections{thin: map[string]*thin{}}
	e.Defer(func() { endDaemon(filepath.Join(e.WorkDir, "run", "gatehouse", "gatehouse.pid")) })
	return nil
}

// patience is how long a story waits for what must happen.
const patience = time.Minute

// server is a gatehouse that runs beside a story.
type server struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	out   bytes.Buffer // whole only after the end
	err   record
	ended chan error
}

// record is what a process said, as it says it.
type record struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (r *record) add(line string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.text.WriteString(line + "\n")
}

func (r *record) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.String()
}

// connections holds the server of one story, and its clients by name.
type connections struct {
	server *server
	thin   map[string]*thin
}

type connectionsKey struct{}

func on(ts *testscript.TestScript) *connections { return ts.Value(connectionsKey{}).(*connections) }

// serve starts "gatehouse serve" with its arguments and waits until it listens
// at as many doors as the first argument says. $HTTP, $TCP and $UNIX then
// say where, and $SITE what $HTTP is the endpoint of.
func serve(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 1 {
		ts.Fatalf("usage: serve N arguments...")
	}
	s := &server{ended: make(chan error, 1)}
	s.cmd = exec.Command(find(ts, "gatehouse"), append([]string{"serve"}, args[1:]...)...)
	s.cmd.Dir = ts.Getenv("WORK")
	for _, name := range []string{"PATH", "HOME", "XDG_RUNTIME_DIR", "MCP_ADDR", "MCP_AUTH_TOKEN", "CORE_MCP_TRANSPORT",
		"BOUVET_HTTP_PORT", "GATEHOUSE_TRANSPORT", "GATEHOUSE_LOG", "GATEHOUSE_LOG_FORMAT", "GORACE"} {
		if v := ts.Getenv(name); v != "" {
			s.cmd.Env = append(s.cmd.Env, name+"="+v)
		}
	}
	s.cmd.Stdout = &s.out
	in, err := s.cmd.StdinPipe()
	ts.Check(err)
	s.stdin = in
	stderr, err := s.cmd.StderrPipe()
	ts.Check(err)
	ts.Check(s.cmd.Start())
	ts.Defer(func() { s.cmd.Process.Kill() })
	addresses := make(chan string, 10)
	go s.listen(stderr, addresses)
	for range args[0][0] - '0' {
		select {
		case a, open := <-addresses:
			if !open {
				ts.Fatalf("gatehouse ended before it listened:\n%s", s.err.String())
			}
			remember(ts, a)
		case <-time.After(patience):
			ts.Fatalf("gatehouse does not listen:\n%s", s.err.String())
		}
	}
	on(ts).server = s
}

// listen reads what the server says until it ends.
func (s *server) listen(stderr io.Reader, addresses chan<- string) {
	lines := bufio.NewScanner(stderr)
	for lines.Scan() {
		s.err.add(lines.Text())
		if _, a, ok := strings.Cut(lines.Text(), "[gatehouse] Listening on "); ok {
			addresses <- a
		}
	}
	close(addresses)
	s.ended <- s.cmd.Wait()
}

func remember(ts *testscript.TestScript, address string) {
	switch {
	case strings.HasPrefix(address, "http://"), strings.HasPrefix(address, "https://"):
		ts.Setenv("HTTP", address)
		ts.Setenv("SITE", strings.TrimSuffix(address, "/mcp"))
	case strings.HasPrefix(address, "tcp://"):
		ts.Setenv("TCP", strings.TrimPrefix(address, "tcp://"))
	case strings.HasPrefix(address, "unix://"):
		ts.Setenv("UNIX", strings.TrimPrefix(address, "unix://"))
	default:
		ts.Fatalf("unknown address %q", address)
	}
}

// interrupt sends the story's server a signal, INT unless it is named, or
// "EOF", which closes its standard input. It waits for the end and leaves
// serve.out, serve.err and serve.code.
func interrupt(ts *testscript.TestScript, neg bool, args []string) {
	s := on(ts).server
	if neg || s == nil || len(args) > 1 {
		ts.Fatalf("usage: interrupt [INT, TERM, EOF or nothing], after serve")
	}
	how := "INT"
	if len(args) == 1 {
		how = args[0]
	}
	switch how {
	case "INT":
		ts.Check(s.cmd.Process.Signal(os.Interrupt))
	case "TERM":
		ts.Check(s.cmd.Process.Signal(syscall.SIGTERM))
	case "EOF":
		s.stdin.Close()
	case "nothing": // it ends by itself
	default:
		ts.Fatalf("unknown signal %s", how)
	}
	select {
	case <-s.ended:
	case <-time.After(patience):
		ts.Fatalf("gatehouse does not end:\n%s", s.err.String())
	}
	for name, text := range map[string]string{
		"serve.out": s.out.String(), "serve.err": s.err.String(),
		"serve.code": fmt.Sprintln(s.cmd.ProcessState.ExitCode()),
	} {
		ts.Check(os.WriteFile(ts.MkAbs(name), []byte(text), 0o600))
	}
}

// hangup has the story's server read its settings again, and waits until it
// has logged a text once more.
func hangup(ts *testscript.TestScript, neg bool, args []string) {
	s := on(ts).server
	if neg || s == nil || len(args) != 1 {
		ts.Fatalf("usage: hangup TEXT, after serve")
	}
	before := strings.Count(s.err.String(), args[0])
	ts.Check(s.cmd.Process.Signal(syscall.SIGHUP))
	for end := time.Now().Add(patience); strings.Count(s.err.String(), args[0]) == before; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			ts.Fatalf("gatehouse does not say %q:\n%s", args[0], s.err.String())
		}
	}
}

// eof ends the standard input of the story's server.
func eof(ts *testscript.TestScript, neg bool, args []string) {
	s := on(ts).server
	if neg || s == nil || len(args) > 0 {
		ts.Fatalf("usage: eof, after serve")
	}
	ts.Check(s.stdin.Close())
}

// exits runs a command that must end with the exit code that is named first.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE command...")
	}
	code := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		exit, ok := errors.AsType[*exec.ExitError](err)
		if !ok {
			ts.Fatalf("%v", err)
		}
		code = exit.ExitCode()
	}
	if want := args[0]; want != strconv.Itoa(code) {
		ts.Fatalf("%s ended with %d, want %s", args[1], code, want)
	}
}

// pure checks that each line of a file, or of stdout, is a JSON-RPC message.
func pure(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: pure FILE")
	}
	n := 0
	for line := range strings.Lines(ts.ReadFile(args[0])) {
		var m struct {
			Version string `json:"jsonrpc"`
		}
		if err := json.Unmarshal([]byte(line), &m); err != nil || m.Version != "2.0" {
			ts.Fatalf("%s holds %q, which is no message", args[0], line)
		}
		n++
	}
	if n == 0 {
		ts.Fatalf("%s is empty", args[0])
	}
}

// find finds one of our commands where the stories find them.
func find(ts *testscript.TestScript, name string) string {
	for _, dir := range filepath.SplitList(ts.Getenv("PATH")) {
		path := filepath.Join(dir, name)
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	ts.Fatalf("no %s in PATH", name)
	return ""
}

// gone waits until a file is there no longer.
func gone(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: gone FILE")
	}
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if _, err := os.Stat(ts.MkAbs(args[0])); errors.Is(err, os.ErrNotExist) {
			return
		}
	}
	ts.Fatalf("%s is still there", args[0])
}

// until runs a command again and again until its standard output fits a pattern.
func until(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: until PATTERN command...")
	}
	fits, err := regexp.Compile("(?m)" + args[0])
	ts.Check(err)
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		ts.Check(ts.Exec(args[1], args[2:]...))
		if fits.MatchString(ts.ReadFile("stdout")) {
			return
		}
		if time.Now().After(end) {
			ts.Fatalf("%s printed nothing that fits %s", strings.Join(args[1:], " "), args[0])
		}
	}
}

// keep puts what a pattern's group finds in the last standard output into a variable.
func keep(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: keep NAME PATTERN")
	}
	fits, err := regexp.Compile("(?m)" + args[1])
	ts.Check(err)
	found := fits.FindStringSubmatch(ts.ReadFile("stdout"))
	if len(found) != 2 {
		ts.Fatalf("no group of %s is in stdout", args[1])
	}
	ts.Setenv(args[0], found[1])
}

// tokenFrom has commands bring the token in a file.
func tokenFrom(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: tokenfrom FILE")
	}
	ts.Setenv("GATEHOUSE_TOKEN", strings.TrimSpace(ts.ReadFile(args[0])))
}
