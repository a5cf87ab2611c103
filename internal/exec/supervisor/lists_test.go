//go:build linux && (amd64 || arm64)

package supervisor

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// judged runs lines in a folder with a victim, and checks which were refused.
func judged(t *testing.T, s Spec, lines map[string]bool) {
	t.Helper()
	needed(t)
	for line, runs := range lines {
		s.Dir = t.TempDir()
		s.Writable = nil
		victim := filepath.Join(s.Dir, "victim")
		if err := os.WriteFile(victim, nil, 0o644); err != nil {
			t.Fatal(err)
		}
		got := runLine(t, s, line)
		_, err := os.Stat(victim)
		if refused := len(got.Refused) > 0; refused == runs || err != nil {
			t.Errorf("%s: refused %v, want %v; the victim: %v; %+v", line, refused, !runs, err, got)
		}
	}
}

const loader = "$(readlink -f /lib64/ld-linux-x86-64.so.2 /lib/ld-linux-aarch64.so.1 | head -n1)"

//redteam:attack Lists of commands are judged by the kernel: the loader as the program, also copied, linked and with options, and a file that the line can replace
func TestALoaderIsJudgedByWhatItLoads(t *testing.T) {
	judged(t, Spec{Deny: []string{"rm"}}, map[string]bool{
		loader + " /bin/rm victim":                              false,
		loader + " /usr/bin/rm victim":                          false,
		loader + " --argv0 true /bin/rm victim":                 false,
		loader + " --library-path /usr/lib:/lib /bin/rm victim": false,
		loader + " --preload= /bin/rm victim":                   false,
		loader + " --unknown /bin/true":                         false,
		"cp " + loader + " l; ./l /bin/rm victim":               false,
		"ln -s " + loader + " true; ./true /bin/rm victim":      false,
		"cp /bin/true t; " + loader + " ./t":                    false, // it could be replaced
		"ln -s /bin/true t; " + loader + " $PWD/t":              false,
		loader + " /bin/true":                                   true,
		loader + " --argv0 x /usr/bin/true":                     true,
		loader + " --verify /bin/rm; ldd /bin/true >/dev/null":  true,
		"LD_PRELOAD=/usr/lib/libc.so.6 /bin/true":               true,
	})
}

//redteam:attack Lists of commands are judged by the kernel: scripts, by their own name, by their interpreter, copied, and with a denied program as interpreter
func TestScriptsAreJudged(t *testing.T) {
	const script = `printf '#!/bin/sh\nexit 0\n' > tool; chmod +x tool; `
	judged(t, Spec{Deny: []string{"rm", "tool", "./sub/only"}}, map[string]bool{
		script + "./tool":                                                          false,
		script + "sh tool":                                                         false,
		script + "sh -e ./tool x":                                                  false,
		script + "ln -s tool other; ./other":                                       false,
		script + "mv tool other; ./other":                                          true,
		script + "mkdir sub; mv tool sub/only; sub/only":                           false,
		script + "mkdir sub; mv tool sub/else; sub/else":                           true,
		`printf '#!/bin/rm\n' > x; chmod +x x; ./x victim`:                         false,
		`printf '#!/usr/bin/env rm\n' > x; chmod +x x; ./x victim`:                 false,
		`printf '#! /usr/bin/env -S rm -f\n' > x; chmod +x x; ./x victim`:          false,
		`printf '#!/bin/sh\nrm victim' > x; chmod +x x; ./x`:                       false,
		`printf '#!./y\n' > x; printf '#!/bin/rm\n' > y; chmod +x x y; ./x victim`: false,
	})
}

func TestCopiesAndLinksOfADeniedProgram(t *testing.T) {
	judged(t, Spec{Deny: []string{"rm", "chmod"}}, map[string]bool{
		"cp /bin/rm x; ./x victim":                               false,
		"cat /bin/rm > x; install -m 755 x y; ./y victim":        false,
		"ln -s /bin/rm x; ./x victim":                            false,
		"tar cf - /bin/rm 2>/dev/null | tar xf -; bin/rm victim": false,
		"cp /bin/true x; ./x":                                    true,
	})
}

func TestArgumentsAreJudgedAfterTheStart(t *testing.T) {
	judged(t, Spec{Deny: []string{"echo secret*", "rm -r*"}}, map[string]bool{
		"/bin/echo hello": true, "/bin/echo secret": false, "env echo secret x": false, "/bin/rm -i -r x": false,
		"/bin/rm nothing": true, "x=secret; /bin/echo $x": false,
		"find . -maxdepth 0 -exec /bin/echo secret ';'": false,
	})
}

func TestAnAllowList(t *testing.T) {
	judged(t, Spec{Allow: []string{"ls", "env", "sh", "./own/tool", "git log*", "python3"}}, map[string]bool{
		"ls": true, "env ls": true, "cat victim": false, "env cat victim": false, "sh -c ls": true,
		"sh -c 'cat x'": false,
		"cp /bin/ls x":  false, "/bin/ls": true, "git log || true": true, "git status": false,
		loader + " --verify /bin/ls":          false,
		"/bin/sh -c 'exec /usr/bin/env true'": false, loader + " /bin/ls": false, // readlink
		"python3 -c 'import os; os.execv(\"/bin/rm\", [\"rm\", \"victim\"])'": false,
	})
	needed(t)
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "own"), 0o755); err != nil {
		t.Fatal(err)
	}
	copyFile(t, "/bin/true", filepath.Join(dir, "own", "tool"), 0o755)
	got := runLine(t, Spec{Allow: []string{"./own/*"}, Dir: dir}, "own/tool && ./own/tool && exec ./own/tool")
	if got.code != 0 || len(got.Programs) != 3 {
		t.Errorf("%+v", got)
	}
}

func TestWithIsForWhatAProgramStarts(t *testing.T) {
	allow := []string{"env with: ls true", "bash with: cat", "./tool with: sh echo"}
	const script = `. ./make; `
	_ = script
	judged(t, Spec{Allow: allow}, map[string]bool{
		"env ls": true, "ls": false, "env cat victim": false, "bash -c 'cat victim; true'": true, "cat victim": false,
		// sleep
		"bash -c 'env ls; cat victim'": true, "bash -c ls": false,
		"env true && bash -c '(sleep 0.1; cat victim) & wait'": false,
		"bash -c 'env cat victim'":                             true, // below bash
	})
	needed(t)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "tool"), []byte("#!/bin/sh\n/bin/echo did it\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	got := runLine(t, Spec{Allow: allow, Dir: dir}, "./tool; /bin/echo no")
	if !strings.HasPrefix(got.out, "did it\n") || len(got.Refused) != 1 || got.Refused[0].Parent != "dash" {
		t.Errorf("%+v", got)
	}
}

func TestADaemonKeepsWhatItsProgramMayStart(t *testing.T) {
	needed(t)
	dir := t.TempDir()
	for _, pipe := range []string{"begin", "end"} {
		if err := syscall.Mkfifo(filepath.Join(dir, pipe), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got := runLine(t, Spec{Allow: []string{"setsid", "bash with: sleep cat"}, Dir: dir},
		"bash -c '(read x <begin; cat /dev/null; ls; echo >end) & exit'; echo >begin; read x <end")
	var names []string
	for _, p := range got.Programs {
		if p.Refused == "" {
			names = append(names, filepath.Base(p.Path))
		}
	}
	slices.Sort(names)
	if want := []string{"bash", "cat"}; !slices.Equal(names, want) || len(got.Refused) != 1 ||
		got.Refused[0].Parent != "bash" {
		t.Errorf("%v, refused %+v", names, got.Refused)
	}
}

func TestALineWritesOnlyBelowItsFolders(t *testing.T) {
	needed(t)
	outside := t.TempDir()
	victim := filepath.Join(outside, "victim")
	if err := os.WriteFile(victim, nil, 0o666); err != nil {
		t.Fatal(err)
	}
	os.Chmod(outside, 0o777)
	line := "touch inside && echo x > /dev/null && ls inside; : > " + victim + "2; kill -0 " +
		"$PPID && echo signalled; " +
		"/usr/bin/unlink " + victim + "; perl -e 'unlink \"" + victim + "\"'"
	got := runLine(t, Spec{Deny: []string{"rm"}}, line)
	if _, err := os.Stat(victim); err != nil || !strings.Contains(got.out, "inside\n") || len(got.Refused) > 0 {
		t.Errorf("%v, %+v", err, got)
	}
	if entries, _ := os.ReadDir(outside); len(entries) != 1 {
		t.Errorf("%v was written", entries)
	}
	runLine(t, Spec{Deny: []string{"rm"}, Unconfined: true}, "/usr/bin/unlink "+victim)
	if _, err := os.Stat(victim); err == nil {
		t.Error("a line that is not confined cannot write outside its folders")
	}
}

// The supervisor may be the only one that cannot be ended: what it does not answer is refused.
func TestTheEndOfTheSupervisorEndsTheLine(t *testing.T) {
	needed(t)
	dir := t.TempDir()
	l, err := New(Spec{
		Argv: []string{"/bin/sh", "-c", "sleep 1; rm victim; touch after"}, Deny: []string{"rm"}, Dir: dir,
		Writable: []string{dir}, Env: []string{"PATH=/usr/bin:/bin"},
	})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(l.Path, l.Args...)
	cmd.Env, cmd.ExtraFiles, cmd.Dir = l.Env, l.Files, dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	l.Started()
	exec.Command("sleep", "0.5").Run()
	cmd.Process.Kill()
	cmd.Wait()
	exec.Command("sleep", "1.2").Run()
	if r := l.Close(); r.Ended {
		t.Errorf("%+v", r)
	}
	if _, err := os.Stat(filepath.Join(dir, "after")); err == nil {
		t.Error("the line went on")
	}
}

// A user's supervisor cannot look into a process that closed itself, so such a process starts nothing.
func TestAProcessThatCannotBeWatchedStartsNothing(t *testing.T) {
	needed(t)
	if os.Geteuid() != 0 {
		t.Skip("this test runs a supervisor as another user, which needs root")
	}
	program, _ := os.Executable()
	bin := filepath.Join(t.TempDir(), "program")
	copyFile(t, program, bin, 0o755)
	dir := t.TempDir()
	for up := dir; len(up) > len(os.TempDir()); up = filepath.Dir(up) {
		os.Chmod(up, 0o755)
	}
	for up := filepath.Dir(bin); len(up) > len(os.TempDir()); up = filepath.Dir(up) {
		os.Chmod(up, 0o755)
	}
	os.Chmod(dir, 0o777)
	for line, want := range map[string]bool{
		bin + " trap undumpable /bin/true": true,
		"/bin/true":                        false,
		bin + " trap vfork /bin/true":      false,
	} {
		l, err := New(Spec{
			Argv: []string{"/bin/sh", "-c", line}, Deny: []string{"rm"}, Dir: dir, Writable: []string{dir},
			Env: []string{"PATH=/usr/bin:/bin"},
		})
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(bin, l.Args...)
		cmd.Env, cmd.ExtraFiles, cmd.Dir = l.Env, l.Files, dir
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		out, _ := cmd.CombinedOutput()
		l.Started()
		r := l.Close()
		if refused := len(r.Refused) > 0; refused != want || !r.Ended {
			t.Errorf("%s: %s %+v", line, out, r)
		}
	}
}

// A line may run with the list that was learned from it.
func TestTheListOfALineLetsItRun(t *testing.T) {
	needed(t)
	for line, want := range map[string][]string{
		"ls | wc -l":                    {"ls", "wc"},
		"sh -c 'ls; env cat /dev/null'": {"sh with: cat env ls"},
		"printf '#!/usr/bin/env sh\\n/bin/true' > x; chmod +x x; ./x": {"DIR/x with: dash env sh true", "chmod"},
	} {
		dir := t.TempDir()
		learned := AllowList(runLine(t, Spec{Learn: true, Dir: dir}, line).Programs)
		for i, p := range learned {
			learned[i] = strings.ReplaceAll(p, dir, "DIR")
		}
		if got := strings.ReplaceAll(strings.Join(learned, "|"), " dash", ""); got != strings.ReplaceAll(
			strings.Join(want, "|"), " dash", "") {
			t.Errorf("%s: learned %q, want %q", line, learned, want)
		}
		for i, p := range learned {
			learned[i] = strings.ReplaceAll(p, "DIR", dir)
		}
		if got := runLine(t, Spec{Allow: learned, Dir: dir}, line); got.code != 0 || len(got.Refused) > 0 {
			t.Errorf("%s: with %q: %+v", line, learned, got)
		}
		if got := runLine(t, Spec{Allow: learned, Dir: dir}, "date; true"); len(got.Refused) != 1 {
			t.Errorf("date: %+v", got)
		}
	}
}
