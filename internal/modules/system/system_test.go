package system

import (
	"context"
	"errors"
	"flag"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"gatehouse/internal/tests/machinetest"
	"gatehouse/module"
	"gatehouse/module/moduletest"
	"gatehouse/tool"
)

func TestMain(m *testing.M) {
	flag.Parse()
	code := machinetest.Main(m)
	if code == 0 && machinetest.Inside() && flag.Lookup("test.run").Value.String()+flag.Lookup("test.skip").Value.String() == "" {
		code = compareTable()
	}
	os.Exit(code)
}

// administrator is the principal who rules the host of the tests.
const administrator = "ann"

// open makes the module, with the machine's daemons.
func open(t *testing.T, cfg Config) *system {
	t.Helper()
	if cfg.Rules == nil {
		cfg.Rules = func(who tool.Caller) bool { return who.Principal == administrator }
	}
	m, err := New(cfg)(t.Context(), module.Deps{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return m.(*system)
}

// ask calls a tool as an administrator whose client agrees, and returns a refusal as text.
func ask(t *testing.T, s *system, name string, into any, args ...any) string {
	t.Helper()
	c := moduletest.NewCall(t, args...)
	c.Caller.Principal = administrator
	c.Peer.Answers["confirm"] = moduletest.Accept(map[string]bool{"confirm": true})
	return noted(name, c.Ask(t, s, name, into))
}

// must calls a tool that must not refuse.
func must(t *testing.T, s *system, name string, into any, args ...any) {
	t.Helper()
	if refused := ask(t, s, name, into, args...); refused != "" {
		t.Fatalf("%s: %s", name, refused)
	}
}

// refuses calls a tool that must refuse, and compares the beginning of the refusal.
func refuses(t *testing.T, s *system, name, want string, args ...any) {
	t.Helper()
	if refused := ask(t, s, name, nil, args...); !strings.HasPrefix(refused, want) {
		t.Errorf("%s %v: refused with %q, want %s", name, args, refused, want)
	}
}

func tools(t *testing.T, s *system) (names []string) {
	t.Helper()
	o, err := s.Offer(t.Context(), module.Audience{})
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range o.Tools {
		names = append(names, x.Name)
	}
	return names
}

// command runs a program of the machine and returns what it printed.
func command(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v: %s", name, args, err, out)
	}
	return strings.TrimSpace(string(out))
}

func TestContract(t *testing.T) {
	moduletest.Run(t, New(Config{Bus: "unix:path=/nonexistent/bus"}), moduletest.Options{})
}

// Without D-Bus there is no daemon, so that no tool is listed.
func TestNoToolWithoutItsDaemon(t *testing.T) {
	s := open(t, Config{Bus: "unix:path=/nonexistent/bus"})
	all := slices.DeleteFunc(tools(t, s), func(name string) bool {
		return slices.ContainsFunc(s.all, func(x daemonTool) bool { return x.Name == name && x.daemon == "" })
	})
	if len(all) != 0 { // only those that the host and the kernel do
		t.Errorf("listed: %v", all)
	}
	c := moduletest.NewCall(t)
	c.Caller.Principal = administrator
	for _, x := range s.all {
		if x.Name != "system_units" {
			continue
		}
		_, err := c.Run(t.Context(), x.Run)
		if r, is := err.(*tool.Refusal); !is || r.Code != tool.CodeUnavailable {
			t.Errorf("without D-Bus: %v", err)
		}
	}
}

// agreedBefore are the tools for changes that the user has agreed to before.
var agreedBefore = []string{"system_confirm", "system_take_back"}

// Every tool refuses a caller who is no administrator, and every change one whose user
// does not agree; then nothing was asked of a daemon, since there is none.
func TestOnlyAdministratorsWhoAgreed(t *testing.T) {
	s := open(t, Config{Bus: "unix:path=/nonexistent/bus"})
	for _, x := range s.all {
		c := moduletest.NewCall(t, "{}")
		c.Caller.Principal = "bob"
		_, err := c.Run(t.Context(), x.Run)
		if r, is := err.(*tool.Refusal); !is || r.Code != tool.CodeDenied {
			t.Errorf("%s: %v", x.Name, err)
		}
		if _, has := x.In.FieldByName("Confirm"); !has && !x.Effects.ReadOnly() &&
			!slices.Contains(agreedBefore, x.Name) {
			t.Errorf("%s changes something and does not ask", x.Name)
		}
	}
}

func TestUnitsAreStartedAndStopped(t *testing.T) {
	machinetest.Need(t)
	s := open(t, Config{})
	unit, begun := "/run/systemd/system/gatehouse-example.service", "/run/gatehouse-example.begun"
	text := "[Unit]\nDescription=Example of the tests\n[Service]\nExecStart=/bin/sh -c 'echo begun; : >" +
		begun + "; exec sleep 1000'\n"
	if err := os.WriteFile(unit, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	command(t, "systemctl", "daemon-reload")
	var out unitOut
	must(t, s, "system_unit_start", &out, "unit", "gatehouse-example.service")
	if out.Active != "active" || out.PID == 0 || out.Description != "Example of the tests" || out.File != unit {
		t.Errorf("after the start: %+v", out)
	}
	first := out.PID
	must(t, s, "system_unit_restart", &out, "unit", "gatehouse-example.service")
	if out.PID == first {
		t.Errorf("after the restart it has the same process %d", first)
	}
	var list unitsOut
	must(t, s, "system_units", &list, "pattern", "gatehouse-ex*")
	if len(list.Units) != 1 || list.Units[0].Sub != "running" {
		t.Errorf("listed: %+v", list)
	}
	// The unit is active before its shell has printed anything.
	await(t, "the unit prints", func() bool { _, err := os.Stat(begun); return err == nil })
	out = unitOut{}
	must(t, s, "system_unit_stop", &out, "unit", "gatehouse-example.service")
	if out.Active == "active" || out.PID != 0 {
		t.Errorf("after the stop: %+v", out)
	}
	refuses(t, s, "system_unit", "not_found:", "unit", "nothing-of-this-name.service")
	refuses(t, s, "system_unit_start", "not_found:", "unit", "nothing-of-this-name.service")
	refuses(t, s, "system_unit_start", "invalid_arguments:", "unit", "../../etc/passwd")

	command(t, "journalctl", "--sync")
	var log journalOut
	must(t, s, "system_logs", &log, "unit", "gatehouse-example.service", "limit", 500)
	is := func(e journalEntry) bool { return e.Message == "begun" && e.Unit == "gatehouse-example.service" }
	if i := slices.IndexFunc(log.Entries, is); i < 0 {
		t.Fatalf("the journal has %+v", log)
	}
	pageThrough(t, s, log)
}

// pageThrough reads the journal of the example forwards and backwards, one entry a page.
func pageThrough(t *testing.T, s *system, all journalOut) {
	t.Helper()
	var last, one journalOut
	must(t, s, "system_logs", &last, "unit", "gatehouse-example.service", "limit", 1)
	n := len(all.Entries)
	if len(last.Entries) != 1 || last.Entries[0] != all.Entries[n-1] {
		t.Fatalf("the newest entry is %+v", last)
	}
	for i := n - 2; i >= 0; i-- {
		must(t, s, "system_logs", &one, "unit", "gatehouse-example.service", "limit", 1, "cursor", last.Start, "before",
			true)
		if len(one.Entries) != 1 || one.Entries[0] != all.Entries[i] {
			t.Fatalf("entry %d backwards: %+v, want %+v", i, one.Entries, all.Entries[i])
		}
		last = one
	}
	must(t, s, "system_logs", &one, "unit", "gatehouse-example.service", "cursor", last.End, "limit", 2)
	if len(one.Entries) != 2 || one.Entries[0] != all.Entries[1] {
		t.Errorf("forwards: %+v", one.Entries)
	}
	refuses(t, s, "system_logs", "invalid_arguments:", "cursor", "--help")
	refuses(t, s, "system_logs", "invalid_arguments:", "boot", "x")
}

func TestTheClockIsSet(t *testing.T) {
	machinetest.Need(t)
	s := open(t, Config{})
	// systemd-timesyncd does not start without the right to set the clock.
	override := "/run/systemd/system/systemd-timesyncd.service.d"
	text := "[Unit]\nConditionCapability=\nConditionVirtualization=\n[Service]\nType=simple\nUser=\nDynamicUser=no\n" +
		"ExecStart=\nExecStart=/bin/sleep 1000\nWatchdogSec=0\nAmbientCapabilities=\nCapabilityBoundingSet=\n"
	if err := errors.Join(os.MkdirAll(override, 0o755),
		os.WriteFile(override+"/test.conf", []byte(text), 0o644)); err != nil {
		t.Fatal(err)
	}
	command(t, "systemctl", "daemon-reload")
	var out clockOut
	must(t, s, "system_set_time", &out, "timezone", "Asia/Tokyo")
	if out.TimeZone != "Asia/Tokyo" || !strings.HasSuffix(out.Time, "+09:00") {
		t.Errorf("got %+v", out)
	}
	if link, err := os.Readlink("/etc/localtime"); err != nil || !strings.HasSuffix(link, "Asia/Tokyo") {
		t.Errorf("the machine has %q: %v", link, err)
	}
	must(t, s, "system_set_time", &out, "ntp", true)
	if !out.CanNTP || !out.NTP {
		t.Errorf("got %+v", out)
	}
	must(t, s, "system_set_time", &out, "ntp", false)
	// No process of the machine has the capability to set the clock, which it shares.
	refuses(t, s, "system_set_time", "denied: not permitted", "time", "2026-01-01T00:00:00Z")
	refuses(t, s, "system_set_time", "invalid_arguments:")
	refuses(t, s, "system_set_time", "invalid_arguments:", "timezone", "Atlantis")
	refuses(t, s, "system_set_time", "invalid_arguments:", "time", "noon")
	var now clockOut
	must(t, s, "system_time", &now)
	if now.NTP || now.TimeZone != "Asia/Tokyo" {
		t.Errorf("got %+v", now)
	}
}

func TestNamesLanguageAndKeyboardAreSet(t *testing.T) {
	machinetest.Need(t)
	s := open(t, Config{})
	var host hostnameOut
	must(t, s, "system_set_hostname", &host, "hostname", "cellar-7", "name", "The cellar")
	if got := command(t, "cat", "/etc/hostname"); got != "cellar-7" || host.Static != got || host.Name != "The cellar" {
		t.Errorf("the machine is called %q: %+v", got, host)
	}
	refuses(t, s, "system_set_hostname", "invalid_arguments:", "hostname", "Not a name")
	refuses(t, s, "system_set_hostname", "invalid_arguments:")

	var locale localeOut
	must(t, s, "system_set_language", nil, "language", "C.UTF-8")
	must(t, s, "system_locale", &locale)
	if !slices.Contains(locale.Locale, "LANG=C.UTF-8") ||
		!strings.Contains(command(t, "cat", "/etc/default/locale"), "C.UTF-8") {
		t.Errorf("got %+v", locale)
	}
	refuses(t, s, "system_set_language", "invalid_arguments:", "language", "tlh; rm")
	must(t, s, "system_set_keyboard", &locale, "layout", "de", "variant", "nodeadkeys", "options",
		[]string{"compose:ralt"})
	if locale.Layout != "de" || locale.Variant != "nodeadkeys" ||
		!slices.Equal(locale.Options, []string{"compose:ralt"}) ||
		!strings.Contains(command(t, "cat", "/etc/default/keyboard"), "nodeadkeys") {
		t.Errorf("got %+v", locale)
	}
	refuses(t, s, "system_set_keyboard", "invalid_arguments:", "layout", "de;x")
}

// The machine of the test does not go down: its target of that name is replaced by one
// that ends nothing, and logind starts it all the same.
func TestTheMachineIsTurnedOff(t *testing.T) {
	machinetest.Need(t)
	const folder = "/run/systemd/system.control"
	for target, name := range map[string]string{"poweroff": "system_shutdown", "reboot": "system_restart"} {
		if err := os.MkdirAll(folder, 0o755); err != nil {
			t.Fatal(err)
		}
		text := "[Unit]\nDescription=Replaced\nDefaultDependencies=no\n"
		if err := os.WriteFile(folder+"/"+target+".target", []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		command(t, "systemctl", "daemon-reload")
		s := open(t, Config{})
		s.powerDelay = 100 * time.Millisecond
		var out powerOut
		must(t, s, name, &out)
		for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
			var u unitOut
			must(t, s, "system_unit", &u, "unit", target+".target")
			if u.Active == "active" && u.Description == "Replaced" {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s: after %s the target is %+v", name, out.At, u)
			}
		}
	}
}

// A host of another user than root may do nothing until a rule of polkit says so: the
// one of docs/appliance.md.
func TestARightOfTheSystemIsNeeded(t *testing.T) {
	if os.Getenv("SYSTEM_TEST_USER") != "" {
		s := open(t, Config{})
		if refused := ask(t, s, "system_set_hostname", nil, "name", "Named by a user"); refused != "" {
			t.Fatal(refused)
		}
		return
	}
	machinetest.Need(t)
	asUser := func() (string, error) {
		host := exec.CommandContext(t.Context(), "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups",
			"/test/program", "-test.run=^TestARightOfTheSystemIsNeeded$")
		host.Env = append(os.Environ(), "SYSTEM_TEST_USER=1")
		out, err := host.CombinedOutput()
		return string(out), err
	}
	if out, err := asUser(); err == nil ||
		!strings.Contains(out, "denied: not permitted: the system's policy (polkit)") {
		t.Errorf("without a rule: %v %s", err, out)
	}
	text, err := os.ReadFile("../../../docs/appliance.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rule, found := strings.Cut(string(text), "    polkit.addRule(")
	rule, _, ends := strings.Cut(rule, "\n    });")
	if !found || !ends {
		t.Fatal("the document has no rule of polkit")
	}
	rule = strings.ReplaceAll("polkit.addRule("+rule+"\n});\n", `"gatehouse"`, `"nobody"`)
	if err := os.WriteFile("/etc/polkit-1/rules.d/50-gatehouse.rules", []byte(rule), 0o644); err != nil {
		t.Fatal(err)
	}
	command(t, "systemctl", "restart", "polkit")
	if out, err := asUser(); err != nil {
		t.Errorf("with the rule: %v %s", err, out)
	}
}
