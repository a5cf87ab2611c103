package main

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// packageFile returns the one file of a release with an ending.
func packageFile(t *testing.T, dist, ending string) string {
	t.Helper()
	if here.OS != "linux" {
		t.Skip("packages are made of programs for Linux")
	}
	found, err := filepath.Glob(filepath.Join(dist, "*"+ending))
	if err != nil || len(found) != 1 {
		t.Fatalf("%d files end with %s: %v", len(found), ending, err)
	}
	return found[0]
}

// needsRoot skips a test that installs packages in a tree of its own.
func needsRoot(t *testing.T) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("dpkg and rpm install as root only, even below another folder")
	}
}

// tree makes a folder in which packages can be installed: it has these programs with their
// libraries, and a user.
func tree(t *testing.T, programs ...string) string {
	t.Helper()
	root := t.TempDir()
	for _, dir := range []string{"dev", "etc", "usr/bin", "usr/lib", "usr/lib64", "usr/sbin", "var/lib/dpkg/info",
		"var/lib/dpkg/updates", "tmp"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{"bin", "lib", "lib64", "sbin"} {
		if err := os.Symlink("usr/"+dir, filepath.Join(root, dir)); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range map[string]string{
		"etc/passwd": "root:x:0:0:root:/root:/bin/sh\n", "etc/group": "root:x:0:\n", "etc/shadow": "root:*:::::::\n",
		"etc/gshadow":         "root:*::\n",
		"dev/null":            "", // programs write to it, and no device is needed for that
		"var/lib/dpkg/status": "", "var/lib/dpkg/available": "",
	} {
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range programs {
		copyProgram(t, root, program(t, name))
	}
	return root
}

var library = regexp.MustCompile(`/\S+\.so\S*`)

// copyProgram copies a program and the libraries that it is linked with into a tree.
func copyProgram(t *testing.T, root, at string) {
	t.Helper()
	needed := []string{at}
	if out, err := exec.Command("ldd", at).Output(); err == nil {
		needed = append(needed, library.FindAllString(string(out), -1)...)
	}
	for _, file := range needed {
		body, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		to := filepath.Join(root, file)
		if err := errors.Join(os.MkdirAll(filepath.Dir(to), 0o755), os.WriteFile(to, body, 0o755)); err != nil {
			t.Fatal(err)
		}
	}
}

// installed checks the program and the user in a tree.
func installed(t *testing.T, root, version string) {
	t.Helper()
	out := runs(t, exec.Command(filepath.Join(root, "usr/bin/gatehouse"), "version"))
	if !strings.HasPrefix(out, "gatehouse "+version+" ") {
		t.Errorf("installed is %s, want %s", out, version)
	}
	users, err := os.ReadFile(filepath.Join(root, "etc/passwd"))
	if err != nil || strings.Count(string(users), "\ngatehouse:") != 1 {
		t.Errorf("users are %s (%v), want gatehouse once", users, err)
	}
}

// gone checks that no file of the package is left below a tree, except those in keep.
func gone(t *testing.T, root string, keep ...string) {
	t.Helper()
	err := filepath.WalkDir(root, func(at string, d fs.DirEntry, err error) error {
		rel := strings.TrimPrefix(at, root)
		if err != nil || strings.HasPrefix(rel, "/var/lib/dpkg") || strings.HasPrefix(rel, "/var/lib/rpm") ||
			strings.HasPrefix(rel, "/usr/lib/sysimage") {
			return err
		}
		if !d.IsDir() && strings.Contains(rel, "gatehouse") && !strings.Contains(strings.Join(keep, " "), rel) {
			t.Errorf("%s is left", rel)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// Debian's package is installed, upgraded with changed settings kept, removed and purged.
func TestDebianPackage(t *testing.T) {
	older := packageFile(t, released(t, oldRelease), ".deb")
	newer := packageFile(t, released(t, newRelease), ".deb")
	needsRoot(t)
	root := tree(t)
	dpkg := func(args ...string) {
		t.Helper()
		runs(t, exec.Command(program(t, "dpkg"), append([]string{
			"--root=" + root, "--force-script-chrootless", "--log=/dev/null", "--force-confold", "--no-triggers",
		}, args...)...))
	}
	dpkg("-i", older)
	installed(t, root, oldVersion)
	settings := filepath.Join(root, "etc/gatehouse/gatehouse.yaml")
	const changed = "daemon:\n  transport: socket\n"
	if err := os.WriteFile(settings, []byte(changed), 0o644); err != nil {
		t.Fatal(err)
	}
	dpkg("-i", newer)
	installed(t, root, newVersion)
	if text, err := os.ReadFile(settings); err != nil || string(text) != changed {
		t.Errorf("the upgrade changed the settings to %s (%v)", text, err)
	}
	if err := os.MkdirAll(filepath.Join(root, "var/lib/gatehouse/data"), 0o700); err != nil {
		t.Fatal(err)
	}
	dpkg("-r", "gatehouse")
	gone(t, root, "/etc/gatehouse/gatehouse.yaml")
	if _, err := os.Stat(filepath.Join(root, "var/lib/gatehouse/data")); err != nil {
		t.Errorf("removing the package removed its data: %v", err)
	}
	dpkg("-P", "gatehouse")
	gone(t, root)
	for _, name := range []string{"var/lib/gatehouse", "etc/gatehouse"} {
		if _, err := os.Stat(filepath.Join(root, name)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is left after the package was purged: %v", name, err)
		}
	}
	users, err := os.ReadFile(filepath.Join(root, "etc/passwd"))
	if err != nil || strings.Contains(string(users), "gatehouse:") {
		t.Errorf("the user is left: %s (%v)", users, err)
	}
}

// The packages of Debian and RPM are installed, started as a unit, upgraded and removed in a machine with systemd as process 1.
func TestTheServiceRuns(t *testing.T) {
	older, newer := released(t, oldRelease), released(t, newRelease)
	needsRoot(t)
	files := t.TempDir()
	for version, dist := range map[string]string{oldVersion: older, newVersion: newer} {
		for _, ending := range []string{".deb", ".rpm"} {
			if err := os.Link(packageFile(t, dist, ending), filepath.Join(files, version+ending)); err != nil {
				t.Fatal(err)
			}
		}
	}
	const test = "TestTheServiceOfThePackages"
	cmd := exec.Command("go", "test", "-count=1", "-v", "-run", "^"+test+"$", "./internal/tests/machinetest")
	cmd.Dir = ".."
	cmd.Env = append(os.Environ(), "GATEHOUSE_TEST_FILES="+files, "GATEHOUSE_TEST_OLD="+oldVersion, "GATEHOUSE_TEST_NEW="+newVersion)
	out, err := cmd.CombinedOutput()
	switch {
	case err != nil:
		t.Errorf("%v: %s", err, out)
	case strings.Contains(string(out), "--- SKIP: "+test):
		t.Skipf("%s", out)
	}
}

// The RPM is installed, upgraded and removed. Its scripts run inside of the tree.
func TestRPM(t *testing.T) {
	older := packageFile(t, released(t, oldRelease), ".rpm")
	newer := packageFile(t, released(t, newRelease), ".rpm")
	needsRoot(t)
	root := tree(t, "sh", "grep", "systemd-sysusers")
	rpm := func(args ...string) {
		t.Helper()
		out, err := exec.Command(program(t, "rpm"),
			append([]string{"--root=" + root, "--nodeps", "--nosignature", "--force-debian"}, args...)...).CombinedOutput()
		if err != nil || strings.Contains(string(out), "fail") {
			t.Fatalf("rpm %q: %v: %s", args, err, out)
		}
	}
	rpm("-i", older)
	installed(t, root, oldVersion)
	rpm("-U", newer)
	installed(t, root, newVersion)
	rpm("-e", "gatehouse")
	gone(t, root)
}

// Alpine's package holds the program, which runs.
func TestAlpinePackage(t *testing.T) {
	file := packageFile(t, released(t, newRelease), ".apk")
	root := t.TempDir()
	runs(t, exec.Command(program(t, "tar"), "-xzf", file, "-C", root))
	out := runs(t, exec.Command(filepath.Join(root, "usr/bin/gatehouse"), "version"))
	if !strings.HasPrefix(out, "gatehouse "+newVersion+" ") {
		t.Errorf("the program reports %s", out)
	}
	facts, err := os.ReadFile(filepath.Join(root, ".PKGINFO"))
	if err != nil || !strings.Contains(string(facts), "\npkgver = "+newVersion+"-r1\n") {
		t.Errorf("the facts of the package are %s (%v)", facts, err)
	}
}

// exposure is the most that systemd may say of how exposed the service is, from 0 to 10.
const exposure = 3.0

// systemd accepts the units, and rates the service as little exposed.
func TestUnits(t *testing.T) {
	file := packageFile(t, released(t, newRelease), ".deb")
	root := tree(t, "kill")
	runs(t, exec.Command(program(t, "dpkg-deb"), "-x", file, root))
	out, err := exec.Command(program(t, "systemd-analyze"), "security", "--offline=true", "--no-pager",
		filepath.Join(root, "usr/lib/systemd/system/gatehouse.service")).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	found := regexp.MustCompile(`exposure level for gatehouse.service: ([0-9.]+)`).FindSubmatch(out)
	if found == nil {
		t.Fatalf("no exposure level in %s", out)
	}
	if level, err := strconv.ParseFloat(string(found[1]), 64); err != nil || level > exposure {
		t.Errorf("the exposure level is %s, want at most %g: %s", found[1], exposure, out)
	}
	for _, name := range []string{"sandboxes.conf", "system.conf"} { // what the documentation has people add
		body, err := os.ReadFile(filepath.Join(root, "usr/share/doc/gatehouse", name))
		dir := filepath.Join(root, "usr/lib/systemd/system/gatehouse.service.d")
		if err := errors.Join(err, os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, name), body, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	for _, unit := range []string{"system/gatehouse.service", "user/gatehouse.service", "user/gatehouse.socket"} {
		cmd := exec.Command(program(t, "systemd-analyze"), "verify", "--man=no", "--recursive-errors=no",
			filepath.Join(root, "usr/lib/systemd", unit))
		out, _ := cmd.CombinedOutput()
		for line := range strings.Lines(string(out)) {
			if !strings.Contains(line, "/usr/bin/gatehouse is not executable") { // it is in the tree
				t.Errorf("%s: %s", unit, line)
			}
		}
	}
}

// The settings of the package have no mistake.
func TestSettingsOfThePackage(t *testing.T) {
	file := packageFile(t, released(t, newRelease), ".deb")
	root := t.TempDir()
	runs(t, exec.Command(program(t, "dpkg-deb"), "-x", file, root))
	cmd := exec.Command(filepath.Join(root, "usr/bin/gatehouse"), "config", "check")
	cmd.Env = []string{"HOME=" + root, "GATEHOUSE_CONFIG_DIR=" + filepath.Join(root, "etc/gatehouse")}
	runs(t, cmd)
}
