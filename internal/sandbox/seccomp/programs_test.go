//go:build linux && (amd64 || arm64)

package seccomp

import (
	"os/exec"
	"runtime"
	"slices"
	"testing"

	"golang.org/x/net/bpf"
)

func TestOrdinaryProgramsRunUnderTheFilters(t *testing.T) {
	for name, filter := range map[string][]bpf.Instruction{"default": Default(), "strict": Strict()} {
		t.Run(name, func(t *testing.T) { programsRun(t, filter) })
	}
}

func programsRun(t *testing.T, filter []bpf.Instruction) {
	repository := t.TempDir()
	for _, argv := range [][]string{
		{"sh", "-c", "echo ready | cat"},
		{"bash", "-c", "cat <(echo ready)"},
		{"python3", "-c",
			"import subprocess, threading; t = threading.Thread(target=subprocess.run, args=(['echo', 'ready'],)); " +
				"t.start(); t.join()"},
		{"node", "-e", "require('child_process').spawnSync('echo', ['ready'], {stdio: 'inherit'})"},
		{"git", "-c", "safe.directory=*", "-c", "init.defaultBranch=main", "-C", repository, "init", "-q"},
		{"git", "-C", repository, "-c", "user.name=n", "-c", "user.email=e", "commit", "-q", "--allow-empty",
			"-m", "ready"},
		{"git", "-C", repository, "log", "--format=%s"},
		{"python3", "-c",
			"import multiprocessing as m, asyncio, tempfile, ssl, sqlite3\nif __name__ == '__main__':\n" +
				" with m.get_context('fork').Pool(2) as p: assert p.map(abs, [-1, 2]) == [1, 2]\n" +
				" asyncio.run(asyncio.sleep(0)); tempfile.NamedTemporaryFile().close(); print('ready')"},
		{"node", "-e",
			"const w = new (require('worker_threads').Worker)('1', {eval: true}); w.on('exit', " +
				"() => require('fs').readFile('/etc/hosts', () => console.log('ready')))"},
	} {
		t.Run(argv[0], func(t *testing.T) {
			if _, err := exec.LookPath(argv[0]); err != nil {
				t.Skip(err)
			}
			want := "ready\n"
			if slices.Contains(argv, "-q") {
				want = ""
			}
			type ran struct {
				out []byte
				err error
			}
			done := make(chan ran)
			go func() {
				runtime.LockOSThread() // never unlocked: what it starts has the filter, no other thread does
				if err := Install(filter); err != nil {
					done <- ran{nil, err}
					return
				}
				out, err := exec.CommandContext(t.Context(), argv[0], argv[1:]...).CombinedOutput()
				done <- ran{out, err}
			}()
			if r := <-done; r.err != nil || string(r.out) != want {
				t.Errorf("%q, %v", r.out, r.err)
			}
		})
	}
}
