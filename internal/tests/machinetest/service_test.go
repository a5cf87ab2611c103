package machinetest

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"
)

const serviceFolder = "/var/lib/gatehouse"

// command runs a program of the machine and returns what it printed to standard output.
func command(t *testing.T, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	var problems bytes.Buffer
	cmd.Stderr = &problems
	out, err := cmd.Output()
	if err != nil {
		log, _ := exec.Command("journalctl", "-u", "gatehouse", "-n", "40", "--no-pager").CombinedOutput()
		t.Fatalf("%s %v: %v: %s%s\n%s", name, args, err, out, problems.Bytes(), log)
	}
	return strings.TrimSpace(string(out))
}

// service returns a property of the unit.
func service(t *testing.T, property string) string {
	t.Helper()
	return command(t, "systemctl", "show", "gatehouse.service", "--value", "-p", property)
}

// status returns a field of the unit's main process, as Linux tells it.
func status(t *testing.T, field string) string {
	t.Helper()
	b, err := os.ReadFile("/proc/" + service(t, "MainPID") + "/status")
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(b), "\n"+field+":")
	line, _, _ := strings.Cut(after, "\n")
	return strings.TrimSpace(line)
}

// version asks the service for its version over MCP; without a token it has to refuse.
func version(t *testing.T, token string) string {
	t.Helper()
	const text = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18",` +
		`"capabilities":{},"clientInfo":{"name":"test","version":"1"}}}`
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://127.0.0.1:3000/mcp", strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	if res.StatusCode != http.StatusOK {
		return res.Status
	}
	_, body, _ = bytes.Cut(body, []byte("{")) // of an event
	var answer struct {
		Result struct{ ServerInfo struct{ Version string } }
	}
	if err := json.NewDecoder(io.MultiReader(strings.NewReader("{"), bytes.NewReader(body))).Decode(&answer); err != nil {
		t.Fatalf("%v in %s", err, body)
	}
	return answer.Result.ServerInfo.Version
}

// packager installs and removes packages of one format.
type packager struct {
	ending         string
	needs          string // a program
	install        []string
	remove, forget []string // forget removes what the removal keeps, nil if nothing is kept
}

var packagers = []packager{
	{ending: ".deb", needs: "dpkg", install: []string{"dpkg", "-i", "--force-confold", "--force-unsafe-io"},
		remove: []string{"dpkg", "-r", "gatehouse"}, forget: []string{"dpkg", "-P", "gatehouse"}},
	// Debian's rpm has a database of its own, which knows none of the packages that this one depends on.
	{ending: ".rpm", needs: "rpm", install: []string{"rpm", "-U", "--nodeps", "--nosignature", "--force-debian"},
		remove: []string{"rpm", "-e", "--force-debian", "gatehouse"}},
}

// A package of the release before is installed and started as a unit of systemd, which starts it again
// after a crash. It is upgraded while it runs, keeps its users and settings, and is removed and purged.
func TestTheServiceOfThePackages(t *testing.T) {
	if os.Getenv(FilesVariable) == "" {
		t.Skip("the tests in the folder release make the packages and run it")
	}
	Need(t)
	for _, p := range packagers {
		t.Run(p.ending[1:], func(t *testing.T) {
			if _, err := exec.LookPath(p.needs); err != nil {
				t.Skip(err)
			}
			checkService(t, p)
		})
	}
}

func checkService(t *testing.T, p packager) {
	versions := []string{os.Getenv("GATEHOUSE_TEST_OLD"), os.Getenv("GATEHOUSE_TEST_NEW")}
	install := func(i int) {
		t.Helper()
		command(t, p.install[0], append(p.install[1:], "/test/files/"+versions[i]+p.ending)...)
	}
	install(0)
	if got := service(t, "ActiveState"); got != "inactive" {
		t.Errorf("the installation leaves the unit %s", got)
	}
	command(t, "systemctl", "enable", "--now", "gatehouse.service")
	t.Cleanup(func() { exec.Command("systemctl", "stop", "gatehouse.service").Run() })
	if user := command(t, "ps", "-o", "user=", "-p", service(t, "MainPID")); user != "gatehouse" {
		t.Errorf("it runs as %q", user)
	}
	if got := status(t, "CapEff"); strings.Trim(got, "0") != "" {
		t.Errorf("it has the capabilities %s", got)
	}
	command(t, "gatehouse-service", "user", "add", "ann", "--role", "admin")
	token := newToken(t)
	if got := version(t, token); got != versions[0] {
		t.Errorf("it answers %q, want the version %s", got, versions[0])
	}
	if got := version(t, ""); !strings.HasPrefix(got, "401") {
		t.Errorf("without a token it answers %q", got)
	}
	reloadAndCrash(t)
	if got := version(t, token); got != versions[0] {
		t.Errorf("after a crash it answers %q", got)
	}
	dropIn(t)

	pid := service(t, "MainPID")
	install(1)
	if got := service(t, "MainPID"); got == pid || got == "0" || service(t, "ActiveState") != "active" {
		t.Errorf("after the upgrade process %s runs, before it %s did", got, pid)
	}
	if got := version(t, token); got != versions[1] {
		t.Errorf("after the upgrade it answers %q, want %s", got, versions[1])
	}
	pid = service(t, "MainPID")
	command(t, p.remove[0], p.remove[1:]...)
	if _, err := os.Stat("/proc/" + pid); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("process %s runs after the package was removed: %v", pid, err)
	}
	if got := service(t, "LoadState"); got != "not-found" {
		t.Errorf("the unit is %s after the package was removed", got)
	}
	if _, err := os.Stat(serviceFolder + "/state"); err != nil {
		t.Errorf("removing the package removed its data: %v", err)
	}
	if p.forget != nil {
		command(t, p.forget[0], p.forget[1:]...)
		nothingIsLeft(t)
		return
	}
	for _, kept := range []string{serviceFolder, "/var/cache/gatehouse"} {
		command(t, "rm", "-rf", kept)
	}
	command(t, "userdel", "gatehouse")
	nothingIsLeft(t)
}

// newToken creates a token for the user ann.
func newToken(t *testing.T) string {
	t.Helper()
	for word := range strings.FieldsSeq(command(t, "gatehouse-service", "token", "create", "--user", "ann")) {
		if strings.HasPrefix(word, "gh_") {
			return word
		}
	}
	t.Fatal("no token was created")
	return ""
}

// reloadAndCrash reloads the service, which keeps its process, and kills it, after which systemd starts another.
func reloadAndCrash(t *testing.T) {
	t.Helper()
	pid := service(t, "MainPID")
	command(t, "systemctl", "reload", "gatehouse.service")
	if got := service(t, "MainPID"); got != pid {
		t.Errorf("reloading it replaced process %s by %s", pid, got)
	}
	command(t, "kill", "-9", pid)
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		if now := service(t, "MainPID"); service(t, "ActiveState") == "active" && now != pid && now != "0" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("after a crash the unit is %s", service(t, "ActiveState"))
		}
	}
}

// dropIn adds what the module system needs as the documentation says, and checks what the process has then.
func dropIn(t *testing.T) {
	t.Helper()
	const folder = "/etc/systemd/system/gatehouse.service.d"
	command(t, "mkdir", "-p", folder)
	command(t, "cp", "/usr/share/doc/gatehouse/system.conf", folder)
	command(t, "systemctl", "daemon-reload")
	command(t, "systemctl", "restart", "gatehouse.service")
	const netAdmin, netBind = 12, 10
	set, err := strconv.ParseUint(status(t, "CapEff"), 16, 64)
	if err != nil || set != 1<<netAdmin|1<<netBind {
		t.Errorf("with the drop-in it has the capabilities %x: %v", set, err)
	}
	if _, err := os.Stat("/dev/net/tun"); err == nil {
		command(t, "nsenter", "-m", "-S", status(t, "Uid")[:strings.IndexByte(status(t, "Uid"), '\t')], "-t", service(t, "MainPID"),
			"--", "test", "-w", "/dev/net/tun")
	}
	command(t, "rm", "-r", folder)
	command(t, "systemctl", "daemon-reload")
	command(t, "systemctl", "restart", "gatehouse.service")
}

// nothingIsLeft checks that the removed package has left no file, user or process.
func nothingIsLeft(t *testing.T) {
	t.Helper()
	for _, name := range []string{serviceFolder, "/etc/gatehouse", "/var/cache/gatehouse", "/run/gatehouse", "/usr/bin/gatehouse",
		"/usr/sbin/gatehouse-service", "/usr/lib/systemd/system/gatehouse.service", "/usr/share/doc/gatehouse",
		"/etc/systemd/system/multi-user.target.wants/gatehouse.service"} {
		if _, err := os.Lstat(name); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is left after the package was removed: %v", name, err)
		}
	}
	if users, err := os.ReadFile("/etc/passwd"); err != nil || bytes.Contains(users, []byte("\ngatehouse:")) {
		t.Errorf("the user is left: %v", err)
	}
	if out, err := exec.Command("pgrep", "-x", "gatehouse").Output(); err == nil {
		t.Errorf("processes are left: %s", out)
	}
}
