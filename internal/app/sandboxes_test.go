package app

import (
	"maps"
	"slices"
	"testing"

	"gatehouse/internal/config"
	"gatehouse/internal/secret"
	"gatehouse/tool"
)

// A context's callers may use in sandboxes the secrets of its own variables,
// and of these only those for which the settings name hosts.
func TestSecretsOfSandboxesFollowTheContext(t *testing.T) {
	cfg := settings(t)
	for name, value := range map[string]string{"DEPLOY": "correct horse", "OTHER": "battery staple"} {
		if err := secret.In(cfg.Folders.Config, "").Set(name, secret.New(value)); err != nil {
			t.Fatal(err)
		}
	}
	cfg.Modules.Sandbox.Secrets = []config.SandboxSecret{{Name: "DEPLOY", Hosts: []string{"api.example.com"}}, {Name: "MISSING", Hosts: []string{"api.example.com"}}}
	cfg.Contexts = []config.Context{
		{Name: "lab", Env: map[string]string{"STAGE": "lab", "TOKEN": "Bearer ${secret:DEPLOY}", "KEY": "${secret:OTHER}", "BOTH": "${secret:DEPLOY}${secret:OTHER}"}},
		{Name: "den", Env: map[string]string{"KEY": "${secret:OTHER}"}},
		{Name: "lost", Env: map[string]string{"TOKEN": "${secret:MISSING}"}},
	}
	a, _ := liveOn(t, cfg, Options{})
	for context, want := range map[string][]string{"lab": {"TOKEN"}, "den": nil, "none": nil} {
		got, err := a.sandboxSecrets(tool.Caller{Context: context})
		if err != nil || !slices.Equal(slices.Sorted(maps.Keys(got)), want) {
			t.Errorf("%s: %v, %v, want %v", context, got, err, want)
		}
		if s, ok := got["TOKEN"]; ok && (s.Value.Reveal() != "Bearer correct horse" || !slices.Equal(s.Hosts, []string{"api.example.com"})) {
			t.Errorf("%s: it goes to %v", context, s.Hosts)
		}
	}
	if _, err := a.sandboxSecrets(tool.Caller{Context: "lost"}); err == nil {
		t.Error("a secret that is missing is not told")
	}
}
