// Package web serves the pages on which people see and use a host.
//
// The pages are files without data: one document, modules, styles and libraries. What they show, the
// browser gets over MCP as the person who has logged in, like any other client. So every caller may
// load them, and this package knows neither callers nor tools.
package web

import (
	"bytes"
	"compress/gzip"
	"crypto/rand"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// Folder is the path below which the files of the pages are served.
const Folder = "/ui/"

// The service worker of Web Push, and the scope that it may have besides its own folder. No page is in that scope.
const (
	pushWorker = "push.js"
	pushScope  = Folder + "push/"
)

//go:embed static
var static embed.FS

// lib has the libraries of vendor.mjs, compressed.
//
//go:embed lib
var lib embed.FS

// Handler serves GET requests for / and for what is below Folder. It is safe for concurrent use.
type Handler struct {
	files    map[string]*file // by path below the folder of this build
	folder   string           // of this build: Folder and a digest of all files
	document string           // with {{nonce}} in it
	policy   string           // likewise, of the document
	views    views
}

// file is one file that is served.
type file struct {
	mime   string
	packed func() []byte // compressed with gzip
}

// Library is an entry of lib/index.json.
type Library struct {
	Name      string            `json:"name"`
	Version   string            `json:"version"`
	Licence   string            `json:"licence"`   // as the package states it, an SPDX expression
	Integrity string            `json:"integrity"` // of the package in the registry
	Imports   map[string]string `json:"imports"`   // what modules import it as, and the file that is loaded
	Files     map[string]string `json:"files"`     // SHA-256 of each file, by its path
}

// Libraries returns what vendor.mjs has written.
func Libraries() ([]Library, error) {
	b, err := lib.ReadFile("lib/index.json")
	if err != nil {
		return nil, err
	}
	var all []Library
	if err := json.Unmarshal(b, &all); err != nil {
		return nil, fmt.Errorf("lib/index.json: %w", err)
	}
	return all, nil
}

// New returns the handler of a host with this name. An error means that the program was built from
// incomplete files.
func New(name string) (*Handler, error) {
	h := &Handler{files: map[string]*file{}}
	sum := sha256.New()
	if err := h.addFiles(static, "static", sum); err != nil {
		return nil, err
	}
	if err := h.addFiles(lib, "lib", sum); err != nil {
		return nil, err
	}
	h.folder = Folder + hex.EncodeToString(sum.Sum(nil)[:6]) + "/"
	libraries, err := Libraries()
	if err != nil {
		return nil, err
	}
	imports := map[string]string{}
	for _, l := range libraries {
		for word, at := range l.Imports {
			imports[word] = h.folder + "lib/" + at
		}
	}
	importMap, err := json.Marshal(map[string]any{"imports": imports})
	if err != nil {
		return nil, err
	}
	document, err := static.ReadFile("static/index.html")
	if err != nil {
		return nil, err
	}
	h.document = strings.NewReplacer(
		"{{name}}", html.EscapeString(name),
		"{{folder}}", h.folder,
		"{{imports}}", string(importMap),
		"{{preload}}", h.preload(),
	).Replace(string(document))
	hash := sha256.Sum256(importMap)
	h.policy = policy("'sha256-" + base64.StdEncoding.EncodeToString(hash[:]) + "'")
	return h, nil
}

// policy returns the Content-Security-Policy of the document. scripts is the source of its one inline
// script, the import map. The name of the policy for Trusted Types is that of js/trusted.js.
func policy(scripts string) string {
	return strings.Join([]string{
		"default-src 'none'",
		"script-src 'self' " + scripts,
		"style-src 'self' 'nonce-{{nonce}}'",
		"img-src 'self' data:",
		"connect-src 'self'",
		"worker-src 'self'",
		"frame-src 'self'",
		"base-uri 'none'",
		"form-action 'none'",
		"frame-ancestors 'none'",
		"require-trusted-types-for 'script'",
		"trusted-types gatehouse",
	}, "; ")
}

// addFiles adds the files of an embedded folder and writes their names and bytes to sum.
func (h *Handler) addFiles(files embed.FS, root string, sum io.Writer) error {
	return fs.WalkDir(files, root, func(at string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := files.ReadFile(at)
		if err != nil {
			return err
		}
		fmt.Fprintf(sum, "%s %d\n", at, len(b))
		sum.Write(b)
		name, packed := strings.CutSuffix(at, ".gz")
		f := &file{mime: mimeOf(name), packed: func() []byte { return b }}
		if !packed {
			f.packed = sync.OnceValue(func() []byte { return pack(b) })
		}
		h.files[strings.TrimPrefix(name, "static/")] = f
		return nil
	})
}

// preload returns links to the modules that main.js imports, itself or by others, and to their libraries, so that
// the browser need not read one to find the next.
func (h *Handler) preload() string {
	wanted := map[string]bool{}
	var follow func(name string)
	follow = func(name string) {
		b, err := static.ReadFile("static/" + name)
		if err != nil || wanted[name] {
			return
		}
		wanted[name] = true
		for _, m := range imported.FindAllSubmatch(b, -1) {
			follow(path.Join(path.Dir(name), string(m[1])))
		}
	}
	follow("js/main.js")
	var all []string
	for name := range h.files {
		if wanted[name] ||
			strings.HasPrefix(name, "lib/preact/") && strings.HasSuffix(name, ".mjs") ||
			strings.HasPrefix(name, "lib/@preact/") && strings.HasSuffix(name, ".mjs") || name == "lib/htm/htm.mjs" {
			all = append(all, `<link rel="modulepreload" href="`+h.folder+name+`">`)
		}
	}
	slices.Sort(all)
	return strings.Join(all, "\n")
}

// imported finds the modules of these pages that one of them imports before it runs.
var imported = regexp.MustCompile(`(?m)^import [^;]*"(\./[^"]+)";`)

func mimeOf(name string) string {
	switch ext := path.Ext(name); ext {
	case ".js", ".mjs":
		return "text/javascript; charset=utf-8"
	case ".json":
		return "application/json"
	case "", ".txt":
		return "text/plain; charset=utf-8"
	default:
		return mime.TypeByExtension(ext)
	}
}

func pack(b []byte) []byte {
	var out bytes.Buffer
	w, _ := gzip.NewWriterLevel(&out, gzip.BestCompression) // the level is valid
	w.Write(b)
	w.Close()
	return out.Bytes()
}

// ServeHTTP serves one request. Requests that are neither GET nor HEAD get 405.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "only GET is served here", http.StatusMethodNotAllowed)
		return
	}
	head := w.Header()
	head.Set("X-Content-Type-Options", "nosniff")
	head.Set("Referrer-Policy", "no-referrer")
	head.Set("Cross-Origin-Opener-Policy", "same-origin")
	head.Set("Cross-Origin-Resource-Policy", "same-origin")
	switch {
	case r.URL.Path == "/":
		h.serveDocument(w, r)
		return
	case strings.HasPrefix(r.URL.Path, ViewFolder):
		h.serveView(w, r)
		return
	}
	name, ok := strings.CutPrefix(r.URL.Path, h.folder)
	f := h.files[name]
	if !ok || f == nil || name == "index.html" {
		head.Set("Cache-Control", "no-store")
		http.Error(w, "there is no such file", http.StatusNotFound)
		return
	}
	head.Set("Content-Type", f.mime)
	head.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; connect-src 'self'")
	if name == pushWorker {
		head.Set("Service-Worker-Allowed", pushScope)
	}
	head.Set("Cache-Control", "public, max-age=31536000, immutable") // another build has another folder
	write(w, r, f.packed())
}

// serveDocument serves the document with a nonce of its own.
func (h *Handler) serveDocument(w http.ResponseWriter, r *http.Request) {
	nonce := rand.Text()
	head := w.Header()
	head.Set("Content-Type", "text/html; charset=utf-8")
	head.Set("Content-Security-Policy", strings.ReplaceAll(h.policy, "{{nonce}}", nonce))
	head.Set("X-Frame-Options", "DENY")
	head.Set("Cache-Control", "no-store")
	write(w, r, pack([]byte(strings.ReplaceAll(h.document, "{{nonce}}", nonce))))
}

// write sends compressed bytes, or what they hold to a client that does not accept gzip.
func write(w http.ResponseWriter, r *http.Request, packed []byte) {
	head := w.Header()
	head.Add("Vary", "Accept-Encoding")
	if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		head.Set("Content-Encoding", "gzip")
		head.Set("Content-Length", fmt.Sprint(len(packed)))
		w.Write(packed)
		return
	}
	plain, err := gzip.NewReader(bytes.NewReader(packed))
	if err == nil {
		_, err = io.Copy(w, plain)
	}
	if err != nil {
		panic(http.ErrAbortHandler) // a client that has gone
	}
}
