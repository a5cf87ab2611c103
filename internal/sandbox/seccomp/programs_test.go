//go:build linux && (amd64 || arm64)

package seccomp

import (
	"os/exec"
	"runtime"
	"testing"
)

func TestOrdinaryProgramsRunUnderTheFilter(t *testing.T) {
	for _, argv := range [][]string{
		{"sh", "-c", "echo ready | cat"},
		{"bash", "-c", "cat <(echo ready)"},
		{"python3", "-c", "import subprocess, threading; t = threading.Thread(target=subprocess.run, args=(['echo', 'ready'],)); t.start(); t.join()"},
		{"node", "-e", "require('child_process').spawnSync('echo', ['ready'], {stdio: 'inherit'})"},
	} {
		t.Run(argv[0], func(t *testing.T) {
			if _, err := exec.LookPath(argv[0]); err != nil {
				t.Skip(err)
			}
			type ran struct {
				out []byte
				err error
			}
			done := make(chan ran)
			go func() {
				runtime.LockOSThread() // never unlocked: what it starts has the filter, no other thread does
				if err := Install(Default()); err != nil {
					done <- ran{nil, err}
					return
				}
				out, err := exec.CommandContext(t.Context(), argv[0], argv[1:]...).CombinedOutput()
				done <- ran{out, err}
			}()
			if r := <-done; r.err != nil || string(r.out) != "ready\n" {
				t.Errorf("%q, %v", r.out, r.err)
			}
		})
	}
}
