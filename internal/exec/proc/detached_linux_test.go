package proc

import (
	"bufio"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// detachable skips the test on systems that cannot detach processes.
func detachable(t *testing.T) {
	t.Helper()
	d, err := Detach(Spec{Path: "true"})
	if errors.Is(err, ErrNotDetached) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	<-d.Done()
}

func detach(t *testing.T, spec Spec) *Detached {
	t.Helper()
	d, err := Detach(spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Stop(t.Context()) })
	return d
}

// patiently waits for a condition that must become true.
func patiently(t *testing.T, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal(what)
		}
	}
}

func running(pid int) bool {
	_, zombie, there := parentOf(pid)
	return there && !zombie
}

func TestADetachedProcessTellsItsEnd(t *testing.T) {
	detachable(t)
	for script, want := range map[string]State{
		"exit 0": {}, "exit 7": {Code: 7}, "kill -9 $$": {Code: -1, Signal: "killed"},
	} {
		s, err := detach(t, Spec{Path: "sh", Args: []string{"-c", script}}).Wait()
		if err != nil || s.Code != want.Code || s.Signal != want.Signal || s.Unseen || s.Stopped != nil {
			t.Errorf("%s: %+v, %v", script, s, err)
		}
	}
	if _, err := Detach(Spec{Path: "/no/such/program"}); err == nil {
		t.Error("what is not there was started")
	}
}

// A process that was left is found again, continues to write, and ends with all its descendants.
func TestADetachedProcessIsFoundAgain(t *testing.T) {
	detachable(t)
	dir := t.TempDir()
	out, err := os.Create(filepath.Join(dir, "out"))
	if err != nil {
		t.Fatal(err)
	}
	d := detach(
		t,
		Spec{
			Path: "sh",
			Args: []string{
				"-c",
				"setsid sleep 1000 & echo $!; echo begun; until [ -e go ]; do sleep 0.01; done; echo went on; sleep 1000",
			},
			Dir:       dir,
			Stdout:    out,
			Stderr:    out,
			Processes: 50,
		},
	)
	out.Close()
	says := func(text string) func() bool {
		return func() bool {
			b, _ := os.ReadFile(out.Name())
			return strings.Contains(string(b), text)
		}
	}
	patiently(t, "it does not begin", says("begun\n"))
	d.Leave()
	b, err := json.Marshal(d.Mark())
	if err != nil {
		t.Fatal(err)
	}
	var m Mark
	if err := json.Unmarshal(b, &m); err != nil {
		t.Fatal(err)
	}
	found, err := FindDetached(m, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	patiently(t, "it does not go on", says("went on\n"))
	if u, err := found.Usage(); err != nil || u.Processes < 2 {
		t.Errorf("%+v, %v", u, err)
	}
	if err := found.Stop(t.Context()); err != nil {
		t.Error(err)
	}
	if s, _ := found.Wait(); !errors.Is(s.Stopped, ErrStopped) {
		t.Errorf("%+v", s)
	}
	if _, err := FindDetached(m, 0); !errors.Is(err, ErrGone) {
		t.Errorf("it was found after its end: %v", err)
	}
	text, _ := os.ReadFile(out.Name())
	pid := 0
	json.Unmarshal([]byte(strings.Fields(string(text))[0]), &pid)
	patiently(t, "what it started in a session of its own is left", func() bool { return !running(pid) })
}

// A process outlives its killed host, and the next host can end it.
func TestADetachedProcessOutlivesAKilledHost(t *testing.T) {
	if os.Getenv("GATEHOUSE_TEST_DETACH") != "" {
		d, err := Detach(Spec{Path: "sleep", Args: []string{"1000"}})
		if err != nil {
			t.Fatal(err)
		}
		json.NewEncoder(os.Stdout).Encode(d.Mark())
		select {}
	}
	detachable(t)
	host := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
	host.Env = append(os.Environ(), "GATEHOUSE_TEST_DETACH=1")
	said, err := host.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := host.Start(); err != nil {
		t.Fatal(err)
	}
	var m Mark
	line, _ := bufio.NewReader(said).ReadBytes('\n')
	if err := json.Unmarshal(line, &m); err != nil {
		t.Fatalf("the host says %s", line)
	}
	host.Process.Signal(syscall.SIGKILL)
	host.Wait()

	d, err := FindDetached(m, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Stop(t.Context()); err != nil {
		t.Error(err)
	}
	if s, _ := d.Wait(); !s.Unseen || !errors.Is(s.Stopped, ErrStopped) {
		t.Errorf("%+v", s)
	}
	patiently(t, "it is still there", func() bool { return !running(m.Pid) })
}

// A mark of another process, of another boot of the system or of another host's groups finds nothing,
// and ends nothing.
func TestAMarkFindsItsOwnProcessOnly(t *testing.T) {
	detachable(t)
	d := detach(t, Spec{Path: "sleep", Args: []string{"1000"}})
	for what, change := range map[string]func(*Mark){
		"another beginning": func(m *Mark) { m.Born = "1-2-3" },
		"none":              func(m *Mark) { m.Born = "" },
		"another boot":      func(m *Mark) { m.Boot = "other" },
		"other groups":      func(m *Mark) { m.V1 = "/sys/fs/cgroup/pids" },
	} {
		m := d.Mark()
		change(&m)
		if what != "other groups" {
			m.V1, m.V2, m.Label = "", "", ""
		}
		if _, err := FindDetached(m, 0); err == nil {
			t.Errorf("%s: it was found", what)
		}
	}
	if !running(d.Pid()) {
		t.Error("it was ended")
	}
}
