package conformance

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"net/http"
	"net/url"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"gatehouse/internal/tests/oauthtest"
)

// The official scenarios of authorization servers pass against the host's own, in each revision that has them: the
// metadata, and a code grant in which a user allows the client on the consent page.
func TestAuthorizationScenarios(t *testing.T) {
	h := needFixture(t)
	for _, revision := range []string{"2025-11-25", modernRevision} {
		t.Run(revision, func(t *testing.T) {
			up := oauthtest.NewIssuer(t)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			port, err := freePort()
			if err != nil {
				t.Fatal(err)
			}
			client := registerClient(t, up.Issuer, fmt.Sprintf("http://127.0.0.1:%d/callback", port))
			out := t.TempDir()
			cmd := h.tools.Command(ctx, out, h.tools.Script("node_modules", "conformance-0.2", "dist", "index.js"),
				"authorization", "--url", up.Issuer, "--client-id", client, "--resource", up.URL, "-p", fmt.Sprint(port),
				"--spec-version", revision, "-o", out)
			said := allowWhatIsAsked(t, ctx, cmd, up.Issuer)
			for _, scenario := range []string{"authorization-server-metadata-endpoint", "authorization-code-grant"} {
				if !strings.Contains(said, "=== Running scenario: "+scenario) {
					t.Errorf("%s was not run", scenario)
				}
			}
			for _, c := range recordedChecks(t, out) {
				if c.Status != "SUCCESS" {
					t.Errorf("%s %s: %s", c.Status, c.ID, c.Message)
				}
			}
			if t.Failed() {
				t.Logf("the suite said: %s", said)
			}
		})
	}
}

// registerClient registers a client at an authorization server and returns its id.
func registerClient(t *testing.T, issuer, redirect string) string {
	t.Helper()
	body, _ := json.Marshal(map[string]any{"client_name": "suite", "redirect_uris": []string{redirect}})
	resp, err := http.Post(issuer+"/auth/register", "application/json", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var made struct {
		ID string `json:"client_id"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&made); err != nil || made.ID == "" {
		t.Fatalf("registration: %s, %v", resp.Status, err)
	}
	return made.ID
}

// allowWhatIsAsked runs a suite, has the user allow the client at the address that it prints, and returns its output.
func allowWhatIsAsked(t *testing.T, ctx context.Context, cmd *exec.Cmd, issuer string) string {
	t.Helper()
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var printed strings.Builder
	lines := bufio.NewScanner(pipe)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		printed.WriteString(lines.Text() + "\n")
		if strings.HasPrefix(lines.Text(), issuer+"/auth/authorize?") {
			if err := consent(ctx, lines.Text()); err != nil {
				t.Error(err)
				cmd.Cancel()
			}
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("the suite: %v", err)
	}
	return printed.String() + said.String()
}

var hiddenField = regexp.MustCompile(`<input type="hidden" name="([^"]*)" value="([^"]*)">`)

// consent is the browser of a user who allows the client on the consent page, and goes where that leads.
func consent(ctx context.Context, address string) error {
	get, err := http.NewRequestWithContext(ctx, "GET", address, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(get)
	if err != nil {
		return err
	}
	page, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	if err != nil {
		return err
	}
	form := url.Values{
		"grant": {"asked"}, "user": {oauthtest.User}, "password": {oauthtest.Password}, "decision": {"allow"},
	}
	for _, m := range hiddenField.FindAllStringSubmatch(string(page), -1) {
		form.Set(m[1], html.UnescapeString(m[2]))
	}
	to := get.URL.ResolveReference(&url.URL{Path: "/auth/authorize"})
	post, err := http.NewRequestWithContext(ctx, "POST", to.String(), strings.NewReader(form.Encode()))
	if err != nil {
		return err
	}
	post.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	post.Header.Set("Origin", to.Scheme+"://"+to.Host)
	resp, err = http.DefaultClient.Do(post)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if body, _ := io.ReadAll(resp.Body); resp.StatusCode != 200 || resp.Request.URL.Path != "/callback" {
		return fmt.Errorf("the consent page answered %s at %s: %s", resp.Status, resp.Request.URL, body)
	}
	return nil
}
