package config

import (
	"testing"

	"gatehouse/internal/access/permit"
	"gatehouse/tool"
)

// TestWhatNoRuleFitsIsAllowed checks what docs/security.md and docs/settings.md state: a call that no rule matches
// is allowed, and a last rule without conditions refuses the rest.
func TestWhatNoRuleFitsIsAllowed(t *testing.T) {
	op := permit.Op{Method: "tools/call", Module: "file", Name: "file_write", Effects: tool.Writes}
	c := Default()
	c.Rules = []Rule{{Names: []string{"dir_*"}, Then: permit.Refuse.String()}}
	for _, want := range []permit.Kind{permit.Allow, permit.Refuse} {
		o, err := c.Permit()
		if err != nil {
			t.Fatal(err)
		}
		p, err := permit.New(o)
		if err != nil {
			t.Fatal(err)
		}
		if got := p.Gate("", op).Decide(nil, nil).Kind; got != want {
			t.Errorf("with %d rules: %v, want %v", len(c.Rules), got, want)
		}
		c.Rules = append(c.Rules, Rule{Then: permit.Refuse.String()})
	}
}
