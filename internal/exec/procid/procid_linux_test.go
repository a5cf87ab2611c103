package procid

import (
	"os/exec"
	"strings"
	"testing"
)

func TestANameMayHoldAnything(t *testing.T) {
	fields := "S " + strings.Repeat("0 ", 18) + "777 0 0"
	for stat, want := range map[string]string{
		"1 (sh) " + fields:             "777",
		"1 (a) b) (c ) 9 9) " + fields: "777",
		"1 (sh) S 0":                   "",
		"":                             "",
	} {
		if got := parse(stat).Field(startTime); got != want {
			t.Errorf("%q began at %q, want %q", stat, got, want)
		}
	}
}

// A process that has ended is not alive, even if its parent has not waited for it. It keeps its name
// until then.
func TestAZombieHasEnded(t *testing.T) {
	cmd := exec.Command("cat")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Skip(err)
	}
	name, ended := Of(cmd.Process.Pid), Watch(cmd.Process.Pid)
	if ended() {
		t.Error("it runs")
	}
	in.Close()
	for !ended() { // limited by the test's own deadline
	}
	if Of(cmd.Process.Pid) != name || Alive(name) {
		t.Errorf("a zombie is %q, alive: %v; it was %q", Of(cmd.Process.Pid), Alive(name), name)
	}
	cmd.Wait()
}
