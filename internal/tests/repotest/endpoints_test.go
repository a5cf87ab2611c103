package repotest

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"gatehouse"
)

// Every endpoint marked as present is requested. An empty request may be wrong there, but there must be a server.
func TestEndpointsListedAsPresentAnswer(t *testing.T) {
	s, err := gatehouse.New(gatehouse.WithWorkspaceRoot(t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(s.Handler())
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := s.Shutdown(ctx); err != nil {
			t.Error(err)
		}
		server.Close()
	})
	for _, e := range coverage(t) {
		if e.kind != "endpoint" || e.status != "present" {
			continue
		}
		method, _, ok := strings.Cut(e.name, " ")
		if !ok {
			t.Errorf("docs/coverage.md:%d: endpoint %s does not say its method", e.line, e.name)
			continue
		}
		for _, path := range e.ourNames() {
			switch status := knock(t, method, server.URL+path); {
			case status == http.StatusNotFound, status == http.StatusMethodNotAllowed, status >= 500:
				t.Errorf(
					"docs/coverage.md:%d: %s is listed as present, but %s %s answers %d",
					e.line,
					e.name,
					method,
					path,
					status,
				)
			}
		}
	}
	if status := knock(t, "GET", server.URL+"/attic"); status != http.StatusNotFound {
		t.Errorf("GET /attic answers %d, want 404: this test could not fail", status)
	}
}

func knock(t *testing.T, method, url string) (status int) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	return resp.StatusCode
}
