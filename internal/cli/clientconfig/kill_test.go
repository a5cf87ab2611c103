package clientconfig

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
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
	b := Store{filepath.Join(home, "book")}
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
