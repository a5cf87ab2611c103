//go:build linux && (amd64 || arm64)

package namespaces

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gatehouse/internal/sandbox"
)

const corePattern = "/proc/sys/kernel/core_pattern"

// handled has the machine's kernel pipe core dumps into a program until the test
// ends, and returns how many of a crashed program it was given.
func handled(t *testing.T) func(program string) int {
	t.Helper()
	was, err := os.ReadFile(corePattern)
	if err != nil {
		t.Skip(err)
	}
	dir := t.TempDir()
	handler, seen := filepath.Join(dir, "h"), filepath.Join(dir, "seen")
	// It reads the dump to its end, as a handler does, and notes the name of the program.
	script := fmt.Sprintf("#!/bin/sh\ncat >/dev/null\necho \"$1\" >> %s\n", seen)
	if err := os.WriteFile(handler, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	pattern := "|" + handler + " %e"
	if len(pattern) > 127 {
		t.Skipf("the kernel takes no pattern of %d bytes", len(pattern))
	}
	if err := os.WriteFile(corePattern, []byte(pattern), 0); err != nil {
		t.Skipf("the handler of core dumps cannot be set here: %v", err)
	}
	t.Cleanup(func() {
		if err := os.WriteFile(corePattern, was, 0); err != nil {
			t.Errorf("the handler of core dumps is not put back: %v", err)
		}
	})
	return func(program string) int {
		b, err := os.ReadFile(seen)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		n := 0
		for line := range strings.Lines(string(b)) {
			if strings.TrimSpace(line) == program {
				n++
			}
		}
		return n
	}
}

// A crash in a sandbox starts no handler of the host, which would run as root with
// the memory of the program for input, whatever the program does to its limits.
//
//redteam:attack Code in a sandbox is shut in several times: a program crashes where the host pipes core dumps into a program of root
func TestACrashStartsNoHandlerOfTheHost(t *testing.T) {
	switch {
	case os.Geteuid() != 0:
		t.Skip("only root sets the handler of core dumps")
	case os.Getenv("GATEHOUSE_TEST_ALL") == "":
		t.Skip("it sets the handler of core dumps of the whole machine: GATEHOUSE_TEST_ALL=1 runs it")
	}
	times := handled(t)
	control := func(want int) {
		t.Helper()
		program := filepath.Join(t.TempDir(), "ghcontrol")
		if err := os.Symlink("/bin/sh", program); err != nil {
			t.Fatal(err)
		}
		exec.Command(program, "-c", "kill -SEGV $$").Run() // which fails, as it should
		for end := time.Now().Add(time.Minute); times("ghcontrol") < want; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("the handler saw %d of %d crashes outside", times("ghcontrol"), want)
			}
		}
	}
	control(1)
	b, err := driver(t, Options{}).Create(t.Context(), sandbox.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	const script = `ln -s /bin/sh /tmp/ghinside
cd /tmp && ./ghinside -c 'kill -SEGV $$'
./ghinside -c 'ulimit -c 0; kill -ABRT $$'
./ghinside -c 'ulimit -c unlimited; kill -QUIT $$'
(ulimit -S -c 0; ./ghinside -c 'kill -SEGV $$')
setsid ./ghinside -c 'kill -BUS $$'
echo done`
	var out bytes.Buffer
	p, err := b.Exec(t.Context(), sandbox.Command{Argv: []string{"bash", "-c", script}, Stdout: &out})
	if err != nil {
		t.Fatal(err)
	}
	if r, err := p.Wait(); r.Outcome != sandbox.OK || !strings.Contains(out.String(), "done\n") {
		t.Fatalf("%+v, %v, %q", r, err, out.String())
	}
	control(2) // after which what came before has been handled
	if n := times("ghinside"); n > 0 {
		t.Errorf("the handler of the host was started for %d crashes in the sandbox", n)
	}
}
