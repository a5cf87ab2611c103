package web

import (
	"encoding/json"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestSourcesOfViews(t *testing.T) {
	declared := []string{
		"https://cdn.example.com", "https://cdn.example.com/", "https://*.example.com", "wss://live.example.com:8443",
		"http://cdn.example.com", "https:", "*", "'self'", "'unsafe-eval'", "data:", "https://", "https://*",
		"https://localhost",
		"https://a.localhost", "https://10.0.0.1", "https://[::1]", "https://a..b", "https://a.b/path",
		"https://a.b; script-src *",
		"https://a.b c.d", "https://tools.example.org:9000", "https://*.example.org", "https://user@a.b",
		"https://a.b:", "https://a.b:123456",
	}
	got := sources(declared, "tools.example.org:9000")
	want := []string{"https://cdn.example.com", "https://*.example.com", "wss://live.example.com:8443"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func keep(h *Handler, owner, html string) (int, string) {
	body, _ := json.Marshal(View{HTML: html, CSP: Domains{Connect: []string{"https://api.example.com"}}})
	w := httptest.NewRecorder()
	h.KeepView(w, httptest.NewRequest("POST", ViewFolder, strings.NewReader(string(body))), owner)
	var answer struct{ Address string }
	json.Unmarshal(w.Body.Bytes(), &answer)
	return w.Code, answer.Address
}

func TestAViewIsShownOnce(t *testing.T) {
	h := newHandler(t)
	_, at := keep(h, "ann", "<p>one")
	if len(at) < len(ViewFolder)+50 {
		t.Fatalf("the address is %q", at)
	}
	head := httptest.NewRecorder()
	h.ServeHTTP(head, httptest.NewRequest("HEAD", at, nil))
	first, body := get(t, h, at)
	policy := first.Header().Get("Content-Security-Policy")
	for _, want := range []string{"sandbox allow-scripts;", "default-src 'none'",
		"connect-src https://api.example.com;", "frame-ancestors 'self'"} {
		if !strings.Contains(policy, want) {
			t.Errorf("the policy lacks %s: %s", want, policy)
		}
	}
	if body != "<p>one" || strings.Contains(policy, "allow-same-origin") ||
		first.Header().Get("X-Content-Type-Options") != "nosniff" {
		t.Errorf("got %q with %v", body, first.Header())
	}
	if again, _ := get(t, h, at); again.Code != 404 {
		t.Errorf("it is shown twice: %d", again.Code)
	}
}

// The views that wait are bounded for each owner, in bytes for all, and one that is not shown is dropped.
func TestViewsThatWaitAreBounded(t *testing.T) {
	h := newHandler(t)
	var at string
	for range ownerViews {
		_, at = keep(h, "ann", "x")
	}
	if code, _ := keep(h, "ann", "x"); code != 429 {
		t.Errorf("one more is answered with %d", code)
	}
	if code, _ := keep(h, "bob", "x"); code != 200 {
		t.Errorf("another owner's is answered with %d", code)
	}
	if code, _ := keep(h, "eve", strings.Repeat("x", maxView)); code != 400 {
		t.Errorf("a body that is too large is answered with %d", code)
	}
	get(t, h, at)
	if code, _ := keep(h, "ann", "x"); code != 200 {
		t.Errorf("after one was shown, another is answered with %d", code)
	}
	_, late := keep(h, "late", "x")
	late = strings.TrimPrefix(late, ViewFolder)
	h.views.mu.Lock()
	h.views.kept[late].drop.Reset(0)
	h.views.mu.Unlock()
	for end := time.Now().Add(time.Minute); h.waits(late); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("a view that was not shown is kept")
		}
	}
}

// waits reports whether a view waits to be shown.
func (h *Handler) waits(name string) bool {
	h.views.mu.Lock()
	defer h.views.mu.Unlock()
	return h.views.kept[name] != nil
}
