package httpserver

import (
	_ "embed"
	"html"
	nethttp "net/http"
	"strings"

	"gatehouse/internal/mcp/mcpversion"
)

//go:embed page.html
var pageText string

//go:embed page.css
var pageStyle string

// newPage returns a function that renders the page for a person who opens the server in a browser at an
// address. The page contains only what /.well-known/mcp and the handshake reveal as well. It does not
// use package html/template, because a program that executes a template is linked with every exported
// method of its types, which adds 5 MB.
func newPage(o Options) func(address string) []byte {
	version := ""
	if o.Version != "" {
		version = " <small>" + html.EscapeString(o.Version) + "</small>"
	}
	revisions := strings.Join(mcpversion.Names(), ", ")
	return func(address string) []byte {
		return []byte(strings.NewReplacer(
			"{{name}}", html.EscapeString(o.Name),
			"{{style}}", pageStyle,
			"{{version}}", version,
			"{{revisions}}", html.EscapeString(revisions),
			"{{address}}", html.EscapeString(address),
		).Replace(pageText))
	}
}

func (d *Server) showPage(w nethttp.ResponseWriter, r *nethttp.Request) {
	if _, ok := d.identify(w, r); !ok {
		return
	}
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set(
		"Content-Security-Policy",
		"default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
	)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	scheme := "http://"
	if r.TLS != nil {
		scheme = "https://"
	}
	w.Write(d.page(scheme + r.Host)) // Host has been checked
}
