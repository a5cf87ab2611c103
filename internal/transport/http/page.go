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

// newPage makes the page a person sees who opens the server in a browser at an
// address. It says nothing that /.well-known/mcp and the handshake do not say.
func newPage(o Options) func(address string) []byte {
	page := template.Must(template.New("page").Parse(pageText))
	return func(address string) []byte {
		var b bytes.Buffer
		err := page.Execute(&b, struct {
			Name, Version, Address string
			CSS                    template.CSS
			Revisions              []string
		}{o.Name, o.Version, address, template.CSS(pageStyle), revision.Names()})
		if err != nil {
			panic("http: page: " + err.Error()) // the template is ours, and data are strings
		}
		return b.Bytes()
	}
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
	scheme := "http://"
	if r.TLS != nil {
		scheme = "https://"
	}
	w.Write(d.page(scheme + r.Host)) // which has been checked
}
