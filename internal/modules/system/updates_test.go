package system

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// build makes a Debian package that holds nothing, and returns its control file.
func build(t *testing.T, folder, version string) string {
	t.Helper()
	root := t.TempDir()
	control := "Package: gatehouse-test-example\nVersion: " + version +
		"\nArchitecture: all\nMaintainer: nobody <nobody@example.com>\nDescription: an example of the tests\n"
	if err := os.Mkdir(root+"/DEBIAN", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(root+"/DEBIAN/control", []byte(control), 0o644); err != nil {
		t.Fatal(err)
	}
	command(t, "dpkg-deb", "--root-owner-group", "--build", root, folder+"/example_"+version+".deb")
	return control
}

// An older package is installed, and a repository in a folder of the machine has a newer one.
func TestTheSystemIsUpdated(t *testing.T) {
	network(t)                                 // without a route PackageKit asks no repository
	const folder = "/var/cache/gatehouse-test" // apt reads it as another user
	if err := os.Mkdir(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	build(t, "/tmp", "1.0")
	command(t, "dpkg", "-i", "/tmp/example_1.0.deb")
	control := build(t, folder, "2.0")
	file := folder + "/example_2.0.deb"
	info, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	index := fmt.Sprintf("%sFilename: ./example_2.0.deb\nSize: %d\nSHA256: %s\n", control, info.Size(),
		strings.Fields(command(t, "sha256sum", file))[0])
	command(
		t,
		"sh",
		"-c",
		"cd /var/lib/apt/lists && rm -rf *_* /etc/apt/apt.conf.d/docker* /etc/apt/sources.list.d "+
			"/etc/apt/sources.list && "+
			"mkdir -p partial /etc/apt/sources.list.d && chown _apt partial",
	)
	if err := os.WriteFile(folder+"/Packages", []byte(index), 0o644); err != nil {
		t.Fatal(err)
	}
	release := fmt.Sprintf("Date: %s\nSHA256:\n %s %d Packages\n", time.Now().UTC().Format(time.RFC1123),
		strings.Fields(command(t, "sha256sum", folder+"/Packages"))[0], len(index))
	if err := os.WriteFile(folder+"/Release", []byte(release), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile("/etc/apt/apt.conf.d/zz-test", []byte("Acquire::Languages \"none\";\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	source := "deb [trusted=yes] file:" + folder + " ./\n"
	if err := os.WriteFile("/etc/apt/sources.list", []byte(source), 0o644); err != nil {
		t.Fatal(err)
	}
	s := open(t, Config{})
	var out updatesOut
	must(t, s, "system_updates", &out, "refresh", true)
	if len(out.Updates) != 1 || out.Updates[0].Name != "gatehouse-test-example" || out.Updates[0].Version != "2.0" {
		t.Fatalf("updates: %+v", out)
	}
	refuses(t, s, "system_update", "not_found:", "packages", []string{"bash"})
	must(t, s, "system_update", &out, "packages", []string{"gatehouse-test-example"})
	if got := command(t, "dpkg-query", "-W", "-f", "${Version}", "gatehouse-test-example"); got != "2.0" {
		t.Errorf("version %q is installed", got)
	}
	must(t, s, "system_updates", &out)
	if len(out.Updates) != 0 {
		t.Errorf("after the update: %+v", out)
	}
	refuses(t, s, "system_update", "unchanged:")
}
