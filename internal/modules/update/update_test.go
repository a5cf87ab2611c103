package update

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/crypto/blake2b"

	"gatehouse/internal/dispatch/progress"
	"gatehouse/internal/maintenance/update"
	"gatehouse/module"
	"gatehouse/module/moduletest"
	"gatehouse/tool"
)

// ruler calls the tools of one module.
type ruler struct {
	t      *testing.T
	module module.Module
	jobs   []tool.Handler
	shown  []progress.Progress
	told   []string // notifications
}

func rule(t *testing.T, cfg Config) *ruler {
	t.Helper()
	r := &ruler{t: t}
	cfg.Rules = func(who tool.Caller) bool { return who.Principal == "ann" }
	cfg.Show = func(tool.Caller, string, string) (func(progress.Progress), func(error)) {
		return func(p progress.Progress) { r.shown = append(r.shown, p) }, func(error) {}
	}
	m, err := New(cfg)(t.Context(), module.Deps{
		Publish: func(subject string, fact any) {
			if b, _ := json.Marshal(fact); subject == "notification" {
				r.told = append(r.told, string(b))
			}
		},
		Job: func(_ *tool.Call, _ string, run tool.Handler) (string, error) {
			r.jobs = append(r.jobs, run)
			return "job_1", nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	r.module = m
	return r
}

// ask calls a tool for a person who agrees; what is refused comes as text.
func (r *ruler) ask(who, name string, into any, args ...any) string {
	r.t.Helper()
	c := moduletest.NewCall(r.t, args...)
	c.Caller.Principal = who
	c.Peer.Answers["confirm"] = moduletest.Accept(map[string]bool{"confirm": true})
	return c.Ask(r.t, r.module, name, into)
}

// updater makes one whose source has a release, in which a program is the text
// of its version.
func updater(t *testing.T, version, program string) *update.Updater {
	t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	e, id := base64.StdEncoding.EncodeToString, []byte("12345678")
	key, err := update.ParseKey(e(slices.Concat([]byte("Ed"), id, public)))
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := json.Marshal(update.Release{Version: version, Notes: "better", Files: []update.File{
		{
			OS:     runtime.GOOS,
			Arch:   runtime.GOARCH,
			Name:   "program",
			Size:   int64(len(program)),
			SHA256: fmt.Sprintf("%x", sha256.Sum256([]byte(program))),
		},
	}})
	if err != nil {
		t.Fatal(err)
	}
	sum := blake2b.Sum512(manifest)
	signature := ed25519.Sign(private, sum[:])
	whole := ed25519.Sign(private, append(slices.Clone(signature), 'x'))
	source, home := t.TempDir(), filepath.Join(t.TempDir(), "gatehouse")
	for path, text := range map[string]string{
		filepath.Join(source, "manifest.json"): string(manifest),
		filepath.Join(source, "manifest.json.minisig"): "untrusted comment: x\n" +
			e(slices.Concat([]byte("ED"), id, signature)) + "\ntrusted comment: x\n" + e(whole) + "\n",
		filepath.Join(source, "program"): program,
		home:                             "1.0.0",
	} {
		if err := os.WriteFile(path, []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return update.New(update.Options{Source: source, Key: key, Current: "1.0.0", Program: home, Try: whatItSays})
}

// whatItSays reads a program that is the text of its version.
func whatItSays(_ context.Context, path string) (string, error) {
	b, err := os.ReadFile(path)
	return string(b), err
}

// kept makes a program beside which the one before is kept.
func kept(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "gatehouse")
	err := errors.Join(
		os.WriteFile(program, []byte("1.0.0"), 0o700), os.WriteFile(program+".previous", []byte("0.9.0"), 0o700),
	)
	if err != nil {
		t.Fatal(err)
	}
	return program
}

func TestAHostIsUpdatedByTools(t *testing.T) {
	r := rule(t, Config{Updater: updater(t, "1.1.0", "1.1.0"), Current: "1.0.0"})
	var seen checkOut
	if refused := r.ask("ann", "server_update_check", &seen); refused != "" || !seen.Newer ||
		seen.Newest != "1.1.0" || seen.Notes != "better" || seen.Previous != "" {
		t.Fatal(seen, refused)
	}
	if refused := r.ask("ann", "server_update_rollback", nil); !strings.HasPrefix(
		refused, "not_found: no earlier program",
	) {
		t.Errorf("got %q", refused)
	}
	var begun jobOut
	if refused := r.ask("ann", "server_update", &begun); refused != "" || begun.Job != "job_1" ||
		begun.Target != "1.1.0" {
		t.Fatal(begun, refused)
	}
	var done updateResult
	c := moduletest.NewCall(t)
	res, err := c.Run(t.Context(), r.jobs[0])
	if refused := moduletest.Answer(t, res, err, &done); refused != "" || done.Version != "1.1.0" ||
		done.Was != "1.0.0" {
		t.Fatal(done, refused)
	}
	if n := len(r.shown); n < 4 || r.shown[n-1].Overall.State != progress.Done || len(c.Peer.Progressed) < 3 {
		t.Errorf("shown %+v, told %+v", r.shown, c.Peer.Progressed)
	}
	if refused := r.ask("ann", "server_update", nil); refused != "" {
		t.Error(refused) // the job will say that it is there already
	}
	res, err = moduletest.NewCall(t).Run(t.Context(), r.jobs[1])
	if refused := moduletest.Answer(t, res, err, nil); !strings.HasPrefix(refused, "exists: ") {
		t.Errorf("twice: %q", refused)
	}
	if len(r.told) != 2 || !strings.Contains(r.told[0], `"code":"update.applied","level":"success"`) ||
		!strings.Contains(r.told[1], "update.failed") {
		t.Errorf("told %q", r.told)
	}
	var back rollbackOut
	if refused := r.ask("ann", "server_update_rollback", &back); refused != "" || back.Version != "1.0.0" {
		t.Error(back, refused)
	}
}

func TestWhatIsRefused(t *testing.T) {
	alone, old := rule(t, Config{}), rule(t, Config{Updater: updater(t, "1.0.0", "1.0.0"), Current: "1.0.0"})
	for _, name := range []string{"server_update_check", "server_update", "server_update_rollback"} {
		if refused := old.ask("eve", name, nil); !strings.HasPrefix(refused, "denied: ") {
			t.Errorf("%s for eve: %q", name, refused)
		}
		if refused := alone.ask("ann", name, nil); !strings.HasPrefix(refused, "unsupported: ") {
			t.Errorf("%s without a source: %q", name, refused)
		}
	}
	bare := rule(t, Config{Updater: update.New(update.Options{Program: kept(t), Try: whatItSays}), Current: "1.0.0"})
	if refused := bare.ask("ann", "server_update_check", nil); !strings.HasPrefix(
		refused, "unsupported: the settings name no source",
	) {
		t.Errorf("a check without a source: %q", refused)
	}
	var back rollbackOut
	if refused := bare.ask("ann", "server_update_rollback", &back); refused != "" || back.Version != "0.9.0" {
		t.Errorf("a rollback needs no source: %+v, %s", back, refused)
	}
	if refused := old.ask("ann", "server_update", nil); !strings.HasPrefix(refused, "not_found: there is no newer") ||
		len(old.jobs) > 0 {
		t.Errorf("got %q", refused)
	}
	if got := refusalOf(fmt.Errorf("x: %w", update.ErrSignature)); !strings.HasPrefix(got.Error(), "denied") {
		t.Errorf("got %v", got)
	}
}

// processors makes a folder such as Linux has, one file for each.
func processors(t *testing.T, now ...string) string {
	t.Helper()
	dir := t.TempDir()
	for i, governor := range now {
		at := filepath.Join(dir, fmt.Sprintf("cpu%d", i), "cpufreq")
		if err := errors.Join(os.MkdirAll(at, 0o700),
			os.WriteFile(filepath.Join(at, "scaling_governor"), []byte(governor+"\n"), 0o600),
			os.WriteFile(filepath.Join(at, "scaling_available_governors"),
				[]byte("performance powersave \n"), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestTheGovernorIsToldAndSet(t *testing.T) {
	dir := processors(t, "powersave", "powersave", "performance")
	r := rule(t, Config{Processors: dir})
	var out governorOut
	if refused := r.ask("eve", "server_governor", &out); refused != "" || out.Current != "powersave" || !out.Differ ||
		!slices.Equal(out.Available, []string{"performance", "powersave"}) {
		t.Errorf("got %+v, %s", out, refused)
	}
	if refused := r.ask("eve", "server_governor", nil, "set", "performance"); !strings.HasPrefix(refused, "denied: ") {
		t.Errorf("eve sets it: %q", refused)
	}
	if refused := r.ask("ann", "server_governor", nil, "set", "warp"); !strings.Contains(
		refused, "Give one of performance, powersave.",
	) {
		t.Errorf("got %q", refused)
	}
	out = governorOut{}
	if refused := r.ask("ann", "server_governor", &out, "set", "performance"); refused != "" ||
		out.Current != "performance" || out.Differ {
		t.Errorf("got %+v, %s", out, refused)
	}
	if refused := rule(t, Config{Processors: t.TempDir()}).ask("ann", "server_governor", nil); !strings.HasPrefix(
		refused, "unsupported: this machine has no governor",
	) {
		t.Errorf("got %q", refused)
	}
}

// Where one processor cannot be set, all are what they were.
func TestTheGovernorIsSetForAllOrNone(t *testing.T) {
	dir := processors(t, "powersave", "powersave")
	broken := filepath.Join(dir, "cpu1", "cpufreq", "scaling_governor")
	if err := errors.Join(os.Remove(broken), os.Mkdir(broken, 0o700)); err != nil {
		t.Fatal(err)
	}
	r := rule(t, Config{Processors: dir})
	if refused := r.ask("ann", "server_governor", nil, "set", "performance"); refused == "" {
		t.Error("it was set")
	}
	if got := readWord(filepath.Join(dir, "cpu0", "cpufreq", "scaling_governor")); got != "powersave" {
		t.Errorf("the first is %s", got)
	}
}

func TestTheModuleKeepsTheContract(t *testing.T) {
	moduletest.Run(t, New(Config{}), moduletest.Options{})
}
