package sandboxtest

import (
	"os/exec"
	"testing"

	"gatehouse/internal/sandbox"
)

// strict checks that ordinary programs run with the strict profile, and that the profile closes what it does not
// list.
func (s suite) strict(t *testing.T) {
	if s.noWall() {
		s.notOffered(t, "profiles of system calls")
	}
	s.strictly = true
	b := s.probed(t, sandbox.Spec{})
	for name, got := range answers(t, b, "strict") {
		if got != "EPERM" {
			t.Errorf("%s: %s", name, got)
		}
	}
	for _, argv := range [][]string{
		{"sh", "-c", "echo ready | cat"},
		{"bash", "-c", "cat <(echo ready)"},
		{"git", "-c", "alias.say=!echo ready", "say"},
		{"python3", "-c",
			"import subprocess, threading; t = threading.Thread(target=subprocess.run, args=(['echo', 'ready'],)); " +
				"t.start(); t.join()"},
		{"node", "-e", "require('child_process').spawnSync('echo', ['ready'], {stdio: 'inherit'})"},
	} {
		if _, err := exec.LookPath(argv[0]); err != nil {
			t.Log(err)
			continue
		}
		if r := run(t, b, sandbox.Command{Argv: argv}); r.Outcome != sandbox.OK || r.stdout != "ready\n" {
			t.Errorf("%q: %+v, %v: %q %q", argv[0], r.Result, r.err, r.stdout, r.stderr)
		}
	}
	t.Run("identity", s.identity)
	t.Run("isolation", s.isolation)
}
