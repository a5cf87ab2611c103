package web

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// ViewFolder is the path below which views of MCP Apps are kept and shown.
const ViewFolder = Folder + "view/"

const (
	viewTime   = time.Minute // until a view that was not shown is dropped
	maxView    = 8 << 20     // bytes of the body that keeps one
	ownerViews = 16          // that wait for one owner
	viewsBytes = 64 << 20    // that wait for all owners
	maxDomains = 32          // of one kind
)

// View is a document of an MCP server that a page shows in a frame, and what the server has declared about it.
type View struct {
	HTML string  `json:"html"`
	CSP  Domains `json:"csp"`
}

// Domains are the origins that a view may use, as _meta.ui.csp of its resource declares them.
type Domains struct {
	Connect  []string `json:"connectDomains"`  // fetch, WebSocket
	Resource []string `json:"resourceDomains"` // scripts, styles, images, fonts, media
	Frame    []string `json:"frameDomains"`
	BaseURI  []string `json:"baseUriDomains"`
}

// views keeps documents until they are shown, each once, at an address that cannot be guessed. The zero value is
// ready.
type views struct {
	mu    sync.Mutex
	kept  map[string]*keptView // by what follows ViewFolder
	bytes int
}

type keptView struct {
	owner, policy string
	html          []byte
	drop          *time.Timer
}

// errFull is the answer to a caller whose views are not shown.
var errFull = errors.New("too many views wait to be shown: try again in a minute")

// storeView keeps a view and returns its address.
func (v *views) storeView(owner, policy, html string) (string, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	mine := 0
	for _, k := range v.kept {
		if k.owner == owner {
			mine++
		}
	}
	if mine >= ownerViews || v.bytes+len(html) > viewsBytes {
		return "", errFull
	}
	name := rand.Text() + rand.Text()
	if v.kept == nil {
		v.kept = map[string]*keptView{}
	}
	v.bytes += len(html)
	v.kept[name] = &keptView{owner, policy, []byte(html), time.AfterFunc(viewTime, func() { v.take(name) })}
	return ViewFolder + name, nil
}

// take returns the view of a name and forgets it; nil if there is none.
func (v *views) take(name string) *keptView {
	v.mu.Lock()
	defer v.mu.Unlock()
	k := v.kept[name]
	if k != nil {
		k.drop.Stop()
		v.bytes -= len(k.html)
		delete(v.kept, name)
	}
	return k
}

// KeepView serves a POST of a View by owner, whom the server has identified, and answers with the address at which
// the view can be read once, within a minute. It reads nothing but the body: the page has got the document over MCP.
func (h *Handler) KeepView(w http.ResponseWriter, r *http.Request, owner string) {
	w.Header().Set("Cache-Control", "no-store")
	var view View
	body := http.MaxBytesReader(w, r.Body, maxView)
	if err := json.NewDecoder(body).Decode(&view); err != nil {
		http.Error(w, "the body is not a view of at most 8 MiB: "+err.Error(), http.StatusBadRequest)
		return
	}
	io.Copy(io.Discard, body) // what follows the document is not used
	address, err := h.views.storeView(owner, viewPolicy(view.CSP, r.Host), view.HTML)
	if err != nil {
		w.Header().Set("Retry-After", "60")
		http.Error(w, err.Error(), http.StatusTooManyRequests)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	reaches := append(sources(view.CSP.Connect, r.Host), sources(view.CSP.Resource, r.Host)...)
	reaches = append(reaches, sources(view.CSP.Frame, r.Host)...)
	slices.Sort(reaches)
	json.NewEncoder(w).Encode(struct {
		Address string   `json:"address"`
		Reaches []string `json:"reaches"` // the declared origins that the policy admits
	}{address, slices.Compact(reaches)})
}

// serveView shows a view. Its origin is opaque, so that it has no cookies, no storage and no document of this host.
func (h *Handler) serveView(w http.ResponseWriter, r *http.Request) {
	head := w.Header()
	head.Set("Cache-Control", "no-store")
	head.Set("X-DNS-Prefetch-Control", "off")
	head.Set("Permissions-Policy", "camera=(), microphone=(), geolocation=(), clipboard-read=(), payment=(), usb=()")
	head.Del("Cross-Origin-Opener-Policy") // of documents that are not in a frame
	var k *keptView
	if r.Method == http.MethodGet {
		k = h.views.take(strings.TrimPrefix(r.URL.Path, ViewFolder))
	}
	if k == nil {
		head.Set("Content-Security-Policy", "sandbox; default-src 'none'; frame-ancestors 'self'")
		http.Error(w, "there is no such view: each is shown once, within a minute", http.StatusNotFound)
		return
	}
	head.Set("Content-Type", "text/html; charset=utf-8")
	head.Set("Content-Security-Policy", k.policy)
	w.Write(k.html)
}

// viewPolicy returns the Content-Security-Policy of a view. here is the Host of the listener, which no view may
// reach.
func viewPolicy(d Domains, here string) string {
	resources := sources(d.Resource, here)
	or := func(list []string, none string) string {
		if len(list) == 0 {
			return none
		}
		return strings.Join(list, " ")
	}
	with := func(words string) string { return strings.Join(append([]string{words}, resources...), " ") }
	return strings.Join([]string{
		"sandbox allow-scripts",
		"default-src 'none'",
		"script-src " + with("'unsafe-inline'"),
		"style-src " + with("'unsafe-inline'"),
		"img-src " + with("data: blob:"),
		"font-src " + with("data:"),
		"media-src " + with("data: blob:"),
		"connect-src " + or(sources(d.Connect, here), "'none'"),
		"frame-src " + or(sources(d.Frame, here), "'none'"),
		"base-uri " + or(sources(d.BaseURI, here), "'none'"),
		"object-src 'none'",
		"form-action 'none'",
		"frame-ancestors 'self'",
		"webrtc 'block'",
	}, "; ")
}

// sources returns the declared origins that a policy may have: https and wss with a public-looking name, and not
// this host. What else is declared is left out, so that it cannot be used.
func sources(declared []string, here string) []string {
	all := []string{}
	for _, s := range declared {
		if len(all) == maxDomains {
			break
		}
		if s = strings.ToLower(strings.TrimSuffix(s, "/")); isSource(s, here) && !slices.Contains(all, s) {
			all = append(all, s)
		}
	}
	return all
}

// isSource reports whether s is https://name[:port] or wss://name[:port], where name has a dot, is no address and
// may begin with "*.".
func isSource(s, here string) bool {
	rest, ok := strings.CutPrefix(s, "https://")
	if !ok {
		if rest, ok = strings.CutPrefix(s, "wss://"); !ok {
			return false
		}
	}
	name, port, hasPort := strings.Cut(rest, ":")
	if hasPort && (port == "" || len(port) > 5 || strings.Trim(port, "0123456789") != "") {
		return false
	}
	own, _, err := net.SplitHostPort(here)
	if err != nil {
		own = here
	}
	bare := strings.TrimPrefix(name, "*.")
	own = strings.ToLower(own)
	if bare == own || name != bare && strings.HasSuffix(own, "."+bare) {
		return false
	}
	labels := strings.Split(bare, ".")
	last := labels[len(labels)-1]
	return len(labels) > 1 && len(bare) <= 253 && last != "localhost" && strings.Trim(last, "0123456789") != "" &&
		!slices.Contains(labels, "") && strings.Trim(bare, "abcdefghijklmnopqrstuvwxyz0123456789-.") == ""
}
