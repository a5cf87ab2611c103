package http

import (
	"bytes"
	_ "embed"
	"html/template"
	nethttp "net/http"

	"gatehouse/internal/revision"
)

//go:embed page.html
var pageText string

//go:embed page.css
var pageStyle string

// renderPage makes the page a person sees who opens the server in a browser.
// It says nothing that /.well-known/mcp and the handshake do not say.
func renderPage(o Options) []byte {
	var b bytes.Buffer
	page := template.Must(template.New("page").Parse(pageText))
	err := page.Execute(&b, struct {
		Name, Version string
		CSS           template.CSS
		Revisions     []string
	}{o.Name, o.Version, template.CSS(pageStyle), revision.Names()})
	if err != nil {
		panic("http: page: " + err.Error()) // the template and its data are ours
	}
	return b.Bytes()
}

func (d *Door) showPage(w nethttp.ResponseWriter, r *nethttp.Request) {
	if _, ok := d.identify(w, r); !ok {
		return
	}
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	w.Write(d.page)
}
