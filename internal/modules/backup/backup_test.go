package backup

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gatehouse/internal/access/secret"
	"gatehouse/internal/dispatch/progress"
	"gatehouse/internal/maintenance/backup"
	"gatehouse/module"
	"gatehouse/module/moduletest"
	"gatehouse/tool"
)

// person calls the tools of one module.
type person struct {
	t      *testing.T
	module module.Module
	shelf  string
	shown  []progress.Progress
	ended  []error
	jobs   []tool.Handler
	told   []string // notifications
}

// visit makes a module on a host with data, whose jobs run when a test says so.
func visit(t *testing.T) *person {
	t.Helper()
	top := t.TempDir()
	folders := backup.Folders{
		Data:   filepath.Join(top, "data"),
		Config: filepath.Join(top, "config"),
		State:  filepath.Join(top, "state"),
	}
	secrets := secret.In(folders.Config, "")
	room := backup.New(backup.Options{Folders: folders, Secrets: secrets, Version: "test",
		Host: func(context.Context) (backup.Host, error) { return backup.Host{ID: "host_a", Name: "house"}, nil }})
	p := &person{t: t, shelf: t.TempDir()}
	cfg := Config{Backups: room, Secrets: secrets, Folders: folders,
		Rules: func(who tool.Caller) bool { return who.Principal == "ann" },
		Show: func(tool.Caller, string, string) (func(progress.Progress), func(error)) {
			return func(now progress.Progress) { p.shown = append(p.shown, now) },
				func(err error) { p.ended = append(p.ended, err) }
		}}
	m, err := New(cfg)(t.Context(), module.Deps{
		Publish: func(subject string, fact any) {
			if b, _ := json.Marshal(fact); subject == "notification" {
				p.told = append(p.told, string(b))
			}
		},
		Job: func(_ *tool.Call, _ string, run tool.Handler) (string, error) {
			p.jobs = append(p.jobs, run)
			return fmt.Sprintf("job_%d", len(p.jobs)), nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	p.module = m
	return p
}

// ask calls a tool; what is refused comes as text.
func (p *person) ask(name string, args ...any) (map[string]any, string) {
	p.t.Helper()
	return p.askAs(name, func(c *moduletest.Call) { c.Caller.Principal = "ann" }, args...)
}

func (p *person) askAs(name string, change func(*moduletest.Call), args ...any) (out map[string]any, refused string) {
	p.t.Helper()
	c := moduletest.NewCall(p.t, args...)
	change(c)
	refused = c.Ask(p.t, p.module, name, &out)
	return out, refused
}

// last runs the newest job.
func (p *person) last(ctx context.Context) (out map[string]any, refused string, c *moduletest.Call) {
	p.t.Helper()
	c = moduletest.NewCall(p.t)
	res, err := c.Run(ctx, p.jobs[len(p.jobs)-1])
	refused = moduletest.Answer(p.t, res, err, &out)
	return out, refused, c
}

const words = "correct horse battery"

func TestABackupIsMadeLookedAtAndBroughtBack(t *testing.T) {
	p := visit(t)
	p.ask("backup_target_set", "name", "shelf", "kind", "directory", "path", p.shelf)
	begun, refused := p.ask("backup_create", "password", words)
	if refused != "" || begun["status"] != "working" {
		t.Fatal(begun, refused)
	}
	made, refused, call := p.last(t.Context())
	if refused != "" || made["target"] != "shelf" {
		t.Fatal(made, refused)
	}
	if n := len(p.shown); n < 3 || p.shown[n-1].Overall.State != progress.Done || len(p.ended) != 1 ||
		p.ended[0] != nil {
		t.Errorf("shown %+v, ended %v", p.shown, p.ended)
	}
	if n := len(call.Peer.Progressed); n < 2 || call.Peer.Progressed[0].Total != 3 {
		t.Errorf("told %+v", call.Peer.Progressed)
	}
	list, _ := p.ask("backup_list")
	if got := fmt.Sprint(list); !strings.Contains(got, made["backup"].(string)) || !strings.Contains(got, "own:true") {
		t.Errorf("lists %s", got)
	}
	info, refused := p.ask("backup_info", "password", words)
	if refused != "" || info["host"] != "house" ||
		!strings.Contains(fmt.Sprint(info["list"]), "config/backup-targets.json") {
		t.Errorf("says %v, %s", info, refused)
	}
	yes := func(c *moduletest.Call) {
		c.Caller.Principal = "ann"
		c.Peer.Answers["confirm"] = moduletest.Accept(map[string]bool{"confirm": true})
	}
	if _, refused := p.askAs("backup_restore", yes, "password", words); refused != "" {
		t.Fatal(refused)
	}
	staged, refused, _ := p.last(t.Context())
	if refused != "" || staged["backup"] != made["backup"] ||
		!strings.Contains(fmt.Sprint(staged["next"]), "server_restart") {
		t.Errorf("staged %v, %s", staged, refused)
	}
	if len(p.told) != 2 || !strings.Contains(p.told[0], `"level":"success"`) ||
		!strings.Contains(p.told[1], "backup.staged") {
		t.Errorf("told %q", p.told)
	}
	if back, refused := p.ask("backup_restore_cancel"); refused != "" || back["cancelled"] != made["backup"] {
		t.Error(back, refused)
	}
	if back, refused := p.ask("backup_restore_cancel"); refused != "" || back["cancelled"] != "" {
		t.Error(back, refused)
	}
	if _, refused := p.ask("backup_target_remove", "name", "shelf"); refused != "" {
		t.Error(refused)
	}
}

func TestAJobEndsWithItsContext(t *testing.T) {
	p := visit(t)
	if _, refused := p.ask("backup_create", "target", p.shelf, "password", words); refused != "" {
		t.Fatal(refused)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Nanosecond)
	defer cancel()
	<-ctx.Done()
	if _, refused, _ := p.last(ctx); !strings.Contains(refused, "deadline") {
		t.Errorf("got %q", refused)
	}
}

func TestWhatIsRefused(t *testing.T) {
	p := visit(t)
	offer, err := p.module.Offer(t.Context(), module.Audience{})
	if err != nil {
		t.Fatal(err)
	}
	for _, tl := range offer.Tools {
		args := map[string]any{}
		if strings.Contains(tl.Name, "_target_") {
			args["name"] = "x"
		}
		if _, refused := p.askAs(tl.Name,
			func(c *moduletest.Call) { c.Caller.Principal = "eve" }, args); !strings.HasPrefix(
			refused,
			"denied: ",
		) {
			t.Errorf("%s for eve: %q", tl.Name, refused)
		}
	}
	for _, c := range []struct {
		want, name string
		args       []any
	}{
		{"invalid_arguments: the password has 5 bytes; expected at least 12", "backup_create",
			[]any{"password", "short", "target", p.shelf}},
		{`no such package "a": this host has none`, "backup_create",
			[]any{"password", words, "target", p.shelf, "packages", []string{"a"}}},
		{"gatehouse secret set BACKUP_PASSWORD", "backup_create", nil},
		{"gatehouse secret set OTHER", "backup_create", []any{"secret", "OTHER"}},
		{"secret: name \"two words\"", "backup_info", []any{"secret", "two words"}},
		{"exclude each other", "backup_info", []any{"password", words, "secret", "OTHER"}},
		{"not_found: no such backup target", "backup_create", []any{"password", words, "target", "attic"}},
		{"the folder does not exist", "backup_create", []any{"password", words, "target", "/no/such/folder"}},
		{"not_found: no such backup target", "backup_list", []any{"target", "attic"}},
		{"no such backup", "backup_info", []any{"password", words, "target", p.shelf}},
		{"is not the name of a backup", "backup_restore",
			[]any{"password", words, "target", p.shelf, "backup", "../x"}},
		{"not_found: no such backup target", "backup_target_remove", []any{"name", "attic"}},
		{"needs access_key", "backup_target_set",
			[]any{"name", "c", "kind", "s3", "endpoint", "https://s3.example.com", "bucket", "backups"}},
		{"expected an absolute path of a folder", "backup_target_set",
			[]any{"name", "d", "kind", "directory", "path", "x"}},
	} {
		if _, refused := p.ask(c.name, c.args...); !strings.Contains(refused, c.want) {
			t.Errorf("%s %v: got %q, want %q", c.name, c.args, refused, c.want)
		}
	}
	if len(p.jobs) > 0 {
		t.Errorf("%d jobs were started", len(p.jobs))
	}
	if len(p.told) > 0 {
		t.Errorf("told %q", p.told)
	}
	// What fails later is told.
	if _, refused := p.ask("backup_create", "password", words, "target", p.shelf); refused != "" {
		t.Error(refused)
	}
	if err := os.Remove(p.shelf); err != nil {
		t.Fatal(err)
	}
	if _, refused, _ := p.last(t.Context()); refused == "" {
		t.Error("a backup into nothing is made")
	}
	if len(p.told) != 1 || !strings.Contains(p.told[0], `"code":"backup.failed","level":"error"`) {
		t.Errorf("told %q", p.told)
	}
}

// While one backup is made, others are refused before there is a job.
func TestFourAtOnce(t *testing.T) {
	p := visit(t)
	for i := range 4 {
		_, refused := p.ask("backup_create", "password", words, "target", p.shelf)
		if i > 0 != strings.HasPrefix(refused, "busy: ") {
			t.Errorf("number %d: %q", i+1, refused)
		}
	}
	if len(p.jobs) != 1 {
		t.Errorf("%d jobs were started", len(p.jobs))
	}
	if _, refused, _ := p.last(t.Context()); refused != "" {
		t.Error(refused)
	}
	if _, refused := p.ask("backup_create", "password", words, "target", p.shelf); refused != "" {
		t.Errorf("after the first: %q", refused)
	}
}

func TestABackupIsReadInto(t *testing.T) {
	p := visit(t)
	p.ask("backup_target_set", "name", "shelf", "kind", "directory", "path", p.shelf)
	p.ask("backup_create", "password", words)
	if _, refused, _ := p.last(t.Context()); refused != "" {
		t.Fatal(refused)
	}
	read := func(path string) string {
		c := moduletest.NewCall(t, "password", words, "path", path)
		c.Caller.Principal = "ann"
		var out readOut
		if refused := c.Ask(t, p.module, "backup_read", &out); refused != "" {
			return refused
		}
		if out.Backup == "" || out.Size != int64(len(out.Content)) && out.Modified != "" {
			t.Errorf("%q: %+v", path, out)
		}
		return out.Content
	}
	for path, want := range map[string]string{
		"":                           "config/\t",
		"/config/":                   "backup-targets.json\t",
		"config/backup-targets.json": `"shelf"`,
		"config/none":                "not_found: config/none: no such file",
		"config/secrets.key":         "denied: config/secrets.key holds secrets",
		"key/key":                    "denied: ",
	} {
		if got := read(path); !strings.Contains(got, want) {
			t.Errorf("%q: got %s, want %s", path, got, want)
		}
	}
}

func TestNobodyIsLetInWithoutAHost(t *testing.T) {
	m, err := New(Config{})(t.Context(), module.Deps{})
	if err != nil {
		t.Fatal(err)
	}
	o, _ := m.Offer(t.Context(), module.Audience{})
	for _, tl := range o.Tools {
		_, err := moduletest.NewCall(t, "name", "x").Tool(t.Context(), tl)
		if r, ok := errors.AsType[*tool.Refusal](err); !ok || r.Code != "denied" {
			t.Errorf("%s: got %v", tl.Name, err)
		}
	}
}

func TestTheModuleKeepsTheContract(t *testing.T) {
	moduletest.Run(t, New(Config{}), moduletest.Options{})
}

// A backup is mounted, listed and unmounted; the secrets of the host are not in it.
func TestABackupIsMounted(t *testing.T) {
	if err := backup.CanMount(); err != nil {
		t.Skip(err)
	}
	p := visit(t)
	if err := p.module.(*backupTools).cfg.Secrets.Set("TOKEN", secret.New("hidden")); err != nil {
		t.Fatal(err)
	}
	p.ask("backup_target_set", "name", "shelf", "kind", "directory", "path", p.shelf)
	p.ask("backup_create", "password", words)
	if _, refused, _ := p.last(t.Context()); refused != "" {
		t.Fatal(refused)
	}
	t.Cleanup(func() {
		if err := p.module.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	other := func(c *moduletest.Call) { c.Caller.Principal = "eve" }
	if _, refused := p.askAs("backup_mount", other, "password", words); !strings.Contains(refused, "denied") {
		t.Errorf("eve: %s", refused)
	}
	if _, refused := p.ask("backup_mount", "password", "another password"); !strings.Contains(refused,
		"the password is wrong") {
		t.Errorf("a wrong password: %s", refused)
	}
	got, refused := p.ask("backup_mount", "password", words)
	if refused != "" {
		t.Fatal(refused)
	}
	path, _ := got["path"].(string)
	if text, err := os.ReadFile(filepath.Join(path, "config", "backup-targets.json")); err != nil ||
		!strings.Contains(string(text), `"shelf"`) {
		t.Errorf("a file: %s, %v", text, err)
	}
	for _, name := range []string{"secrets.age", "secrets.key"} {
		if _, err := os.Stat(filepath.Join(path, "config", name)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is there: %v", name, err)
		}
	}
	if list, _ := p.ask("backup_list"); !strings.Contains(fmt.Sprint(list["mounts"]), path) {
		t.Errorf("listed: %v", list)
	}
	if _, refused := p.askAs("backup_unmount", other, "mount", path); !strings.Contains(refused, "denied") {
		t.Errorf("eve: %s", refused)
	}
	file, err := os.Open(filepath.Join(path, "config", "backup-targets.json"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, refused := p.ask("backup_unmount", "mount", path); !strings.Contains(refused, "busy") {
		t.Errorf("while it is used: %s", refused)
	}
	if out, refused := p.ask("backup_unmount", "mount", got["mount"], "force", true); out["unmounted"] != path {
		t.Error(out, refused)
	}
	if _, refused := p.ask("backup_unmount", "mount", path); !strings.Contains(refused, "no such mount") {
		t.Errorf("again: %s", refused)
	}
}

// Where nothing can be mounted the tools for it are not listed.
func TestToolsOfMountsAreListedWhereTheyWork(t *testing.T) {
	for _, missing := range []error{nil, errors.New("no FUSE")} {
		m, err := New(Config{Mountable: func() error { return missing }})(t.Context(), module.Deps{})
		if err != nil {
			t.Fatal(err)
		}
		offer, err := m.Offer(t.Context(), module.Audience{})
		if err != nil {
			t.Fatal(err)
		}
		listed := 0
		for _, d := range offer.Tools {
			if strings.HasSuffix(d.Name, "mount") {
				listed++
			}
		}
		if want := map[bool]int{true: 2, false: 0}[missing == nil]; listed != want {
			t.Errorf("%v: %d tools", missing, listed)
		}
	}
}
