package web

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"io"
	"net/http/httptest"
	"path"
	"regexp"
	"strings"
	"testing"
)

func newHandler(t *testing.T) *Handler {
	t.Helper()
	h, err := New("a <name>")
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// get returns the answer to a GET, and its body decompressed.
func get(t *testing.T, h *Handler, path string) (*httptest.ResponseRecorder, string) {
	t.Helper()
	r := httptest.NewRequest("GET", path, nil)
	r.Header.Set("Accept-Encoding", "gzip, br")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	body := w.Body.Bytes()
	if w.Header().Get("Content-Encoding") == "gzip" {
		plain, err := gzip.NewReader(bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		if body, err = io.ReadAll(plain); err != nil {
			t.Fatal(err)
		}
	}
	return w, string(body)
}

var (
	nonces     = regexp.MustCompile(`'nonce-([A-Z2-7]{26})'`)
	importMaps = regexp.MustCompile(`<script type="importmap">(.*?)</script>`)
	addresses  = regexp.MustCompile(`(?:href|src)="(/ui/[^"]+)"`)
)

func TestTheDocumentAllowsOneInlineScriptAndOneNonce(t *testing.T) {
	h := newHandler(t)
	w, body := get(t, h, "/")
	policy := w.Header().Get("Content-Security-Policy")
	nonce := nonces.FindStringSubmatch(policy)
	if nonce == nil {
		t.Fatalf("no nonce in %s", policy)
	}
	if !strings.Contains(body, `<style nonce="`+nonce[1]+`">`) || strings.Contains(body, "{{") {
		t.Errorf("the document is not filled in: %s", body)
	}
	if !strings.Contains(body, "<title>a &lt;name&gt;</title>") {
		t.Errorf("the name is not escaped: %s", body)
	}
	sum := sha256.Sum256([]byte(importMaps.FindStringSubmatch(body)[1]))
	want := "script-src 'self' 'sha256-" + base64.StdEncoding.EncodeToString(
		sum[:],
	) + "'; style-src 'self' 'nonce-" + nonce[1] + "';"
	if !strings.Contains(policy, want) {
		t.Errorf("got %s, want %s in it", policy, want)
	}
	for _, never := range []string{"unsafe", "*", "http:", "https:", "blob:"} {
		if strings.Contains(policy, never) {
			t.Errorf("the policy has %s: %s", never, policy)
		}
	}
	if again, _ := get(t, h, "/"); again.Header().Get("Content-Security-Policy") == policy {
		t.Error("two responses have the same nonce")
	}
}

// The document, what it preloads and what the first view loads after it are at most 150 kB.
func TestTheFirstViewIsSmall(t *testing.T) {
	h := newHandler(t)
	w, body := get(t, h, "/")
	size := w.Body.Len()
	all := addresses.FindAllStringSubmatch(body, -1)
	all = append(all, []string{"", h.folder + "js/pages/now.js"}, []string{"", h.folder + "js/worker.js"})
	seen := map[string]bool{}
	for len(all) > 0 {
		a := all[0]
		all = all[1:]
		if seen[a[1]] {
			continue
		}
		seen[a[1]] = true
		w, body := get(t, h, a[1])
		for _, m := range imported.FindAllStringSubmatch(body, -1) {
			all = append(all, []string{"", path.Join(path.Dir(a[1]), m[1])})
		}
		if w.Code != 200 {
			t.Errorf("%s: %d", a[1], w.Code)
		}
		size += w.Body.Len()
	}
	t.Logf("%d files, %d bytes", len(seen)+1, size)
	if size > 150_000 {
		t.Errorf("the first view has %d bytes, of at most 150,000", size)
	}
}

// What lib/index.json says of the libraries is so, and each has its licence with it.
func TestLibrariesAreWhatTheIndexSays(t *testing.T) {
	h := newHandler(t)
	all, err := Libraries()
	if err != nil {
		t.Fatal(err)
	}
	listed := 0
	for _, l := range all {
		if l.Licence != "MIT" && l.Licence != "Apache-2.0" || !strings.HasPrefix(l.Integrity, "sha512-") ||
			l.Version == "" {
			t.Errorf("%+v", l)
		}
		licence := false
		for name, want := range l.Files {
			listed++
			w, body := get(t, h, h.folder+"lib/"+name)
			if sum := sha256.Sum256([]byte(body)); w.Code != 200 || hex.EncodeToString(sum[:]) != want {
				t.Errorf("%s: %d, and another digest than the index states", name, w.Code)
			}
			licence = licence || strings.Contains(name, "LICEN")
		}
		if !licence {
			t.Errorf("%s has no licence", l.Name)
		}
		for word, name := range l.Imports {
			if l.Files[name] == "" {
				t.Errorf("%s leads to %s, which is not listed", word, name)
			}
		}
	}
	served := 0
	for name := range h.files {
		if strings.HasPrefix(name, "lib/") && name != "lib/index.json" {
			served++
		}
	}
	if listed == 0 || served != listed {
		t.Errorf("%d files are served, %d are listed", served, listed)
	}
}

func TestWhatIsNotThereIsNotServed(t *testing.T) {
	h := newHandler(t)
	for _, at := range []string{"/ui/", h.folder, h.folder + "js", h.folder + "index.html", h.folder + "../web.go",
		"/ui/000000000000/app.css", "/x"} {
		if w, _ := get(t, h, at); w.Code != 404 {
			t.Errorf("GET %s: got %d, want 404", at, w.Code)
		}
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("POST", "/", nil))
	if w.Code != 405 {
		t.Errorf("POST /: got %d, want 405", w.Code)
	}
}

// A client that does not accept gzip gets the same bytes.
func TestPlainAnswers(t *testing.T) {
	h := newHandler(t)
	_, packed := get(t, h, h.folder+"app.css")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("GET", h.folder+"app.css", nil))
	if w.Header().Get("Content-Encoding") != "" || w.Body.String() != packed {
		t.Error("the plain answer differs from the compressed one")
	}
}
