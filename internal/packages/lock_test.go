package packages

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"gatehouse/internal/access/secret"
	"gatehouse/internal/packages/pins"
)

// A lock file installs the same elsewhere, approves exactly what it says, and refuses another program.
func TestALockFileInstallsTheSameElsewhere(t *testing.T) {
	needsShell(t)
	h, dir := openHome(t, Options{}), t.TempDir()
	write(t, dir, versioned(t, "1.0.0", "First.", true))
	r := from("up", "folder:"+dir)
	r.Env["API_TOKEN"] = "sk-1234567890abcdefghijklmnop"
	i := h.install(r)
	l, warnings, err := h.Lock(nil)
	if err != nil {
		t.Fatal(err)
	}
	text, err := l.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if len(warnings) != 1 || bytes.Contains(text, []byte("sk-1234")) ||
		!bytes.Contains(text, []byte(`"API_TOKEN": "${secret:UP_API_TOKEN}"`)) {
		t.Errorf("warnings %v, lock file\n%s", warnings, text)
	}
	if l, err = pins.Decode(text); err != nil {
		t.Fatal(err)
	}
	if again, _, err := h.Lock([]string{"up"}); err != nil {
		t.Error(err)
	} else if b, _ := again.Encode(); !bytes.Equal(b, text) {
		t.Errorf("the same packages have another lock file:\n%s\n%s", b, text)
	}
	if steps, err := h.SyncSteps(l); err != nil || len(steps) > 0 {
		t.Errorf("the host differs from its lock file: %+v, %v", steps, err)
	}

	vault := secret.In(t.TempDir(), "")
	if err := vault.Set("UP_API_TOKEN", secret.New("of the other host")); err != nil {
		t.Fatal(err)
	}
	other := openHome(t, Options{Secrets: vault.Fill})
	delete(l.Packages[0].Tools, "grown") // the lock file was reviewed
	if _, err := other.Sync(t.Context(), l, Part{}, nil); err != nil {
		t.Fatal(err)
	}
	o, err := other.Info("up")
	if err != nil || o.Pins.Digest != i.Pins.Digest || o.By != byLockFile {
		t.Errorf("got %+v, %v", o, err)
	}
	if got := other.changes("up"); !slices.Equal(got, []string{"up_grown new"}) {
		t.Errorf("what the lock file does not approve: %v", got)
	}
	if got, err := other.call("up", "echo", `{"text":"a"}`); err != nil || !strings.Contains(got, `"a"`) {
		t.Errorf("got %s, %v", got, err)
	}
	// What was approved there beyond the lock file is taken back by it.
	if _, err := other.Decide("up", nil, true, "", "me"); err != nil {
		t.Fatal(err)
	}
	if steps, err := other.Sync(t.Context(), l, Part{}, nil); err != nil || len(steps) != 1 || steps[0].Action != ToSet {
		t.Errorf("got %+v, %v", steps, err)
	}
	if got := other.changes("up"); !slices.Equal(got, []string{"up_grown new"}) {
		t.Errorf("after a further sync: %v", got)
	}

	write(t, dir, versioned(t, "1.0.0", "Evil.", true))
	third := openHome(t, Options{Secrets: vault.Fill})
	if _, err := third.Sync(t.Context(), l, Part{}, nil); err == nil ||
		!strings.Contains(err.Error(), "the lock file says sha256:") {
		t.Errorf("a program with another digest: %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(third.dir, "up*")); len(third.names()) > 0 || len(left) > 0 {
		t.Errorf("left: %v, %v", third.names(), left)
	}
}

func TestLockFilesThatAreNotTakenAsOne(t *testing.T) {
	for text, want := range map[string]string{
		`{}`:                   "gatehouse_lock 0",
		`{"gatehouse_lock":2}`: "gatehouse_lock 2",
		`{"gatehouse_lock":1,"packages":[{"name":"a"},{"name":"a"}]}`:      "twice",
		`{"gatehouse_lock":1,"packages":[{"name":"a","postinstall":"x"}]}`: "postinstall",
		`{"gatehouse_lock":1`: "decode",
	} {
		if _, err := pins.Decode([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	for _, lock := range []string{
		`{"packages":{"node_modules/a":{"version":"1.0.0","resolved":"https://evil.example/a.tgz"}}}`,
		`{"packages":{"node_modules/a":{"version":"1.0.0","link":true}}}`,
	} {
		if err := writeNPMLock(t.TempDir(), []byte(lock)); err == nil ||
			!strings.Contains(err.Error(), "address of its own") {
			t.Errorf("%s: %v", lock, err)
		}
	}
}

// npm installs by a lock file of ours the versions that it has, of the dependencies as well.
func TestALockFileOfNPM(t *testing.T) {
	if testing.Short() {
		t.Skip("asks npm's registry")
	}
	if _, err := exec.LookPath("npm"); err != nil {
		t.Skip("needs npm")
	}
	dir := t.TempDir()
	npm := exec.Command("npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "semver@7.3.5")
	npm.Dir = dir
	write(t, dir, map[string]string{"package.json": `{"private":true}`})
	if out, err := npm.CombinedOutput(); err != nil {
		t.Skipf("no registry: %v, %s", err, out)
	}
	lock, err := readNPMLock(dir)
	if err != nil || bytes.Contains(lock, []byte("http")) {
		t.Fatalf("got %s, %v", lock, err)
	}
	to := t.TempDir()
	if err := writeNPMLock(to, lock); err != nil {
		t.Fatal(err)
	}
	npm = exec.Command("npm", "ci", "--omit=dev", "--ignore-scripts", "--no-audit", "--no-fund")
	npm.Dir = to
	if out, err := npm.CombinedOutput(); err != nil {
		t.Fatalf("%v, %s", err, out)
	}
	for _, name := range []string{"semver", "lru-cache", "yallist"} {
		a, err := os.ReadFile(filepath.Join(dir, "node_modules", name, "package.json"))
		b, err2 := os.ReadFile(filepath.Join(to, "node_modules", name, "package.json"))
		if err != nil || err2 != nil || !bytes.Equal(a, b) {
			t.Errorf("%s differs: %v, %v", name, err, err2)
		}
	}
}

func TestWhyAndStatsAndShell(t *testing.T) {
	needsShell(t)
	vault := secret.In(t.TempDir(), "")
	if err := vault.Set("KEY", secret.New("a-very-secret-key")); err != nil {
		t.Fatal(err)
	}
	h := openHome(t, Options{Secrets: vault.Fill})
	r := server(t, "up", "good")
	r.Env["SECRET"], r.By = "${secret:KEY}", "me"
	h.install(r)
	if _, err := h.call("up", "grow", `{}`); err != nil {
		t.Fatal(err)
	}
	h.eventually("it waits", func() bool { return len(h.changes("up")) == 1 })
	if _, err := h.ChooseTools("up", []string{"fail"}, nil); err != nil {
		t.Fatal(err)
	}
	for item, want := range map[string]string{"up_echo": "offered", "grown": "new", "up_fail": "off"} {
		w, err := h.Why("up", item)
		if err != nil || len(w.Tools) != 1 || w.Tools[0].State != want || w.By != "me" || len(w.May) == 0 {
			t.Errorf("%s: %+v, %v", item, w, err)
		}
	}
	if w, _ := h.Why("up", "echo"); w.Tools[0].By != "me" || w.Tools[0].At.IsZero() {
		t.Errorf("approved: %+v", w.Tools)
	}
	if _, err := h.Why("up", "nothing"); code(err) != "not_found" {
		t.Errorf("got %v", err)
	}

	if _, err := h.call("up", "fail", `{}`); err == nil {
		t.Error("fail does not fail")
	}
	s, err := h.Stats(t.Context(), "up")
	if err != nil || len(s) != 1 || s[0].Instances != 1 || s[0].Health.Calls != 2 || s[0].Health.Errors["rpc"] != 1 {
		t.Errorf("got %+v, %v", s, err)
	}
	if runtime.GOOS == "linux" && (s[0].Memory < 1<<20 || s[0].Processes != 1) {
		t.Errorf("got %+v", s[0])
	}

	var out, errs bytes.Buffer
	end, err := h.Shell(t.Context(), "up", `pwd; echo "$SECRET"; echo oops >&2; exit 3`, time.Minute, &out, &errs)
	if err != nil || end.Exit != 3 || !strings.HasSuffix(strings.SplitN(out.String(), "\n", 2)[0], "/up/data") ||
		!strings.Contains(out.String(), secret.Mask) || strings.Contains(out.String(), "a-very") ||
		errs.String() != "oops\n" {
		t.Errorf("got %q, %q, %+v, %v", out.String(), errs.String(), end, err)
	}
	if end, err := h.Shell(t.Context(), "up", "sleep 600 & sleep 600", time.Second, &out, &errs); err != nil ||
		!end.TimedOut {
		t.Errorf("got %+v, %v", end, err)
	}
}
