package clientconfig

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"gatehouse/internal/exec/killtest"
)

const killVariable = "GATEHOUSE_TEST_CHANGE"

func TestMain(m *testing.M) {
	if home := os.Getenv(killVariable); home != "" {
		changeOnce(home)
		return
	}
	os.Exit(m.Run())
}

// changeOnce makes the test's own program one that connects a client, or
// disconnects it if it is connected.
func changeOnce(home string) {
	m := Machine{
		GOOS: runtime.GOOS, Home: home,
		Getenv: func(string) string { return "" },
		Look:   func(string) bool { return false },
	}
	b := Book{filepath.Join(home, "book")}
	c := FindClient("cursor")
	ch, err := m.PlanPut(c, User, byStdio)
	if err == nil && !ch.Changes() {
		ch, err = m.PlanRemove(b, c, User, byStdio.Name)
	}
	if err == nil {
		_, err = b.Apply(ch)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// However many calls of the kernel a command has made when it is killed, the file
// of the client holds the old text or the new one, and the command makes the
// change when it is run again.
//
//redteam:attack Files of clients lose nothing: a command is killed between any two system calls
func TestAKillBetweenAnyTwoSystemCalls(t *testing.T) {
	const old = "{\n  // mine\n  \"mcpServers\": {}\n}\n"
	now, err := FindClient("cursor").Put([]byte(old), byStdio)
	if err != nil {
		t.Fatal(err)
	}
	for name, texts := range map[string][2]string{"connect": {old, string(now)}, "disconnect": {string(now), old}} {
		t.Run(name, func(t *testing.T) {
			home := t.TempDir()
			path := filepath.Join(home, ".cursor", "mcp.json")
			for at, done := 1, false; !done; at++ {
				writeFile(t, path, old)
				os.RemoveAll(filepath.Join(home, "book"))
				if name == "disconnect" {
					run(t, home)
				}
				var err error
				if done, err = killtest.Before(changer(home), at); errors.Is(err, killtest.ErrUnsupported) {
					t.Skip(err)
				} else if err != nil {
					t.Fatal(err)
				}
				if done && at < 20 {
					t.Fatalf("it made only %d calls", at)
				}
				got := readFile(t, path)
				if got != texts[0] && got != texts[1] {
					t.Fatalf("killed before call %d, the file holds %q", at, got)
				}
				if got == texts[0] {
					run(t, home)
				}
				if got := readFile(t, path); got != texts[1] {
					t.Fatalf("killed before call %d and run again, the file holds %q", at, got)
				}
				if left, _ := filepath.Glob(path + ".*"); len(left) > 0 && got == texts[0] {
					t.Errorf("killed before call %d and run again, %v is left", at, left)
				}
			}
		})
	}
}

func changer(home string) *exec.Cmd {
	program, err := os.Executable()
	if err != nil {
		panic(err) // it is running
	}
	cmd := exec.Command(program)
	cmd.Env = []string{killVariable + "=" + home, "GOMAXPROCS=1", "TMPDIR=" + home}
	return cmd
}

func run(t *testing.T, home string) {
	t.Helper()
	if out, err := changer(home).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// Two commands at once both succeed or say that the file changed; the file is
// whole.
func TestTwoCommandsAtOnce(t *testing.T) {
	home := t.TempDir()
	path := filepath.Join(home, ".cursor", "mcp.json")
	writeFile(t, path, "{}\n")
	ended := make(chan string, 4)
	for range cap(ended) {
		go func() {
			out, err := changer(home).CombinedOutput()
			if err != nil && !strings.Contains(string(out), ErrModified.Error()) {
				ended <- fmt.Sprintf("%v: %s", err, out)
				return
			}
			ended <- ""
		}()
	}
	for range cap(ended) {
		if wrong := <-ended; wrong != "" {
			t.Error(wrong)
		}
	}
	if _, err := FindClient("cursor").Servers([]byte(readFile(t, path))); err != nil {
		t.Error(err)
	}
}
