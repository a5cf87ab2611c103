package app

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gatehouse/internal/config"
	"gatehouse/internal/dispatch/contextstore"
	"gatehouse/internal/exec/overlay"
	"gatehouse/internal/files/stage"
	"gatehouse/internal/packages/packagestest"
	"gatehouse/internal/sandbox/namespaces"
)

// stagingPackage returns a host whose context agent stages and in which a package runs in a sandbox with the context's
// folder and another one; clients; and the two folders.
func stagingPackage(t *testing.T) (a *App, client func(name string, roles ...string) *tenant, dir, other string) {
	t.Helper()
	if err := overlay.Probe(filepath.Join(t.TempDir(), "probe"), false); err != nil {
		t.Skip(err)
	}
	d, err := namespaces.New(namespaces.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for _, f := range d.Doctor(t.Context()) {
		if f.Needed && !f.OK {
			t.Skipf("no sandboxes here: %s: %s", f.Name, f.Detail)
		}
	}
	modules := []string{"file", "shell", "package"}
	cfg := settings(t)
	dir, other = filepath.Join(t.TempDir(), "project"), t.TempDir()
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	cfg.Roots.Folders = []string{dir}
	cfg.View.Modules = append(modules, "server")
	cfg.Contexts = []config.Context{
		{Name: "default", Modules: cfg.View.Modules}, {Name: "agent", Modules: modules, Stage: true},
	}
	a, client = liveOn(t, cfg, Options{})
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	env := packagestest.Environment("good")
	env[packagestest.ListAttacks] = "1"
	args, err := json.Marshal(map[string]any{
		"id": "up", "command": program, "env": env, "confirm": "up",
		"grants": map[string]any{"folders": []string{dir, other}},
	})
	if err != nil {
		t.Fatal(err)
	}
	admin := client("ann", "admin")
	if done := admin.wait(admin.result("package_install", string(args))); done["version"] != "1.2.3" {
		t.Fatalf("installed: %v", done)
	}
	return a, client, dir, other
}

// attack has the package try something.
func (c *tenant) attack(kind, target string, want ...string) string {
	c.t.Helper()
	args, err := json.Marshal(map[string]string{"kind": kind, "target": target})
	if err != nil {
		c.t.Fatal(err)
	}
	return c.told("up_attack", string(args), want...)
}

func absent(t *testing.T, paths ...string) {
	t.Helper()
	for _, p := range paths {
		if _, err := os.Lstat(p); err == nil {
			t.Errorf("%s is there", p)
		}
	}
}

// What a package does to its folders is staged together with what the other calls of the task do, each task has an
// instance of its own, and what is accepted can be undone.
func TestCallsOfAPackageAreStaged(t *testing.T) {
	a, client, dir, other := stagingPackage(t)
	info, err := a.manager.Info("up")
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{"old.txt": "old", "sub/deep.txt": "deep"} {
		at := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, []byte(content), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	before, elsewhere, data := folderOf(t, dir), folderOf(t, other), folderOf(t, info.Data)
	ann, bob := client("ann", "admin"), client("bob")

	made := filepath.Join(dir, "made.txt")
	ann.attack("write", made, "done: ", "staged in task st_")
	ann.told("file_read", `{"path":"made.txt"}`, "x")
	ann.told("shell_run", `{"command":"cat made.txt old.txt && echo by the shell >shell.txt && rm old.txt"}`, "xold")
	ann.attack("read", filepath.Join(dir, "shell.txt"), "done: by the shell")
	ann.attack("read", filepath.Join(dir, "old.txt"), "failed: ")
	ann.told("file_write", `{"path":"sub/tool.txt","content":"by a tool"}`)
	ann.attack("read", filepath.Join(dir, "sub/tool.txt"), "done: by a tool")
	ann.attack("write", filepath.Join(other, "beside.txt"), "done: ") // in no folder of the context
	ann.told("up_keep", `{}`, "kept")                                 // in its own folder
	ann.attack("read", filepath.Join(info.Data, "kept"), "done: ")

	bob.attack("read", made, "failed: ") // it is another task
	bob.attack("write", filepath.Join(dir, "bob.txt"), "done: ", "staged in task st_")
	bob.attack("read", filepath.Join(info.Data, "kept"), "failed: ")
	ann.attack("read", filepath.Join(dir, "bob.txt"), "failed: ")
	if got := instancesOf(t, a, "up"); got < 2 {
		t.Errorf("two tasks have %d instances", got)
	}
	for of, was := range map[string]string{dir: before, other: elsewhere, info.Data: data} {
		if now := folderOf(t, of); now != was {
			t.Errorf("%s was changed: %s, was %s", of, now, was)
		}
	}

	task := taskOf(t, a, "ann")
	shown := ann.call(contextstore.Admin, "review_show", fmt.Sprintf(`{"task":%q}`, task.ID))
	for _, want := range []string{made, filepath.Join(other, "beside.txt"), "up_attack"} {
		if !strings.Contains(shown, want) {
			t.Errorf("the review lacks %s: %s", want, shown)
		}
	}
	running := instancesOf(t, a, "up")
	if r, err := a.stage.Accept(task.ID, stage.Choice{By: "ann"}); err != nil || len(r.Conflict) > 0 || r.Note != "" {
		t.Fatalf("accepted %+v, %v", r, err)
	}
	if got := instancesOf(t, a, "up"); got != running-1 {
		t.Errorf("%d instances run after the task was accepted, and %d before", got, running)
	}
	if b, err := os.ReadFile(made); err != nil || string(b) != "x" {
		t.Errorf("made.txt has %q, %v", b, err)
	}
	if _, err := os.Stat(filepath.Join(other, "beside.txt")); err != nil {
		t.Error(err)
	}
	absent(t, filepath.Join(dir, "old.txt"), filepath.Join(info.Data, "kept"), filepath.Join(dir, "bob.txt"))
	if r, err := a.stage.Undo(task.ID, "ann"); err != nil || len(r.Conflict) > 0 {
		t.Errorf("undone %+v, %v", r, err)
	}
	if now := folderOf(t, dir); now != before {
		t.Errorf("after the undoing: %s, was %s", now, before)
	}
	bobs := taskOf(t, a, "bob")
	if err := a.stage.Refuse(bobs.ID, "ann"); err != nil {
		t.Error(err)
	}
	if got := instancesOf(t, a, "up"); got != running-2 {
		t.Errorf("%d instances run after both tasks have ended, and %d before", got, running)
	}
	absent(t, filepath.Join(StageFolder(a.cfg.Folders), bobs.ID, "private"))
}

func taskOf(t *testing.T, a *App, principal string) *stage.Task {
	t.Helper()
	list, err := a.stage.List(false)
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range list {
		if task.Principal == principal {
			return task
		}
	}
	t.Fatalf("%s has no task in %v", principal, list)
	return nil
}

// instancesOf returns how many servers of a package run.
func instancesOf(t *testing.T, a *App, id string) int {
	t.Helper()
	used, err := a.manager.Stats(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return used[0].Instances
}

// A package of a task reaches nothing outside of its view: no file, no listener, and nothing by a link.
//
//redteam:attack Staged calls change nothing: a package of a task that reads, writes or connects outside of its view
func TestEscapesOfAStagedPackage(t *testing.T) {
	a, client, dir, other := stagingPackage(t)
	ann := client("ann")
	secret := filepath.Join(t.TempDir(), "secret.txt")
	if err := os.WriteFile(secret, []byte("secret"), 0o644); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(other, "s")
	answer := func(ln net.Listener) {
		t.Cleanup(func() { ln.Close() })
		go func() {
			for {
				c, err := ln.Accept()
				if err != nil {
					return
				}
				io.WriteString(c, "reached")
				c.Close()
			}
		}()
	}
	unix, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	answer(unix)
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	answer(tcp)
	if b, err := net.Dial("unix", socket); err != nil { // the test can fail
		t.Fatal(err)
	} else {
		b.Close()
	}
	ann.attack("read", secret, "failed: ")
	ann.attack("unix", socket, "failed: ")
	ann.attack("tcp4", tcp.Addr().String(), "failed: ")
	ann.attack("tcp4", "192.0.2.1:80", "failed: ")
	ann.attack("raw", "", "failed: ")
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/usr/made", "/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", program} {
		ann.attack("write", path, "failed: ")
	}
	// A sandbox has some folders of its own at these paths.
	outside := []string{"/etc/made", "/dev/made", filepath.Join(filepath.Dir(secret), "made"),
		filepath.Join(a.cfg.Folders.Data, "made")}
	for _, path := range outside {
		ann.attack("write", path)
	}
	absent(t, append(outside, "/usr/made")...)

	// What a link of another program of the task leads to is not there.
	ann.told("shell_run", fmt.Sprintf(`{"command":"ln -s %s link"}`, filepath.Dir(secret)), "staged in task")
	ann.attack("read", filepath.Join(dir, "link/secret.txt"), "failed: ")
	ann.attack("write", filepath.Join(dir, "link/made"), "failed: ")
	absent(t, filepath.Join(filepath.Dir(secret), "made"))
}

// A package with effects outside of folders asks, and the reason names them.
func TestAPackageWithEffectsOutsideAsks(t *testing.T) {
	a, client, dir, _ := stagingPackage(t)
	ann := client("ann", "admin")
	says := "Writes a file into the working folder. Its calls are staged" // of up_keep
	if !strings.Contains(ann.say("agent", "tools/list", ""), says) {
		t.Error("the listing does not say that calls are staged")
	}
	ann.attack("write", filepath.Join(dir, "made"), "staged in task")
	socket := filepath.Join(t.TempDir(), "s")
	ln, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	for kind, grant := range map[string]string{"hosts": "api.example.com", "sockets": socket, "devices": "/dev/null"} {
		args := `{"id":"up","confirm":"up","add":{%[1]q:[%[2]q]}}`
		ann.result("package_grant", fmt.Sprintf(args, kind, grant))
		if got := ann.attack("write", filepath.Join(dir, "out")); !strings.Contains(got, grant) ||
			!strings.Contains(got, "cannot be staged") || strings.Contains(got, "done: ") {
			t.Errorf("with %s %s: %s", kind, grant, got)
		}
		ann.result("package_grant", fmt.Sprintf(strings.Replace(args, "add", "remove", 1), kind, grant))
		ann.attack("write", filepath.Join(dir, "again"), "staged in task")
	}
	ann.result("package_grant", fmt.Sprintf(`{"id":"up","confirm":"up","add":{"folders":[%q]}}`, a.cfg.Folders.Data))
	if got := ann.attack("write", filepath.Join(dir, "out")); !strings.Contains(got, "contains the data folder") &&
		!strings.Contains(got, a.cfg.Folders.Data) {
		t.Errorf("with the data folder: %s", got)
	}
	absent(t, filepath.Join(dir, "made"), filepath.Join(dir, "out"), filepath.Join(dir, "again"))
}

// A package with a folder that contains one of the task has the task's view of both.
func TestAPackageWithAFolderAroundATask(t *testing.T) {
	a, client, dir, other := stagingPackage(t)
	around := filepath.Dir(dir)
	ann := client("ann", "admin")
	ann.told("file_write", `{"path":"tool.txt","content":"by a tool"}`, "staged in task st_")
	ann.result("package_grant", fmt.Sprintf(`{"id":"up","confirm":"up","add":{"folders":[%q]},"remove":{"folders":[%q,%q]}}`,
		around, dir, other))
	ann.attack("read", filepath.Join(dir, "tool.txt"), "done: by a tool")
	ann.attack("write", filepath.Join(dir, "inside.txt"), "done: ", "staged in task st_")
	ann.attack("write", filepath.Join(around, "beside.txt"), "done: ", "staged in task st_")
	ann.told("shell_run", fmt.Sprintf(`{"command":"cat tool.txt inside.txt %s/beside.txt && echo more >shell.txt"}`, around),
		"by a toolxx")
	ann.attack("read", filepath.Join(dir, "shell.txt"), "done: more")
	all := []string{filepath.Join(dir, "tool.txt"), filepath.Join(dir, "inside.txt"), filepath.Join(dir, "shell.txt"),
		filepath.Join(around, "beside.txt")}
	absent(t, all...)
	r, err := a.stage.Accept(taskOf(t, a, "ann").ID, stage.Choice{By: "ann"})
	if err != nil || len(r.Done) != len(all) || len(r.Conflict) > 0 {
		t.Fatalf("accepted %+v, %v", r, err)
	}
	for _, path := range all {
		if _, err := os.Stat(path); err != nil {
			t.Error(err)
		}
	}
}

// The copy of a package's data that a task gets has them as they were at one moment, though a program of the package
// changes them meanwhile, and that program goes on.
func TestTheDataOfAPackageAreCopiedAtOneMoment(t *testing.T) {
	a, client, _, _ := stagingPackage(t)
	info, err := a.manager.Info("up")
	if err != nil {
		t.Fatal(err)
	}
	first, last := filepath.Join(info.Data, "0"), filepath.Join(info.Data, "9") // a copy has others between them
	const between = 500
	for i := range between {
		if err := os.WriteFile(filepath.Join(info.Data, fmt.Sprintf("5%d", i)), []byte("x"), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { // "0" is one more than "9", or the same
		_, err := a.manager.Shell(ctx, "up",
			"i=0; while :; do i=$((i+1)); echo $i >t; mv t 0; echo $i >u; mv u 9; done", time.Minute, io.Discard, io.Discard)
		ended <- err
	}()
	number := func(path string) (n int) {
		b, err := os.ReadFile(path)
		if err == nil {
			_, err = fmt.Sscan(string(b), &n)
		}
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(last); err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the program of the package does not write")
		}
	}
	client("ann").attack("read", first, "done: ")
	var copied []int
	for _, path := range []string{first, last} {
		at := filepath.Join(StageFolder(a.cfg.Folders), taskOf(t, a, "ann").ID, "private", "up", "data", filepath.Base(path))
		copied = append(copied, number(at))
	}
	if copied[0] != copied[1] && copied[0] != copied[1]+1 {
		t.Errorf("the copy has %d of one moment and %d of another", copied[0], copied[1])
	}
	for end := time.Now().Add(time.Minute); number(last) <= copied[1]; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the program of the package stands still")
		}
	}
	stop()
	<-ended
}

// An idle instance of a task does not keep the task open if another program, such as gatehouse review at a terminal,
// accepts it.
func TestAnAcceptanceElsewhereEndsIdleInstances(t *testing.T) {
	a, client, dir, _ := stagingPackage(t)
	made := filepath.Join(dir, "made")
	client("ann").attack("write", made, "staged in task")
	task := taskOf(t, a, "ann")
	elsewhere := stage.New(stage.Options{Dir: StageFolder(a.cfg.Folders)})
	r, err := elsewhere.Accept(task.ID, stage.Choice{By: "ann"})
	if err != nil || len(r.Done) != 1 || r.Note != "" {
		t.Errorf("accepted %+v, %v", r, err)
	}
	if a.stage.IsOpen(task.ID) {
		t.Error("the task is open")
	}
	if _, err := os.Stat(made); err != nil {
		t.Error(err)
	}
	if names, err := filepath.Glob(filepath.Join(StageFolder(a.cfg.Folders), task.ID, "end-idle")); len(names) > 0 {
		t.Errorf("%v is left, %v", names, err)
	}
}

// The instance of a task ends if another program closes the task.
func TestAStagedInstanceEndsWithItsTask(t *testing.T) {
	a, client, dir, _ := stagingPackage(t)
	client("ann").attack("write", filepath.Join(dir, "made"), "staged in task")
	running := instancesOf(t, a, "up")
	task := taskOf(t, a, "ann")
	if err := stage.New(stage.Options{Dir: StageFolder(a.cfg.Folders)}).Refuse(task.ID, "ann"); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); instancesOf(t, a, "up") >= running; time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the instance runs on")
		}
	}
	absent(t, filepath.Join(dir, "made"))
}
