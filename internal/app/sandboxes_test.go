package app

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"gatehouse/internal/access/secret"
	"gatehouse/internal/config"
	"gatehouse/internal/sandbox/manager"
	"gatehouse/internal/sandbox/namespaces"
	"gatehouse/internal/sandbox/sandboxtest"
	"gatehouse/tool"
)

// Callers of a context may use in sandboxes the secrets of its variables, and of these only those for which the
// settings name hosts.
func TestSecretsOfSandboxesFollowTheContext(t *testing.T) {
	cfg := settings(t)
	for name, value := range map[string]string{"DEPLOY": "correct horse", "OTHER": "battery staple"} {
		if err := secret.In(cfg.Folders.Config, "").Set(name, secret.New(value)); err != nil {
			t.Fatal(err)
		}
	}
	cfg.Modules.Sandbox.Secrets = []manager.SecretSettings{
		{Name: "DEPLOY", Hosts: []string{"api.example.com"}},
		{Name: "MISSING", Hosts: []string{"api.example.com"}},
	}
	cfg.Contexts = []config.Context{
		{
			Name: "lab",
			Env: map[string]string{
				"STAGE": "lab",
				"TOKEN": "Bearer ${secret:DEPLOY}",
				"KEY":   "${secret:OTHER}",
				"BOTH":  "${secret:DEPLOY}${secret:OTHER}",
			},
		},
		{Name: "den", Env: map[string]string{"KEY": "${secret:OTHER}"}},
		{Name: "lost", Env: map[string]string{"TOKEN": "${secret:MISSING}"}},
	}
	a, _ := liveOn(t, cfg, Options{})
	for context, want := range map[string][]string{"lab": {"TOKEN"}, "den": nil, "none": nil} {
		got, err := a.sandboxSecrets(tool.Caller{Context: context})
		if err != nil || !slices.Equal(slices.Sorted(maps.Keys(got)), want) {
			t.Errorf("%s: %v, %v, want %v", context, got, err, want)
		}
		if s, ok := got["TOKEN"]; ok &&
			(s.Value.Reveal() != "Bearer correct horse" || !slices.Equal(s.Hosts, []string{"api.example.com"})) {
			t.Errorf("%s: it goes to %v", context, s.Hosts)
		}
	}
	if _, err := a.sandboxSecrets(tool.Caller{Context: "lost"}); err == nil {
		t.Error("a missing secret is not reported")
	}
}

// A template names an image of the host. Callers name templates and, of images, only those of registries.
func TestSandboxesRunTheImageOfTheirTemplate(t *testing.T) {
	d, err := namespaces.New(namespaces.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for _, f := range d.Doctor(t.Context()) {
		if f.Needed && !f.OK {
			t.Skipf("%s: %s; %s", f.Name, f.Detail, f.Remedy)
		}
	}
	root := sandboxtest.SmallImage(t)
	cfg := settings(t)
	cfg.Folders.Cache = t.TempDir()
	cfg.Contexts = []config.Context{{Name: "lab", Modules: []string{"sandbox"}}}
	s := &cfg.Modules.Sandbox
	s.Pool.Enabled, s.Driver, s.CallersImages, s.Registries = false, "namespaces", true, []string{"images.example.com"}
	s.Templates = []manager.TemplateSettings{
		{Name: "tiny", Image: "dir:" + root},
		{Name: "gone", Image: "dir:" + root + "/nowhere"},
	}
	_, client := liveOn(t, cfg, Options{})
	ann := client("ann")
	for _, c := range []struct{ args, want string }{
		{`{"template":"tiny"}`, "ID=tiny"},
		{`{"template":"gone"}`, "nowhere"},
		{fmt.Sprintf(`{"image":%q}`, "dir:"+root), "only templates can name files"},
		{`{"image":"other.example.com/x:1"}`, "the registry is not allowed"},
	} {
		made := ann.call("lab", "sandbox_create", c.args)
		if _, id, ok := strings.Cut(made, `"sandbox_id":"`); ok {
			id, _, _ = strings.Cut(id, `"`)
			made = ann.call("lab", "sandbox_exec", fmt.Sprintf(`{"sandbox_id":%q,"command":"cat /etc/os-release"}`, id))
		}
		if !strings.Contains(made, c.want) {
			t.Errorf("%s: %s, want %s", c.args, made, c.want)
		}
	}
	// For an image without an interpreter the error names what is missing and what to do, and nothing about the
	// host's programs.
	var box struct {
		ID string `json:"sandbox_id"`
	}
	if err := json.Unmarshal(ann.toolResult("lab", "sandbox_create",
		`{"template":"tiny"}`).StructuredContent, &box); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ tool, args, program, such string }{
		{"sandbox_run", `{"sandbox_id":%q,"language":"python","code":"1"}`, "python3", "python:3-slim"},
		{"sandbox_run", `{"sandbox_id":%q,"language":"node","code":"1"}`, "node", "node:lts-slim"},
		{"sandbox_context", `{"sandbox_id":%q,"action":"create","language":"python"}`, "python3", "python:3-slim"},
	} {
		got := ann.toolResult("lab", c.tool, fmt.Sprintf(c.args, box.ID))
		text := got.Content[0].Text
		for _, w := range []string{
			"not_found: ", "program " + c.program + " does not exist in the sandbox",
			"has only the programs of the image of the template tiny, and " + c.program + " is not among them",
			"such as " + c.such,
		} {
			if !got.IsError || !strings.Contains(text, w) {
				t.Errorf("%s %s: %q, want %q", c.tool, c.args, text, w)
			}
		}
		if strings.Contains(text, "of the host") || strings.Contains(text, root) {
			t.Errorf("%s %s: %q tells of the host", c.tool, c.args, text)
		}
	}
}
