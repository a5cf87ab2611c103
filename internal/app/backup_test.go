package app

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gatehouse/internal/access/audit"
	"gatehouse/internal/access/secret"
	"gatehouse/internal/config"
	"gatehouse/internal/dispatch/contextstore"
	"gatehouse/internal/files/stage"
	"gatehouse/internal/maintenance/backup"
	"gatehouse/internal/modules/publicstate"
	"gatehouse/internal/state"
	"gatehouse/tool"
)

// started returns a running host that the test stops itself.
func started(t *testing.T, cfg config.Config) (a *App, stop func()) {
	t.Helper()
	a, err := New(t.Context(), cfg, Options{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(stop)
	return a, stop
}

// wait follows a job to its end.
func (c *tenant) wait(begun map[string]any) map[string]any {
	c.t.Helper()
	id, _ := begun["job"].(string)
	if id == "" {
		c.t.Fatalf("no job: %v", begun)
	}
	for range 20 {
		got := c.result("job_wait", fmt.Sprintf(`{"id":%q}`, id))
		if got["status"] != "working" {
			return got
		}
	}
	c.t.Fatal("the job does not end")
	return nil
}

const backupKey = "correct horse battery"

// stagedTask stages a new file and the removal of another; it returns "" where nothing can be staged.
func stagedTask(t *testing.T, a *App) (id, project string) {
	t.Helper()
	if a.stage == nil || a.cannotStage(true) != "" {
		return "", ""
	}
	project = t.TempDir()
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	check(os.WriteFile(filepath.Join(project, "gone"), nil, 0o600))
	id, err := a.stage.Begin(stage.Who{Principal: "ann", Context: "default"})
	check(err)
	v, err := a.stage.Enter(id, []string{project}, true)
	check(err)
	root, err := v.Root(project)
	check(err)
	check(root.Remove("gone"))
	check(root.WriteFile("new", []byte("new"), 0o600))
	check(v.Leave(true))
	return id, project
}

// A host is filled, backed up and lost. Another host with other folders becomes that host when it is restarted
// with the backup.
func TestABackupMakesAFreshHostThisOne(t *testing.T) {
	first := ruled(t, "backup", "file", "notification")
	if err := secret.In(first.Folders.Config, "").Set(backup.DefaultSecret, secret.New(backupKey)); err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	a, stop := started(t, first)
	admin, eve := tenantOf(t, a, "ann", "admin"), tenantOf(t, a, "eve")
	if got := fmt.Sprint(eve.result("backup_list", `{}`)); !strings.Contains(got, "denied") {
		t.Errorf("eve sees %s", got)
	}
	if _, err := a.contextStore.Create(contextstore.Record{Name: "notes",
		Definition: contextstore.Definition{Description: "of ann"}}, "ann"); err != nil {
		t.Fatal(err)
	}
	if err := a.who.AddUser(t.Context(), "bob", nil, "a password of bob"); err != nil {
		t.Fatal(err)
	}
	if got := admin.result("backup_target_set",
		fmt.Sprintf(`{"name":"shelf","kind":"directory","path":%q,"keep":3}`, folder)); got["name"] != "shelf" {
		t.Fatal(got)
	}
	task, project := stagedTask(t, a)
	begun := admin.result("backup_create", `{}`)
	made := admin.wait(begun)
	name, _ := made["backup"].(string)
	if name == "" {
		t.Fatalf("got %v", made)
	}
	at := publicstate.PublicURI + "/jobs/" + begun["job"].(string)
	eventually(t, "the job has ended in the tree", func() bool {
		v, _ := admin.readPublic("default", at+"/status")
		return v == "completed"
	})
	v, _ := admin.readPublic("default", at+"/progress")
	if b, _ := json.Marshal(v); string(
		b,
	) != `{"overall":true,"phases":[{"name":"snapshot","progress":true},{"name":"write","progress":true},{"name":"remove old backups","progress":true}]}` {
		t.Errorf("progress %s", b)
	}
	if v, revision := eve.readPublic("default", at); revision != "" {
		t.Errorf("eve sees the job: %v", v)
	}
	eventually(t, "the administrators are notified", func() bool {
		return strings.Contains(fmt.Sprint(admin.result("notification_list", `{}`)), "backup.created")
	})
	info := admin.result("backup_info", `{"target":"shelf"}`)
	list := fmt.Sprint(info["list"])
	for _, want := range []string{"data/state.db", "data/contexts.db", "data/identity.db", "data/audit.db",
		"config/secrets.age", "config/secrets.key", "state/jobs.db"} {
		if !strings.Contains(list, want) {
			t.Errorf("%s is not in %s", want, list)
		}
	}
	self, _, err := a.tree.self.Get()
	if err != nil || info["host_id"] != self.ID || info["backup"] != name {
		t.Errorf("got %v, want the host %s", info, self.ID)
	}
	stop()

	second := ruled(t, "backup", "file")
	b, stop := started(t, second)
	admin = tenantOf(t, b, "ann", "admin")
	if got, _, _ := b.tree.self.Get(); got.ID == self.ID {
		t.Fatal("the fresh host is the same")
	}
	args := fmt.Sprintf(`"target":%q,"password":%q`, folder, backupKey)
	if got := fmt.Sprint(admin.result("backup_restore", "{"+args+"}")); !strings.Contains(got, "unconfirmed") {
		t.Fatalf("no client was asked: %s", got)
	}
	if got := fmt.Sprint(admin.result("backup_restore",
		fmt.Sprintf(`{"target":%q,"password":"a wrong password","confirm":%q}`, folder, name))); !strings.Contains(
		got,
		"denied",
	) {
		t.Errorf("with a wrong password: %s", got)
	}
	staged := admin.wait(admin.result("backup_restore", fmt.Sprintf(`{%s,"confirm":%q}`, args, name)))
	if staged["backup"] != name {
		t.Fatal(staged)
	}
	if got := admin.result("backup_list", `{}`); got["waiting"] != name {
		t.Errorf("nothing waits: %v", got)
	}
	stop()

	c, stop := started(t, second)
	if got, _, err := c.tree.self.Get(); err != nil || got.ID != self.ID {
		t.Errorf("the host is %v, want %s (%v)", got, self.ID, err)
	}
	if c.contextStore.Current().Find("notes") == nil {
		t.Error("the context is not there")
	}
	if task != "" {
		if _, err := c.stage.Accept(task, stage.Choice{}); err != nil {
			t.Error(err)
		}
		for name, want := range map[string]bool{"new": true, "gone": false} {
			if _, err := os.Stat(filepath.Join(project, name)); (err == nil) != want {
				t.Errorf("after the restored task was accepted: %s, %v", name, err)
			}
		}
	}
	users, err := c.who.Users(t.Context())
	if err != nil || len(users) != 1 || users[0].Name != "bob" {
		t.Errorf("users %v, %v", users, err)
	}
	if v, err := secret.In(second.Folders.Config, "").Get(backup.DefaultSecret); err != nil || v.Reveal() != backupKey {
		t.Errorf("the secret is not there: %v", err)
	}
	eventually(t, "the ledger knows of it, and is whole", func() bool {
		r, err := c.ledger.Verify(t.Context())
		if err != nil || !r.OK {
			t.Fatalf("%+v, %v", r, err)
		}
		found := false
		for line, err := range c.ledger.Query(t.Context(), audit.Filter{Kind: "config.restored"}) {
			found = err == nil && strings.Contains(string(line.Raw), name)
		}
		return found
	})
	stop()
	if host, err := HostOf(t.Context(), second.Folders); err != nil || host.ID != self.ID {
		t.Errorf("without a host it is %v, %v", host, err)
	}
}

func TestAJobThatIsCancelledIsShownSo(t *testing.T) {
	cfg := ruled(t, "backup")
	a, _ := started(t, cfg)
	admin := tenantOf(t, a, "ann", "admin")
	if err := os.WriteFile(filepath.Join(cfg.Folders.Data, "large"), make([]byte, 16<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	begun := admin.result("backup_create", fmt.Sprintf(`{"target":%q,"password":%q}`, folder, backupKey))
	id, _ := begun["job"].(string)
	admin.result("job_cancel", fmt.Sprintf(`{"id":%q}`, id))
	status := any(nil)
	eventually(t, "the job has ended in the tree", func() bool {
		status, _ = admin.readPublic("default", publicstate.PublicURI+"/jobs/"+id+"/status")
		return status != nil && status != "working"
	})
	left, err := os.ReadDir(folder)
	if err != nil || status == "cancelled" && len(left) > 0 || status == "completed" && len(left) != 1 {
		t.Errorf("%v, and the target holds %v (%v)", status, left, err)
	}
}

func TestJobsThatHaveEndedAreForgottenInTime(t *testing.T) {
	a, _ := live(t)
	who := tool.Caller{Principal: "ann", Owner: "ann/default"}
	for i := range endedShown + 5 {
		_, ended := a.tree.showJob(who, fmt.Sprintf("job_%02d", i), "one of many")
		ended(nil)
	}
	v := a.tree.state.Read(state.Pointer{"public", "jobs"})
	if got := members(v.Value); len(got) != endedShown {
		t.Errorf("%d jobs: %v", len(got), got)
	}
}
