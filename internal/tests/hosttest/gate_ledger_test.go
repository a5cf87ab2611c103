package hosttest_test

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
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gatehouse/internal/access/audit"
	"gatehouse/internal/app"
	"gatehouse/internal/config"
	"gatehouse/module"
	"gatehouse/tool"
)

// victimHome is the variable with the folder of a host that will be killed.
const victimHome = "GATEHOUSE_TEST_GATE_VICTIM"

// victimSettings are those of the host that will be killed.
func victimSettings(t *testing.T, home string) config.Config {
	t.Helper()
	c, err := config.FromEnv(func(name string) string { return map[string]string{"HOME": home}[name] })
	must(t, err)
	c.Roots.Folders = []string{home}
	c.Listen.Unix = filepath.Join(home, "s")
	return c
}

// mill is a module with one tool for each requirement of the ledger. The destroying tool reports that it has begun,
// when its intent must be on disk.
type mill struct{ began func(n int) }

func (mill) Close(context.Context) error { return nil }

func (m mill) Offer(context.Context, module.Audience) (*module.Offer, error) {
	o := &module.Offer{}
	for name, e := range map[string]tool.Effects{"mill_read": tool.Reads, "mill_write": tool.Writes,
		"mill_destroy": tool.Destroys} {
		o.Tools = append(
			o.Tools,
			tool.New(
				tool.Def{Name: name, Description: "For a test.", Effects: e},
				func(_ context.Context, _ *tool.Call, in struct {
					N int `json:"n"`
				}) (tool.Result, error) {
					if e == tool.Destroys {
						m.began(in.N)
					}
					return tool.Result{Content: []tool.Content{tool.Text("done")}}, nil
				},
			),
		)
	}
	return o, nil
}

// TestVictim is the host that is killed. TestAHostIsKilled runs it.
func TestVictim(t *testing.T) {
	home := os.Getenv(victimHome)
	if home == "" {
		t.Skip("run by TestAHostIsKilled")
	}
	out := os.NewFile(3, "told")
	var mu sync.Mutex
	tell := func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Fprintf(out, format+"\n", args...)
	}
	a, err := app.New(
		t.Context(),
		victimSettings(t, home),
		app.Options{
			Bare: true,
			Extra: []app.Module{{Name: "mill", New: func(context.Context, module.Deps) (module.Module, error) {
				return mill{func(n int) { tell("%d", n) }}, nil
			}}},
		},
	)
	must(t, err)
	tell("ready")
	must(t, a.Run(t.Context()))
}

// promises are the calls that a host must have recorded: those that were answered, by number, and destroying ones
// that had begun.
type promises struct {
	mu       sync.Mutex
	answered map[int]string // the tool
	begun    map[int]bool
	next     atomic.Int64
	count    atomic.Int64
}

// A whole host is killed while many callers use it, and started again with the same data, several times. The ledger
// is one unbroken chain. It contains every write that was answered and every destroying call that had begun.
//
//redteam:attack What destroys is written down before it begins: a host is killed during calls
func TestAHostIsKilled(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("needs a further pipe to a child process")
	}
	if testing.Short() {
		t.Skip("with -short no host is killed")
	}
	rounds, each := 5, 20_000
	if os.Getenv("GATEHOUSE_TEST_ALL") != "" {
		rounds, each = 10, 100_000
	}
	home, err := os.MkdirTemp("", "gate") // short enough for a socket
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(home) })
	p := &promises{answered: map[int]string{}, begun: map[int]bool{}}
	for round := range rounds {
		p.round(t, home, (round+1)*each)
		lines := p.kept(t, home)
		t.Logf(
			"round %d: %d lines, %d answers and %d beginnings promised, all there",
			round+1,
			lines,
			len(p.answered),
			len(p.begun),
		)
		if lines < (round+1)*each {
			t.Errorf("%d lines after %d answers", lines, (round+1)*each)
		}
	}
}

// round runs a host until a total number of calls was answered, and kills it.
func (p *promises) round(t *testing.T, home string, enough int) {
	t.Helper()
	exe, err := os.Executable()
	must(t, err)
	in, out, err := os.Pipe()
	must(t, err)
	defer in.Close()
	cmd := exec.CommandContext(t.Context(), exe, "-test.run=^TestVictim$")
	cmd.Env = append(os.Environ(), victimHome+"="+home)
	cmd.ExtraFiles = []*os.File{out}
	var said strings.Builder
	cmd.Stdout, cmd.Stderr = &said, &said
	must(t, cmd.Start())
	out.Close()
	told := bufio.NewScanner(in)
	if !told.Scan() || told.Text() != "ready" {
		cmd.Process.Kill()
		cmd.Wait()
		t.Fatalf("the host does not start: %s", said.String())
	}
	var all sync.WaitGroup
	all.Go(func() {
		for told.Scan() {
			var n int
			if _, err := fmt.Sscan(told.Text(), &n); err == nil {
				p.mu.Lock()
				p.begun[n] = true
				p.mu.Unlock()
			}
		}
	})
	kill := sync.OnceFunc(func() { cmd.Process.Kill() })
	late := time.AfterFunc(10*time.Minute, kill)
	for range 8 {
		conn, err := net.Dial("unix", filepath.Join(home, "s"))
		must(t, err)
		all.Go(func() { p.converse(t, conn, enough, kill) })
	}
	all.Wait()
	late.Stop()
	cmd.Wait()
	if int(p.count.Load()) < enough {
		t.Fatalf("the host ended by itself after %d answers: %s", p.count.Load(), said.String())
	}
}

// converse makes calls as fast as possible, several at a time, until the host is gone.
func (p *promises) converse(t *testing.T, conn net.Conn, enough int, kill func()) {
	defer conn.Close()
	send := func() {
		n := int(p.next.Add(1))
		name := []string{"mill_write", "mill_destroy", "mill_write", "mill_read"}[n%4]
		io.WriteString(
			conn,
			message(n, legacyEra, "tools/call", fmt.Sprintf(`"name":%q,"arguments":{"n":%d}`, name, n), "")+"\n",
		) // the reader sees the end
	}
	io.WriteString(conn, message(0, legacyEra, "initialize", handshake, "")+"\n")
	lines := bufio.NewReader(conn)
	if _, err := lines.ReadBytes('\n'); err != nil {
		return // killed already
	}
	for range 16 {
		send()
	}
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		var m struct {
			ID     int
			Result *struct{ IsError bool }
		}
		if json.Unmarshal(line, &m) != nil || m.ID == 0 {
			continue // a notification
		}
		if m.Result == nil || m.Result.IsError {
			t.Errorf("a call failed: %s", line)
			kill()
			return
		}
		p.mu.Lock()
		p.answered[m.ID] = []string{"mill_write", "mill_destroy", "mill_write", "mill_read"}[m.ID%4]
		p.mu.Unlock()
		if int(p.count.Add(1)) >= enough {
			kill()
		}
		send()
	}
}

// kept verifies the ledger, searches every call that must be in it, and returns the number of lines.
func (p *promises) kept(t *testing.T, home string) int {
	t.Helper()
	l := audit.Open(filepath.Join(victimSettings(t, home).Folders.Data, audit.FileName), audit.Options{})
	defer l.Close(context.Background())
	report, err := l.Verify(t.Context())
	must(t, err)
	if !report.OK {
		t.Fatalf("the chain is broken: %v", report.Problems)
	}
	began, ended := map[int]bool{}, map[int]bool{}
	for line, err := range l.Query(t.Context(), audit.Filter{Kind: "call"}) {
		must(t, err)
		var args struct{ N int }
		must(t, json.Unmarshal(line.Args, &args))
		switch line.Outcome {
		case audit.Started:
			began[args.N] = true
		case audit.OK:
			ended[args.N] = true
		}
	}
	missing := 0
	for n, name := range p.answered {
		if name != "mill_read" && !ended[n] {
			missing++
		}
	}
	for n := range p.begun {
		if !began[n] {
			missing++
		}
	}
	if missing > 0 {
		t.Errorf("%d of %d calls that were promised are missing", missing, len(p.answered)+len(p.begun))
	}
	return int(report.Lines)
}
