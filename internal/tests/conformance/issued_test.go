package conformance

import (
	"context"
	"encoding/json"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"gatehouse/internal/tests/oauthtest"
)

// issued is the output of a client that was allowed by the host itself.
type issued struct{ Read, Again, First, Second, Scope string }

func (i issued) holds(t *testing.T) {
	t.Helper()
	if !strings.Contains(i.Read, "hello") || !strings.Contains(i.Again, "hello") ||
		i.Scope != "* read" && i.Scope != "read *" && i.Scope != "*" { // clients ask for them in any order
		t.Errorf("it got %+v", i)
	}
	if !strings.HasPrefix(i.First, "gh_") || !strings.HasPrefix(i.Second, "gh_") || i.First == i.Second {
		t.Errorf("it was not given a fresh token: %s, %s", i.First, i.Second)
	}
}

// The official TypeScript client finds the host's own authorization server, registers, is allowed by its user, and
// refreshes its token, in both eras.
func TestTypeScriptClientIsIssuedTokens(t *testing.T) {
	h := needFixture(t)
	for _, mode := range []string{"legacy", "modern"} {
		t.Run(mode, func(t *testing.T) {
			up := oauthtest.NewIssuer(t)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			script := h.tools.Script("issued.mjs")
			out := output(t,
				h.tools.Command(ctx, t.TempDir(), script, mode, up.URL, oauthtest.User, oauthtest.Password))
			var got issued
			if err := json.Unmarshal(out, &got); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			got.holds(t)
		})
	}
}

// The official Python client does the same.
func TestPythonClientIsIssuedTokens(t *testing.T) {
	needFixture(t)
	python, err := needPython(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	top, err := Top()
	if err != nil {
		t.Fatal(err)
	}
	up := oauthtest.NewIssuer(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	script := filepath.Join(top, "internal", "tests", "conformance", "python", "issued.py")
	out := output(t, exec.CommandContext(ctx, python, script, up.URL, oauthtest.User, oauthtest.Password))
	var got issued
	if err := json.Unmarshal(out, &got); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	got.holds(t)
}

// The official Go client does the same, in both eras.
func TestGoSDKClientIsIssuedTokens(t *testing.T) {
	bin := buildGoSDK(t)
	for _, revision := range []string{"2025-11-25", modernRevision} {
		t.Run(revision, func(t *testing.T) {
			up := oauthtest.NewIssuer(t)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			out := output(t,
				exec.CommandContext(ctx, bin, "issued", revision, up.URL, oauthtest.User, oauthtest.Password))
			var got issued
			if err := json.Unmarshal(out, &got); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			got.holds(t)
		})
	}
}
