package procid

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
)

// other starts a process that ends when its input is closed.
func other(t *testing.T) (name string, end func()) {
	t.Helper()
	cmd := exec.Command("cat")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Skip(err)
	}
	end = func() {
		in.Close()
		cmd.Wait()
	}
	t.Cleanup(end)
	return Of(cmd.Process.Pid), end
}

func TestAProcessHasItsNameWhileItIsThere(t *testing.T) {
	name, end := other(t)
	if !Alive(Self()) || !Alive(name) || name == Self() {
		t.Errorf("%q and %q should be alive", Self(), name)
	}
	end()
	if Alive(name) {
		t.Errorf("%q is gone", name)
	}
	if pid, _ := numberOf(name); Of(pid) == name {
		t.Errorf("what is gone still has its name %q", name)
	}
}

func TestAReusedNumberIsRecognized(t *testing.T) {
	space, rest, _ := strings.Cut(Self(), "-")
	pid, began, _ := strings.Cut(rest, "-")
	if pid != strconv.Itoa(os.Getpid()) || began == "" {
		t.Fatalf("the name is %q", Self())
	}
	if earlier := space + "-" + pid + "-1"; Alive(earlier) {
		t.Errorf("%q is this process's number, but another process", earlier)
	}
}

func TestWhatCannotBeJudgedIsAlive(t *testing.T) {
	for _, name := range []string{"", "1", "a-b-c", "1-0-1", "1--1-1", "1-2-3-4"} {
		if !Alive(name) {
			t.Errorf("%q was called gone", name)
		}
	}
}

func TestLeftThingsAreRecognizedByName(t *testing.T) {
	space, _, _ := strings.Cut(Self(), "-")
	gone := space + "-4194305-1" // above the largest possible number
	for called, want := range map[string]bool{
		"left-" + gone + "-rest":               true,
		"left-" + gone + "-rest-of-it":         true,
		"left-" + gone:                         false,
		"left-" + gone + "-":                   false,
		"else-" + gone + "-rest":               false,
		"left-" + Self() + "-rest":             false,
		"left-1-4194305-1-rest":                false, // another namespace, in which the number may be in use
		"left-" + space + "-x-1-rest":          false,
		"left-" + strconv.Itoa(1<<30) + "-one": false,
	} {
		if got := Left("left-", called); got != want {
			t.Errorf("%s: %v, want %v", called, got, want)
		}
	}
}

// Watch is not misled by another process that gets the number later.
func TestWatch(t *testing.T) {
	name, end := other(t)
	pid, _ := numberOf(name)
	ended := Watch(pid)
	if ended() {
		t.Error("it runs")
	}
	end()
	if !ended() || !Watch(pid)() {
		t.Error("it has ended")
	}
}
