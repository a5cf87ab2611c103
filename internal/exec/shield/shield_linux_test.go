package shield

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// run has a shell run a script behind the shield, and gives what it printed.
func run(t *testing.T, dir string, own []string, script string) string {
	t.Helper()
	return runOwn(t, dir, Own{Write: own}, script)
}

func runOwn(t *testing.T, dir string, own Own, script string) string {
	t.Helper()
	type done struct {
		out []byte
		err error
	}
	ended := make(chan done)
	Thread(func() (spoilt bool) {
		cmd := exec.Command("sh", "-c", script)
		var d done
		cmd.Dir, spoilt, d.err = Enter(dir, own)
		if d.err == nil {
			d.out, _ = cmd.CombinedOutput() // most scripts fail on purpose
		}
		ended <- d
		return spoilt
	})
	d := <-ended
	if d.err != nil {
		t.Fatal(d.err)
	}
	return string(d.out)
}

// ways runs a test with each way to close files that this process has.
func ways(t *testing.T, f func(t *testing.T)) {
	best := Possible()
	if best == None {
		t.Skip("this kernel has no Landlock")
	}
	was := possible
	t.Cleanup(func() { possible = was })
	for how := Landlock; how <= best; how++ {
		t.Run(how.String(), func(t *testing.T) {
			possible = func() How { return how }
			closed.dirty = true
			f(t)
		})
	}
}

const key = "the-key-itself"

// protectedFolders makes folders as a host has them, closed to children.
func protectedFolders(t *testing.T) (top, config, work string) {
	t.Helper()
	top, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	config, work = filepath.Join(top, "config"), filepath.Join(top, "work")
	for _, dir := range []string{config, work} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(config, "secrets.key"), []byte(key), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(Close([]string{config}, nil, []string{work}))
	return top, config, work
}

// Links, namespaces, mounts and other processes lead a child to no file of the
// host's.
//
//redteam:attack Children are kept from the host's own files: links, mounts, namespaces, and the root, folder and memory of other processes
func TestAChildCannotReadWhatIsTheHosts(t *testing.T) {
	ways(t, func(t *testing.T) {
		top, config, work := protectedFolders(t)
		file := filepath.Join(config, "secrets.key")
		if err := os.Symlink(config, filepath.Join(work, "link")); err != nil {
			t.Fatal(err)
		}
		for name, script := range map[string]string{
			"by its name":          "cat " + file,
			"from where it begins": "cat ../config/secrets.key",
			"by a link":            "cat link/secrets.key",
			"by a link made now":   "ln -sfn " + config + " mine && cat mine/secrets.key",
			"by another's root":    fmt.Sprintf("cat /proc/1/root%[2]s /proc/%[1]d/root%[2]s", os.Getpid(), file),
			"by this process's root": fmt.Sprintf("for p in /proc/%d/task/*; do cat $p/root%s "+
				"/proc/${p##*/}/root%[2]s; done", os.Getpid(), file),
			"by the parent's folder": fmt.Sprintf("cat /proc/%d/cwd/%s /proc/$PPID/cwd/%[2]s", os.Getpid(),
				strings.Repeat("../", 20)+file),
			"after an unmount":       "umount " + config + "; umount -l " + config + "; cat " + file,
			"in a new namespace":     "unshare -m sh -c 'umount " + config + "; cat " + file + "'",
			"as another root":        "unshare -Urm sh -c 'umount " + config + "; cat " + file + "'",
			"in the first namespace": "nsenter -t 1 -m cat " + file,
			"in the host's":          fmt.Sprintf("nsenter -t %d -m cat %s", os.Getpid(), file),
			"at another place":       "mkdir -p m; mount --bind " + top + " m && cat m/config/secrets.key",
			"after moving it":        "mv " + config + " moved; cat moved/secrets.key",
			"by a hard link":         "ln " + file + " hard && cat hard",
			"after a double fork":    "(setsid sh -c 'cat " + file + "' &) ; sleep 0.2",
			"out of memory": fmt.Sprintf("python3 -c 'import os\nfor t in os.listdir(\"/proc/%d/task\"):\n try:\n"+
				"  f=open(\"/proc/\"+t+\"/mem\",\"rb\",0)\n  print(\""+
				key+"\")\n except OSError as e: print(e)'", os.Getpid()),
		} {
			if got := run(t, work, nil, script); strings.Contains(got, key) {
				t.Errorf("%s: it was read: %s", name, got)
			}
		}
		if b, err := os.ReadFile(file); string(b) != key {
			t.Errorf("the host itself: %q, %v", b, err)
		}
	})
}

// Nothing is written, removed, or put in the place of a closed folder.
//
//redteam:attack Children are kept from the host's own files: settings are written, and folders moved away
func TestAChildCannotChangeWhatIsTheHosts(t *testing.T) {
	ways(t, func(t *testing.T) {
		_, config, work := protectedFolders(t)
		run(t, work, nil, strings.ReplaceAll(`
			echo x > DIR/secrets.key; echo x > DIR/gatehouse.yaml; rm -rf DIR; mkdir DIR/d
			echo y > new; mv new DIR/gatehouse.yaml; ln -s /dev/null DIR/link; rmdir DIR; mv DIR gone`, "DIR", config))
		entries, err := os.ReadDir(config)
		if err != nil || len(entries) != 1 {
			t.Fatalf("got %v, %v", entries, err)
		}
		if b, _ := os.ReadFile(filepath.Join(config, "secrets.key")); string(b) != key {
			t.Errorf("the key is %q", b)
		}
	})
}

func TestAChildWorksWhereItMay(t *testing.T) {
	ways(t, func(t *testing.T) {
		_, _, work := protectedFolders(t)
		d, err := os.Open(work)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		for _, dir := range []string{work, fmt.Sprintf("/proc/self/fd/%d", d.Fd())} {
			got := run(
				t,
				dir,
				nil,
				"mkdir -p a/b && echo one > a/b/x && mv a/b/x y && ln -f y z && cat z && pwd && rm -r a y z && echo > /dev/null",
			)
			if want := "one\n" + work + "\n"; got != want {
				t.Errorf("in %s: got %q, want %q", dir, got, want)
			}
		}
		if got := run(t, work, nil,
			"sh -c 'grep -c . /proc/self/status' && ls /proc/self/fd >/dev/null && kill -0 $PPID && echo lives"); !strings.Contains(
			got,
			"lives",
		) {
			t.Errorf("got %q", got)
		}
	})
}

// A package has a folder of its own among those that are closed.
func TestWhatIsAChildsOwnStaysOpen(t *testing.T) {
	ways(t, func(t *testing.T) {
		_, config, work := protectedFolders(t)
		own := filepath.Join(config, "packages", "one")
		if err := os.MkdirAll(own, 0o700); err != nil {
			t.Fatal(err)
		}
		got := run(
			t,
			own,
			[]string{own, "/usr"},
			"echo data > kept && cat kept "+own+"/kept ../../secrets.key "+config+"/secrets.key",
		)
		if strings.Count(got, "data") != 2 || strings.Contains(got, key) {
			t.Errorf("with its own folder: %q", got)
		}
		if b, err := os.ReadFile(filepath.Join(own, "kept")); string(b) != "data\n" {
			t.Errorf("what it wrote: %q, %v", b, err)
		}
		if got := run(t, work, nil, "cat "+own+"/kept"); strings.Contains(got, "data\n") {
			t.Errorf("another child: %q", got)
		}
	})
}

// What comes later, and files that are replaced, are closed to children that
// start later.
//
//redteam:attack Children are kept from the host's own files: a folder that was not there yet, and one that was replaced
func TestWhatIsNewIsClosedToo(t *testing.T) {
	ways(t, func(t *testing.T) {
		top, config, work := protectedFolders(t)
		later, file := filepath.Join(top, "later"), filepath.Join(top, "key.txt")
		write := func(to, what string) {
			t.Helper()
			if err := os.WriteFile(to, []byte(what), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		write(file, key)
		t.Cleanup(Close([]string{later}, []string{file}, nil))
		script := "cat " + file + " " + later + "/secret " + config + "/secrets.key; echo over > " + later + "/secret"
		if got := run(t, work, nil, script); strings.Contains(got, key) {
			t.Fatalf("got %q", got)
		}
		write(filepath.Join(later, "secret"), key) // the folder was made
		write(file+".new", key)
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(config, config+".old"); err != nil {
			t.Fatal(err)
		}
		if err := os.Mkdir(config, 0o700); err != nil {
			t.Fatal(err)
		}
		write(filepath.Join(config, "secrets.key"), key)
		if got := run(t, work, nil, script); strings.Contains(got, key) {
			t.Errorf("after a change: %q", got)
		}
	})
}

// Root in a child could read the environment of the host, where settings may be.
//
//redteam:attack Children are kept from the host's own files: the environment of the host is read in /proc
func TestTheEnvironmentOfTheHostIsItsOwn(t *testing.T) {
	if Possible() != Namespace {
		t.Skip("only who may mount can be read by who may do everything")
	}
	_, _, work := protectedFolders(t)
	got := run(t, work, nil, fmt.Sprintf("for p in /proc/%d /proc/%[1]d/task/*; do cat $p/environ; done", os.Getpid()))
	if strings.Contains(got, "PATH=") {
		t.Errorf("got %.300q", got)
	}
	if os.Getenv("PATH") == "" {
		t.Error("the host has lost its environment")
	}
}

func TestNothingIsClosedWithoutAHost(t *testing.T) {
	dir := t.TempDir()
	if got := run(t, dir, nil, "echo x > a && cat a"); got != "x\n" {
		t.Errorf("got %q", got)
	}
}

// A folder of its own that a child may only read stays as it is, also by another name of
// a file in it and by a folder beside it that the child may write.
func TestAFolderIsReadable(t *testing.T) {
	ways(t, func(t *testing.T) {
		_, config, work := protectedFolders(t)
		program, data := filepath.Join(config, "program"), filepath.Join(config, "data")
		for _, dir := range []string{program, data} {
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
		}
		file := filepath.Join(program, "run.sh")
		if err := os.WriteFile(file, []byte("echo it runs\n"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Link(file, filepath.Join(config, "object")); err != nil {
			t.Fatal(err)
		}
		script := fmt.Sprintf(`sh %[1]s/run.sh; chmod 777 %[1]s/run.sh; echo over > %[1]s/run.sh; echo new > %[1]s/new
			ln %[1]s/run.sh %[2]s/link && echo over > %[2]s/link; mv %[1]s/run.sh %[2]s/moved; rm %[1]s/run.sh
			echo kept > %[2]s/kept; cat %[2]s/kept; cat %[3]s/secrets.key %[3]s/object; echo over > %[3]s/object`, program, data, config)
		out := runOwn(t, work, Own{Write: []string{data}, Read: []string{program}}, script)
		if !strings.Contains(out, "it runs") || !strings.Contains(out, "kept") || strings.Contains(out, key) {
			t.Errorf("it printed %s", out)
		}
		b, err := os.ReadFile(file)
		if err != nil || string(b) != "echo it runs\n" {
			t.Errorf("the file is %q, %v", b, err)
		}
		if _, err := os.Stat(filepath.Join(program, "new")); err == nil {
			t.Error("a file was made")
		}
	})
}
