package conformance

import (
	"context"
	"encoding/json"
	"gatehouse/internal/tests/oauthtest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// admitted is the output of a client that has logged in.
type admitted struct {
	Era, Revision, Read, Again, Written, Client string
	Before, After, Steps                        []string
}

func (a admitted) holds(t *testing.T, folder string) {
	t.Helper()
	if b, err := os.ReadFile(filepath.Join(folder, "b.txt")); err != nil || string(b) != "written" {
		t.Errorf("b.txt holds %q, %v", b, err)
	}
	if !strings.Contains(a.Read, "hello") || !strings.Contains(a.Again, "hello") ||
		!strings.Contains(a.Written, "written") {
		t.Errorf("it read %q, %q and %q", a.Read, a.Again, a.Written)
	}
	if slices.Contains(a.Before, "file_write") || !slices.Contains(a.Before, "file_read") ||
		!slices.Contains(a.After, "file_write") {
		t.Errorf("it was shown %v, and then %v", a.Before, a.After)
	}
}

// took compares the steps of a client with those that it should take. It ignores steps that differ between clients:
// finding the provider again, and trying how the provider authenticates clients.
func (a admitted) took(t *testing.T, want ...string) {
	t.Helper()
	var got []string
	asked := false
	for _, s := range a.Steps {
		asked = asked || strings.HasPrefix(s, "403 ")
		again := asked && (strings.HasPrefix(s, "metadata ") || strings.HasPrefix(s, "registration "))
		if !again && !strings.HasPrefix(s, "token authorization_code 400") {
			got = append(got, inOrder(s))
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("its steps were\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// inOrder sorts the scopes of a step, because they are a set that clients write in any order (RFC 6749, section
// 3.3).
func inOrder(step string) string {
	before, rest, ok := strings.Cut(step, "[")
	scopes, after, closed := strings.Cut(rest, "]")
	if !ok || !closed {
		return step
	}
	return before + "[" + strings.Join(slices.Sorted(slices.Values(strings.Fields(scopes))), " ") + "]" + after
}

// Steps that every client takes.
var (
	found = []string{"401  [mcp.read]", "metadata 200"}
	letIn = []string{
		"authorize [mcp.read offline_access] S256 for the resource",
		"token authorization_code 200 for the resource",
	}
	letMore = []string{"- a tool that needs more", "403 insufficient_scope [mcp.read mcp.write]",
		"authorize [mcp.read mcp.write offline_access] S256 for the resource",
		"token authorization_code 200 for the resource"}
)

// registered is a step of clients that no document describes.
func registered(known string) []string {
	if known == "registers" {
		return []string{"registration 201"}
	}
	return nil
}

// The official TypeScript client finds the provider from a 401, is known to it in both ways, is admitted, refreshes
// its token, and requests another scope when it needs it, in both eras.
func TestTypeScriptClientWithOAuth(t *testing.T) {
	h := needFixture(t)
	for _, mode := range []string{"legacy", "modern"} {
		for _, known := range []string{"registers", "document"} {
			t.Run(mode+" "+known, func(t *testing.T) {
				up := oauthtest.NewHost(t)
				url, folder := up.URL, up.Folder
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				out := output(t, h.tools.Command(ctx, t.TempDir(), h.tools.Script("oauth.mjs"), mode, known, url))
				var got admitted
				if err := json.Unmarshal(out, &got); err != nil {
					t.Fatalf("%v: %s", err, out)
				}
				got.holds(t, folder)
				bad := []string{
					"- the token goes bad",
					"401 invalid_token [mcp.read]",
					"token refresh_token 200 for the resource",
				}
				got.took(t, slices.Concat(found, registered(known), letIn, bad, letMore)...)
				t.Logf("%s %s, as %s:\n%s", got.Era, got.Revision, got.Client, strings.Join(got.Steps, "\n"))
			})
		}
	}
}

// The official Go client does the same.
func TestGoSDKClientWithOAuth(t *testing.T) {
	needFixture(t)
	bin := buildGoSDK(t)
	for _, revision := range []string{"2025-11-25", modernRevision} {
		for _, known := range []string{"registers", "document"} {
			t.Run(revision+" "+known, func(t *testing.T) {
				up := oauthtest.NewHost(t)
				url, folder := up.URL, up.Folder
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				out := output(t, exec.CommandContext(ctx, bin, "oauth", revision, known, url))
				var got admitted
				if err := json.Unmarshal(out, &got); err != nil {
					t.Fatalf("%v: %s", err, out)
				}
				got.holds(t, folder)
				fresh := []string{"token refresh_token 200"}
				got.took(t, slices.Concat(found, registered(known), letIn, fresh, letMore, fresh)...)
				t.Logf("%s, as %s:\n%s", got.Revision, got.Client, strings.Join(got.Steps, "\n"))
			})
		}
	}
}
