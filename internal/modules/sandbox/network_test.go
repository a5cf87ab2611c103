package sandbox

import (
	"gatehouse/internal/sandbox/manager"
	"strings"
	"testing"
)

// A sandbox has a way out only where the host lets its callers open one, and
// each attempt is told with its reason.
//
//redteam:attack A sandbox has no network until it is given one: a caller opens a way out on a host that gives none
func TestAWayOutIsOpenedOnlyWhereTheHostLetsCallers(t *testing.T) {
	r := open(t, Config{Settings: with(nil)})
	id := r.box()
	if got := r.code("network",
		args{"sandbox_id": id, "action": "set", "allow": []string{"example.com"}}); got != "denied" {
		t.Errorf("on a host that gives none: %s", got)
	}
	needs(t, "python3")
	r = open(t, Config{Settings: with(func(s *manager.Settings) {
		s.Network, s.NetworkDeny = true, []string{"secret.example"}
	})})
	id = r.box()
	fetch := `import urllib.request
try: print(urllib.request.urlopen("http://%s/", timeout=20).status)
except Exception as e: print(e)`
	try := func(host string) string {
		t.Helper()
		return r.do("run", args{
			"sandbox_id": id,
			"language":   "python",
			"code":       strings.ReplaceAll(fetch, "%s", host),
		}).Output
	}
	if got := try("other.example"); strings.HasPrefix(got, "200") {
		t.Errorf("without a network: %q", got)
	}
	set := r.do("network", args{"sandbox_id": id, "action": "set", "allow": []string{"*:80"}})
	if len(set.Allow) != 1 || len(set.Deny) != 1 {
		t.Errorf("%+v", set)
	}
	for _, host := range []string{"secret.example", "10.0.0.1", "169.254.169.254"} {
		if got := try(host); !strings.Contains(got, "403") {
			t.Errorf("%s: %q", host, got)
		}
	}
	said := r.do("network", args{"sandbox_id": id, "action": "show"}).Decisions
	if len(said) != 3 || said[0].Allowed || !strings.HasPrefix(said[0].Target, "secret.example") ||
		said[0].Reason == "" {
		t.Errorf("%+v", said)
	}
	if got := r.code("network",
		args{"sandbox_id": id, "action": "set", "allow": []string{"no rule\x00"}}); got != "invalid_arguments" {
		t.Errorf("a rule that is none: %s", got)
	}
}
