package app

import (
	"slices"
	"strings"
	"testing"
)

// The SSH keys of the machine's user are for administrators, in the administration context.
//
//redteam:attack Keys of SSH are the administration's: an ordinary user adds a key
func TestKeysOfSSHAreForTheAdministration(t *testing.T) {
	_, client := live(t)
	admin, eve := client("ann", "admin"), client("eve")
	if got := admin.names("admin"); !slices.Contains(got, "ssh_list") || !slices.Contains(got, "ssh_add") ||
		!slices.Contains(got, "ssh_remove") {
		t.Errorf("the administration has %v", got)
	}
	for _, who := range []*tenant{admin, eve} {
		if got := who.names("default"); slices.ContainsFunc(
			got,
			func(n string) bool { return strings.HasPrefix(n, "ssh_") },
		) {
			t.Errorf("they are in the default view: %v", got)
		}
		if answer := who.call("default", "ssh_list", "{}"); !strings.Contains(answer, "ssh_list") ||
			strings.Contains(answer, "structuredContent") {
			t.Errorf("got %s", answer)
		}
	}
	// The names of the original tools can be called there too, but are not listed.
	if got := admin.names("admin"); slices.Contains(got, "ssh.list") {
		t.Errorf("aliases are listed: %v", got)
	}
	for name, args := range map[string]string{"ssh.list": "{}", "ssh.remove": `{"fingerprint":"SHA256:none"}`} {
		if answer := admin.call("admin", name, args); strings.Contains(answer, "unknown tool") {
			t.Errorf("%s: %s", name, answer)
		}
		if answer := eve.call("admin", name, args); strings.Contains(answer, "structuredContent") {
			t.Errorf("eve calls %s: %s", name, answer)
		}
	}
	if answer := eve.call("admin", "ssh_list", "{}"); strings.Contains(answer, "structuredContent") {
		t.Errorf("eve reads %s", answer)
	}
}
