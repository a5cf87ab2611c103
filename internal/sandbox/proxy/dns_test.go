package proxy

import (
	"strings"
	"testing"

	"golang.org/x/net/dns/dnsmessage"

	"gatehouse/internal/sandbox"
)

// Of a name that gets no address the decision says whether it is not allowed, or cannot be resolved.
func TestNamesWithoutAnAddressAreRecorded(t *testing.T) {
	w := newWorld(t, Options{}, func(n *sandbox.Network) { n.Allow = []string{"example.org", "missing.test"} })
	for name, want := range map[string]string{
		"missing.test": "allowed but the host cannot resolve it: the host does not exist",
		"other.test":   "refused other.test is not allowed",
		"example.org":  "",
	} {
		w.said = nil
		w.proxy.lookUp(dnsmessage.Question{
			Name: dnsmessage.MustNewName(name + "."), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET,
		})
		var got strings.Builder
		for _, d := range w.said {
			got.WriteString(map[bool]string{true: "allowed ", false: "refused "}[d.Allowed] + d.Reason)
			if d.Method != "DNS" || d.Target != name {
				t.Errorf("%s: the decision is of %s %s", name, d.Method, d.Target)
			}
		}
		if !strings.HasPrefix(got.String(), want) || want == "" && got.String() != "" {
			t.Errorf("%s: recorded is %q, want %q", name, got.String(), want)
		}
	}
}
