package identity

import (
	"cmp"
	"crypto/rand"
	"html"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// page shows the consent page, or only a message if the request itself is wrong (status 400). Everything that a
// client says of itself is text. The page has no script, and nothing may frame it.
func (a *authServer) page(w http.ResponseWriter, status int, q *authRequest, message string) {
	nonce := rand.Text()
	target := "'self'"
	if u, err := url.Parse(q.redirect); err == nil && q.redirect != "" && status != 400 {
		// The answer to the form sends the browser there, which this rule covers as well.
		if target += " " + u.Scheme + ":"; u.Host != "" && u.Scheme != "" &&
			(u.Scheme == "https" || u.Scheme == "http") {
			target = "'self' " + u.Scheme + "://" + u.Host
		}
	}
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Security-Policy",
		"default-src 'none'; style-src 'nonce-"+nonce+"'; base-uri 'none'; frame-ancestors 'none'; form-action "+target)
	h.Set("X-Frame-Options", "DENY")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "same-origin") // with no-referrer, browsers send the form with Origin: null
	w.WriteHeader(status)
	var b strings.Builder
	b.WriteString(
		`<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">` +
			`<title>Allow a client</title><style nonce="` + nonce + `">` + authStyle +
			`</style><main><h1>gatehouse</h1>`,
	)
	if message != "" {
		b.WriteString(`<p role="alert" class="bad">` + html.EscapeString(message) + `</p>`)
	}
	if status != 400 {
		a.form(&b, q)
	}
	b.WriteString(`</main></html>`)
	w.Write([]byte(b.String()))
}

const authStyle = `:root{color-scheme:light dark}body{font:1rem/1.5 system-ui,sans-serif;margin:0}` +
	`main{max-width:26rem;margin:3rem auto;padding:0 1rem}label{display:block;margin:.75rem 0 .25rem}` +
	`input,select{font:inherit;width:100%;box-sizing:border-box;padding:.4rem}` +
	`button{font:inherit;padding:.5rem 1rem;margin:1rem .5rem 0 0}.bad{color:#b00020}` +
	`@media (prefers-color-scheme:dark){.bad{color:#ff8a80}}code{overflow-wrap:anywhere}`

// form writes the form. Its hidden fields repeat the request, which is checked again when they come back.
func (a *authServer) form(b *strings.Builder, q *authRequest) {
	esc := html.EscapeString
	name := cmp.Or(q.client.Name, q.client.ID)
	b.WriteString(`<p>The client <strong>` + esc(name) + `</strong> asks to use the tools of this host for you`)
	if q.context != "" {
		b.WriteString(` in the context <strong>` + esc(q.context) + `</strong>`)
	}
	b.WriteString(
		`. It says its name itself. The browser goes on to <code>` + esc(
			q.redirect,
		) + `</code>.</p><form method="post" action="/auth/authorize">`,
	)
	hidden := [][2]string{
		{"response_type", "code"}, {"client_id", q.client.ID}, {"redirect_uri", q.redirect}, {"state", q.state},
		{"code_challenge", q.challenge}, {"code_challenge_method", "S256"}, {"scope", strings.Join(q.scopes, " ")},
	}
	if q.context != "" {
		hidden = append(hidden, [2]string{"resource", a.issuer + "/mcp/" + q.context})
	}
	for _, f := range hidden {
		b.WriteString(`<input type="hidden" name="` + f[0] + `" value="` + esc(f[1]) + `">`)
	}
	b.WriteString(`<label for="grant">It may</label><select id="grant" name="grant">`)
	if !slices.Equal(q.scopes, []string{"read"}) {
		what := "do what you may do, without administration"
		if !slices.Contains(q.scopes, everything) {
			what = "use " + strings.Join(q.scopes, ", ")
		}
		b.WriteString(`<option value="asked">` + esc(what) + `</option>`)
	}
	b.WriteString(`<option value="read">only read</option></select>` +
		`<label for="user">User</label><input id="user" name="user" autocomplete="username" value="` +
		esc(clip(q.user)) + `" required>` +
		`<label for="password">Password</label><input id="password" name="password" type="password" autocomplete="current-password" required>` +
		`<button name="decision" value="allow">Allow</button><button name="decision" value="deny" formnovalidate>Do not allow</button></form>`)
}
