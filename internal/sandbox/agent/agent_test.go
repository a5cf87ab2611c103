//go:build linux && (amd64 || arm64)

package agent_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"gatehouse/internal/sandbox/agent"
	"gatehouse/internal/sandbox/agentprotocol"
	"gatehouse/internal/sandbox/rootfs"

	"golang.org/x/sys/unix"
)

// TestMain runs this program as the agent or as a launcher if it was started as one, because the agent starts its
// own executable for each program.
func TestMain(m *testing.M) {
	if os.Args[0] == "agent" || os.Args[0] == "launcher" {
		agent.Main(nil)
	}
	os.Exit(m.Run())
}

// frameWait is how long a frame may take on a busy machine.
const frameWait = time.Minute

// host is the host's end of the channel to an agent that runs as a process in namespaces of its own.
type host struct {
	t      *testing.T
	conn   *os.File
	cmd    *exec.Cmd
	frames chan agentprotocol.Frame // closed when the agent ends
	last   uint32                   // number of the last request
}

// startAgent starts an agent without a plan.
func startAgent(t *testing.T) *host {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "channel"), os.NewFile(uintptr(fds[1]), "channel")
	defer theirs.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	// The second extra file stands for the agent's executable, which it closes.
	cmd := &exec.Cmd{Path: "/proc/self/exe", Args: []string{"agent", "5"}, ExtraFiles: []*os.File{theirs, null}}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET |
			unix.CLONE_NEWIPC | unix.CLONE_NEWUTS,
		Setsid:      true,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getegid(), Size: 1}},
	}
	if err := cmd.Start(); err != nil {
		ours.Close()
		t.Skipf("an agent cannot be started in namespaces of its own here: %v", err)
	}
	h := &host{t: t, conn: ours, cmd: cmd, frames: make(chan agentprotocol.Frame, 1024)}
	go func() {
		defer close(h.frames)
		for {
			f, err := agentprotocol.Read(ours)
			if err != nil {
				return
			}
			h.frames <- f
		}
	}()
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		for range h.frames { // the reader ends with the agent's end of the channel
		}
		ours.Close()
	})
	return h
}

// plan describes a small sandbox with the host's programs, in which all has one user.
func plan() agentprotocol.Plan {
	trees, links := rootfs.System()
	p := agentprotocol.Plan{
		Hostname: "sandbox", SingleUser: true, DiskBytes: 2 << 20, DiskFiles: 100, Descriptors: 64, Links: links,
		Files: rootfs.SystemFiles(), Env: []string{"PATH=/usr/bin:/bin", "HOME=/home/user", "FROM=plan"},
	}
	for _, tree := range trees {
		p.Trees = append(p.Trees, agentprotocol.Tree{From: tree.From, To: tree.To})
	}
	return p
}

// setUp starts an agent and has it set up a sandbox.
func setUp(t *testing.T) *host {
	t.Helper()
	h := startAgent(t)
	id := h.send(agentprotocol.Setup, plan().Body())
	f := h.next()
	if f.Kind == agentprotocol.Failed {
		why, _ := agentprotocol.ParseFailure(f.Body)
		if why.Errno == unix.EPERM || why.Errno == unix.EACCES {
			t.Skipf("a sandbox cannot be set up here: %v", why)
		}
		t.Fatalf("setup: %v", why)
	}
	if f.Kind != agentprotocol.Ready || f.ID != id {
		t.Fatalf("the answer to Setup is %+v", f)
	}
	return h
}

// send sends the first frame of a request and returns its number.
func (h *host) send(k agentprotocol.Kind, body []byte) uint32 {
	h.t.Helper()
	h.last++
	h.more(h.last, k, body)
	return h.last
}

// more sends a further frame of a request.
func (h *host) more(id uint32, k agentprotocol.Kind, body []byte) {
	h.t.Helper()
	if err := agentprotocol.Write(h.conn, agentprotocol.Frame{Kind: k, ID: id, Body: body}); err != nil {
		h.t.Fatal(err)
	}
}

// next returns the next frame.
func (h *host) next() agentprotocol.Frame {
	h.t.Helper()
	select {
	case f, ok := <-h.frames:
		if !ok {
			h.t.Fatal("the agent ended")
		}
		return f
	case <-time.After(frameWait):
		h.t.Fatalf("no frame in %v", frameWait)
	}
	return agentprotocol.Frame{}
}

// answer is all that came of a request.
type answer struct {
	started        bool // Ready came
	stdout, stderr string
	entries        []agentprotocol.Info
	exit           agentprotocol.ExitStatus
	failure        error
}

// collect reads the frames of the only request in progress, and grants what it reads. until may be nil; if it
// returns true the request goes on and collect returns.
func (h *host) collect(id uint32, until func(answer) bool) (a answer) {
	h.t.Helper()
	for {
		f := h.next()
		if f.ID != id {
			h.t.Fatalf("a frame of request %d, %+v; want those of %d", f.ID, f, id)
		}
		var err error
		switch f.Kind {
		case agentprotocol.Ready:
			a.started = true
		case agentprotocol.Stdout:
			a.stdout += string(f.Body)
		case agentprotocol.Stderr:
			a.stderr += string(f.Body)
		case agentprotocol.Entry:
			var i agentprotocol.Info
			i, err = agentprotocol.ParseInfo(f.Body)
			a.entries = append(a.entries, i)
		case agentprotocol.Credit:
		case agentprotocol.Exit:
			a.exit, err = agentprotocol.ParseExitStatus(f.Body)
		case agentprotocol.Failed:
			a.failure, err = agentprotocol.ParseFailure(f.Body)
		default:
			h.t.Fatalf("unexpected frame %+v", f)
		}
		switch {
		case err != nil:
			h.t.Fatal(err)
		case f.Kind == agentprotocol.Exit, f.Kind == agentprotocol.Failed:
			return a
		case (f.Kind == agentprotocol.Stdout || f.Kind == agentprotocol.Stderr) && len(f.Body) > 0:
			h.more(id, agentprotocol.Credit, agentprotocol.Grant{Stream: f.Kind, Bytes: uint32(len(f.Body))}.Body())
		}
		if until != nil && until(a) {
			return a
		}
	}
}

// shell starts a shell with a script.
func (h *host) shell(script string) uint32 {
	h.t.Helper()
	return h.send(agentprotocol.Start, agentprotocol.Program{Argv: []string{"sh", "-c", script}}.Body())
}

// run runs a script to its end, without input.
func (h *host) run(script string) answer {
	h.t.Helper()
	id := h.shell(script)
	h.more(id, agentprotocol.Stdin, nil)
	return h.collect(id, nil)
}

func TestAProgramHasItsStreams(t *testing.T) {
	h := setUp(t)
	id := h.shell(`echo out; echo err >&2; read line; echo "got $line"; read line || echo end; exit 3`)
	a := h.collect(id, func(a answer) bool { return a.stdout == "out\n" && a.stderr == "err\n" })
	if !a.started {
		t.Error("no Ready came before the output")
	}
	h.more(id, agentprotocol.Stdin, []byte("a line\n"))
	h.collect(id, func(a answer) bool { return a.stdout == "got a line\n" })
	h.more(id, agentprotocol.Stdin, nil)
	if a := h.collect(id, nil); a.stdout != "end\n" || a.exit.Code != 3 || a.exit.Signal != 0 {
		t.Errorf("%+v, want the end of the input and code 3", a)
	}
}

func TestAProgramHasTheEnvironmentAndFolderAskedFor(t *testing.T) {
	h := setUp(t)
	program := agentprotocol.Program{Argv: []string{"sh", "-c", "echo $FROM $NEW; pwd; cat /etc/hostname"},
		Env: []string{"FROM=program", "NEW=1"}, Dir: "/tmp"}
	id := h.send(agentprotocol.Start, program.Body())
	h.more(id, agentprotocol.Stdin, nil)
	if a := h.collect(id, nil); a.stdout != "program 1\n/tmp\nsandbox\n" {
		t.Errorf("%+v", a)
	}
	for name, program := range map[string]agentprotocol.Program{
		"no such program": {Argv: []string{"no-such-program"}},
		"no such folder":  {Argv: []string{"sh"}, Dir: "/no/such/folder"},
	} {
		a := h.collect(h.send(agentprotocol.Start, program.Body()), nil)
		if a.started || !errors.Is(a.failure, fs.ErrNotExist) {
			t.Errorf("%s: %+v, want fs.ErrNotExist", name, a)
		}
	}
}

func TestASignalReachesAProgram(t *testing.T) {
	h := setUp(t)
	id := h.shell(`trap 'echo trapped; exit 7' TERM; echo up; while :; do sleep 0.01; done`)
	h.collect(id, func(a answer) bool { return a.stdout == "up\n" })
	h.more(id, agentprotocol.Signal, []byte{byte(unix.SIGTERM)})
	if a := h.collect(id, nil); a.stdout != "trapped\n" || a.exit.Code != 7 {
		t.Errorf("%+v, want that the program handles the signal", a)
	}
}

// The descendant has a session of its own and holds the program's output open, so the request ends only if the
// descendant does.
func TestAKilledProgramEndsWithItsDescendants(t *testing.T) {
	h := setUp(t)
	id := h.shell(`setsid sleep 1000 & echo up; wait`)
	h.collect(id, func(a answer) bool { return a.stdout == "up\n" })
	h.more(id, agentprotocol.Signal, []byte{byte(unix.SIGKILL)})
	if a := h.collect(id, nil); a.exit.Signal != uint8(unix.SIGKILL) {
		t.Errorf("%+v, want SIGKILL", a)
	}
}

func TestThePlansLimitsHold(t *testing.T) {
	h := setUp(t)
	if a := h.run("ulimit -n; ulimit -c"); a.stdout != "64\n0\n" {
		t.Errorf("descriptors and core size are %q, want 64 and 0", a.stdout)
	}
	fill := "head -c 3000000 /dev/zero >/tmp/large"
	if a := h.run(fill); a.exit == (agentprotocol.ExitStatus{}) || a.exit.Code == 0 && a.exit.Signal == 0 {
		t.Errorf("3 MB fit on a disk of 2 MiB: %+v", a)
	}
	h.run("rm /tmp/large")
	if a := h.run("for i in $(seq 200); do : >/tmp/$i || exit 1; done"); a.exit.Code == 0 {
		t.Errorf("200 files fit on a disk for 100: %+v", a)
	}
	larger := plan()
	larger.DiskBytes, larger.DiskFiles, larger.Env = 8<<20, 1000, append(larger.Env, "FROM=adjusted")
	id := h.send(agentprotocol.Adjust, larger.Body())
	if f := h.next(); f.Kind != agentprotocol.Ready || f.ID != id {
		t.Fatalf("the answer to Adjust is %+v", f)
	}
	if a := h.run(fill + " && echo $FROM"); a.exit.Code != 0 || a.stdout != "adjusted\n" {
		t.Errorf("3 MB do not fit on a disk of 8 MiB: %+v", a)
	}
}

// The agent may send one window of a stream; everything else waits for a grant.
func TestOutputWaitsForGrants(t *testing.T) {
	h := setUp(t)
	const size = 3 * agentprotocol.Window
	id := h.shell(fmt.Sprintf("head -c %d /dev/zero", size))
	got := 0
	read := func(until int) {
		for got < until {
			if f := h.next(); f.Kind == agentprotocol.Stdout {
				got += len(f.Body)
			}
		}
	}
	read(agentprotocol.Window)
	// The answer to Ping is sent in turn, so data beyond the window would come before it.
	ping := h.send(agentprotocol.Ping, []byte("still there"))
	for {
		f := h.next()
		if f.Kind == agentprotocol.Stdout {
			t.Fatalf("%d bytes of Stdout beyond the window", len(f.Body))
		}
		if f.Kind == agentprotocol.Pong {
			if f.ID != ping || string(f.Body) != "still there" {
				t.Errorf("the answer to Ping is %+v", f)
			}
			break
		}
	}
	h.more(id, agentprotocol.Credit, agentprotocol.Grant{Stream: agentprotocol.Stdout, Bytes: 1000}.Body())
	read(agentprotocol.Window + 1000)
	if got != agentprotocol.Window+1000 {
		t.Errorf("%d bytes came, want what was granted, %d", got, agentprotocol.Window+1000)
	}
	h.more(id, agentprotocol.Signal, []byte{byte(unix.SIGKILL)})
}

func TestFilesAreReachedInTheSandboxOnly(t *testing.T) {
	h := setUp(t)
	request := func(r agentprotocol.FileRequest, content string) answer {
		t.Helper()
		id := h.send(agentprotocol.File, r.Body())
		if r.Op == agentprotocol.StoreFile {
			h.more(id, agentprotocol.Stdin, []byte(content))
			h.more(id, agentprotocol.Stdin, nil)
		}
		return h.collect(id, nil)
	}
	stored := request(agentprotocol.FileRequest{
		Op:      agentprotocol.StoreFile,
		Path:    "a/file",
		Mode:    0o640,
		Parents: true,
	}, "content")
	if stored.failure != nil || len(stored.entries) != 1 || stored.entries[0].Size != 7 {
		t.Errorf("store: %+v", stored)
	}
	if a := h.run("cat a/file; stat -c %a a/file; ln -s /etc/passwd link"); a.stdout != "content640\n" {
		t.Errorf("the program finds %+v", a)
	}
	part := request(agentprotocol.FileRequest{
		Op:     agentprotocol.ReadFile,
		Path:   "/home/user/a/file",
		Offset: 3,
		Length: 2,
	}, "")
	if part.stdout != "te" {
		t.Errorf("read: %+v", part)
	}
	listed := request(agentprotocol.FileRequest{Op: agentprotocol.ListFolder, Path: "."}, "")
	if len(listed.entries) != 2 || listed.entries[0].Name != "a" || listed.entries[1].Link != "/etc/passwd" {
		t.Errorf("list: %+v", listed)
	}
	for _, c := range []struct {
		op   agentprotocol.Op
		path string
		want error
	}{
		{agentprotocol.ReadFile, "none", fs.ErrNotExist},
		{agentprotocol.ReadFile, "/proc/self/environ", fs.ErrPermission},
		{agentprotocol.ReadFile, "/tmp", syscall.EISDIR},
		{agentprotocol.StoreFile, "/usr/bin/new", syscall.EROFS},
	} {
		if a := request(agentprotocol.FileRequest{Op: c.op, Path: c.path, Mode: 0o600},
			"x"); !errors.Is(a.failure, c.want) {
			t.Errorf("%d %s: %+v, want %v", c.op, c.path, a, c.want)
		}
	}
}

// A frame that breaks the protocol ends the agent, and with it everything in the sandbox.
func TestABadFrameEndsTheAgent(t *testing.T) {
	head := func(kind byte, id, size uint32) []byte {
		return []byte{kind, byte(id >> 24), byte(id >> 16), byte(id >> 8), byte(id),
			byte(size >> 24), byte(size >> 16), byte(size >> 8), byte(size)}
	}
	start := agentprotocol.Program{Argv: []string{"sleep", "1000"}}.Body()
	frame := func(kind agentprotocol.Kind, id uint32, body string) []byte {
		return append(head(byte(kind), id, uint32(len(body))), body...)
	}
	for name, bytes := range map[string][]byte{
		"an unknown kind":       head(200, 1, 0),
		"no request":            head(byte(agentprotocol.Ping), 0, 0),
		"too long a frame":      head(byte(agentprotocol.Ping), 1, agentprotocol.MaxBody+1),
		"a malformed program":   frame(agentprotocol.Start, 1, "\xff"),
		"a malformed file":      frame(agentprotocol.File, 1, ""),
		"a malformed plan":      frame(agentprotocol.Adjust, 1, "x"),
		"a signal of two bytes": frame(agentprotocol.Signal, 1, "ab"),
		"a frame of the agent's": append(frame(agentprotocol.Start, 5, string(start)),
			frame(agentprotocol.Exit, 5, strings.Repeat("\x00", 22))...),
		"a number used twice": append(frame(agentprotocol.Start, 5, string(start)),
			frame(agentprotocol.Start, 5, string(start))...),
		"a grant of what was not": append(frame(agentprotocol.Start, 5, string(start)),
			frame(agentprotocol.Credit, 5, string([]byte{byte(agentprotocol.Stdout), 0, 0, 0, 1}))...),
	} {
		t.Run(name, func(t *testing.T) {
			h := setUp(t)
			if _, err := h.conn.Write(bytes); err != nil {
				t.Fatal(err)
			}
			h.waitForEnd()
		})
	}
	t.Run("more input than was granted", func(t *testing.T) {
		h := setUp(t)
		id := h.send(agentprotocol.Start, start)
		// A window, and what may be in the pipe to the program already.
		for range 2*agentprotocol.Window/agentprotocol.MaxBody + 2 {
			body := make([]byte, agentprotocol.MaxBody)
			if agentprotocol.Write(h.conn, agentprotocol.Frame{Kind: agentprotocol.Stdin, ID: id, Body: body}) != nil {
				break // it has ended
			}
		}
		h.waitForEnd()
	})
	t.Run("no Setup first", func(t *testing.T) {
		h := startAgent(t)
		h.send(agentprotocol.Ping, nil)
		h.waitForEnd()
	})
}

// waitForEnd waits for the agent to end the channel by itself. Frames before that are ignored.
func (h *host) waitForEnd() {
	h.t.Helper()
	late := time.After(frameWait)
	for {
		select {
		case f, ok := <-h.frames:
			if !ok {
				if err := h.cmd.Wait(); h.cmd.ProcessState.ExitCode() != 1 {
					h.t.Errorf("the agent ended with %v, want code 1", err)
				}
				return
			}
			if f.Kind == agentprotocol.Pong {
				h.t.Fatalf("the agent answers: %+v", f)
			}
		case <-late:
			h.t.Fatalf("the agent did not end in %v", frameWait)
		}
	}
}

// After Quiesce nothing comes before Resume, whatever the programs do. After Renew their output is discarded.
func TestAnAgentIsQuietForASnapshot(t *testing.T) {
	h := setUp(t)
	id := h.shell("while read line; do echo $line; done")
	h.collect(id, func(a answer) bool { return a.started })
	h.more(id, agentprotocol.Stdin, []byte("before\n"))
	h.collect(id, func(a answer) bool { return a.stdout == "before\n" })
	quiesce := h.send(agentprotocol.Quiesce, nil)
	if f := h.next(); f.Kind != agentprotocol.Ready || f.ID != quiesce {
		t.Fatalf("the answer to Quiesce is %+v", f)
	}
	h.more(quiesce, agentprotocol.Resume, agentprotocol.Instant{Time: time.Now()}.Body())
	h.more(id, agentprotocol.Stdin, []byte("after\n"))
	h.collect(id, func(a answer) bool { return a.stdout == "after\n" })

	renewal := agentprotocol.Renewal{Epoch: "the next", Clock: time.Now(), Entropy: "some"}
	renew := h.send(agentprotocol.Renew, renewal.Body())
	if f := h.next(); f.Kind != agentprotocol.Ready || f.ID != renew || string(f.Body) != renewal.Epoch {
		t.Fatalf("the answer to Renew is %+v", f)
	}
	if a := h.run("echo fresh"); a.stdout != "fresh\n" { // collect fails at a frame of the old request
		t.Errorf("%+v", a)
	}
}
