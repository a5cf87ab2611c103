package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"gatehouse/internal/access/audit"
	"gatehouse/internal/access/secret"
	"gatehouse/internal/config"
	"gatehouse/internal/exec/shield"
	"gatehouse/internal/maintenance/backup"
	"gatehouse/internal/modules/publicstate"
	"gatehouse/internal/packages/packagestest"
)

func TestMain(m *testing.M) {
	packagestest.Main(os.Stdout)
	os.Exit(m.Run())
}

// packageArgs returns the arguments that install the test's own program as a package.
func packageArgs(t *testing.T, id, how string) string {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(
		map[string]any{"id": id, "command": program, "env": packagestest.Environment(how), "confirm": id},
	)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// A package is installed by an administrator, and its tools are available to all users whose view contains them.
func TestToolsOfAPackageAreCalledLikeAnyOther(t *testing.T) {
	_, client := liveOn(t, ruled(t, "package", "server"), Options{})
	admin, eve := client("ann", "admin"), client("eve")
	for _, name := range []string{"package_install", "package_list", "package_remove", "server_rebuild"} {
		args := map[string]string{"package_install": packageArgs(t, "up", "good"), "package_list": `{}`,
			"package_remove": `{"id":"up"}`, "server_rebuild": `{"confirm":"all"}`}[name]
		if got := fmt.Sprint(eve.result(name, args)); !strings.Contains(got, "denied") {
			t.Errorf("eve may %s: %s", name, got)
		}
	}
	unconfirmed := strings.Replace(packageArgs(t, "up", "good"), `"confirm":"up"`, `"confirm":""`, 1)
	if got := fmt.Sprint(admin.result("package_install", unconfirmed)); !strings.Contains(got, "unconfirmed") {
		t.Fatalf("no client was asked: %s", got)
	}
	begun := admin.result("package_install", packageArgs(t, "up", "good"))
	done := admin.wait(begun)
	if done["version"] != "1.2.3" {
		t.Fatalf("got %v", done)
	}
	eventually(t, "the tools are listed", func() bool { return slices.Contains(eve.names("default"), "up_echo") })
	got := eve.call("default", "up_echo", `{"text":"a","n":12345678901234567890.50}`)
	expect(t, got, `\"arguments\":{\"text\":\"a\",\"n\":12345678901234567890.50}`)
	expect(t, eve.call("default", "up_raw", `{}`), strings.Trim(packagestest.Result, "{}"))
	// The server checks its arguments, so what does not fit the schema reaches it as it is.
	expect(t, eve.call("default", "up_echo", `{"n":1}`), `\"arguments\":{\"n\":1}`)
	at := publicstate.PublicURI + "/packageData/up"
	for _, who := range []*tenant{admin, eve} {
		v, _ := who.readPublic("default", at)
		m, _ := v.(map[string]any)
		if m["title"] != "A test server" || m["state"] != "installed" || m["tools"] != 15.0 {
			t.Errorf("shown as %v", v)
		}
	}
	v, _ := admin.readPublic("default", publicstate.PublicURI+"/jobs/"+begun["job"].(string)+"/progress")
	if b, _ := json.Marshal(v); string(
		b,
	) != `{"overall":true,"phases":[{"name":"fetch","progress":true},{"name":"try","progress":true},{"name":"keep","progress":true}]}` {
		t.Errorf("progress %s", b)
	}
	rebuilt := admin.wait(admin.result("server_rebuild", `{"confirm":"all"}`))
	if got := fmt.Sprint(rebuilt["packages"]); !strings.Contains(got, "id:up") || strings.Contains(got, "error") {
		t.Errorf("got %v", rebuilt)
	}
	if got := admin.result("package_remove", `{"id":"up","confirm":"up"}`); got["removed"] != "up" {
		t.Error(got)
	}
	eventually(t, "the tools are removed", func() bool { return !slices.Contains(eve.names("default"), "up_echo") })
	if v, revision := admin.readPublic("default", at); revision != "" {
		t.Errorf("it is still shown: %v", v)
	}
}

// A package can access its own folder, and no other files of the host.
//
//redteam:attack Children are kept from the host's own files: a package reads the key, the stores and another package's data
func TestAPackageReadsNothingOfTheHosts(t *testing.T) {
	if shield.Possible() == shield.None {
		t.Skip("this kernel has no Landlock")
	}
	cfg := ruled(t, "package")
	for _, dir := range []string{cfg.Folders.Data, cfg.Folders.Config, cfg.Folders.State} {
		if err := errors.Join(os.MkdirAll(dir, 0o700),
			os.WriteFile(filepath.Join(dir, "key"), []byte("the-key-itself"), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	other := filepath.Join(cfg.Folders.Data, "packages", "other", "data")
	if err := errors.Join(os.MkdirAll(other, 0o700),
		os.WriteFile(filepath.Join(other, "key"), []byte("the-key-itself"), 0o600)); err != nil {
		t.Fatal(err)
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	script := fmt.Sprintf(
		`{ cat %s/key %s/key %s/key %s/key; ls %[2]s; echo over > %[2]s/new; } > "$HOME/got" 2>&1; exec %[5]s`,
		cfg.Folders.Data,
		cfg.Folders.Config,
		cfg.Folders.State,
		other,
		program,
	)
	args, err := json.Marshal(
		map[string]any{
			"id":      "spy",
			"command": "/bin/sh",
			"args":    []string{"-c", script},
			"env":     packagestest.Environment("good"),
			"confirm": "spy",
			"trust":   true,
		},
	)
	if err != nil {
		t.Fatal(err)
	}
	_, client := liveOn(t, cfg, Options{})
	admin := client("ann", "admin")
	if done := admin.wait(admin.result("package_install", string(args))); done["version"] != "1.2.3" {
		t.Fatalf("got %v", done)
	}
	got, err := os.ReadFile(filepath.Join(cfg.Folders.Data, "packages", "spy", "data", "got"))
	if err != nil || strings.Contains(string(got), "the-key-itself") || len(got) == 0 {
		t.Errorf("it read %q, %v", got, err)
	}
	if _, err := os.Stat(filepath.Join(cfg.Folders.Config, "new")); err == nil {
		t.Error("it wrote to the config folder")
	}
}

// A caller who may call none of a package's tools does not see the package.
func TestAPackageIsSeenByThoseWhoMayCallIt(t *testing.T) {
	cfg := ruled(t, "package")
	cfg.View.Tools = []string{"!up_*"}
	_, client := liveOn(t, cfg, Options{})
	admin, eve := client("ann", "admin"), client("eve")
	admin.wait(admin.result("package_install", packageArgs(t, "up", "good")))
	at := publicstate.PublicURI + "/packageData"
	if v, _ := admin.readPublic("default", at); !strings.Contains(fmt.Sprint(v), "A test server") {
		t.Errorf("ann sees %v", v)
	}
	if v, _ := eve.readPublic("default", at); fmt.Sprint(v) != "map[]" {
		t.Errorf("eve sees %v", v)
	}
}

func TestThoseWhoRuleAreToldOfAPackageThatIsLeftAlone(t *testing.T) {
	a, client := liveOn(t, ruled(t, "package", "notification"), Options{})
	admin := client("ann", "admin")
	a.notifyBroken("up", errors.New("its program ended with code 4"))
	eventually(t, "it is in the list", func() bool {
		got := fmt.Sprint(admin.result("notification_list", `{}`))
		return strings.Contains(got, "package.broken") && strings.Contains(got, "code 4")
	})
}

// If a package's server later lists other tools than those that were approved when it was installed, the change is
// recorded in the ledger and administrators are notified.
//
//redteam:attack A package's server is a stranger: its tools change after the installation was agreed to
func TestToolsThatChangeByThemselvesAreTold(t *testing.T) {
	a, client := liveOn(t, ruled(t, "package", "notification"), Options{})
	admin := client("ann", "admin")
	admin.wait(admin.result("package_install", packageArgs(t, "up", "good")))
	eventually(t, "it is installed", func() bool { return slices.Contains(admin.names("default"), "up_grow") })
	notes := func() string { return fmt.Sprint(admin.result("notification_list", `{}`)) }
	if strings.Contains(notes(), "tools_changed") {
		t.Errorf("an installation counts as a change: %s", notes())
	}
	admin.result("up_grow", `{}`)
	eventually(t, "administrators are told", func() bool {
		return strings.Contains(notes(), "package.tools_changed") && strings.Contains(notes(), "up_grown")
	})
	eventually(t, "the ledger has it", func() bool {
		if err := a.ledger.Sync(t.Context()); err != nil {
			t.Fatal(err)
		}
		found := false
		for line, err := range a.ledger.Query(t.Context(), audit.Filter{Kind: "package.tools_changed"}) {
			found = err == nil && strings.Contains(string(line.Raw), "up_grown") &&
				strings.Contains(string(line.Raw), `"package":"up"`)
		}
		return found
	})
}

// The installation warns of a secret that is written out in a package's record without repeating its value, and
// refuses ids that are reserved for this host.
func TestAPackageIsInstalledWithWarnings(t *testing.T) {
	_, client := liveOn(t, ruled(t, "package"), Options{})
	admin := client("ann", "admin")
	args := strings.Replace(packageArgs(t, "up", "good"), `"env":{`, `"env":{"SERVICE_TOKEN":"value-of-it",`, 1)
	done := fmt.Sprint(admin.wait(admin.result("package_install", args)))
	if !strings.Contains(done, "SERVICE_TOKEN looks like a secret") ||
		!strings.Contains(done, "gatehouse secret set") ||
		strings.Contains(done, "value-of-it") {
		t.Errorf("got %s", done)
	}
	for _, id := range []string{"gatehouse", "admin", "admin-tools", "gatehouse-x"} {
		got := fmt.Sprint(admin.result("package_install", packageArgs(t, id, "good")))
		if !strings.Contains(got, "reserved for this host") {
			t.Errorf("%s: %s", id, got)
		}
	}
}

// Backups contain packages with their data and restore them on another host.
func TestABackupBringsPackagesBack(t *testing.T) {
	first := ruled(t, "package", "backup")
	if err := secret.In(first.Folders.Config, "").Set(backup.DefaultSecret, secret.New(backupKey)); err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	a, stop := started(t, first)
	admin := tenantOf(t, a, "ann", "admin")
	admin.wait(admin.result("package_install", packageArgs(t, "up", "good")))
	eventually(t, "the tools are listed", func() bool { return slices.Contains(admin.names("default"), "up_keep") })
	expect(t, admin.call("default", "up_keep", `{}`), "kept")
	if got := admin.result("backup_target_set",
		fmt.Sprintf(`{"name":"shelf","kind":"directory","path":%q}`, folder)); got["name"] != "shelf" {
		t.Fatal(got)
	}
	made := admin.wait(admin.result("backup_create", `{}`))
	name, _ := made["backup"].(string)
	if list := fmt.Sprint(admin.result("backup_info", `{}`)["list"]); !strings.Contains(
		list,
		"data/packages/up/data/kept",
	) {
		t.Errorf("the data are not in %s", list)
	}
	stop()

	second := ruled(t, "package", "backup")
	b, stop := started(t, second)
	admin = tenantOf(t, b, "ann", "admin")
	staged := admin.wait(
		admin.result(
			"backup_restore",
			fmt.Sprintf(`{"target":%q,"password":%q,"confirm":%q}`, folder, backupKey, name),
		),
	)
	if staged["backup"] != name {
		t.Fatal(staged)
	}
	stop()
	c, _ := started(t, second)
	admin = tenantOf(t, c, "ann", "admin")
	if !slices.Contains(admin.names("default"), "up_where") {
		t.Fatalf("the tools are not there: %v", admin.names("default"))
	}
	expect(t, admin.call("default", "up_where", `{}`), second.Folders.Data)
	if _, err := os.Stat(second.Folders.Data + "/packages/up/data/kept"); err != nil {
		t.Error(err)
	}
}

// Packages that are restored alone run on the running host: packages it did not have, and those it has, which end
// first. The result is the same if another process restores them.
func TestRestoredPackagesRunOnTheRunningHost(t *testing.T) {
	folder := t.TempDir()
	first := ruled(t, "package", "backup")
	a, stop := started(t, first)
	admin := tenantOf(t, a, "ann", "admin")
	admin.wait(admin.result("package_install", packageArgs(t, "up", "good")))
	eventually(t, "the tools are listed", func() bool { return slices.Contains(admin.names("default"), "up_keep") })
	expect(t, admin.call("default", "up_keep", `{}`), "kept")
	made := admin.wait(
		admin.result("backup_create", fmt.Sprintf(`{"target":%q,"password":%q,"packages":["up"]}`, folder, backupKey)),
	)
	name, _ := made["backup"].(string)
	if name == "" {
		t.Fatal(made)
	}
	stop()

	second := ruled(t, "package", "backup")
	second.Modules.Package.Idle = time.Second // so that it checks for restores of other processes often
	b, client := liveOn(t, second, Options{})
	admin = client("ann", "admin")
	kept := filepath.Join(second.Folders.Data, "packages", "up", "data", "kept")
	restore := func() {
		t.Helper()
		args := fmt.Sprintf(`{"target":%q,"password":%q,"packages":["up"],"confirm":%q}`, folder, backupKey, name)
		done := admin.wait(admin.result("backup_restore", args))
		if next, _ := done["next"].(string); !strings.Contains(next, "are back and run") {
			t.Fatal(done)
		}
	}
	runs := func() {
		t.Helper()
		if !slices.Contains(admin.names("default"), "up_where") {
			t.Fatalf("the tools are not there: %v", admin.names("default"))
		}
		expect(t, admin.call("default", "up_where", `{}`), second.Folders.Data)
		if _, err := os.Stat(kept); err != nil {
			t.Error(err)
		}
	}
	restore()
	runs()
	if err := os.Remove(kept); err != nil {
		t.Fatal(err)
	}
	restore() // replaces the running one
	runs()
	if v, _ := admin.readPublic("default", publicstate.PublicURI+"/packageData/up"); fmt.Sprint(v) == "<nil>" {
		t.Error("it is not shown")
	}
	if got := admin.result("backup_list", `{}`); got["waiting"] != nil {
		t.Errorf("a restore still waits: %v", got)
	}

	if err := os.Remove(kept); err != nil {
		t.Fatal(err)
	}
	command := NewKeeper(second, backup.Options{Log: b.log})
	hold, err := command.Reserve()
	if err != nil {
		t.Fatal(err)
	}
	defer hold.Release()
	if _, _, err := hold.Restore(t.Context(), folder, name, []string{"up"},
		backup.Key{Password: secret.New(backupKey)}, nil); err != nil {
		t.Fatal(err)
	}
	eventually(t, "what another process restored is there", func() bool {
		_, err := os.Stat(kept)
		return err == nil
	})
	eventually(t, "it runs again", func() bool {
		return strings.Contains(admin.call("default", "up_where", `{}`), second.Folders.Data)
	})
}

// A host whose settings name an https address describes itself there to authorization servers, also if callers need
// credentials; one without such an address does not.
func TestAHostDescribesItselfToAuthorizationServers(t *testing.T) {
	for server, want := range map[string]string{
		"https://tools.example.test": "https://tools.example.test/oauth-client.json",
		"https://10.0.0.1":           "",
		"":                           "",
	} {
		cfg := ruled(t, "package")
		cfg.Listen.HTTP.Open, cfg.Auth.Required, cfg.Auth.Server = true, true, server
		cfg.Auth.Token = secret.New("a token of sixteen characters")
		a, err := New(t.Context(), cfg, Options{Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		h, err := a.NewHTTPServer()
		if err != nil {
			t.Fatal(err)
		}
		w := httptest.NewRecorder()
		r := httptest.NewRequest("GET", "http://127.0.0.1/oauth-client.json", nil)
		r.RemoteAddr = "127.0.0.1:1"
		h.ServeHTTP(w, r)
		var got struct {
			ID string `json:"client_id"`
		}
		if want != "" && (w.Code != 200 || json.Unmarshal(w.Body.Bytes(), &got) != nil) || got.ID != want ||
			want == "" && w.Code == 200 {
			t.Errorf("%q: %d %s", server, w.Code, w.Body)
		}
		if id := a.packageOptions().ClientDocument; id != want {
			t.Errorf("%q: packages use %q", server, id)
		}
		ctx, stop := context.WithCancel(t.Context())
		stop()
		if err := a.Run(ctx); err != nil {
			t.Error(err)
		}
	}
}

// Clients learn where they reach a package, with names and TLS; an installation is cancelled also under the original
// name of the tool, in a context that has those.
func TestHostsOfAPackageAndACancelledInstallation(t *testing.T) {
	cfg := ruled(t, "package")
	cfg.Listen.HTTP.Open, cfg.Listen.HTTP.Host, cfg.Listen.HTTP.Port = true, "127.0.0.1", 0
	cfg.Listen.HTTP.TLS, cfg.Listen.HTTP.Hosts = config.TLS{On: true}, []string{"box.example.com"}
	cfg.Contexts = []config.Context{{Name: "main", Modules: cfg.View.Modules},
		{Name: "ops", Modules: cfg.View.Modules, Aliases: true}}
	a, client := liveOn(t, cfg, Options{})
	admin := client("ann", "admin")
	expect(t, admin.call("main", "package_install", packageArgs(t, "up", "silent")), `"job"`)
	if got := admin.call("main", "package.cancel-install", `{"id":"up"}`); !strings.Contains(got, `"error"`) {
		t.Errorf("the original name is known in a context without aliases: %s", got)
	}
	eventually(t, "the installation is cancelled", func() bool {
		return strings.Contains(admin.call("ops", "package.cancel-install", `{"id":"up"}`), `"cancelled":true`)
	})
	eventually(t, "nothing is installed", func() bool {
		return strings.Contains(admin.call("main", "package_list", `{}`), `"packages":[]`)
	})
	expect(t, admin.call("main", "package_install", packageArgs(t, "up", "good")), `"job"`)
	eventually(t, "it is installed", func() bool {
		return strings.Contains(admin.call("main", "package_list", `{}`), `"state":"installed"`)
	})
	got := admin.call("ops", "package.host.list", `{"id":"up"}`)
	expect(t, got, `"kind":"HTTPS"`, a.Listeners()[0].Address, `"names":["box.example.com"]`, `"tls":true`, `"ports":[]`)
}
