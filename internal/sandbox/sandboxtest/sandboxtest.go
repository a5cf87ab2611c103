// Package sandboxtest is the test suite that every driver of sandboxes passes: how calls behave, what code in a
// sandbox must not reach, and which limits hold.
package sandboxtest

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"gatehouse/internal/sandbox"
)

const (
	patience  = time.Minute // for what should take a moment, on a machine that is busy
	probePath = "./probe"   // of the folder where programs begin
)

// Run runs the suite and returns the verdict of each group, for Record. Each test makes sandboxes of its own.
func Run(t *testing.T, d sandbox.Driver) (verdicts []Verdict) {
	s := newSuite(t, d)
	for _, group := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"calls", s.calls},
		{"ends", s.ends},
		{"output", s.output},
		{"floods", s.floods},
		{"terminals", s.terminals},
		{"files", s.files},
		{"identity", s.identity},
		{"isolation", s.isolation},
		{"network", s.network},
		{"way out", s.wayOut},
		{"resources", s.resources},
		{"pressure", s.pressure},
		{"exhaustion", s.exhaustion},
		{"traps", s.traps},
		{"lifecycle", s.lifecycle},
		{"odd ends", s.oddEnds},
		{"pause", s.pause},
		{"usage", s.usage},
		{"snapshots", s.snapshots},
		{"images", s.images},
		{"strict", s.strict},
		{"archives", s.archives},
		{"ports", s.ports},
	} {
		if !known(group.name) {
			t.Errorf("the matrix does not tell what %q is about", group.name)
		}
		seen := Verdict{Group: group.name, Tells: "not run"}
		held := t.Run(group.name, func(t *testing.T) {
			s.lacks.Store(false)
			s.other.Store(nil)
			defer func() {
				switch {
				case !t.Skipped():
					seen.Tells = "held"
				case s.lacks.Load():
					seen.Tells = "not offered"
				case s.noWall():
					seen.Tells = "not held back"
				}
			}()
			if s.noWall() && slices.Contains(walls, group.name) {
				t.Skipf("the tier %s holds nothing of this back", s.driver.Capabilities().Tier)
			}
			group.run(t)
		})
		how := s.other.Load()
		switch { // what ran in parallel has ended only now
		case !held:
			seen.Tells = "FAILED"
		case seen.Tells == "held" && how != nil:
			seen.Tells = "held; " + *how
		}
		t.Log(seen)
		verdicts = append(verdicts, seen)
	}
	return verdicts
}

// Pressure runs the groups about limits, for a driver that enforces them in another way than on most machines.
func Pressure(t *testing.T, d sandbox.Driver) {
	s := newSuite(t, d)
	t.Run("resources", s.resources)
	t.Run("pressure", s.pressure)
	t.Run("exhaustion", s.exhaustion)
}

// Escapes runs the groups about what code must not reach, for sandboxes that have more than a driver gives them.
func Escapes(t *testing.T, d sandbox.Driver) {
	s := newSuite(t, d)
	t.Run("identity", s.identity)
	t.Run("isolation", s.isolation)
	t.Run("network", s.network)
	t.Run("way out", s.wayOut)
	t.Run("traps", s.traps)
}

func newSuite(t *testing.T, d sandbox.Driver) suite {
	t.Helper()
	return suite{driver: d, probe: buildProbe(t), lacks: &atomic.Bool{}, other: &atomic.Pointer[string]{}}
}

// walls are the groups that a driver without isolation does not pass.
var walls = []string{"identity", "isolation", "network", "way out", "resources", "pressure", "exhaustion", "traps"}

func (s suite) noWall() bool { return s.driver.Capabilities().Tier <= sandbox.NoIsolation }

// deadline returns a context that ends with the test, after patience at the latest.
func deadline(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// home returns the folder where programs begin.
func home(t *testing.T, b sandbox.Sandbox) string {
	t.Helper()
	return strings.TrimSpace(shell(t, b, "pwd -P").stdout)
}

type suite struct {
	driver sandbox.Driver
	probe  []byte
	lacks  *atomic.Bool            // the group is about what the driver does not offer
	other  *atomic.Pointer[string] // the group holds in another way than elsewhere, and how

	strictly bool // every sandbox of the group has the strict profile
}

// notOffered skips the test because the sandboxes of the driver lack a feature.
func (s suite) notOffered(t *testing.T, what string) {
	t.Helper()
	s.lacks.Store(true)
	t.Skipf("sandboxes of this driver do not offer %s", what)
}

// buildProbe returns the program that tries from inside what must not work. Where there is no Go, ProbeVariable
// names one that is built.
func buildProbe(t *testing.T) []byte {
	t.Helper()
	if built := os.Getenv(ProbeVariable); built != "" {
		program, err := os.ReadFile(built)
		if err != nil {
			t.Fatal(err)
		}
		return program
	}
	out := filepath.Join(t.TempDir(), "probe")
	BuildProbe(t, out)
	program, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	return program
}

// ProbeVariable names the environment variable that may hold the path of a built probe.
const ProbeVariable = "SANDBOXTEST_PROBE"

// BuildProbe builds the probe at out.
func BuildProbe(t *testing.T, out string) {
	t.Helper()
	if _, err := exec.LookPath("go"); err != nil {
		t.Skipf("the probe cannot be built: %v", err)
	}
	cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-o", out,
		"gatehouse/internal/sandbox/sandboxtest/probe")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+runtime.GOARCH, "GOFLAGS=-buildvcs=false")
	if b, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build the probe: %v\n%s", err, b)
	}
}

// box makes a sandbox that is closed when the test ends.
func (s suite) box(t *testing.T, spec sandbox.Spec) sandbox.Sandbox {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	spec.Strict = spec.Strict || s.strictly
	b, err := s.driver.Create(ctx, spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return b
}

// probed makes a sandbox with the probe in it.
func (s suite) probed(t *testing.T, spec sandbox.Spec) sandbox.Sandbox {
	t.Helper()
	b := s.box(t, spec)
	f, ok := b.(sandbox.Files)
	if !ok {
		t.Skip("the driver offers no files, by which the probe gets in")
	}
	if _, err := f.WriteFile(t.Context(), probePath, bytes.NewReader(s.probe),
		sandbox.WriteOptions{Mode: 0o755}); err != nil {
		t.Fatal(err)
	}
	return b
}

// ran is the outcome of a call.
type ran struct {
	sandbox.Result
	err            error
	stdout, stderr string
}

// run runs a program and waits for it.
func run(t *testing.T, b sandbox.Sandbox, c sandbox.Command) ran {
	t.Helper()
	var stdout, stderr bytes.Buffer
	if c.Stdout == nil {
		c.Stdout = &stdout
	}
	if c.Stderr == nil {
		c.Stderr = &stderr
	}
	if c.Timeout == 0 {
		c.Timeout = patience
	}
	p, err := b.Exec(t.Context(), c)
	if err != nil {
		t.Fatalf("%q: %v", c.Argv, err)
	}
	r, err := p.Wait()
	return ran{r, err, stdout.String(), stderr.String()}
}

func shell(t *testing.T, b sandbox.Sandbox, script string) ran {
	t.Helper()
	return run(t, b, sandbox.Command{Argv: []string{"sh", "-c", script}})
}

// alive fails the test if the sandbox no longer runs programs.
func alive(t *testing.T, b sandbox.Sandbox) {
	t.Helper()
	if r := shell(t, b, "echo alive"); r.Outcome != sandbox.OK || r.stdout != "alive\n" {
		t.Errorf("afterwards the sandbox answered %+v, %v: %q %q", r.Result, r.err, r.stdout, r.stderr)
	}
}

// answers runs the probe and returns its results by name.
func answers(t *testing.T, b sandbox.Sandbox, argv ...string) map[string]string {
	t.Helper()
	r := run(t, b, sandbox.Command{Argv: append([]string{probePath}, argv...)})
	if r.Outcome != sandbox.OK {
		t.Fatalf("probe %q: %+v, %v: %s%s", argv, r.Result, r.err, r.stdout, r.stderr)
	}
	all := map[string]string{}
	for line := range strings.Lines(r.stdout) {
		if name, got, ok := strings.Cut(strings.TrimSpace(line), ": "); ok {
			all[name] = got
		}
	}
	return all
}
