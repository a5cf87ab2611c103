package documented

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"gatehouse/internal/tests/conformance"
)

// patience limits the time of one command. The first builds the program.
const patience = 5 * time.Minute

// Every command of a block of README.md, docs/*.md and examples/*/README.md works: it exits without an error, or
// serves until it is stopped. Those of an example run in its folder.
func TestCommandsOfTheDocuments(t *testing.T) {
	used, ran := map[*rule]bool{}, map[string]bool{}
	tree, bin := source(t), programsFor(t)
	for _, file := range documents(t) {
		document, err := os.ReadFile(filepath.Join(tree, file))
		if err != nil {
			t.Fatal(err)
		}
		t.Run(file, func(t *testing.T) {
			ran[file] = true
			s := newSession(t, tree, bin)
			if strings.HasPrefix(file, "examples/") {
				s.dir = filepath.Join(tree, filepath.Dir(file))
			}
			for _, b := range blocks(file, string(document)) {
				s.block(t, b, used)
			}
		})
	}
	for i := range rules {
		if ran[rules[i].file] && !used[&rules[i]] {
			t.Errorf("a rule is for %s in %s, which is not there", rules[i].begins, rules[i].file)
		}
	}
}

// A command in the text of a document exists, and so do the flags in it.
func TestCommandsInTheText(t *testing.T) {
	tree, bin := source(t), programsFor(t)
	for _, file := range documents(t) {
		document, err := os.ReadFile(filepath.Join(tree, file))
		if err != nil {
			t.Fatal(err)
		}
		t.Run(file, func(t *testing.T) {
			s := newSession(t, tree, bin)
			for _, text := range slices.Compact(slices.Sorted(slices.Values(spans(string(document))))) {
				words := strings.Fields(text)
				if strings.HasPrefix(words[len(words)-1], "-") {
					text += " VALUE" // which the flag may want
				}
				out, err := s.run(t, text+" --help", "")
				if err != nil || !bytes.Contains(out, []byte("Usage:")) {
					t.Errorf("%s: %v: %s", text, err, out)
				}
			}
		})
	}
}

// What counts as a command, and where it ends.
func TestBlocksAreFound(t *testing.T) {
	const document = "Text\n\n    gatehouse a 'b\n      c' \\\n      d   # why\n    gatehouse e\n\n- item\n\n" +
		"    no block\n\nText\n\n" +
		"```json\n{}\n```\n\n    drawing\n\nIn text `gatehouse serve\n--http`.\n"
	var got []string
	for _, b := range blocks("x.md", document) {
		if !b.isCommands() {
			got = append(got, fmt.Sprintf("%d %s: %q", b.line, b.lang, b.text))
			continue
		}
		for _, c := range b.commands() {
			got = append(got, fmt.Sprintf("%d: %q", c.line, c.text))
		}
	}
	want := []string{`3: "gatehouse a 'b\n  c' \\\n  d"`, `6: "gatehouse e"`, `15 json: "{}\n"`, `18 : "drawing\n"`}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := spans(document); !slices.Equal(got, []string{"gatehouse serve --http"}) {
		t.Errorf("in the text %q", got)
	}
}

func documents(t *testing.T) []string {
	t.Helper()
	top, err := conformance.Top()
	if err != nil {
		t.Fatal(err)
	}
	all := []string{"README.md"}
	for _, pattern := range []string{"docs/*.md", "examples/*/README.md"} {
		files, err := fs.Glob(os.DirFS(top), pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("there are no documents %s: %v", pattern, err)
		}
		all = append(all, files...)
	}
	return all
}

// source returns a copy of the files of this repository, which commands may change.
func source(t *testing.T) string {
	t.Helper()
	top, err := conformance.Top()
	if err != nil {
		t.Fatal(err)
	}
	list := exec.CommandContext(t.Context(), "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	list.Dir = top
	names, err := list.Output()
	if err != nil {
		t.Fatalf("list the files of the repository: %v", err)
	}
	to := t.TempDir()
	for name := range strings.SplitSeq(strings.TrimSuffix(string(names), "\x00"), "\x00") {
		info, err := os.Lstat(filepath.Join(top, name))
		if err != nil || !info.Mode().IsRegular() {
			continue // removed, and not committed yet
		}
		b, err := os.ReadFile(filepath.Join(top, name))
		if err == nil {
			err = os.MkdirAll(filepath.Dir(filepath.Join(to, name)), 0o755)
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(to, name), b, info.Mode().Perm())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return to
}

// programsFor returns a folder with the programs that documents name: gatehouse, and github-mcp-server, which is
// replaced by the fixture.
func programsFor(t *testing.T) string {
	t.Helper()
	top, err := conformance.Top()
	if err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	build := exec.CommandContext(
		t.Context(),
		"go",
		"build",
		"-trimpath",
		"-o",
		filepath.Join(bin, "gatehouse"),
		"./cmd/gatehouse",
	)
	build.Dir = top
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build gatehouse: %v: %s", err, out)
	}
	fixture, err := conformance.Build(t.Context(), bin)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(fixture, filepath.Join(bin, "github-mcp-server")); err != nil {
		t.Fatal(err)
	}
	return bin
}

// session is a shell that runs the commands of one document in order, with a home folder of its own.
type session struct {
	t         *testing.T // of the document
	home, dir string
	env       []string
	served    string // host:port of a host for commands that need one
}

func newSession(t *testing.T, tree, bin string) *session {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "env", "GOCACHE", "GOMODCACHE", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	where := strings.Fields(string(out))
	// The path of a socket is at most about 100 bytes, so the folder is short.
	home, err := os.MkdirTemp("", "doc")
	if err != nil {
		t.Fatal(err)
	}
	s := &session{t: t, home: home, dir: tree, env: []string{
		"HOME=" + home, "TMPDIR=" + home, "LANG=C.UTF-8", "NO_COLOR=1",
		"PATH=" + bin + ":" + filepath.Join(where[2], "bin") + ":" + os.Getenv("PATH"),
		"GOCACHE=" + where[0], "GOMODCACHE=" + where[1], "GOPROXY=off", "GOSUMDB=off", "GOTOOLCHAIN=local",
		"GOFLAGS=-trimpath", "CGO_ENABLED=0", // so that what was built before is found, though the folder is another
	}}
	t.Cleanup(func() {
		if _, err := s.run(t, "gatehouse daemon status", ""); err == nil {
			if out, err := s.run(t, "gatehouse daemon stop", ""); err != nil {
				t.Errorf("the daemon does not stop: %v: %s", err, out)
			}
		}
		if err := os.RemoveAll(home); err != nil {
			t.Error(err)
		}
	})
	if err := os.MkdirAll(filepath.Join(home, "src"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(tree, filepath.Join(home, "src", "gatehouse")); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *session) block(t *testing.T, b block, used map[*rule]bool) {
	t.Helper()
	if !b.isCommands() {
		r := find(b.file, b.text, used)
		if r == nil || r.other == nil && r.skip == "" {
			t.Errorf("%s:%d: no rule says what this block is: %.60s", b.file, b.line, b.text)
			return
		}
		if r.other != nil {
			if err := r.other(t.Context(), s, b.text); err != nil {
				t.Errorf("%s:%d: %v", b.file, b.line, err)
			}
		}
		return
	}
	for _, c := range b.commands() {
		t.Run(strings.Join(strings.Fields(c.text)[:min(4, len(strings.Fields(c.text)))], " "), func(t *testing.T) {
			r := find(b.file, c.text, used)
			if r == nil {
				r = &rule{}
			}
			if r.skip != "" {
				t.Skip(r.skip)
			}
			if r.before != nil {
				if err := r.before(t, s); err != nil {
					t.Fatal(err)
				}
			}
			text := strings.NewReplacer(r.replace...).Replace(c.text)
			if s.served != "" {
				text = addresses.ReplaceAllString(text, s.served)
			}
			if r.until != "" {
				s.serve(t, text, r.until)
				return
			}
			if r.typed != "" {
				text, r.stdin = inTerminal(text), r.typed
			}
			if out, err := s.run(t, text, r.stdin); (err != nil) != r.fails {
				t.Errorf("%s:%d: %s: %v: %s", b.file, c.line, text, err, out)
			} else if !regexp.MustCompile(r.prints).Match(out) {
				t.Errorf("%s:%d: %s: printed no %s: %s", b.file, c.line, text, r.prints, out)
			}
		})
	}
}

func (s *session) command(ctx context.Context, text string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "bash", "-c", text)
	cmd.Dir, cmd.Env = s.dir, s.env
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// inTerminal returns a command line that runs another one in a terminal.
func inTerminal(text string) string {
	return "script -qefc '" + strings.ReplaceAll(text, "'", `'\''`) + "' /dev/null"
}

// run runs a command until it exits, and returns its output.
func (s *session) run(t *testing.T, text, stdin string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
	defer cancel()
	cmd := s.command(ctx, text)
	cmd.Stdin = strings.NewReader(stdin)
	return cmd.CombinedOutput()
}

// start runs a command that does not exit by itself, and returns the first line of its output that matches until.
// It is stopped at the end of the test.
func (s *session) start(t *testing.T, text, until string) (match []string, stop func(), err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
	cmd := s.command(ctx, text)
	r, w, err := os.Pipe()
	if err != nil {
		cancel()
		return nil, nil, err
	}
	in, err := cmd.StdinPipe() // stays open: a server on standard input ends with it
	if err != nil {
		cancel()
		return nil, nil, err
	}
	cmd.Stdout, cmd.Stderr = w, w
	err = cmd.Start()
	w.Close()
	if err != nil {
		cancel()
		return nil, nil, err
	}
	found, said := make(chan []string, 1), make(chan string, 1)
	go func() {
		defer r.Close()
		var all strings.Builder
		lines, wanted := bufio.NewReader(r), regexp.MustCompile(until)
		for {
			line, err := lines.ReadString('\n')
			all.WriteString(line)
			if m := wanted.FindStringSubmatch(line); m != nil {
				select {
				case found <- m:
				default:
				}
			}
			if err != nil {
				said <- all.String()
				return
			}
		}
	}()
	stop = func() {
		defer cancel()
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM)
		_ = cmd.Wait() // however a signal ends it
		_ = in.Close()
	}
	select {
	case m := <-found:
		return m, stop, nil
	case out := <-said:
		stop()
		return nil, nil, fmt.Errorf("%s ended, and never printed %s: %s", text, until, out)
	case <-ctx.Done():
		stop()
		return nil, nil, fmt.Errorf("%s never printed %s", text, until)
	}
}

// serve starts a command that runs until it is stopped.
func (s *session) serve(t *testing.T, text, until string) {
	t.Helper()
	_, stop, err := s.start(t, text, until)
	if err != nil {
		t.Error(err)
		return
	}
	stop()
}

// addresses are what documents call the host that the test starts.
var addresses = regexp.MustCompile(`127\.0\.0\.1:(3000|3443)`)

// serving starts a host on a free port, which it prints as until finds it, and which later commands of the document
// are directed to. It is stopped after the last of them.
func serving(command, until string) func(*testing.T, *session) error {
	return func(_ *testing.T, s *session) error {
		m, stop, err := s.start(s.t, command, until)
		if err != nil {
			return err
		}
		s.t.Cleanup(stop)
		s.served = "127.0.0.1:" + m[1]
		return nil
	}
}

// entry uses an entry of a client's settings as a client would.
func entry(ctx context.Context, s *session, text string) error {
	var settings struct {
		Servers map[string]struct {
			Type, URL, Command string
			Args               []string
		} `json:"mcpServers"`
	}
	if err := json.Unmarshal([]byte(text), &settings); err != nil {
		return err
	}
	const initialize = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`
	for name, e := range settings.Servers {
		if e.URL != "" {
			cmd := s.command(ctx, `exec gatehouse serve --http -p 0`)
			stderr, err := cmd.StderrPipe()
			if err != nil {
				return err
			}
			if err := cmd.Start(); err != nil {
				return err
			}
			answer, err := post(stderr, e.URL, initialize)
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM)
			_, _ = io.Copy(io.Discard, stderr)
			_ = cmd.Wait()
			if err != nil || !strings.Contains(answer, `"serverInfo"`) {
				return fmt.Errorf("%s answers %s, %v", name, answer, err)
			}
			continue
		}
		command := strings.Replace(e.Command, "/path/to/words", filepath.Join(s.dir, "words"), 1)
		for i, a := range e.Args {
			e.Args[i] = strings.Replace(a, "/home/me/projects", s.home, 1)
		}
		cmd := s.command(ctx, `exec "$0" "$@"`)
		cmd.Args = append(append(cmd.Args, command), e.Args...)
		cmd.Stdin = strings.NewReader(initialize + "\n")
		out, err := cmd.Output()
		if err != nil || !bytes.Contains(out, []byte(`"serverInfo"`)) {
			return fmt.Errorf("%s answers %s, %v", name, out, err)
		}
	}
	return nil
}

// post waits until a host prints its address, and sends it a message at the path of an entry.
func post(stderr io.Reader, url, message string) (string, error) {
	lines := bufio.NewScanner(stderr)
	for lines.Scan() {
		if m := regexp.MustCompile(`Listening on http://([^/]+)/`).FindStringSubmatch(lines.Text()); m != nil {
			req, err := http.NewRequest(
				"POST",
				strings.Replace(url, "127.0.0.1:3000", m[1], 1),
				strings.NewReader(message),
			)
			if err != nil {
				return "", err
			}
			req.Header.Set("Content-Type", "application/json")
			req.Header.Set("Accept", "application/json, text/event-stream")
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				return "", err
			}
			defer resp.Body.Close()
			b, err := io.ReadAll(resp.Body)
			return string(b), err
		}
	}
	return "", fmt.Errorf("the host did not listen")
}

// settings uses a block as the settings of the host; it must be valid.
func settings(ctx context.Context, s *session, text string) error {
	dir := filepath.Join(s.home, ".config", "gatehouse")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "gatehouse.yaml"), []byte(text), 0o600); err != nil {
		return err
	}
	out, err := s.command(ctx, "gatehouse config check").CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// saved writes a block to a file in a folder of its own, in which the commands after it run.
func saved(name string) func(context.Context, *session, string) error {
	return func(_ context.Context, s *session, text string) error {
		s.dir = filepath.Join(s.home, "work")
		if err := os.MkdirAll(s.dir, 0o700); err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(s.dir, name), []byte(text), 0o600)
	}
}

// holding creates a file that a command reads.
func holding(name, text string) func(*testing.T, *session) error {
	return func(_ *testing.T, s *session) error {
		return os.WriteFile(filepath.Join(s.dir, name), []byte(text), 0o600)
	}
}
